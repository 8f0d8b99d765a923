#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command from outside: what it prints, writes and returns, for good and bad input.

    commands.py QUERN [NAME...]      and likewise quantize.py, bench.py

Works in a temporary folder.
"""
import json
import math
import os
import pty
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import unittest

from command import (COMMANDS, COMPLAINT, QUERN, Case, normal, npy_read, npy_write, quern,
                     safetensors)


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
        for page in [quern("help")] + [quern("help", name) for name in COMMANDS]:
            for line in re.findall(r"^  (quern \w+ .*)$", re.split("Examples|To begin", page)[1],
                                   re.M):
                name = line.split()[1]
                for word in line.split()[2:]:
                    option = word.split("=")[0]
                    if re.match(r"--[a-z]", option):
                        self.assertIn(option, known[name], line)
                    elif re.match(r"-[a-z]$", option):
                        self.assertIn(option, letters[name], line)

    def test_examples_of_several_lines(self):
        for words in (["help"], ["pack", "--help"]):
            out = quern(*words)
            self.assertNotRegex(out, r"(?m)^quern (pack|run) [^:]")
            self.assertRegex(out, r"(?m)^  quern pack int4")

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


class Failures(Case):
    """With --json a failure is one object on standard output as well."""

    def fails(self, *words, status, lines=1):
        out = quern(*words, "--json", status=status)
        self.assertRegex(out.err.strip().split("\n")[-1], COMPLAINT)
        self.assertEqual(len(out.strip().split("\n")), lines, out)
        found = json.loads(out.strip().split("\n")[-1])
        self.assertEqual(found["code"], status)
        # The same words as on standard error, where it is the first complaint.
        self.assertIn(f"quern: {found['error']}; {found['todo']}", out.err)
        self.assertNotIn("\x1b", out)
        return found

    def test_each_command(self):
        with open("bad.safetensors", "wb") as file:
            file.write(b"nothing of the kind")
        npy_write("x.npy", [2, 8], normal(16))
        for words in (["inspect"], ["compare", "x.npy"], ["quantize", "x.npy"], ["info", "more"],
                      ["bench", "--n", "4"], ["bench", "--frob"], ["explain", "--n", "x"],
                      ["pack", "x.npy"], ["run"], ["demo", "--time", "0"], ["tune", "--m", "-1"],
                      ["nosuch"], ["compare", "x.npy", "x.npy", "--min-sqnr", "much"]):
            with self.subTest(words=words):
                self.fails(*words, status=2)
        for words in (["inspect", "no"], ["inspect", "bad.safetensors"], ["inspect", "x\x1b[31m"],
                      ["compare", "x.npy", "bad.safetensors"],
                      ["quantize", "bad.safetensors", "-o", "q"], ["pack", "x.npy", "-o", "p"],
                      ["run", "-w", "bad.safetensors", "-x", "x.npy", "-o", "y.npy"]):
            with self.subTest(words=words):
                self.fails(*words, status=3)
        for words in (["bench", "--n", 4, "--k", 4, "--kernel", "nope"],
                      ["explain", "--n", 4, "--k", 4, "--device", "cuda:63"],
                      ["quantize", "x.npy", "-o", "no/q"]):
            with self.subTest(words=words):
                self.fails(*words, status=4)

    def test_told_already(self):
        """A comparison that fails has said so in its object, and prints no second one."""
        npy_write("a.npy", [2, 8], normal(16))
        npy_write("b.npy", [2, 8], normal(16, 2))
        found = json.loads(quern("compare", "a.npy", "b.npy", "--min-sqnr", 90, "--json", status=1))
        self.assertFalse(found["pass"])
        self.assertNotIn("code", found)


class Words(Case):
    """What help and errors promise is so."""

    def test_formats(self):
        """Every format that info names is one, alone or with any of the groups and shifts."""
        text = quern("info", "-q")
        named, more = re.search(r"formats +(.*)\n +and (.*)\n", text).groups()
        for spec in named.split():
            quern("explain", "--n", 256, "--k", 256, "--weights", spec)
        integers, floats, groups = re.match(
            r"(int2)\.\.int8 \(:zp, :off\), (.*) \(:off\), with any group: (.*)$", more).groups()
        for group in groups.split(", "):
            for shift in ("", ":zp", ":off"):
                quern("explain", "--n", 128, "--k", 128, "--weights", integers + group + shift)
            for base in floats.split(", "):
                for shift in ("", ":off"):
                    quern("explain", "--n", 128, "--k", 128, "--weights", base + group + shift)

    def test_awq(self):
        self.complains("quantize", "m", "-o", "q", "--method", "awq", status=2,
                       says="perhaps --prescale awq was meant")
        self.assertIn("AWQ", quern("help", "quantize"))

    def test_streams(self):
        """- is refused by a sentence wherever a file is meant."""
        npy_write("x.npy", [2, 8], normal(16))
        npy_write("-", [2, 8], normal(16))
        for words in (["inspect", "-"], ["compare", "-", "x.npy"], ["compare", "x.npy", "-"],
                      ["quantize", "-", "-o", "q"], ["quantize", "x.npy", "-o", "q", "-c", "-"],
                      ["pack", "-", "-o", "p"], ["run", "-w", "-", "-x", "x.npy", "-o", "y"],
                      ["compare", "x.npy", "--original", "-"]):
            self.complains(*words, status=2, says="standard input")
        for words in (["quantize", "x.npy", "-o", "-"], ["demo", "--html", "-"],
                      ["demo", "--make-model", "-"]):
            self.complains(*words, status=2, says="standard output")
        quern("inspect", "./-")


class Terminal(Case):
    def on_terminal(self, *words, status=0, **environment):
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
        self.assertEqual(process.wait(), status)
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
        self.assertIn("\r\033[K", seen)
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
        for peak in ("f32", "bf16", "int8", "int4"):
            self.assertGreater(cpu["peak_ops_per_s"][peak], 1e8)
        self.assertIn("q4_k", facts["formats"])
        src = os.path.join(os.path.dirname(__file__), "../../src/cpu")
        rows = []
        for room in ("matmul", "conv"):
            with open(os.path.join(src, room, "kernels.inc"), encoding="utf-8") as file:
                rows += re.findall(r"_KERNEL\(\s*qni_\w+_([a-z0-9]+),", file.read())
        self.assertIn("scalar", facts["kernels"])
        for isa, count in facts["kernels"].items():
            self.assertEqual(count, rows.count(isa), isa)

    def test_environment(self):
        cpu = json.loads(quern("info", "--json", "-q", env={
            "QUERN_ISA": "portable", "QUERN_THREADS": "1"}))["devices"][0]
        self.assertEqual((cpu["isa"], cpu["threads"]), ([], 1))
        cpu = json.loads(quern("info", "--json", "-q", "--threads", "2", env={
            "QUERN_THREADS": "1"}))["devices"][0]
        self.assertEqual(cpu["threads"], 2)
        text = quern("info", "-q", "--isa", "portable")
        self.assertIn("portable", text)


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

    def test_packed(self):
        """A line a weight, not one of bytes."""
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q", "--all")
        self.assertNotIn("layout", quern("inspect", "q.safetensors"))
        quern("pack", "q.safetensors", "-o", "p.safetensors", "-q")
        text = quern("inspect", "p.safetensors")
        up = next(line for line in text.split("\n") if line.startswith("layers.0.up.weight "))
        for word in ("48 x 160", "int4:g128", "q4n16"):
            self.assertIn(word, up)
        self.assertIn("(3 x 3 taps)", text)
        self.assertIn("\n5 packed weights, ", text)
        self.assertNotIn("U8", text)
        self.assertNotIn(".packed", text)
        found = {t["name"]: t for t in json.loads(quern("inspect", "p.safetensors", "--json"))[
            "tensors"]}
        self.assertEqual(len(found), 5)
        up = found["layers.0.up.weight"]
        self.assertEqual([up[key] for key in ("format", "layout", "device", "n", "k", "kh")],
                         ["int4:g128", "q4n16", "cpu", 48, 160, 1])
        self.assertIn("q4n16", quern("inspect", "p.safetensors", "*up*"))
        self.complains("inspect", "p.safetensors", "nothing", status=3, says="nothing")

    def test_npy(self):
        npy_write("x.npy", [3, 5], normal(15))
        self.assertIn("3 x 5", quern("inspect", "x.npy"))


class Folders(Case):
    def test_index(self):
        os.mkdir("model")
        safetensors("model/a-1.safetensors", {"a.weight": ("F16", [64, 128], normal(8192)),
                                              "a.bias": ("F32", [64], normal(64))})
        safetensors("model/a-2.safetensors", {"b.weight": ("F16", [32, 128], normal(4096))})
        safetensors("model/other.safetensors", {"c.weight": ("F16", [32, 128], normal(4096))})
        # Without an index: every .safetensors.
        found = json.loads(quern("inspect", "model", "--json"))
        self.assertEqual([f["file"] for f in found["files"]],
                         ["a-1.safetensors", "a-2.safetensors", "other.safetensors"])
        with open("model/model.safetensors.index.json", "w", encoding="utf-8") as file:
            json.dump({"weight_map": {"a.weight": "a-1.safetensors", "a.bias": "a-1.safetensors",
                                      "b.weight": "a-2.safetensors"}}, file)
        for path in ("model", "model/", "model/model.safetensors.index.json"):
            found = json.loads(quern("inspect", path, "--json"))
            self.assertEqual(found["files"], [
                {"file": "a-1.safetensors", "tensors": 2, "bytes": 16640},
                {"file": "a-2.safetensors", "tensors": 1, "bytes": 8192}])
            self.assertEqual({t["type"]: (t["tensors"], t["elements"]) for t in found["types"]},
                             {"F16": (2, 12288), "F32": (1, 64)})
            self.assertEqual({t["name"]: t["file"] for t in found["tensors"]}, {
                "a.weight": "a-1.safetensors", "a.bias": "a-1.safetensors",
                "b.weight": "a-2.safetensors"})
        text = quern("inspect", "model")
        for words in ("a-1.safetensors", "2 files, 3 tensors, 0 quantized weights, 12352 elements"):
            self.assertIn(words, text)
        text = quern("inspect", "model", "b.*")
        self.assertIn("32 x 128", text)
        self.assertNotIn("a.weight", text)
        self.complains("inspect", "model", "nothing*", status=3, says="nothing")
        self.complains("inspect", "model", "--stats", status=2, says="--stats")
        os.remove("model/a-2.safetensors")
        self.complains("inspect", "model", status=3, says="a-2.safetensors")

    def test_quantized(self):
        os.mkdir("q")
        self.model()
        quern("quantize", "model.safetensors", "-o", "q/q.safetensors", "-q", "--all")
        found = json.loads(quern("inspect", "q", "--json"))
        self.assertEqual(found["weights"], 5)
        self.assertIn("int4:g128", [t["type"] for t in found["types"]])
        os.mkdir("gptq")
        safetensors("gptq/m.safetensors", {"a.qweight": ("I32", [8, 8], [0] * 64),
                                           "a.scales": ("F16", [1, 8], normal(8))})
        self.assertIn("refused by gptq", quern("inspect", "gptq"))
        os.mkdir("empty")
        self.complains("inspect", "empty", status=3, says="without .safetensors")


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

    def test_not_finite(self):
        """A NaN or an infinity on either side fails any gate, with a name, in words."""
        good = normal(8 * 32)
        for at, bad in ((0, math.inf), (5 * 32 + 7, -math.inf), (255, math.nan)):
            for side in ("original", "file"):
                broken = good[:at] + [bad] + good[at + 1:]
                safetensors("a.safetensors", {"w": ("F32", [8, 32], [-100 * v for v in (
                    broken if side == "file" else good)])})
                safetensors("b.safetensors", {"w": ("F32", [8, 32], (
                    broken if side == "original" else good))})
                for more in ([], ["--min-sqnr", 100], ["--min-sqnr", -1000]):
                    found = json.loads(quern("compare", "a.safetensors", "b.safetensors", "--json",
                                             *more, status=1))
                    row = found["tensors"][0]
                    self.assertEqual((found["pass"], found["failed"], row["pass"]),
                                     (False, 1, False))
                    self.assertIn("not finite", row["problem"])
                    self.assertEqual(side == "original", "original" in row["problem"])
                    self.assertEqual(row["not_finite"], {
                        "file": side == "file", "original": side == "original",
                        "row": at // 32, "column": at % 32})
                    text = quern("compare", "a.safetensors", "b.safetensors", *more, status=1)
                    self.assertRegex(text, rf"(?m)^FAILED w: not finite.*: 1 value, the first in "
                                           rf"row {at // 32}, column {at % 32}$")

    def test_failures_in_words(self):
        """Without any colour a failed row and the reason can be read, in 80 columns as well."""
        name = "model.layers.11.self_attn.q_proj.weight"
        safetensors("m.safetensors", {name: ("F32", [64, 256], normal(64 * 256)),
                                      "other." + name: ("F32", [64, 256], normal(64 * 256, 2))})
        quern("quantize", "m.safetensors", "-o", "q.safetensors", "-q", "-b", 2)
        words = ["compare", "q.safetensors", "m.safetensors", "--min-sqnr", "30"]
        text = quern(*words, status=1)
        self.assertEqual(len(re.findall(r"(?m)^FAILED \S+: SQNR is \d+\.\d+ dB, --min-sqnr 30 dB$",
                                        text)), 2)
        rows = [line for line in text.split("\n") if re.match(r"(other\.)?model", line)]
        self.assertTrue(all(line.endswith("FAILED") for line in rows), rows)
        text = quern(*words[:3])
        self.assertNotIn("FAILED", text)
        self.assertEqual(text.count(" ok\n"), 2)
        seen = Terminal.on_terminal(self, *words, status=1, COLUMNS="80", NO_COLOR="1")
        lines = seen.replace("\r", "").split("\n")
        table = lines[:lines.index("")]
        self.assertEqual(len(table), 3)
        self.assertLessEqual(max(map(len, table)), 80)
        self.assertTrue(table[1].startswith("model.layer"), table)
        self.assertTrue(table[1].endswith("FAILED"), table)


    def test_types(self):
        """Integers on one side only, or beside floats, are differences as others are."""
        safetensors("a.safetensors", {"w": ("F32", [4, 8], normal(32)), "n": ("I64", [2], [1, 2]),
                                      "t": ("I32", [2], [1, 2]), "u": ("F32", [2], [1, 2])})
        safetensors("b.safetensors", {"w": ("F32", [4, 8], normal(32)),
                                      "t": ("F32", [2], [1, 2]), "u": ("F32", [2], [1, 2])})
        for pair, missing in ((["a", "b"], "not there"), (["b", "a"], "only in the original")):
            out = quern("compare", *[f"{x}.safetensors" for x in pair], "--json", status=1)
            found = {t["name"]: t.get("problem") for t in json.loads(out)["tensors"]}
            self.assertEqual(found, {"n": "only in the original" if pair[0] == "b" else "not there",
                                     "t": "other type or shape", "w": None, "u": None}, missing)


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
        quern("quantize", "w.safetensors", "-o", "q.safetensors", "--format", "int8:pc", "-q",
              "--all")
        quern("run", "-w", "q.safetensors:conv", "-x", "x.npy", "--stride", "2", "--pad", "1", "-o",
              "y.npy")
        shape, y = npy_read("y.npy")
        self.assertEqual((shape, y), ([1, co, out, out], expected))
        quern("run", "-w", "w.safetensors:conv", "--format", "int8:pc", "-x", "x.npy", "--stride",
              "2x2", "--pad", "1,1,1,1", "-o", "y.npy", "--force")
        self.assertEqual(npy_read("y.npy"), (shape, y))

    def run_values(self, name, *words):
        quern("run", "-w", f"w.safetensors:{name}", "--format", "int8:pc", "-o", "y.npy",
              "--force", *words)
        return npy_read("y.npy")

    def test_run_axes(self):
        """The same weights in other orders give the same output."""
        o, i, h, w = 4, 6, 2, 3
        values = [(j * 37 % 255 - 127) / 64 for j in range(o * i * h * w)]

        def at(o_, i_, h_, w_):
            return values[((o_ * i + i_) * h + h_) * w + w_]

        def ordered(order):
            sizes = {"o": o, "i": i, "h": h, "w": w}
            out = [{}]
            for letter in order:
                out = [{**p, letter: v} for p in out for v in range(sizes[letter])]
            return ("F32", [sizes[c] for c in order], [at(*(p[c] for c in "oihw")) for p in out])

        safetensors("w.safetensors", {
            "oihw": ordered("oihw"), "hwio": ordered("hwio"), "iohw": ordered("iohw"),
            "oi": ("F32", [o, i * h * w], values),
            "io": ("F32", [i * h * w, o], [values[a * i * h * w + b] for b in range(i * h * w)
                                           for a in range(o)])})
        npy_write("x.npy", [3, i * h * w], normal(3 * i * h * w))
        npy_write("image.npy", [1, i, 5, 5], normal(i * 25))
        plain = self.run_values("oi", "-x", "x.npy")
        self.assertEqual(self.run_values("io", "-x", "x.npy", "--axes", "io"), plain)
        conv = self.run_values("oihw", "-x", "image.npy")
        self.assertEqual(conv[0], [1, o, 4, 3])
        self.assertEqual(self.run_values("hwio", "-x", "image.npy", "--axes", "hwio"), conv)
        turned = self.run_values("oihw", "-x", "image.npy", "--op", "conv_transpose2d")
        self.assertEqual(turned[0], [1, o, 6, 7])
        self.assertEqual(self.run_values("iohw", "-x", "image.npy", "--axes", "iohw"), turned)
        groups = self.run_values("iohw", "-x", "image.npy", "--axes", "iohw", "--conv-groups", 2)
        self.assertEqual(groups[0], [1, 2 * o, 6, 7])
        safetensors("w.safetensors", {"oiw": ("F32", [o, 3, h], values[:o * 3 * h]),
                                      "oihw": ("F32", [o, 3, 1, h], values[:o * 3 * h]),
                                      "io": ("F32", [36, o], values),
                                      "oi": ("F32", [o, 36], values)})
        npy_write("line.npy", [2, i, 5], normal(2 * i * 5))
        npy_write("flat.npy", [2, i, 1, 5], normal(2 * i * 5))
        line = self.run_values("oiw", "-x", "line.npy", "--axes", "oiw", "--op", "conv2d")
        flat = self.run_values("oihw", "-x", "flat.npy")
        self.assertEqual((line[0], line[1]), ([2, o, 4], flat[1]))
        run = ["run", "-w", "w.safetensors:io", "--format", "int8:pc", "-x", "x.npy", "-o", "y.npy",
               "--force"]
        for words, says, status in ((["--axes", "ox"], "no order of o, i, h and w", 2),
                                    (["--axes", "eoi"], "experts", 2),
                                    (["--axes", "oihw"], "2 dimensions", 3),
                                    ([], "columns of x", 3),
                                    (["--axes", "io", "--conv-groups", "3"], "groups", 3)):
            self.complains(*run, *words, status=status, says=says)
        quern("quantize", "w.safetensors", "-i", "oi", "-o", "q.safetensors", "-f", "int8:pc",
              "--all", "-q")
        self.complains("run", "-w", "q.safetensors:oi", "-x", "x.npy", "-o", "y.npy", "--force",
                       "--axes", "io", status=2, says="plain weights")

    def test_bad(self):
        npy_write("x.npy", [2, 8], normal(16))
        npy_write("w.npy", [4, 16], normal(64))
        safetensors("two.safetensors", {"a": ("F32", [4, 16], normal(64)),
                                        "b": ("F32", [4, 16], normal(64))})
        words = ["run", "-x", "x.npy", "-o", "y.npy"]
        self.complains(*words, status=2, says="--weights")
        self.complains(*words, "-w", "w.npy", status=3, says="16 columns")  # as floats
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", status=3, says="16")
        self.complains(*words, "-w", "two.safetensors", "--format", "int4:g8", status=3,
                       says="FILE:NAME")
        self.complains(*words, "-w", "two.safetensors:c", "--format", "int4:g8", status=3, says="c")
        self.complains(*words, "-w", "none", status=3, says="none")
        npy_write("x16.npy", [2, 16], normal(32))
        words[2] = "x16.npy"
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", "--kernel", "nope", status=4)
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", "--pad", 1, status=2,
                       says=["--pad", "matmul"])
        safetensors("conv.safetensors", {"w": ("F16", [8, 4, 3, 3], normal(288))})
        quern("quantize", "conv.safetensors", "-o", "q.safetensors", "-q", "--all")
        npy_write("image.npy", [1, 4, 2, 5], normal(40))
        npy_write("other.npy", [1, 3, 5, 5], normal(75))
        conv = ["run", "-w", "q.safetensors", "-o", "y.npy", "-x"]
        self.complains(*conv, "x16.npy", status=3, says="rank 2")
        self.complains(*conv, "other.npy", status=3, says="3 channels")
        self.complains(*conv, "image.npy", status=3, says=["input 2", "3 taps"])
        self.complains(*conv, "image.npy", "--stride", 0, status=2, says="--stride 0")
        self.complains(*conv, "image.npy", "--pad", 1, "--out-pad", 1, status=2, says="--out-pad")
        words[4] = "no/y.npy"
        self.complains(*words, "-w", "w.npy", "--format", "int4:g8", status=4)
        self.assertFalse(os.path.exists("y.npy"))


class Pack(Case):
    def setUp(self):
        super().setUp()
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q", "--group", 32, "--all")

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
        self.assertEqual([w["name"] for w in out["weights"]],
                         ["layers.0.up.weight", "layers.0.down.weight"])
        for weight in out["weights"]:  # by the processor
            self.assertIn(weight["layout"], ("q4c16", "q4n16"))
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
        self.assertRegex(text, "q4[cn]16")
        self.assertIn("layers.0.conv.weight", text)
        self.assertEqual(sorted(os.listdir(".")), before)

    def test_bits_per_weight(self):
        """`inspect --json` says how many bits a packed weight takes, of its whole blob."""
        bits = {}
        for layout in ("q4c16", "q4n16"):
            quern("pack", "q.safetensors", "-o", "p.safetensors", "--force", "-q", "--layout",
                  layout, "-i", "layers.0.up.weight")
            line, = json.loads(quern("inspect", "p.safetensors", "--json"))["tensors"]
            self.assertEqual(line["layout"], layout)
            self.assertAlmostEqual(line["bits_per_weight"],
                                   8 * line["bytes"] / (line["n"] * line["k"]))
            bits[layout] = line["bits_per_weight"]
        self.assertLess(bits["q4c16"], bits["q4n16"] - 0.5)  # no sums

    def test_shards(self):
        """Two shards have the outputs, or the columns, of the whole."""
        weight = "layers.0.up.weight"
        words = ["pack", "q.safetensors", "--force", "-q", "-i", weight]
        whole = json.loads(quern(*words, "-o", "p.safetensors", "--json"))["weights"][0]
        for split in ("column", "row"):
            parts = [json.loads(quern(*words, "-o", f"s{r}.safetensors", "--json", "--shard",
                                      f"{r}/2", "--split", split))["weights"][0]
                     for r in range(2)]
            cut, kept = ("n", "k") if split == "column" else ("k", "n")
            self.assertEqual(sum(part[cut] for part in parts), whole[cut])
            self.assertEqual({part[kept] for part in parts}, {whole[kept]})
            self.assertTrue(all(0 < part[cut] < whole[cut] for part in parts))
        npy_write("x.npy", [3, whole["k"]], normal(3 * whole["k"], 5))
        quern(*words, "-o", "s1.safetensors", "--shard", "1/2")
        quern("run", "-w", f"p.safetensors:{weight}", "-x", "x.npy", "-o", "y.npy", "--force")
        quern("run", "-w", f"s1.safetensors:{weight}", "-x", "x.npy", "-o", "y1.npy", "--force")
        y, part = npy_read("y.npy")[1], npy_read("y1.npy")[1]
        first = (whole["n"] + 1) // 2
        rows = [y[i * whole["n"] + first:(i + 1) * whole["n"]] for i in range(3)]
        self.assertEqual(list(part), [v for row in rows for v in row])
        for shard in ("2/2", "-1/2", "1", "1/2x", "0/0", "a/b"):
            self.complains("pack", "q.safetensors", "-o", "p", "--shard", shard, status=2,
                           says="RANK")
        self.complains("pack", "q.safetensors", "-o", "p", "--split", "row", status=2,
                       says="--shard")
        self.complains("pack", "q.safetensors", "-o", "p", "--shard", "0/2", "--split", "row",
                       "-i", "layers.0.conv.weight", status=2, says="convolution")

    def test_bad_input(self):
        self.complains("pack", "q.safetensors", status=2, says="-o FILE")
        self.complains("pack", "no.safetensors", "-o", "p", status=3, says="no.safetensors")
        self.complains("pack", "model.safetensors", "-o", "p", status=3, says="quern quantize")
        self.complains("pack", "q.safetensors", "-o", "p", "-i", "lay", status=2, says="--include")
        self.complains("pack", "q.safetensors", "-o", "p", "-e", "*", status=3, says="--exclude")
        self.complains("pack", "q.safetensors", "-o", "p", "--x-block", "0", status=2)
        self.complains("pack", "q.safetensors", "-o", "no/p", status=4)
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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
