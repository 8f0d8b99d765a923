#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command from outside: what it prints, writes and returns, for good and bad input.

    commands.py QUERN [NAME...]

Works in a temporary folder; only the standard library is needed.
"""
import json
import math
import os
import pty
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

QUERN = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "quern"
COMMANDS = ["info", "demo", "quantize", "pack", "inspect", "compare", "run", "bench", "explain",
            "tune"]
# One line, "quern: what: why; what to do".
COMPLAINT = re.compile(r"^quern: .+: .+; .+$")
CODES = {"F32": "f", "F16": "e", "I32": "i", "I64": "q", "U8": "B", "I8": "b"}


def quern(*words, status=0, **more):
    """Run it; the exit status must be the one expected. Standard output, and error as .err."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **more.pop("env", {})}
    done = subprocess.run([QUERN, *map(str, words)], capture_output=True, text=True, timeout=280,
                          env=environment, **more)
    if done.returncode != status:
        raise AssertionError(f"quern {' '.join(map(str, words))}: status {done.returncode}, "
                             f"expected {status}\n{done.stdout[-800:]}\n{done.stderr[-800:]}")
    return Output(done.stdout, done.stderr)


class Output(str):
    def __new__(cls, text, err):
        self = super().__new__(cls, text)
        self.err = err
        return self


def safetensors(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, values)}; BF16 values are given as floats."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        if dtype == "BF16":
            raw = b"".join(struct.pack("<f", v)[2:] for v in values)
        else:
            raw = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def npy_write(path, shape, values, code="f4"):
    header = f"{{'descr': '<{code}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    if len(shape) == 1:
        header = header.replace(repr(tuple(shape)), f"({shape[0]},)")
    header += " " * (-(len(header) + 11) % 64) + "\n"
    kind = {"f4": "f", "i1": "b", "i4": "i"}[code]
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                   struct.pack(f"<{len(values)}{kind}", *values))


def npy_read(path):
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<H", raw[8:10])[0]
    header = raw[10:10 + length].decode()
    shape = [int(n) for n in re.search(r"'shape': \(([^)]*)\)", header)[1].split(",") if n.strip()]
    kind = {"<f4": "f", "<f2": "e", "<i4": "i", "|i1": "b", "|u1": "B"}[
        re.search(r"'descr': '([^']*)'", header)[1]]
    count = math.prod(shape)
    return shape, list(struct.unpack(f"<{count}{kind}", raw[10 + length:][:count *
                                                            struct.calcsize(kind)]))


def normal(count, seed=1, size=0.02):
    source = random.Random(seed)
    return [struct.unpack("<e", struct.pack("<e", source.gauss(0, size)))[0] for _ in range(count)]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.old = os.getcwd()
        os.chdir(self.folder)

    def tearDown(self):
        os.chdir(self.old)
        subprocess.run(["chmod", "-R", "u+w", self.folder], check=False)
        shutil.rmtree(self.folder)

    def complains(self, *words, status, says=(), **more):
        out = quern(*words, status=status, **more)
        lines = out.err.strip().split("\n")
        self.assertRegex(lines[-1], COMPLAINT)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, lines[-1])
        return lines[-1]

    def model(self, path="model.safetensors"):
        safetensors(path, {
            "embed.weight": ("F16", [40, 64], normal(2560, 2)),
            "layers.0.up.weight": ("F16", [48, 160], normal(7680, 3)),
            "layers.0.down.weight": ("BF16", [64, 96], [
                struct.unpack("<f", b"\0\0" + struct.pack("<f", v)[2:])[0]
                for v in normal(6144, 4)]),
            "layers.0.conv.weight": ("F32", [16, 8, 3, 3], normal(1152, 5)),
            "layers.0.depthwise.weight": ("F32", [8, 1, 3, 3], normal(72, 6)),
            "layers.0.norm.weight": ("F32", [64], normal(64, 7, 1)),
            "steps": ("I64", [2, 2], [1, 2, 3, 4]),
        }, {"format": "pt"})
        return path


class Help(Case):
    def test_commands(self):
        text = quern("help")
        for name in COMMANDS:
            self.assertIn(f"  {name} ", text)
            page = quern("help", name)
            self.assertEqual(page, quern(name, "--help"))
            self.assertIn("Examples", page)
            for line in page.split("Examples")[0].split("\n"):
                self.assertLessEqual(len(line), 100)
        self.assertRegex(quern("--version"), r"^quern \d+\.\d+\.\d+ \(\S+\)$")
        quern(status=2)

    def test_examples_parse(self):
        """No example uses an option that does not exist."""
        known = {}
        for line in quern("--dump-options").splitlines():
            command, option, _ = line.split("\t")
            known.setdefault(command, set()).add(option)
        letters = {}
        for name in COMMANDS:
            page = quern("help", name)
            letters[name] = set(re.findall(r"^  (-\w), ", page, re.M))
            for line in re.findall(r"^  (quern \w+ .*)$", page.split("Examples")[1], re.M):
                for word in line.split()[2:]:
                    option = word.split("=")[0]
                    if re.match(r"--[a-z]", option):
                        self.assertIn(option, known[name], line)
                    elif re.match(r"-[a-z]$", option):
                        self.assertIn(option, letters[name], line)

    def test_usage(self):
        self.complains("bnech", status=2, says="perhaps bench")
        self.complains("--frob", status=2)
        self.complains("bench", "--frob", status=2, says="--frob")
        self.complains("bench", "--n", status=2, says="--n")
        self.complains("bench", "--n", "x", "--k", "4", status=2, says="'x'")
        self.complains("bench", "--n", "4", status=2, says="--k")
        self.complains("bench", "--n", "4", "--k", "4", "--m", "1,,x", status=2)
        self.complains("bench", "--layers", "gpt9", status=2, says="gpt9")
        self.complains("bench", "--n", "4", "--k", "4", "--weights", "int9", status=2, says="int9")
        self.complains("bench", "--n", "4", "--k", "4", "--strategy", "fast", status=2,
                       says="int8-block")
        self.complains("bench", "--n", "4", "--k", "4", "--isa", "avx9", status=2, says="avx9")
        self.complains("bench", "--n", "4", "--k", "4", "--device", "tpu", status=2)
        self.complains("bench", "--n", "4", "--k", "4", "--device", "cuda:0", status=4)
        self.complains("info", "extra", status=2, says="extra")
        self.complains("inspect", status=2)
        self.complains("quantize", "a", "--scheme", "odd", status=2, says="sym|zp|off")
        self.complains("bench", "--op", "conv2d", "--n", "4", "--ci", "4", "--size", "2x2",
                       "--kernel-size", "5x5", status=2, says="5x5")
        self.complains("info", "-q", status=2, env={"QUERN_ISA": "avx9"}, says="QUERN_ISA")
        self.complains("info", "-q", status=2, env={"QUERN_THREADS": "many"},
                       says="QUERN_THREADS")


