#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files written by the gguf package, and its dequantization of every block type, against
qn_checkpoint: bit for bit; and every block made again from the canonical weight: byte for byte.
Environment: QUERN_LIBRARY; QUERN_GGUF may name a real model, all of
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


def halves(values):
    """f32 that are f16 exactly, as bytes behind each other in a last axis of two."""
    out = np.asarray(values, "f4").astype("f2")
    if (out.astype("f4").view("u4") != np.asarray(values, "f4").view("u4")).any():
        sys.exit("a scale is no f16")
    return out.view("u1").reshape(out.shape + (2,))


def low_and_high(codes, run):
    """Byte j of a run: element j low, element j + run high."""
    pairs = codes.reshape(codes.shape[:-1] + (-1, 2, run))
    return (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(codes.shape[:-1] + (-1,))


def bits_of_32(codes, bit):
    """One bit of each 32 elements, in order."""
    return np.packbits(codes >> bit & 1, axis=-1, bitorder="little")


def six_bits(sc, mn):
    """Eight scales and minima of 6 bits in 12 bytes."""
    out = np.empty(sc.shape[:-1] + (12,), "u1")
    out[..., :4] = sc[..., :4] | sc[..., 4:] >> 4 << 6
    out[..., 4:8] = mn[..., :4] | mn[..., 4:] >> 4 << 6
    out[..., 8:] = sc[..., 4:] & 15 | (mn[..., 4:] & 15) << 4
    return out


def fours_of_pairs(codes):
    """Two bits of 256 elements: 32 bytes hold four runs of 32."""
    runs = codes.reshape(codes.shape[:-1] + (2, 4, 32)) & 3
    shifted = runs << np.array([0, 2, 4, 6], "u1")[:, None]
    return np.bitwise_or.reduce(shifted, axis=-2).reshape(codes.shape[:-1] + (64,))


def planes(codes, bit):
    """A bit of 256 elements: byte l has elements l, l + 32, ... from its low bit on."""
    runs = (codes >> bit & 1).reshape(codes.shape[:-1] + (8, 32))
    return np.bitwise_or.reduce(runs << np.arange(8, dtype="u1")[:, None], axis=-2)


def blocks_again(name, w):
    """The bytes of the blocks, from the arrays of the canonical weight alone."""
    n = w["codes"].shape[0]
    length = 256 if "sub_scale" in w else 64 if name == "NVFP4" else 32
    u = w["codes"].reshape(n, -1, length)
    by_block = {key: w[key].reshape(n, u.shape[1], -1) for key in w if key != "codes"}
    scale = by_block["scale"]
    sc = by_block.get("sub_scale", np.zeros(1, "i2"))
    mn = by_block.get("sub_min", np.zeros(1, "i2")).astype("u1")
    d = halves(by_block["super_scale"][..., 0]) if length == 256 else None
    dmin = halves(by_block["super_min"][..., 0]) if "super_min" in w else None
    if name in ("Q4_0", "IQ4_NL"):
        parts = [halves(scale[..., 0]), low_and_high(u, 16)]
    elif name == "Q4_1":
        parts = [halves(scale[..., 0]), halves(by_block["offset"][..., 0]), low_and_high(u, 16)]
    elif name == "Q5_0":
        parts = [halves(scale[..., 0]), bits_of_32(u, 4), low_and_high(u & 15, 16)]
    elif name == "Q5_1":
        parts = [halves(scale[..., 0]), halves(by_block["offset"][..., 0]), bits_of_32(u, 4),
                 low_and_high(u & 15, 16)]
    elif name == "Q8_0":
        parts = [halves(scale[..., 0]), u ^ 0x80]
    elif name == "MXFP4":
        tiny = scale == np.float32(2.0 ** -127) # e = 0 is a subnormal
        parts = [np.where(tiny, 0, scale.view("u4") >> 23).astype("u1"), low_and_high(u, 16)]
    elif name == "NVFP4":
        e4m3 = np.array([i % 8 / 512 if i < 8 else (8 + i % 8) * 2.0 ** (i // 8 - 10)
                         for i in range(127)], "f4")
        parts = [np.searchsorted(e4m3, scale).astype("u1"), low_and_high(u, 8)]
    elif name == "Q2_K":
        parts = [sc.astype("u1") | mn << 4, fours_of_pairs(u), d, dmin]
    elif name == "Q3_K":
        s = (sc + 32).astype("u1")
        low = s[..., :8] & 15 | (s[..., 8:] & 15) << 4
        high = (s >> 4).reshape(s.shape[:-1] + (4, 4)) << np.array([0, 2, 4, 6], "u1")[:, None]
        parts = [planes(u, 2), fours_of_pairs(u), low, np.bitwise_or.reduce(high, axis=-2), d]
    elif name == "Q4_K":
        parts = [d, dmin, six_bits(sc.astype("u1"), mn), low_and_high(u, 32)]
    elif name == "Q5_K":
        parts = [d, dmin, six_bits(sc.astype("u1"), mn), planes(u, 4), low_and_high(u & 15, 32)]
    elif name == "Q6_K":
        q = u.reshape(u.shape[:-1] + (2, 4, 32))
        low = q[..., :2, :] & 15 | (q[..., 2:, :] & 15) << 4
        high = np.bitwise_or.reduce((q >> 4) << np.array([0, 2, 4, 6], "u1")[:, None], axis=-2)
        shape = u.shape[:-1] + (-1,)
        parts = [low.reshape(shape), high.reshape(shape), sc.astype("i1").view("u1"), d]
    elif name == "IQ4_XS":
        s = (sc + 32).astype("u2")
        high = np.bitwise_or.reduce((s >> 4) << np.arange(0, 16, 2, dtype="u2"), axis=-1)
        parts = [d, np.stack([high & 255, high >> 8], -1).astype("u1"),
                 (s[..., ::2] & 15 | (s[..., 1::2] & 15) << 4).astype("u1"), low_and_high(u, 16)]
    return np.concatenate(parts, axis=-1).reshape(n, -1)


def check_bytes(name, raw, w):
    kind, again = name.split(".")[0], raw.reshape(-1, raw.shape[-1]).copy()
    if kind == "NVFP4": # the one value that has two codes
        again = again.reshape(len(again), -1, 36)
        again[..., :4][again[..., :4] == 0x7f] = 0
        again = again.reshape(len(again), -1)
    mine = blocks_again(kind, w)
    if mine.shape != again.shape or (mine != again).any():
        sys.exit(f"{name}: blocks made from the canonical weight are other bytes, first at "
                 f"{np.argwhere(mine != again)[:1].tolist()}")


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
    with Checkpoint(path) as c:
        for name, raw, kind in tensors:
            theirs = dequantize(raw.reshape(-1, raw.shape[-1]), kind)
            mine, count = c.values(name)
            if count != 0:
                sys.exit(f"{name}: {count} groups were rounded")
            same_bits(mine, theirs, name)
            check_bytes("Q4_K" if name == "experts.weight" else name, raw, c.arrays)
            part, _ = c.values(name, 1, 3)
            same_bits(part, mine[1:4], name + ", rows 1 to 3")
        m = c.module("experts.weight")
        if (m.experts, m.n, m.role) != (3, 6, 3):
            sys.exit("experts are not told")
    print("types equal to the gguf package, bit for bit, and their blocks byte for byte")


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
        same_bits(c.values("a")[0], np.arange(6, dtype="f4").reshape(2, 3), "a plain matrix")
        refused("plain tensor", c.values, "b")


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
            check_bytes(t.tensor_type.name, t.data, c.arrays)
            if rounded:
                sys.exit(f"{t.name}: {rounded} groups were rounded")
            weights += 1
    print(f"{path}: {weights} weights equal the gguf package's, bit for bit, and come back byte "
          "for byte")


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
