#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern convert and inspect on models of other programs, from outside: GGUF and GPTQ, all the way
to a product.

    convert.py QUERN [NAME...]
"""
import json
import os
import struct
import sys
import unittest

from command import Case, npy_read, npy_write, quern, safetensors


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path, tensors):
    """tensors: [(name, dims from the fastest, type, bytes)]"""
    head, data = b"", b""
    for name, dims, kind, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1) + text("general.architecture") + \
        struct.pack("<I", 8) + text("llama") + head
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32) + data)


def q8_0(rows):
    """Rows of 32 codes, scale 0.25."""
    return b"".join(struct.pack("<e32b", 0.25, *row) for row in rows)


ROWS = [[(3 * i + 5 * n) % 17 - 8 for i in range(32)] for n in range(4)]


class Convert(Case):
    def model(self):
        q4_1 = struct.pack("<ee", 1.0, 2 ** -24) + bytes(16) # 2^-24 + 8 would be no f32
        gguf("m.gguf", [("up.weight", [32, 4], 8, q8_0(ROWS)), ("min.weight", [32, 1], 3, q4_1),
                        ("norm.weight", [4], 0, struct.pack("<4f", 1, 2, 3, 4))])

    def product(self, path, name):
        npy_write("x.npy", [1, 32], [float(i % 5) for i in range(32)])
        quern("run", "-w", f"{path}:{name}", "-x", "x.npy", "-o", "y.npy", "--force")
        return npy_read("y.npy")[1]

    def test_gguf(self):
        self.model()
        out = json.loads(quern("convert", "m.gguf", "-o", "q.st", "--json"))
        self.assertEqual((out["weights"], out["tensors"], out["rounded"]), (2, 1, 0))
        want = [0.25 * sum(w * (i % 5) for i, w in enumerate(row)) for row in ROWS]
        self.assertEqual(self.product("q.st", "up.weight"), want)
        quern("pack", "q.st", "-o", "p.st")
        self.assertEqual(self.product("p.st", "up.weight"), want)
        names = [t["name"] for t in json.loads(quern("inspect", "q.st", "--json"))["tensors"]]
        self.assertEqual(sorted(names), ["min.weight", "norm.weight", "up.weight"])

    def rounding_model(self):
        """LLM.int8: the scale is a row's largest magnitude over 127, and 1 / 127 is no f32."""
        safetensors("m.st", {"up.weight": ("I8", [2, 4], range(8)),
                             "up.SCB": ("F32", [2], [127.0, 1.0]),
                             "even.weight": ("I8", [1, 4], range(4)),
                             "even.SCB": ("F32", [1], [254.0])})

    def test_exact(self):
        self.rounding_model()
        self.complains("convert", "m.st", "-o", "q.st", "--exact", status=3,
                       says=["up.weight", "1 of 2 groups"])
        self.assertFalse(os.path.exists("q.st") or os.path.exists("q.st.part"))
        said = quern("convert", "m.st", "-o", "q.st", "--exact", "-e", "up*")
        self.assertIn("exact", said)
        self.complains("convert", "m.st", "-o", "q.st", status=2, says=["q.st", "--force"])
        quern("convert", "m.st", "-o", "q.st", "--force", "-i", "up*", "-q")
        self.assertIn("1 of 3 groups", quern("convert", "m.st", "-n"))

    def test_dry_run(self):
        self.model()
        self.assertIn("exact", quern("convert", "m.gguf", "-n"))
        self.assertEqual(os.listdir("."), ["m.gguf"])
        self.complains("convert", "m.gguf", status=2, says=["no output"])
        self.complains("convert", "m.gguf", "-o", "m.gguf", status=2)
        self.complains("convert", "m.gguf", "-n", "-e", "*", status=3, says=["no module is left"])
        self.complains("convert", "none.gguf", "-n", status=3, says=["none.gguf"])

    def test_inspect(self):
        self.model()
        said = quern("inspect", "m.gguf")
        for word in ("up.weight", "4 x 32", "q8_0", "8.50", "norm.weight", "2 quantized weights"):
            self.assertIn(word, said)
        self.assertIn("format: type Q8_0", quern("inspect", "m.gguf", "up*"))
        out = json.loads(quern("inspect", "m.gguf", "--json"))
        modules = {m["name"]: m for m in out["modules"]}
        self.assertEqual((modules["up.weight"]["n"], modules["up.weight"]["k"]), (4, 32))
        self.assertEqual(modules["up.weight"]["importer"], "gguf")
        self.assertIn("exact", modules["up.weight"]["provenance"])
        self.assertNotIn("format", modules["norm.weight"])
        self.complains("inspect", "m.gguf", "nothing*", status=3, says=["nothing*"])
        self.complains("inspect", "m.gguf", "--stats", status=2, says=["--stats"])

    def gptq_folder(self, quantizer):
        """4-bit GPTQ, k = 8, n = 8, codes k, zeros that differ."""
        os.mkdir("gptq")
        zeros = 0x76543217
        safetensors("gptq/model.safetensors", {
            "m.qweight": ("I32", [1, 8], [0x76543210] * 8), "m.qzeros": ("I32", [1, 1], [zeros]),
            "m.scales": ("F16", [1, 8], [0.5] * 8), "m.bias": ("F16", [8], [1.0] * 8)})
        config = {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False,
                  "checkpoint_format": "gptq", "meta": {"quantizer": [quantizer]}}
        with open("gptq/config.json", "w", encoding="utf-8") as file:
            json.dump({"quantization_config": config}, file)

    def test_gptq(self):
        self.gptq_folder("gptqmodel:6.0")
        self.complains("convert", "gptq", "-o", "q.st", status=3, says=["--gptq-zeros", "v1-wrap"])
        self.assertIn("refused", quern("inspect", "gptq"))
        npy_write("x.npy", [1, 8], [1.0] + [0.0] * 7)
        for zeros, add in (("v1", 1), ("v2", 0)):
            quern("convert", "gptq", "-o", "q.st", "--force", "--gptq-zeros", zeros)
            quern("run", "-w", "q.st:m.weight", "-x", "x.npy", "-o", "y.npy", "--force")
            want = [0.5 * (0 - ((0x76543217 >> 4 * n & 15) + add)) for n in range(8)]
            self.assertEqual(npy_read("y.npy")[1], want)
        said = quern("inspect", "gptq", "--gptq-zeros", "v2", "m.weight")
        self.assertIn("the caller's choice", said)
        self.assertIn("has a bias", said)
        self.complains("convert", "gptq", "-n", "--gptq-zeros", "v3", status=2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])
