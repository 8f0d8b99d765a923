#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command among strangers: hostile names, odd types, files and sizes that go wrong.

    hostile.py QUERN [NAME...]
"""
import io
import json
import math
import os
import pickle
import resource
import struct
import subprocess
import sys
import tarfile
import unittest
import zipfile

from command import (COMPLAINT, QUERN, Case, is_sanitized, normal, quern, quern_on_a_leash,
                     safetensors, seconds_of_children)


def safetensors_raw(path, header, data=b""):
    """Any header: types and shapes that the library does not have."""
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Names(Case):
    def test_hostile_names(self):
        """Nothing that a terminal obeys comes out of a file; --json has the name as it is."""
        name = "a\nb\x1b[31mc\x7f\u009b2J\u202ed\u2066"
        shown = "a?b?[31mc???2J???d???"
        safetensors("m.safetensors", {name: ("F32", [2, 4], normal(8))},
                    {"k\x1b": "v\x1b[0m\nw"})
        for words in (["inspect", "m.safetensors"], ["inspect", "m.safetensors", "--stats"],
                      ["compare", "m.safetensors", "m.safetensors"],
                      ["quantize", "m.safetensors", "-n"]):
            out = quern(*words)
            self.assertIn(shown, out)
            self.assertEqual([c for c in out if c < " " and c != "\n"], [])
        out = quern("quantize", "m.safetensors", "-o", "q.safetensors", "--all")
        self.assertIn(shown, out.err)
        self.assertEqual([c for c in out.err if c < " " and c != "\n"], [])
        everything = ("\u0080\u009f\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068"
                      "\u2069\u061c")
        safetensors("n.safetensors", {name + everything: ("F32", [2, 4], normal(8))})
        for words in (["inspect", "n.safetensors"], ["compare", "n.safetensors", "n.safetensors"],
                      ["quantize", "n.safetensors", "-n"]):
            out = quern(*words, "--json")
            self.assertIn(name + everything, [t["name"] for t in json.loads(out)["tensors"]])
            self.assertEqual([c for c in out if ord(c) > 0x7e or c < " " and c not in "\n\t"], [])
            out = quern(*words)
            self.assertEqual([c for c in out if c in everything + "\u009b\u202e\x7f"], [])
        line = self.complains("inspect", "no\nsuch\x1b[31m", status=3, says="no?such?[31m")
        self.assertEqual(line.count("quern:"), 1)

    def test_paths_of_any_bytes(self):
        path = os.fsdecode(b"m\xff\xc3.safetensors")
        self.model(path)
        found = json.loads(quern("inspect", path, "--json"))
        self.assertEqual(found["file"], "m??.safetensors")
        found = json.loads(quern("quantize", path, "-o", os.fsdecode(b"q\xfe"), "--json", "-q"))
        self.assertEqual(found["out"], "q?")
        self.assertTrue(os.path.exists(b"q\xfe"))
        self.complains("inspect", os.fsdecode(b"\xff"), status=3, says="?: cannot be opened")

    def test_without_views(self):
        """Types and ranks that the library does not have are listed and compared without harm."""
        for dtype, shape, data in (("F4", [4], b"ab"), ("U8", [1] * 9, b"a"), ("NEW", [2], b"abc")):
            safetensors_raw("m.safetensors", {"a": {"dtype": dtype, "shape": shape,
                                                    "data_offsets": [0, len(data)]}}, data)
            line = quern("inspect", "m.safetensors", "--stats").split("\n")[1]
            self.assertIn(dtype, line)
            self.assertNotIn("scalar", line)
            self.assertIn("cannot be read", quern("compare", "m.safetensors", "m.safetensors",
                                                  status=1))

    def test_colons(self):
        """FILE:NAME where both have colons."""
        for path in ("m.safetensors", "a:b:c.safetensors"):
            safetensors(path, {"dense/kernel:0": ("F32", [4, 8], normal(32)),
                               "x": ("F32", [2, 8], normal(16))})
            quern("run", "-w", f"{path}:dense/kernel:0", "--format", "int4:g8", "-x", f"{path}:x",
                  "-o", "y.npy", "--force")
            self.complains("run", "-w", f"{path}:no:0", "--format", "int4:g8", "-x", f"{path}:x",
                           "-o", "y.npy", status=3, says=["no:0", path])
        self.complains("run", "-w", "none:w", "-x", "m.safetensors:x", "-o", "y.npy", status=3,
                       says="none: cannot be opened")

    def test_packed(self):
        """Metadata that cannot be believed: the tensor is listed as it is."""
        for text in ("", "[", "[]", "{}", "0", '{"n":1e99}', '{"format":3}'):
            self.packed_by_words(text)
            self.assertIn("w.packed", quern("inspect", "p.safetensors"))
            self.assertIn("U8", quern("inspect", "p.safetensors", "--json"))
        good = {"format": "int4:g32", "layout": "\x1b[31m" + "x" * 99, "device": "cpu", "n": 2,
                "k": 3, "kh": 1, "kw": 1, "conv_groups": 1}
        for key, value in (("n", -1), ("k", 1 << 40), ("kh", 0), ("format", "int4"), ("kw", "1")):
            self.packed_by_words(json.dumps({**good, key: value}))
            self.assertIn("w.packed", quern("inspect", "p.safetensors"))
        self.packed_by_words(json.dumps(good))
        text = quern("inspect", "p.safetensors")
        self.assertIn("packed weights 'w'", text)
        self.assertNotIn("x" * 30, text)

    def packed_by_words(self, text):
        safetensors_raw("p.safetensors", {"__metadata__": {"quern.packed.w": text},
                                          "w.packed": {"dtype": "U8", "shape": [4],
                                                       "data_offsets": [0, 4]}}, b"abcd")

    def test_neighbours_of_weights(self):
        """A tensor is part of a weight by its ending, not by the beginning of its name."""
        safetensors("m.safetensors", {"fc": ("F32", [4, 8], normal(32)),
                                      "fc.bias": ("F32", [4], normal(4))})
        quern("quantize", "m.safetensors", "-o", "q.safetensors", "-q", "--all")
        self.assertIn("fc.bias", quern("inspect", "q.safetensors"))
        self.assertNotIn("fc.codes", quern("inspect", "q.safetensors"))
        found = json.loads(quern("compare", "q.safetensors", "m.safetensors", "--json"))
        self.assertEqual(sorted(t["name"] for t in found["tensors"]), ["fc", "fc.bias"])

    def test_nothing(self):
        safetensors("m.safetensors", {}, {"a": "b"})
        self.complains("compare", "m.safetensors", "m.safetensors", status=1, says="no tensor")

    def test_empty_words(self):
        self.complains("quantize", "", "-o", "q", status=2, says="argument 1: empty")
        self.complains("quantize", "a", "-o", "", status=2, says="--out: empty")

    def test_no_standard_output(self):
        safetensors("m.safetensors", {"a.weight": ("F32", [64, 64], normal(4096))})
        for command in ("quantize", "pack"):
            self.complains(command, "m.safetensors", "-o", "-", status=2, says="standard output")
            self.assertFalse(os.path.exists("-"))
        quern("quantize", "m.safetensors", "-o", "./-", "-q")
        self.assertTrue(os.path.exists("-"))


class Kinds(Case):
    """Files that are given for models and are none: what they are, and what to do."""

    def test_kinds(self):
        def zipped(name):
            data = io.BytesIO()
            with zipfile.ZipFile(data, "w") as archive:
                archive.writestr(name, b"x" * 100)
            return data.getvalue()

        def tarred(mode):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode=mode) as archive:
                info = tarfile.TarInfo("model.safetensors")
                info.size = 100
                archive.addfile(info, io.BytesIO(b"x" * 100))
            return data.getvalue()

        cases = {
            "a TensorFlow Lite model": [b"\x1c\0\0\0TFL3" + b"\0" * 100],
            "an npz archive": [zipped("weights.npy")],
            "a PyTorch checkpoint": [zipped("archive/data.pkl"), zipped("model/data/0")],
            "a zip archive": [zipped("readme.txt")],
            "a Python pickle": [pickle.dumps({"a": [1.0] * 9}, protocol=p) for p in (2, 4, 5)],
            "a tar archive": [tarred("w")],
            "compressed with gzip": [tarred("w:gz")], "compressed with bzip2": [tarred("w:bz2")],
            "compressed with xz": [tarred("w:xz")],
            "an HTML page": [b"<!DOCTYPE html>\n<html><body>404</body></html>",
                             b"\xef\xbb\xbf \n <HTML>Sign in</HTML>"],
            "an XML text": [b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>'],
            "a Git LFS pointer": [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"],
            "a JSON text": [b'{"error": "Repository not found"}', b"{}"],
            "an HDF5 file": [b"\x89HDF\r\n\x1a\n" + b"\0" * 64],
        }
        for words, files in cases.items():
            for data in files:
                with open("model.bin", "wb") as file:
                    file.write(data)
                for command in (["inspect", "model.bin"],
                                ["quantize", "model.bin", "-o", "q.safetensors"]):
                    line = self.complains(*command, status=3, says=["model.bin: ", words])
                    self.assertNotIn("fetch or make the file again", line)
                    self.assertEqual(line.count("; "), 1, line)
        # A safetensors file that is good is not taken for anything else.
        for n in range(2, 90):
            safetensors("m.safetensors", {"a" * n: ("F32", [2, 4], normal(8))})
            quern("inspect", "m.safetensors")


class Limits(Case):
    def test_more_than_memory(self):
        """A tensor that memory cannot hold: what was done before it is kept, and said; else
        nothing is."""
        if is_sanitized():
            self.skipTest("a sanitizer's memory is not ours")
        large = 512 << 20  # mapped, as much is not left for its codes
        for first in (0, 64):
            header = {"b": {"dtype": "F16", "shape": [4096, 65536],
                            "data_offsets": [first, first + large]}}
            if first:
                header["a"] = {"dtype": "F16", "shape": [4, 8], "data_offsets": [0, first]}
            safetensors_raw("m.safetensors", header)
            os.truncate("m.safetensors", os.path.getsize("m.safetensors") + first + large)
            out = quern("quantize", "m.safetensors", "-o", "q.safetensors", "-b", 2, "-g", "pc",
                        "-q", "-t", 1, status=4, preexec_fn=lambda: resource.setrlimit(
                            resource.RLIMIT_AS, (large + (200 << 20), large + (200 << 20))))
            self.assertIn("memory", out.err)
            self.assertEqual("q.safetensors.part: holds what is done; the same command with" in
                             out.err, first > 0)
            self.assertEqual(os.path.exists("q.safetensors.part"), first > 0)

    def test_shrinks(self):
        """An input that is cut short while it is mapped: a sentence, no output."""
        self.many("m.safetensors")
        process = quern_on_a_leash("quantize", "m.safetensors", "-o", "q.safetensors", "-t", "1")
        process.stderr.readline()
        os.truncate("m.safetensors", 4096)
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 3, err)
        self.assertRegex(err.strip().split("\n")[-1], COMPLAINT)
        self.assertFalse(os.path.exists("q.safetensors"))

    def test_many(self):
        """The weights of many experts: each is found by search."""

        def used(n):
            header, at = {"__metadata__": {}}, 0
            for i in range(n):
                name = f"layers.{i // 100}.experts.{i % 100}.weight"
                header["__metadata__"]["quern.weight." + name] = json.dumps(
                    {"version": 1, "format": "int4:g2:f16", "n": 2, "k": 2, "kh": 1, "kw": 1,
                     "conv_groups": 1})
                for part, dtype, size in ((".scale", "F16", 4), (".codes", "U8", 2)):
                    header[name + part] = {"dtype": dtype, "shape": [2, 1],
                                           "data_offsets": [at, at + size]}
                    at += size
            safetensors_raw("m.safetensors", header, bytes(at))
            before = seconds_of_children()
            self.assertEqual(len(quern("inspect", "m.safetensors").splitlines()), n + 2)
            quern("compare", "m.safetensors", "m.safetensors")
            return seconds_of_children() - before

        # Four times the time; by comparing names ten and more, whenever it is tried.
        self.assertTrue(any(used(20000) < 7 * used(5000) for _ in range(3)))

    @unittest.skipIf(is_sanitized(), "sanitizers take memory of their own")
    def test_memory_of_long_headers(self):
        """A header of any length takes a few times its bytes, whatever is printed of it."""
        n = 150_000
        for name, dtype in (("a.safetensors", "U8"), ("b.safetensors", "I8")):
            safetensors_raw(name, {f"model.{i:07d}.w": {"dtype": dtype, "shape": [0],
                                                        "data_offsets": [0, 0]}
                                   for i in range(n)})
        sizes = [os.path.getsize(name) for name in ("a.safetensors", "b.safetensors")]
        for words, header in ((("inspect", "a.safetensors"), sizes[0]),
                              (("inspect", "a.safetensors", "--json"), sizes[0]),
                              (("compare", "a.safetensors", "b.safetensors"), sum(sizes)),
                              (("compare", "a.safetensors", "b.safetensors", "--json"),
                               sum(sizes))):
            with self.subTest(words=words), open("out", "wb") as out:
                child = subprocess.Popen([QUERN, *words], stdout=out, stderr=out)
                _, status, used = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                self.assertIn(child.returncode, (0, 1))
                self.assertLess(used.ru_maxrss * 1024, 8 * header + (64 << 20))
            if "--json" in words:
                with open("out", encoding="utf-8") as file:
                    self.assertEqual(len(json.load(file)["tensors"]), n)

    def test_too_large(self):
        """Refused with a sentence, before the kernel refuses with a signal."""
        with open("/proc/meminfo", encoding="utf-8") as file:
            total = 1024 * int(file.readline().split()[1])
        n = math.isqrt(int(total / 3)) + 1  # numbers fit, with codes they do not
        begin = seconds_of_children()
        self.complains("bench", "--n", n, "--k", n, status=4, says=["memory", "GB"])
        self.complains("explain", "--n", n, "--k", n, status=4, says=["memory", "GB"])
        self.complains("bench", "--n", 64, "--k", 64, "--m", total // 64 // 4, status=4,
                       says="memory")
        self.assertLess(seconds_of_children() - begin, 30)
        huge = f"{1 << 20}x{1 << 20}"
        self.complains("bench", "--op", "conv2d", "--n", 64, "--ci", 1 << 30, "--size", huge,
                       "--kernel-size", huge, status=2, says="take a smaller problem")
        self.complains("bench", "--layers", "llama3-8b", "--n", 4, status=2, says="--n")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
