#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern quantize from outside.

    quantize.py QUERN [NAME...]
"""
import json
import math
import os
import resource
import signal
import subprocess
import sys
import unittest

from command import (QUERN, Case, is_sanitized, normal, npy_write, quern, quern_on_a_leash,
                     safetensors)


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

    def test_again(self):
        """Weights that are quantized already stay what they are; others may follow."""
        self.model()
        quern("quantize", "model.safetensors", "-o", "a.safetensors", "-q", "-i", "embed.*")
        out = quern("quantize", "a.safetensors", "-n")
        self.assertRegex(out, r"embed\.weight\.scale .*copied: of a quantized weight")
        quern("quantize", "a.safetensors", "-o", "b.safetensors", "-q", "--format", "q8_0")
        found = {t["name"]: t.get("format")
                 for t in json.loads(quern("inspect", "b.safetensors", "--json"))["tensors"]}
        self.assertEqual(found["embed.weight"], "int4:g128")
        self.assertIn("q8_0", found.values())
        quern("compare", "b.safetensors", "model.safetensors", "--min-sqnr", 12)
        self.complains("quantize", "b.safetensors", "-o", "c.safetensors", status=3,
                       says="nothing in it")
        self.assertFalse(os.path.exists("c.safetensors"))

    def test_conv_groups(self):
        safetensors("m.safetensors", {name: ("F16", [8, 4, 1, 1], normal(32))
                                      for name in ("a", "b", "c")})
        words = ["quantize", "m.safetensors", "-n", "--conv-groups", "a=2", "--conv-groups"]
        out = json.loads(quern(*words, "[bc]=4", "--conv-groups", "c=8", "--json"))
        self.assertEqual([t["conv_groups"] for t in out["tensors"]], [2, 4, 8])
        self.complains(*words, "d=2", status=2, says=["d=2", "no convolution"])
        self.complains(*words, "b=3", status=2, says="divisor")
        self.complains(*words, "b", status=2, says="PATTERN=N")

    def test_other_formats(self):
        """Scales of weights that others have quantized are no weights."""
        safetensors("m.safetensors", {
            "a.qweight": ("I32", [8, 64], [0] * 512), "a.scales": ("F16", [4, 64], normal(256)),
            "b.weight": ("I32", [4, 64], [0] * 256), "b.scales": ("F16", [4, 8], normal(32)),
            "b.biases": ("F16", [4, 8], normal(32)),
            "c.weight": ("I8", [4, 64], [0] * 256), "c.weight_scale": ("BF16", [4, 1], [1] * 4),
            "d.weight": ("F16", [4, 64], normal(256)), "d.scales": ("F16", [4, 64], normal(256))})
        out = json.loads(quern("quantize", "m.safetensors", "-n", "--json"))
        self.assertEqual([t["name"] for t in out["tensors"] if t["quantized"]],
                         ["d.weight", "d.scales"])

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
                     ["--method", "gptq", "--damping", "0.05"], ["--method", "search"],
                     ["--prescale", "awq"], ["--prescale", "smooth"],
                     ["--prescale", "smooth", "--alpha", "0.6"]):
            with self.subTest(more=more):
                quern(*words, "-c", "x.safetensors", *more)
                quern("compare", "q.safetensors", "model.safetensors", "--min-sqnr", 12)
        self.complains(*words, "--method", "gptq", status=2, says="--calibration")
        self.complains(*words, "--act-order", status=2)
        self.complains(*words, "--damping", "0.1", status=2, says="--damping")
        self.complains(*words, "--alpha", "0.3", "--prescale", "awq", "-c", "x.safetensors",
                       status=2, says="--alpha")
        safetensors("y.safetensors", {"layers.0.up": ("F32", [10, 3], normal(30))})
        self.complains(*words, "--method", "gptq", "-c", "y.safetensors", status=3)

    def test_npy_and_shards(self):
        npy_write("w.npy", [8, 32], normal(256))
        quern("quantize", "w.npy", "-o", "q.safetensors", "-q")
        self.assertIn("w ", quern("inspect", "q.safetensors"))
        # Transposed, as numpy saves W.T: the same weights.
        values = normal(256)
        npy_write("w.npy", [8, 32], [values[i % 8 * 32 + i // 8] for i in range(256)],
                  fortran=True)
        quern("quantize", "w.npy", "-o", "f.safetensors", "-q")
        quern("compare", "f.safetensors", "q.safetensors", "--min-sqnr", 300)
        npy_write("e.npy", [8, 32], [values[i % 8 * 32 + i // 8] for i in range(256)],
                  fortran=True)
        quern("quantize", "w.npy", "e.npy", "-o", "g.safetensors", "-q", "-e", "e")
        npy_write("e.npy", [8, 32], values)
        quern("quantize", "w.npy", "e.npy", "-o", "h.safetensors", "-q", "-e", "e")
        quern("compare", "g.safetensors", "h.safetensors", "--min-sqnr", 300)
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
        self.complains("quantize", "model.safetensors", "-o", "no/q.safetensors", status=4)
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
        self.complains("quantize", "model.safetensors", "-o", "shut/q.safetensors", status=4)

    def test_no_space(self):
        safetensors("m.safetensors", {"a": ("F16", [512, 512], normal(512 * 512))})

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        self.complains("quantize", "m.safetensors", "-o", "q.safetensors", status=4,
                       preexec_fn=small_files)
        self.assertEqual(os.listdir("."), ["m.safetensors"])

    def test_interrupted(self):
        self.many("m.safetensors")
        words = ["quantize", "m.safetensors", "-o", "q.safetensors", "--method", "search", "-t",
                 "1"]
        process = quern_on_a_leash(*words)
        first = process.stderr.readline() + process.stderr.readline()
        self.assertIn("[2/", first)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=280)[1]
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
        if is_sanitized():
            self.skipTest("a sanitizer's memory is not ours")
        quern("demo", "--make-model", "m.safetensors", "--gb", "0.08")
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")

        def peak(*words):
            return 1024 * int(subprocess.run(
                [sys.executable, "-c", script, QUERN, *words], check=True, capture_output=True,
                text=True).stdout.split()[-1])

        idle = peak("info", "-q")
        used = peak("quantize", "m.safetensors", "-o", "q.safetensors", "-q")
        self.assertLess(used, 2 * 4096 * 4096 * 2 + idle)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