class Terminal(Case):
    def on_terminal(self, *words, **environment):
        """What a person sees: standard output is a pseudo terminal."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([QUERN, *words], stdout=follower, stderr=follower,
                                   env=dict(os.environ, LC_ALL="C.UTF-8", TERM="xterm",
                                            **environment))
        os.close(follower)
        seen = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        os.close(leader)
        self.assertEqual(process.wait(), 0)
        return seen.decode()

    def test_color(self):
        self.assertNotIn("\033", quern("help"))
        self.assertIn("\033[", self.on_terminal("help"))
        self.assertNotIn("\033", self.on_terminal("help", NO_COLOR="1"))
        self.model()
        self.assertIn("\033[", quern("inspect", "model.safetensors", "--color", "always"))
        self.assertNotIn("\033", self.on_terminal("inspect", "model.safetensors", "--color",
                                                  "never"))

    def test_progress(self):
        self.model()
        seen = self.on_terminal("quantize", "model.safetensors", "-o", "a.safetensors")
        self.assertIn("\r", seen)
        out = quern("quantize", "model.safetensors", "-o", "b.safetensors")
        self.assertNotIn("\r", out + out.err)
        self.assertIn("[7/7]", out.err)
        out = quern("quantize", "model.safetensors", "-o", "c.safetensors", "--quiet")
        self.assertEqual(out + out.err, "")

    def test_ascii(self):
        self.model()
        quern("quantize", "model.safetensors", "-o", "a.safetensors", "-q")
        text = quern("inspect", "a.safetensors", "*up*", env={"LC_ALL": "C"})
        self.assertTrue(text.isascii())
        self.assertFalse(quern("inspect", "a.safetensors", "*up*").isascii())

    def test_full_disk_behind_a_pipe(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([QUERN, "help"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  check=False)
        self.assertEqual(done.returncode, 4)
        self.assertRegex(done.stderr.strip(), COMPLAINT)


class Info(Case):
    def test_json(self):
        facts = json.loads(quern("info", "--json"))
        cpu = facts["devices"][0]
        self.assertEqual(cpu["device"], "cpu")
        self.assertGreater(cpu["bytes_per_s"], 1e8)
        for peak in ("f32", "bf16", "int8"):
            self.assertGreater(cpu["peak_ops_per_s"][peak], 1e8)
        self.assertIn("scalar", facts["kernels"])
        self.assertIn("q4_k", facts["formats"])

    def test_environment(self):
        cpu = json.loads(quern("info", "--json", "-q", env={
            "QUERN_ISA": "portable", "QUERN_THREADS": "1"}))["devices"][0]
        self.assertEqual((cpu["isa"], cpu["threads"]), ([], 1))
        cpu = json.loads(quern("info", "--json", "-q", "--threads", "2", env={
            "QUERN_THREADS": "1"}))["devices"][0]
        self.assertEqual(cpu["threads"], 2)
        text = quern("info", "-q", "--isa", "portable")
        self.assertIn("portable", text)


class Quantize(Case):
    def test_defaults(self):
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors")
        tensors = {t["name"]: t for t in json.loads(quern("inspect", "q.safetensors", "--json"))[
            "tensors"]}
        self.assertEqual({n for n, t in tensors.items() if "format" in t}, {
            "embed.weight", "layers.0.up.weight", "layers.0.down.weight", "layers.0.conv.weight",
            "layers.0.depthwise.weight"})
        self.assertEqual(tensors["layers.0.up.weight"]["format"], "int4:g128")
        conv = tensors["layers.0.conv.weight"]
        self.assertEqual([conv[key] for key in ("n", "k", "kh", "kw", "conv_groups")],
                         [16, 72, 3, 3, 1])
        self.assertEqual(tensors["layers.0.depthwise.weight"]["conv_groups"], 8)
        self.assertEqual(tensors["steps"]["dtype"], "I64")
        self.assertIn("format = pt", quern("inspect", "q.safetensors"))

    def test_formats(self):
        self.model()
        for words, least in (
                (["--bits", 8, "--group", "pc"], 38), (["--bits", 8], 38),
                (["--scheme", "zp", "--group", 32], 17), (["--scheme", "off", "--group", 32], 17),
                (["--bits", 3, "--group", 32], 10), (["--format", "nf4:g64"], 17),
                (["--format", "fp8:pc"], 26), (["--format", "int4:c8"], 12),
                (["--method", "search", "--group", 32], 17), (["--range", "half"], 15)):
            with self.subTest(words=words):
                quern("quantize", "model.safetensors", "-o", "q.safetensors", "--force", "-q",
                      "-e", "*depthwise*", *words)
                out = quern("compare", "q.safetensors", "--original", "model.safetensors",
                            "--min-sqnr", least, "--json")
                rows = {t["name"]: t for t in json.loads(out)["tensors"]}
                self.assertEqual(len(rows), 7)
                self.assertTrue(rows["steps"]["equal"])
                self.assertTrue(rows["layers.0.norm.weight"]["equal"])
                self.assertFalse(rows["layers.0.conv.weight"]["equal"])

    def test_dry_run(self):
        self.model()
        for words in ([], ["--format", "int4:g32:zp"], ["--format", "int8:pc"],
                      ["--format", "int4:g64:off:f16"]):
            plan = json.loads(quern("quantize", "model.safetensors", "--dry-run", "--json", *words))
            self.assertEqual(os.listdir("."), ["model.safetensors"])
            quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q", *words)
            true = sum(t["bytes"] for t in json.loads(quern("inspect", "q.safetensors", "--json"))[
                "tensors"])
            self.assertLess(abs(plan["bytes_after"] / true - 1), 0.02, words)
            os.remove("q.safetensors")
        text = quern("quantize", "model.safetensors", "--dry-run")
        self.assertIn("copied: neither 2-d nor 4-d", text)
        self.assertIn("8 groups", text)

    def test_patterns(self):
        self.model()
        out = json.loads(quern("quantize", "model.safetensors", "-o", "q.safetensors", "--json",
                               "-q", "-i", "layers.*", "-i", "steps", "-e", "*.up.*"))
        self.assertEqual(out["quantized"], 3)
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "-i", "lay",
                       status=2, says="lay")
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "-e", "[", status=2)
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "-i", "steps",
                       status=3)
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "--conv-groups",
                       "*conv*=3", status=2)
        self.assertFalse(os.path.exists("r.safetensors"))

    def test_calibration(self):
        self.model()
        safetensors("x.safetensors", {
            "layers.0.up.weight": ("F32", [2, 100, 160], normal(32000, 8, 1)),
            "layers.0.down": ("F16", [200, 96], normal(19200, 9, 1))})
        words = ["quantize", "model.safetensors", "-q", "--force", "-o", "q.safetensors", "-i",
                 "*up*", "-i", "*down*", "--group", 32]
        for more in (["--method", "gptq"], ["--method", "gptq", "--act-order"],
                     ["--method", "search"], ["--prescale", "awq"], ["--prescale", "smooth"]):
            with self.subTest(more=more):
                quern(*words, "-c", "x.safetensors", *more)
                quern("compare", "q.safetensors", "model.safetensors", "--min-sqnr", 12)
        self.complains(*words, "--method", "gptq", status=2, says="--calibration")
        self.complains(*words, "--act-order", status=2)
        safetensors("y.safetensors", {"layers.0.up": ("F32", [10, 3], normal(30))})
        self.complains(*words, "--method", "gptq", "-c", "y.safetensors", status=3)

    def test_npy_and_shards(self):
        npy_write("w.npy", [8, 32], normal(256))
        quern("quantize", "w.npy", "-o", "q.safetensors", "-q")
        self.assertIn("w ", quern("inspect", "q.safetensors"))
        os.mkdir("model")
        safetensors("model/a-1.safetensors", {"a": ("F16", [8, 32], normal(256))})
        safetensors("model/a-2.safetensors", {"b": ("F16", [8, 32], normal(256))})
        index = {"weight_map": {"a": "a-1.safetensors", "b": "a-2.safetensors"}}

        def write_index(value):
            with open("model/model.safetensors.index.json", "w", encoding="utf-8") as file:
                file.write(value if isinstance(value, str) else json.dumps(value))

        write_index(index)
        quern("quantize", "model", "-o", "r.safetensors", "-q")
        names = {t["name"] for t in json.loads(quern("inspect", "r.safetensors", "--json"))[
            "tensors"]}
        self.assertEqual(names, {"a", "b"})
        write_index({"weight_map": {"a": "../model.safetensors"}})
        self.complains("quantize", "model", "-o", "s.safetensors", status=3, says="outside")
        write_index({"weight_map": {"c": "a-1.safetensors"}})
        self.complains("quantize", "model", "-o", "s.safetensors", status=3, says="'c'")
        write_index("{")
        self.complains("quantize", "model", "-o", "s.safetensors", status=3)
        os.remove("model/model.safetensors.index.json")
        self.complains("quantize", "model", "-o", "s.safetensors", status=3)
        self.complains("quantize", "w.npy", "w.npy", "model/a-1.safetensors",
                       "model/../model/a-1.safetensors", "-o", "s.safetensors", status=3,
                       says="two of the files")

    def test_bad_values(self):
        for bad in (math.inf, -math.inf, math.nan):
            values = normal(320)
            values[3 * 32 + 17] = bad
            safetensors("m.safetensors", {"good": ("F32", [10, 32], normal(320)),
                                          "x.weight": ("F32", [10, 32], values)})
            line = self.complains("quantize", "m.safetensors", "-o", "q.safetensors", status=3)
            self.assertIn("x.weight", line)
            self.assertRegex(line, r"\b3\b.*\b17\b")
            self.assertEqual(sorted(os.listdir(".")), ["m.safetensors"])

    def test_bad_files(self):
        self.complains("quantize", "no.safetensors", "-o", "q.safetensors", status=3,
                       says="no.safetensors")
        self.model()
        with open("model.safetensors", "rb") as file:
            raw = file.read()
        for name, data in (("cut", raw[:len(raw) // 2]), ("tiny", raw[:7]), ("empty", b""),
                           ("long", raw + b"x"), ("json", raw[:8] + b"[" + raw[9:]),
                           ("huge", b"\xff" * 8 + raw[8:])):
            with open(name, "wb") as file:
                file.write(data)
            self.complains("quantize", name, "-o", "q.safetensors", status=3, says=name)
            self.complains("inspect", name, status=3, says=name)
        self.assertFalse(os.path.exists("q.safetensors"))
        self.complains("quantize", "model.safetensors", "-o", "no/q.safetensors", status=3)
        self.complains("quantize", "model.safetensors", status=2, says="-o FILE")

    def test_exists(self):
        self.model()
        with open("q.safetensors", "w", encoding="utf-8") as file:
            file.write("mine")
        self.complains("quantize", "model.safetensors", "-o", "q.safetensors", status=2,
                       says="--force")
        with open("q.safetensors", encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "--force", "-q")
        # In place: the input is mapped while its name is taken over.
        quern("quantize", "model.safetensors", "-o", "model.safetensors", "--force", "-q")
        quern("compare", "model.safetensors", "q.safetensors", "--min-sqnr", 300)

    @unittest.skipIf(os.geteuid() == 0, "root writes everywhere")
    def test_read_only(self):
        self.model()
        os.mkdir("shut")
        os.chmod("shut", 0o555)
        self.complains("quantize", "model.safetensors", "-o", "shut/q.safetensors", status=3)

    def test_no_space(self):
        safetensors("m.safetensors", {"a": ("F16", [512, 512], normal(512 * 512))})

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        self.complains("quantize", "m.safetensors", "-o", "q.safetensors", status=4,
                       preexec_fn=small_files)
        self.assertFalse(os.path.exists("q.safetensors"))

    def test_interrupted(self):
        quern("demo", "--make-model", "m.safetensors", "--gb", "0.08")
        words = ["quantize", "m.safetensors", "-o", "q.safetensors", "--method", "search", "-t",
                 "1"]
        process = subprocess.Popen([QUERN, *words], stderr=subprocess.PIPE, text=True)
        first = process.stderr.readline() + process.stderr.readline()
        self.assertIn("[2/", first)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("--resume", err.strip().split("\n")[-1])
        self.assertEqual(sorted(os.listdir(".")), ["m.safetensors", "q.safetensors.part"])
        out = quern(*words, "--resume", "--json", "-q")
        self.assertGreaterEqual(json.loads(out)["resumed"], 2)
        self.assertEqual(sorted(os.listdir(".")), ["m.safetensors", "q.safetensors"])
        words[3] = "whole.safetensors"
        quern(*words, "-q")
        with open("q.safetensors", "rb") as a, open("whole.safetensors", "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_memory(self):
        """At most twice the largest tensor (here 33.6 MB), and what every process takes."""
        quern("demo", "--make-model", "m.safetensors", "--gb", "0.08")
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")

        def peak(*words):
            return 1024 * int(subprocess.run(
                [sys.executable, "-c", script, QUERN, *words], check=True, capture_output=True,
                text=True).stdout.split()[-1])

        idle = peak("info", "-q")
        with open(QUERN, "rb") as file:
            if re.search(rb"__[atm]san_init", file.read()):
                self.skipTest("a sanitizer's memory is not ours")
        used = peak("quantize", "m.safetensors", "-o", "q.safetensors", "-q")
        self.assertLess(used, 2 * 4096 * 4096 * 2 + idle)


class Inspect(Case):
    def test_details(self):
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q", "--scheme", "zp")
        text = quern("inspect", "q.safetensors", "layers.0.up.weight")
        for word in ("codes", "scale", "zero", "entropy", "int4:g128:zp"):
            self.assertIn(word, text)
        stats = json.loads(quern("inspect", "q.safetensors", "--json", "layers.0.up.weight"))[
            "tensors"][0]
        self.assertEqual(sum(stats["codes"]), 48 * 160)
        self.assertEqual(stats["groups"], 48 * 2)
        self.assertEqual(sum(stats["scale"]["bins"]), 48 * 2)
        values = json.loads(quern("inspect", "model.safetensors", "--json", "*norm*"))["tensors"][0]
        self.assertEqual(values["elements"], 64)
        self.assertIn("mean", quern("inspect", "model.safetensors", "--stats"))
        self.complains("inspect", "q.safetensors", "nothing", status=3, says="nothing")

    def test_npy(self):
        npy_write("x.npy", [3, 5], normal(15))
        self.assertIn("3 x 5", quern("inspect", "x.npy"))


class Compare(Case):
    def test_thresholds(self):
        values = [1.0] * 128 + [2.0] * 128
        safetensors("a.safetensors", {"x": ("F32", [2, 128], values)})
        values[200] += 0.5
        safetensors("b.safetensors", {"x": ("F32", [2, 128], values)})
        row = json.loads(quern("compare", "b.safetensors", "a.safetensors", "--json"))["tensors"][0]
        self.assertAlmostEqual(row["sqnr_db"], 10 * math.log10(640 / 0.25), places=9)
        self.assertEqual(row["max_abs"], 0.5)
        self.assertEqual(row["worst_group"]["row"], 1)
        self.assertAlmostEqual(row["worst_group"]["sqnr_db"], 10 * math.log10(512 / 0.25), places=9)
        quern("compare", "b.safetensors", "a.safetensors", "--min-sqnr", 34)
        quern("compare", "b.safetensors", "a.safetensors", "--min-sqnr", 35, status=1)
        self.assertIn("equal", quern("compare", "a.safetensors", "a.safetensors"))

    def test_differences(self):
        safetensors("a.safetensors", {"x": ("F32", [2, 4], [1.0] * 8), "y": ("I32", [1], [3])})
        safetensors("b.safetensors", {"x": ("F32", [2, 2], [1.0] * 4), "y": ("I32", [1], [3]),
                                      "z": ("F32", [1], [1.0])})
        text = quern("compare", "a.safetensors", "b.safetensors", status=1)
        self.assertIn("other shape", text)
        self.assertIn("only in the original", text)
        safetensors("c.safetensors", {"y": ("I32", [1], [4])})
        safetensors("d.safetensors", {"y": ("I32", [1], [3])})
        self.assertIn("other values", quern("compare", "c.safetensors", "d.safetensors", status=1))
        safetensors("n.safetensors", {"x": ("F32", [1], [math.nan])})
        safetensors("o.safetensors", {"x": ("F32", [1], [1.0])})
        quern("compare", "n.safetensors", "o.safetensors", status=1)
        self.complains("compare", "a.safetensors", status=2)
        self.complains("compare", "a.safetensors", "no", status=3)


class Run(Case):
    def test_matmul(self):
        """int8 weights whose largest code is 127 and scale a power of two: exact in f32."""
        source = random.Random(5)
        n, k, m = 24, 40, 6
        w = [source.randint(-126, 126) for _ in range(n * k)]
        for row in range(n):
            w[row * k] = 127
        x = [source.randint(-8, 8) for _ in range(m * k)]
        bias = [source.randint(-9, 9) for _ in range(n)]
        npy_write("w.npy", [n, k], [v / 64 for v in w])
        npy_write("x.npy", [2, 3, k], x)
        npy_write("b.npy", [n], bias)
        expected = [max(0, sum(x[i * k + p] * w[j * k + p] for p in range(k)) / 64 + bias[j])
                    for i in range(m) for j in range(n)]
        quern("quantize", "w.npy", "-o", "q.safetensors", "--format", "int8:pc", "-q")
        for weights, more in (("q.safetensors", []), ("q.safetensors:w", []),
                              ("w.npy", ["--format", "int8:pc"])):
            quern("run", "-w", weights, "-x", "x.npy", "--bias", "b.npy", "--act", "relu", "-o",
                  "y.npy", "--force", *more)
            shape, y = npy_read("y.npy")
            self.assertEqual(shape, [2, 3, n])
            self.assertEqual(y, expected)
        out = json.loads(quern("run", "-w", "q.safetensors", "-x", "x.npy", "-s", "int8-row", "-o",
                               "z.npy", "--y", "f16", "--json"))
        self.assertEqual((out["dtype"], out["shape"]), ("f16", [2, 3, n]))
        _, z = npy_read("z.npy")
        exact = [sum(x[i * k + p] * w[j * k + p] for p in range(k)) / 64
                 for i in range(m) for j in range(n)]
        self.assertLess(sum((a - b) ** 2 for a, b in zip(z, exact)),
                        1e-3 * sum(b * b for b in exact))

    def test_conv(self):
        source = random.Random(6)
        co, ci, side = 5, 3, 7
        w = [source.randint(-126, 126) for _ in range(co * ci * 9)]
        for row in range(co):
            w[row * ci * 9] = 127
        x = [source.randint(-8, 8) for _ in range(ci * side * side)]
        safetensors("w.safetensors", {"conv": ("F32", [co, ci, 3, 3], [v / 64 for v in w]),
                                      "other": ("F32", [2, 2], [1.0] * 4)})
        npy_write("x.npy", [1, ci, side, side], x)
        out = (side + 2 - 3) // 2 + 1
        expected = []
        for o in range(co):
            for oy in range(out):
                for ox in range(out):
                    total = 0
                    for c in range(ci):
                        for ky in range(3):
                            for kx in range(3):
                                iy, ix = 2 * oy + ky - 1, 2 * ox + kx - 1
                                if 0 <= iy < side and 0 <= ix < side:
                                    total += (x[(c * side + iy) * side + ix] *
                                              w[((o * ci + c) * 3 + ky) * 3 + kx])
                    expected.append(total / 64)
        quern("quantize", "w.safetensors", "-o", "q.safetensors", "--format", "int8:pc", "-q")
        quern("run", "-w", "q.safetensors:conv", "-x", "x.npy", "--stride", "2", "--pad", "1", "-o",
              "y.npy")
        shape, y = npy_read("y.npy")
        self.assertEqual((shape, y), ([1, co, out, out], expected))
        quern("run", "-w", "w.safetensors:conv", "--format", "int8:pc", "-x", "x.npy", "--stride",
              "2x2", "--pad", "1,1,1,1", "-o", "y.npy", "--force")
        self.assertEqual(npy_read("y.npy"), (shape, y))

    def test_bad(self):
        npy_write("x.npy", [2, 8], normal(16))
        npy_write("w.npy", [4, 16], normal(64))
        safetensors("two.safetensors", {"a": ("F32", [4, 16], normal(64)),
                                        "b": ("F32", [4, 16], normal(64))})
        words = ["run", "-x", "x.npy", "-o", "y.npy"]
        self.complains(*words, status=2, says="--weights")
        self.complains(*words, "-w", "w.npy", status=2, says="--format")
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", status=3, says="16")
        self.complains(*words, "-w", "two.safetensors", "--format", "int4:g8", status=3,
                       says="FILE:NAME")
        self.complains(*words, "-w", "two.safetensors:c", "--format", "int4:g8", status=3, says="c")
        self.complains(*words, "-w", "none", status=3, says="none")
        npy_write("x16.npy", [2, 16], normal(32))
        words[2] = "x16.npy"
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", "--kernel", "nope", status=4)
        words[4] = "no/y.npy"
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", status=3)
        self.assertFalse(os.path.exists("y.npy"))


class Bench(Case):
    KEYS = ["op", "n", "k", "m", "weights", "strategy", "x", "device", "threads", "isa", "kernel",
            "us_median", "us_p10", "us_p90", "bytes", "ops", "bound_us", "error", "commit"]

    def lines(self, *words):
        found = [json.loads(line) for line in quern(
            "bench", "--json", "--warm", "--min-time", "0.01", *words,
            env={"QUERN_THREADS": "1"}).splitlines()]
        for line in found:
            for key in self.KEYS:
                self.assertIn(key, line)
            self.assertTrue(line["verified"], line)
            self.assertLessEqual(line["us_p10"], line["us_median"])
            self.assertLessEqual(line["us_median"], line["us_p90"])
            self.assertGreater(line["bound_us"], 0)
        return found

    def test_matmul(self):
        found = self.lines("--n", 80, "--k", 200, "--m", "1,3,17", "--weights",
                           "int4:g128,int8:pc,int4:g32:zp,iq4_nl", "--strategy",
                           "float,int8-row,int8-block")
        self.assertEqual(len(found), 36)
        for line in found:
            self.assertLess(line["error"], 1e-5 if line["strategy"] == "float" else 0.02)
        found = self.lines("--n", 64, "--k", 256, "--m", 4, "--weights",
                           "q4_k,q6_k,q4_0,mxfp4,fp8:pc")
        self.assertEqual([f["weights"] for f in found][0], "q4_k")
        found = self.lines("--n", 64, "--k", 128, "--m", 4, "--strategy", "int8-static", "--x",
                           "u8", "--y", "i8", "--weights", "int8:pc")
        self.assertEqual(found[0]["x"], "u8")
        for kind in ("f16", "bf16"):
            self.lines("--n", 64, "--k", 128, "--m", "1,5", "--x", kind, "--y", kind)

    def test_same_weights(self):
        """Cases that share weights have the same answers as on their own."""
        words = ["bench", "--n", 48, "--k", 96, "--min-time", 0, "--warm", "--json",
                 "--strategy", "float,int8-row", "--weights", "int4:g32,int8:pc"]
        together = [json.loads(line) for line in quern(*words, "--m", "9,1,4").splitlines()]
        alone = [json.loads(line) for m in (9, 1, 4)
                 for line in quern(*words, "--m", m).splitlines()]
        key = ("m", "weights", "strategy", "kernel", "error", "verified", "bytes", "ops")
        facts = [sorted(tuple(str(r[k]) for k in key) for r in rows) for rows in (together, alone)]
        self.assertEqual(len(facts[0]), 12)
        self.assertEqual(facts[0], facts[1])
        self.complains(*words, "--pdl", status=2, says="--pdl")

    def test_isa(self):
        for isa in ("portable", "avx2", "all"):
            found = self.lines("--n", 64, "--k", 128, "--m", "1,8", "--strategy",
                               "float,int8-block", "--isa", isa)
            self.assertEqual({f["threads"] for f in found}, {1})
            if isa == "portable":
                self.assertEqual({f["isa"] for f in found}, {"portable"})

    def test_grouped_and_conv(self):
        found = self.lines("--op", "grouped", "--n", 48, "--k", 64, "--m", "1,9", "--experts", 5,
                           "--top-k", 2, "--strategy", "float,int8-block")
        self.assertEqual(found[0]["experts"], 5)
        for image in ("nchw", "nhwc"):
            found = self.lines("--op", "conv2d", "--n", 24, "--ci", 16, "--size", "9x11",
                               "--kernel-size", "3x5", "--pad", "1,2,1,2", "--stride", "2x1",
                               "--weights", "int8:pc,int4:c8", "--strategy",
                               "float,int8-row,int8-block", "--image", image)
            self.assertEqual((found[0]["kh"], found[0]["kw"], found[0]["oh"], found[0]["ow"]),
                             (3, 5, 5, 11))
        found = self.lines("--op", "conv2d", "--n", 32, "--ci", 32, "--groups", 32, "--size", "8",
                           "--kernel-size", 3, "--pad", 1, "--weights", "int8:pc", "--strategy",
                           "float,int8-static")
        self.assertEqual(found[0]["groups"], 32)

    def test_layers(self):
        found = self.lines("--layers", "resnet50/layer4.conv2", "--weights", "int8:pc",
                           "--strategy", "int8-row", "--threads", 2)
        self.assertEqual(found[0]["threads"], 2)
        self.assertEqual((found[0]["ci"], found[0]["n"], found[0]["oh"]), (512, 512, 7))
        listed = quern("bench", "--layers", "list")
        self.assertIn("llama3-8b/ffn.down", listed)

    def test_rotation(self):
        found = json.loads(quern("bench", "--json", "--min-time", "0.01", "--n", 512, "--k", 1024))
        self.assertGreater(found["copies"], 1)
        self.assertGreaterEqual(found["copies"] * found["packed_bytes"], 32 << 20)

    def test_plain(self):
        found = self.lines("--n", 64, "--k", 128, "--m", 4, "--plain")
        self.assertGreater(found[0]["us_plain"], 0)

    def test_table(self):
        text = quern("bench", "--n", 64, "--k", 64, "--warm", "--min-time", "0.01")
        self.assertIn("of limit", text)
        self.assertEqual(len(text.splitlines()), 2)

    def test_partial_failure(self):
        """One impossible case does not hide the others, and is not forgotten."""
        out = quern("bench", "--json", "--warm", "--min-time", "0.01", "--n", 64, "--k", 64,
                    "--weights", "int4:g32,int8:pc", "--kernel", "nope", status=4)
        self.assertEqual(out, "")
        self.assertEqual(out.err.count("quern: "), 2)

    def test_explain(self):
        text = quern("explain", "--n", 64, "--k", 128, "--m", 1)
        self.assertIn("qni_matmul_", text)
        line = json.loads(quern("explain", "--n", 64, "--k", 128, "--m", 1, "--json"))
        self.assertIn(line["kernel"], line["text"])
        self.assertEqual(line["ops"], 2 * 64 * 128)

    PEER = """#!/usr/bin/env python3
