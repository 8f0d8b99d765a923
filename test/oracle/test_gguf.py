#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files written by the gguf package, and its dequantization of every block type, against
qn_checkpoint: bit for bit. Environment: QUERN_LIBRARY; QUERN_GGUF may name a real model, all of
whose tensors are then compared too. Exit status 77: a package is missing.
"""
import os
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from gguf.quants import dequantize
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install gguf)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, refused, same_bits

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4".split()
OTHERS = "TQ1_0 TQ2_0 IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ3_S IQ2_S IQ1_M".split()
# Bytes of a block that are halves of a finite f16, or a finite scale: what random bytes may not be.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
          "IQ4_XS": [0]}


def type_of(name):
    return getattr(gguf.GGMLQuantizationType, name, None)


def random_blocks(draw, name, rows, blocks, wide):
    """Any bits at all, but finite scales. wide: scales of all sizes, else near each other."""
    size = gguf.GGML_QUANT_SIZES[type_of(name)][1]
    raw = draw.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in HALVES.get(name, []):
        scale = draw.uniform(0.01, 0.02, (rows, blocks)) * draw.choice((-1, 1), (rows, blocks))
        scale *= 2.0 ** draw.integers(-14, 15, (rows, blocks)) if wide else 1
        raw[..., at:at + 2] = scale.astype(np.float16).view(np.uint8).reshape(rows, blocks, 2)
    if name == "MXFP4":
        raw[..., 0] = draw.integers(0, 255, (rows, blocks)) if wide else 120
    if name == "NVFP4":
        raw[..., :4] &= 0x7f
    return raw.reshape(rows, -1)


def write(path, tensors, split=None):
    writer = gguf.GGUFWriter(path, "test", **(split or {}))
    writer.add_uint32("test.number", 7)
    writer.add_array("test.words", ["a", "bc"])
    for name, raw, kind in tensors:
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_types(folder):
    draw = np.random.default_rng(1)
    path = os.path.join(folder, "t.gguf")
    tensors = []
    for name in TYPES:
        if type_of(name) is None:
            continue
        for wide in (False, True):
            raw = random_blocks(draw, name, 5, 3, wide)
            tensors.append((f"{name}.{wide}.weight", raw, type_of(name)))
    cube = random_blocks(draw, "Q4_K", 6, 2, False)
    tensors.append(("experts.weight", cube.reshape(3, 2, -1), type_of("Q4_K")))
    write(path, tensors)
    rounded = {}
    with Checkpoint(path) as c:
        for name, raw, kind in tensors:
            theirs = dequantize(raw.reshape(-1, raw.shape[-1]), kind)
            mine, count = c.values(name)
            key = name.split(".")[0]
            rounded[key] = rounded.get(key, 0) + count
            if count == 0:
                same_bits(mine, theirs, name)
            else: # one rounding of an offset: two steps of the largest term at most
                if not np.allclose(mine, theirs, rtol=0, atol=np.abs(theirs).max() * 2.0 ** -22):
                    sys.exit(f"{name}: rounded offsets are far off")
            if "True" not in name and count != 0:
                sys.exit(f"{name}: {count} groups were rounded")
            part, _ = c.values(name, 1, 3)
            same_bits(part, mine[1:4], name + ", rows 1 to 3")
        m = c.module("experts.weight")
        if (m.experts, m.n, m.role) != (3, 6, 3):
            sys.exit("experts are not told")
    print("types equal to the gguf package; groups rounded where scales differ by more than 2^24:",
          {k: v for k, v in rounded.items() if v})


def check_others(folder):
    path = os.path.join(folder, "o.gguf")
    for name in OTHERS:
        kind = type_of(name)
        size = gguf.GGML_QUANT_SIZES[kind][1]
        write(path, [("w.weight", np.zeros((2, size), np.uint8), kind)])
        with Checkpoint(path) as c:
            refused(f"type {name} is not imported", c.module, "w.weight")


def check_bad_scales(folder):
    """Scales that are no numbers are refused by row and group."""
    path = os.path.join(folder, "b.gguf")
    for name, at, bad in (("Q4_0", 0, (0, 0x7c)), ("Q8_0", 0, (1, 0x7e)), ("MXFP4", 0, (0xff,)),
                          ("NVFP4", 1, (0xff,)), ("NVFP4", 2, (0x80,)), ("Q4_1", 2, (0, 0xfc))):
        size = gguf.GGML_QUANT_SIZES[type_of(name)][1]
        raw = np.zeros((3, 2 * size), np.uint8)
        raw[2, size + at:size + at + len(bad)] = bad
        write(path, [("w.weight", raw, type_of(name))])
        with Checkpoint(path) as c:
            refused("of row 2, group", c.values, "w.weight")


def check_plain(folder):
    path = os.path.join(folder, "p.gguf")
    write(path, [("a", np.arange(6, dtype="f4").reshape(2, 3), None),
                 ("b", np.arange(4, dtype="f2"), None)])
    with Checkpoint(path) as c:
        if c.names() != ["a", "b"] or c.module("a").importer != b"" or c.module("a").role != 0:
            sys.exit("plain tensors are not told")
        refused("plain tensor", c.values, "a")


def check_split(folder):
    draw = np.random.default_rng(2)
    base = os.path.join(folder, "s.gguf")
    tensors = [(f"t{i}.weight", random_blocks(draw, "Q8_0", 4, 4, False), type_of("Q8_0"))
               for i in range(6)]
    write(base, tensors, {"split_max_tensors": 2})
    parts = sorted(f for f in os.listdir(folder) if f.startswith("s-"))
    if len(parts) != 3:
        sys.exit(f"the package wrote {parts}")
    for part in parts:
        with Checkpoint(os.path.join(folder, part)) as c:
            for name, raw, kind in tensors:
                same_bits(c.values(name)[0], dequantize(raw, kind), name)
    os.rename(os.path.join(folder, parts[1]), os.path.join(folder, "gone"))
    refused(f"part '{parts[1]}' is missing", Checkpoint, os.path.join(folder, parts[0]))
    os.link(os.path.join(folder, parts[2]), os.path.join(folder, parts[1]))
    refused("not the part that its name says", Checkpoint, os.path.join(folder, parts[0]))


def check_model(path):
    """Every tensor of a real model."""
    weights = 0
    with Checkpoint(path) as c:
        for t in gguf.GGUFReader(path).tensors:
            if t.tensor_type.name in ("F32", "F16", "BF16"):
                continue
            mine, rounded = c.values(t.name)
            same_bits(mine, dequantize(t.data, t.tensor_type), t.name)
            if rounded:
                sys.exit(f"{t.name}: {rounded} groups were rounded")
            weights += 1
    print(f"{path}: {weights} weights equal the gguf package's, bit for bit")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_types(folder)
        check_others(folder)
        check_bad_scales(folder)
        check_plain(folder)
        check_split(folder)
    if os.environ.get("QUERN_GGUF"):
        check_model(os.environ["QUERN_GGUF"])


if __name__ == "__main__":
    main()
