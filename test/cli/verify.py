#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern verify, and what inspect shows of packed weights that contradict themselves.

    verify.py QUERN [NAME...]
"""
import json
import os
import struct
import sys
import unittest

from command import Case, normal, quern, safetensors
from exports import LAYER, model


def place(path, tensor):
    """Where a tensor's data begin and end in the file, and all bytes."""
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    start = 8 + struct.unpack_from("<Q", raw)[0]
    begin, end = json.loads(raw[8:start])[tensor]["data_offsets"]
    return raw, start + begin, start + end


def flip(path, tensor, at):
    raw, begin, end = place(path, tensor)
    raw[begin + at if at >= 0 else end + at] ^= 1
    with open(path, "wb") as file:
        file.write(raw)


class Verify(Case):
    def setUp(self):
        super().setUp()
        safetensors("m.safetensors", {"a.weight": ("F32", [48, 64], normal(48 * 64)),
                                      "norm": ("F32", [64], normal(64))})
        quern("quantize", "m.safetensors", "-f", "int4:g32", "-o", "q.safetensors", "-q")
        quern("pack", "q.safetensors", "-o", "p.safetensors", "-q")

    def verify(self, *paths, status=0):
        text = quern("verify", *paths, "--json", status=status)
        return [json.loads(line) for line in text.strip().split("\n")]

    def test_good(self):
        plain, quantized, packed = self.verify("m.safetensors", "q.safetensors", "p.safetensors")
        self.assertEqual((plain["checksums"], plain["tensors"], plain["good"]), (0, 2, True))
        self.assertEqual((quantized["checksums"], quantized["weights"]), (3, 1))
        self.assertEqual((packed["checksums"], packed["packed"]), (1, 1))
        self.assertEqual([r["header_checksum"] for r in (plain, quantized, packed)],
                         [False, True, True])
        self.assertIn("good: q.safetensors", quern("verify", "q.safetensors"))
        self.assertNotIn("xxh64", quern("inspect", "q.safetensors"))
        self.assertNotIn("quern.header", quern("inspect", "q.safetensors"))

    def test_damage(self):
        """One bit of a copied tensor, of codes, of packed codes: each is named."""
        for path, tensor in (("q.safetensors", "norm"), ("q.safetensors", "a.weight.codes"),
                             ("p.safetensors", "a.weight.packed")):
            flip(path, tensor, -100)
            found, = self.verify(path, status=1)
            self.assertFalse(found["good"])
            self.assertIn(tensor, found["damaged"][0]["why"])
            self.assertIn("damaged:", quern("verify", path, status=1))
            flip(path, tensor, -100)
        self.assertEqual(self.verify("q.safetensors")[0]["damaged"], [])

    def test_header(self):
        """Another group size with as many groups: everything loads, and all values are others."""
        with open("q.safetensors", "rb") as file:
            raw = file.read()
        with open("q.safetensors", "wb") as file:
            file.write(raw.replace(b"int4:g32", b"int4:g48"))
        found, = self.verify("q.safetensors", status=1)
        self.assertIn("the header is damaged", found["damaged"][0]["why"])
        self.assertEqual((len(found["damaged"]), found["weights"]), (1, 1))
        with open("q.safetensors", "wb") as file:  # of a version without this checksum
            file.write(raw.replace(b"quern.header", b"quern.hidden"))
        found, = self.verify("q.safetensors")
        self.assertFalse(found["header_checksum"])

    def test_head(self):
        """The head of packed weights says 49 outputs, the metadata 48: nobody uses them."""
        raw, begin, _ = place("p.safetensors", "a.weight.packed")
        at = raw.index(struct.pack("<qq", 48, 64), begin)
        raw[at] = 47
        with open("p.safetensors", "wb") as file:
            file.write(raw)
        words = "n is 48 in the metadata and 47 in the head"
        self.assertIn(words, quern("inspect", "p.safetensors"))
        why = " ".join(d["why"] for d in self.verify("p.safetensors", status=1)[0]["damaged"])
        self.assertIn(words, why)
        self.complains("run", "-w", "p.safetensors", "-x", "m.safetensors:norm", "-o", "y.npy",
                       status=3, says=words)

    def test_models_of_other_programs(self):
        """A GPTQ folder and a GGUF file: every module is loaded; a scale that is no number is
        named, and a shard that is cut off."""
        model("gptq")
        quern("convert", "gptq", "-o", "m.gguf", "--to", "gguf", "-q")
        folder, gguf = self.verify("gptq", "m.gguf")
        for found in (folder, gguf):
            self.assertEqual((found["good"], found["modules"], found["files"]),
                             (True, len(LAYER), 1))
        name = f"model.layers.0.{next(iter(LAYER))}"
        raw, begin, _ = place("gptq/model.safetensors", name + ".scales")
        raw[begin:begin + 2] = b"\x00\x7e"
        with open("gptq/model.safetensors", "wb") as file:
            file.write(raw)
        found, = self.verify("gptq", status=1)
        self.assertEqual(found["damaged"][0]["module"], name + ".weight")
        self.assertIn("scale", found["damaged"][0]["why"])
        with open("gptq/model.safetensors", "wb") as file:
            file.write(raw[:-1])
        self.complains("verify", "gptq", status=3, says="model.safetensors")
        os.mkdir("empty")
        self.complains("verify", "empty", status=3, says="empty")

    def test_not_there(self):
        self.complains("verify", "none.safetensors", status=3, says="none.safetensors")
        self.complains("verify", status=2, says="FILE")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