import json, struct, sys
print(json.dumps(%(hello)s), flush=True)
for line in sys.stdin:
    order, reply = json.loads(line), {"ok": True}
    if order["do"] == "make":
        m, n, k = order["m"], order["n"], order["k"]
        x, w = [struct.unpack("%%df" %% (len(raw) // 4), raw) for raw in
                (open(order[f], "rb").read() for f in ("x_file", "w_file"))]
        reply = {"ways": ["dot", "wrong"]}
    if order["do"] == "run":
        %(run)s
        reply = {"us": [5.0, 7.0, 6.0]}
    if order["do"] == "result":
        y = [sum(x[i * k + p] * w[j * k + p] for p in range(k)) + 9 * order["way"]
             for i in range(m) for j in range(n)]
        open(order["y_file"], "wb").write(struct.pack("%%df" %% len(y), *y))
    print(json.dumps(reply), flush=True)
"""

    def make_peer(self, name, hello, run="pass"):
        os.makedirs("peers", exist_ok=True)
        path = os.path.join("peers", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.PEER % {"hello": repr(hello), "run": run})
        os.chmod(path, 0o755)

    def test_peers(self):
        words = ["bench", "--json", "--warm", "--min-time", "0.01", "--n", 20, "--k", 32, "--m", 3,
                 "--peers", "--peer-folder", "peers"]
        self.complains(*words, status=3, says="no peer")
        self.make_peer("good", {"peer": "good", "version": "1.2"})
        self.make_peer("absent", {"skip": "its library is not here"})
        self.make_peer("dies", {"peer": "dies", "version": "0"}, run="sys.exit(1)")
        out = quern(*words)
        line = json.loads(out)
        found = {(p["peer"], p["way"]): p for p in line["peers"]}
        good = found["good", "dot"]
        self.assertTrue(good["verified"])
        self.assertLess(good["error"], 1e-5)
        self.assertEqual((good["us_median"], good["runs"], good["version"]), (6, 15, "1.2"))
        self.assertAlmostEqual(good["ratio"], line["us_median"] / 6, delta=0.01 * good["ratio"])
        self.assertFalse(found["good", "wrong"]["verified"])
        self.assertFalse(found["dies", "dot"]["verified"])
        self.assertIn("its library is not here", out.err)
        self.assertIn("left out", out.err)
        self.assertNotIn("peer-folder", line["command"])
        self.assertIn("--n 20", line["command"])
        self.assertTrue(line["machine"])
        text = quern(*[word for word in words if word != "--json"])
        self.assertIn("ours/theirs", text)
        self.assertIn("WRONG", text)

    def test_interrupted(self):
        process = subprocess.Popen([QUERN, "bench", "--n", "64", "--k", "64", "--warm",
                                    "--min-time", "60"], stdout=subprocess.DEVNULL)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)


class Tuning(Case):
    """The file of constants is read and checked wherever it is asked for, also without a GPU."""
    LINE = {"family": "decode", "rows": 8, "int8": False, "bits": 4, "t0_us": 4.2,
            "gb_per_s": 2950, "block_ns": 16}
    PLAN = ("explain", "--n", 32, "--k", 32, "--device", "cpu")

    def write(self, change=None, name="t.json", **gpu):
        entry = {"gpu": "a GPU", "version": "0", "lines": [dict(self.LINE), dict(self.LINE)]}
        entry.update(gpu)
        entry["lines"][1:2] = [{**self.LINE, **(change or {})}] if entry["lines"] else []
        for key, value in list((change or {}).items()):
            if value is None:
                del entry["lines"][1][key]
        with open(name, "w", encoding="utf-8") as file:
            json.dump({"format": "quern tuning 1", "gpus": [entry]}, file)

    def test_good(self):
        self.write()
        text = quern(*self.PLAN)
        for tuning in ("t.json", "none"):
            self.assertEqual(quern(*self.PLAN, "--tuning", tuning), text)
        os.makedirs("config/quern")
        with open("config/quern/tuning.json", "w", encoding="utf-8") as file:
            file.write("{")
        # A file that nobody asked for is no matter of the CPU.
        quern(*self.PLAN, env={"XDG_CONFIG_HOME": os.path.abspath("config")})

    def test_bad_fields(self):
        for field, values in (("family", [None, 3, "", "x" * 99]), ("int8", [None, 1]),
                              ("rows", [None, "8", 0, 1.5, 1e9]), ("bits", [None, -4, 99]),
                              ("t0_us", [None, "x", -1, 1e300]), ("gb_per_s", [None, 0, -5]),
                              ("block_ns", [None, [], -1e-9])):
            for value in values:
                self.write({field: value})
                self.complains(*self.PLAN, "--tuning", "t.json", status=3,
                               says=["t.json", f"gpus[0].lines[1].{field}:"])
        self.write(gpu=7)
        self.complains(*self.PLAN, "--tuning", "t.json", status=3, says="gpus[0].gpu:")
        self.write(lines=[])
        quern(*self.PLAN, "--tuning", "t.json")

    def test_bad_files(self):
        for text in ("", "{", "[]", "{}", '{"format": "quern tuning 2", "gpus": []}',
                     '{"format": "quern tuning 1"}', '{"format": "quern tuning 1", "gpus": [3]}',
                     '{"format": "quern tuning 1", "gpus": [{"gpu": "x", "lines": 3}]}',
                     '{"format": "quern tuning 1", "gpus": []} x', "[" * 100000,
                     '{"format": "quern tuning 1", "gpus": []}\0', " " * (2 << 20)):
            with open("t.json", "w", encoding="utf-8") as file:
                file.write(text)
            for command in (self.PLAN, ("bench", *self.PLAN[1:])):
                self.complains(*command, "--tuning", "t.json", status=3, says="t.json: ")
        self.complains(*self.PLAN, "--tuning", "absent.json", status=3, says="absent.json: ")
        self.complains(*self.PLAN, "--tuning", ".", status=3, says="not a plain file")
        os.mkfifo("pipe")
        self.complains(*self.PLAN, "--tuning", "pipe", status=3, says="not a plain file")

    def test_tune(self):
        self.complains("tune", "--device", "cpu", "-o", "t.json", status=2, says="cpu")
        self.complains("tune", "--device", "gpu", "-o", "t.json", status=2, says="gpu")
        self.complains("tune", "--weights", "int4:x", "--dry-run", status=2, says="--weights")
        if "cuda:0:" not in quern("info", "--quick"):
            self.complains("tune", "-o", "new/t.json", status=4)
        self.assertEqual(os.listdir("."), [])


class Pack(Case):
    def setUp(self):
        super().setUp()
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q", "--group", 32)

    def packed(self, path="p.safetensors"):
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        return {key[len("quern.packed."):]: json.loads(value)
                for key, value in header["__metadata__"].items()
                if key.startswith("quern.packed.")}

    def test_round_trip(self):
        """The same y from quantized weights and from packed ones, on any instruction set."""
        out = quern("pack", "q.safetensors", "-o", "p.safetensors")
        self.assertIn("5 weights", out)
        names = {"embed.weight", "layers.0.up.weight", "layers.0.down.weight",
                 "layers.0.conv.weight", "layers.0.depthwise.weight"}
        self.assertEqual(set(self.packed()), names)
        npy_write("x.npy", [3, 160], normal(480, 5))
        for isa in ("all", "portable"):
            for strategy in ("float", "int8-row", "int8-block"):
                for weights, y in (("q", "a.npy"), ("p", "b.npy")):
                    quern("run", "-w", f"{weights}.safetensors:layers.0.up.weight", "-x", "x.npy",
                          "-o", y, "-s", strategy, "--isa", isa, "--force")
                self.assertEqual(npy_read("a.npy"), npy_read("b.npy"))
        npy_write("image.npy", [1, 8, 6, 6], normal(288, 6))
        for weights, y in (("q", "a.npy"), ("p", "b.npy")):
            quern("run", "-w", f"{weights}.safetensors:layers.0.conv.weight", "-x", "image.npy",
                  "-o", y, "--pad", "1", "--force")
        self.assertEqual(npy_read("a.npy"), npy_read("b.npy"))
        with open("p.safetensors", "rb") as file:
            first = file.read()
        quern("pack", "q.safetensors", "-o", "p.safetensors", "--force", "-q", "-t", "1")
        with open("p.safetensors", "rb") as file:
            self.assertEqual(file.read(), first)

    def test_options(self):
        out = json.loads(quern("pack", "q.safetensors", "-o", "p.safetensors", "--json", "-q",
                               "-i", "layers.*", "-e", "*conv*", "-e", "*depthwise*"))
        self.assertEqual({w["name"]: w["layout"] for w in out["weights"]},
                         {"layers.0.up.weight": "q4n16", "layers.0.down.weight": "q4n16"})
        self.assertEqual(out["bytes_after"], sum(w["bytes"] for w in out["weights"]))
        self.assertEqual(set(self.packed()), {"layers.0.up.weight", "layers.0.down.weight"})
        quern("pack", "q.safetensors", "-o", "p.safetensors", "--force", "-q", "--layout", "q8n16",
              "--no-sums", "--x-block", 64)
        self.assertEqual({w["layout"] for w in self.packed().values()}, {"q8n16"})
        npy_write("x.npy", [1, 160], normal(160, 5))
        self.complains("run", "-w", "p.safetensors:layers.0.up.weight", "-x", "x.npy", "-o",
                       "y.npy", "-s", "int8-block", status=4)
        before = sorted(os.listdir("."))
        text = quern("pack", "q.safetensors", "--dry-run")
        self.assertIn("q4n16", text)
        self.assertIn("layers.0.conv.weight", text)
        self.assertEqual(sorted(os.listdir(".")), before)

    def test_bad_input(self):
        self.complains("pack", "q.safetensors", status=2, says="-o FILE")
        self.complains("pack", "no.safetensors", "-o", "p", status=3, says="no.safetensors")
        self.complains("pack", "model.safetensors", "-o", "p", status=3, says="quern quantize")
        self.complains("pack", "q.safetensors", "-o", "p", "-i", "lay", status=2, says="--include")
        self.complains("pack", "q.safetensors", "-o", "p", "-e", "*", status=3, says="--exclude")
        self.complains("pack", "q.safetensors", "-o", "p", "--x-block", "0", status=2)
        self.complains("pack", "q.safetensors", "-o", "no/p", status=3)
        for layout in ("t4n16", "odd"):
            self.complains("pack", "q.safetensors", "-o", "p", "--layout", layout, status=2,
                           says=layout)
        with open("q.safetensors", "rb") as file:
            raw = file.read()
        with open("cut.safetensors", "wb") as file:
            file.write(raw[:len(raw) // 2])
        self.complains("pack", "cut.safetensors", "-o", "p", status=3, says="cut")
        self.assertFalse(os.path.exists("p"))
        self.assertFalse(os.path.exists("p.part"))
        with open("p", "w", encoding="utf-8") as file:
            file.write("mine")
        self.complains("pack", "q.safetensors", "-o", "p", status=2, says="--force")
        with open("p", encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")

    def test_resume(self):
        """A disk that is full in the middle; then the rest."""
        quern("pack", "q.safetensors", "-o", "whole.safetensors", "-q")
        size = os.path.getsize("whole.safetensors") * 3 // 4

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        self.complains("pack", "q.safetensors", "-o", "p.safetensors", status=4,
                       preexec_fn=small_files)
        self.assertFalse(os.path.exists("p.safetensors"))
        quern("pack", "q.safetensors", "-o", "p.safetensors", "--resume", "-q")
        with open("p.safetensors", "rb") as a, open("whole.safetensors", "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertFalse(os.path.exists("p.safetensors.part"))


class Demo(Case):
    def test_demo(self):
        out = json.loads(quern("demo", "--time", "5", "--json"))
        self.assertGreater(len(out["rows"]), 25)
        for row in out["rows"]:
            self.assertTrue(row["verified"], row)
            self.assertLess(row["error"], 0.25)
            self.assertGreater(row["bound_us"], 0)
        with open("quern-demo.html", encoding="utf-8") as file:
            page = file.read()
        self.assertGreaterEqual(page.count("<svg"), 2)
        self.assertIn("prefers-color-scheme:dark", page)
        for outside in ("http", "src=", "@import", "url(", "<script"):
            self.assertNotIn(outside, page)
        self.assertEqual(os.listdir("."), ["quern-demo.html"])
        self.complains("demo", "--time", "x", status=2)

    def test_model(self):
        quern("demo", "--make-model", "m.safetensors", "--gb", "0.01")
        self.complains("demo", "--make-model", "m.safetensors", "--gb", "0.01", status=2)
        self.complains("demo", "--make-model", "no/m.safetensors", "--gb", "0.01", status=3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
