#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much memory and time checkpoints of another program may take, on sparse files: their data are
zeros, which no disk holds.

    bounds.py QUERN [NAME...]
"""
import json
import math
import os
import resource
import struct
import subprocess
import sys
import unittest

from command import QUERN, Case, is_sanitized, npy_write, quern

SIZES = {"U8": 1, "F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}
MIB = 1 << 20


def sparse(path, tensors, data=()):
    """A safetensors file of {name: (dtype, shape)}; data: {name: bytes} of some of them."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in data:
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(data[name])
        file.truncate(8 + len(text) + at)


def sparse_gguf(path, name, n, k):
    """One tensor of type Q4_K."""
    text = name.encode()
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(text)) + text
    head += struct.pack("<IQQIQ", 2, k, n, 12, 0)
    head += b"\0" * (-len(head) % 32)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + n * k // 256 * 144)


def gptq(k, n):
    return {"qweight": ("I32", [k // 8, n]), "qzeros": ("I32", [k // 128, n // 8]),
            "scales": ("F16", [k // 128, n])}


def folder(path, tensors, quantization, data=()):
    os.makedirs(path)
    sparse(os.path.join(path, "model.safetensors"), tensors, data)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"quantization_config": quantization}, file)
    return path


def models(n, k):
    """Checkpoints with a weight "m.weight" of 4 bits."""
    of_gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128,
               "checkpoint_format": "gptq_v2"}
    yield folder("awq", {"m.qweight": ("I32", [k, n // 8]), "m.qzeros": ("I32", [k // 128, n // 8]),
                         "m.scales": ("F16", [k // 128, n])},
                 {"quant_method": "awq", "bits": 4, "group_size": 128})
    yield folder("gptq", {"m." + key: value for key, value in gptq(k, n).items()}, of_gptq)
    order = struct.pack(f"<{k}i", *(i * 5 % k // 128 for i in range(k)))  # 5 does not divide k
    yield folder("act-order", {"m.g_idx": ("I32", [k]),
                               **{"m." + key: value for key, value in gptq(k, n).items()}},
                 {**of_gptq, "desc_act": True}, {"m.g_idx": order})
    yield folder("ct", {"m.weight_packed": ("I32", [n, k // 8]),
                        "m.weight_scale": ("F16", [n, k // 128]),
                        "m.weight_shape": ("I64", [2])},
                 {"quant_method": "compressed-tensors", "format": "pack-quantized",
                  "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                      "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128,
                      "symmetric": True}}}}, {"m.weight_shape": struct.pack("<qq", n, k)})
    sparse_gguf("q4_k.gguf", "m.weight", n, k)
    yield "q4_k.gguf"


@unittest.skipIf(is_sanitized(), "sanitizers take memory of their own")
class Memory(Case):
    def test_straight_to_packed(self):
        """Beside the packed weights 64 MiB are enough, for whatever the process allocates: the
        canonical weight has three times as many, and the f32 matrix eight times. Pages of the file
        are the system's."""
        n, k = 16384, 14336

        def limited(packed):
            room = packed + 64 * MIB
            return lambda: resource.setrlimit(resource.RLIMIT_DATA, (room, room))

        npy_write("x.npy", [1, k], [1.0] * k)
        for model in models(n, k):
            with self.subTest(model=model):
                quern("convert", model, "-o", "p.safetensors", "--to", "packed", "-t", 2, "-q",
                      "--force", preexec_fn=limited(n * k // 2 + n * k // 16))
                packed = os.path.getsize("p.safetensors")
                self.assertGreaterEqual(packed, n * k // 2)
                quern("run", "-w", f"{model}:m.weight", "-x", "x.npy", "-o", "y.npy", "-t", 2,
                      "--force", preexec_fn=limited(packed))
                self.assertIn("memory", quern(
                    "run", "-w", f"{model}:m.weight", "-x", "x.npy", "-o", "y.npy", "-t", 2,
                    "--force", status=4, preexec_fn=limited(packed - 128 * MIB)).err)
        quern("convert", "gptq", "-o", "q.safetensors", "--to", "quern", "-q")
        quern("pack", "q.safetensors", "-o", "p.safetensors", "-t", 2, "-q", "--force",
              preexec_fn=limited(n * k // 2 + n * k // 16))
        quern("run", "-w", "q.safetensors", "-x", "x.npy", "-o", "y.npy", "-t", 2, "--force",
              preexec_fn=limited(os.path.getsize("p.safetensors")))

    def test_a_folder_of_many_shards(self):
        """inspect of 140 GB in 80 shards: less than a second of a processor and 100 MB."""
        layers, n, k = 80, 8192, 8192
        for kind, config, of_layer in (
                ("plain", {}, {f"{j}.weight": ("BF16", [n, k]) for j in range(13)}),
                ("gptq", {"quantization_config": {"quant_method": "gptq", "bits": 4,
                                                  "group_size": 128}},
                 {f"{j}.{key}": value for j in range(50) for key, value in gptq(k, n).items()})):
            os.makedirs(kind)
            index, total = {}, 0
            for i in range(layers):
                shard = f"model-{i + 1:05}-of-{layers:05}.safetensors"
                tensors = {f"model.layers.{i}.{name}": t for name, t in of_layer.items()}
                sparse(os.path.join(kind, shard), tensors)
                index.update({name: shard for name in tensors})
                total += os.path.getsize(os.path.join(kind, shard))
            self.assertGreater(total, 139e9)
            for name, content in (("model.safetensors.index.json", {"weight_map": index}),
                                  ("config.json", config)):
                with open(os.path.join(kind, name), "w", encoding="utf-8") as file:
                    json.dump(content, file)
            with self.subTest(kind=kind):
                seconds = []
                for _ in range(3):
                    with open("out", "wb") as out:
                        child = subprocess.Popen([QUERN, "inspect", kind], stdout=out)
                        _, status, used = os.wait4(child.pid, 0)
                    child.returncode = os.waitstatus_to_exitcode(status)
                    self.assertEqual(child.returncode, 0)
                    self.assertLess(used.ru_maxrss * 1024, 100e6)
                    seconds.append(used.ru_utime + used.ru_stime)
                self.assertLess(min(seconds), 1)
                with open("out", encoding="utf-8") as file:
                    self.assertGreater(len(file.readlines()), layers)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
