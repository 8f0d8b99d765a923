#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors (packed, int8, fp8, NVFP4), MXFP4 blocks, block-scaled fp8 and bitsandbytes,
packed here from their documentation, against qn_checkpoint, bit for bit; and their traps.
Environment: QUERN_LIBRARY. Exit status 77: a package is missing."""
import json
import os
import struct
import sys
import tempfile

try:
    import numpy as np
    from packers import save
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install numpy safetensors)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, refused, same_bits

draw = np.random.default_rng(5)


def scheme(bits, group=None, symmetric=True, kind="int", activations=None, **keys):
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"targets": ["Linear"], "input_activations": activations, "weights": {
            "num_bits": bits, "type": kind, "symmetric": symmetric, "group_size": group, **keys}}}}}


def named(tensors):
    return {f"m.{k}": v for k, v in tensors.items()}


def check(folder, tensors, settings, want, what, rounded=False):
    save(folder, named(tensors), settings)
    with Checkpoint(folder) as c:
        values, count = c.values("m.weight")
        same_bits(values, want, what)
        if bool(count) != rounded:
            sys.exit(f"{what}: {count} groups rounded")
        if want.shape[0] > 4:
            same_bits(c.values("m.weight", 1, 3)[0], want[1:4], what + ", rows")
        return c.module("m.weight"), c.provenance("m.weight")


def refuse(folder, tensors, settings, words):
    save(folder, named(tensors), settings)
    with Checkpoint(folder) as c:
        refused(words, c.values, "m.weight")


def words(codes, bits):
    """Codes along the last axis, floor(32 / bits) a word."""
    each = 32 // bits
    rest = np.zeros((*codes.shape[:-1], -codes.shape[-1] % each), "u4")
    codes = np.concatenate([codes, rest], -1)
    codes = codes.reshape(*codes.shape[:-1], -1, each).astype("u4")
    return np.bitwise_or.reduce(codes << (np.arange(each, dtype="u4") * bits), -1).view("i4")


def packed(q, bits, scale, zp=None, shape="i8", g_idx=None):
    half = 1 << (bits - 1)
    out = {"weight_packed": words((q + half).astype("u4"), bits), "weight_scale": scale,
           "weight_shape": np.array(q.shape, shape)}
    if zp is not None:
        out["weight_zero_point"] = words((zp + half).astype("u4").T, bits).T
    if g_idx is not None:
        out["weight_g_idx"] = np.array(g_idx, "i4")
    return out


def check_packed(folder):
    for bits in range(2, 9):
        half = 1 << (bits - 1)
        for n, k, group in ((9, 64, 32), (16, 100, 50), (5, 96, 96)):
            g = np.arange(k) // group
            q = draw.integers(-half, half, (n, k))
            s = draw.uniform(.01, 1, (n, k // group)).astype("f2")
            zp = draw.integers(-half, half, s.shape)
            for shape in ("i4", "i8"):
                check(folder, packed(q, bits, s, shape=shape), scheme(bits, group),
                      s.astype("f4")[:, g] * q.astype("f4"), f"packed {bits} {k}")
            want = s.astype("f4")[:, g] * (q - zp[:, g]).astype("f4")
            check(folder, packed(q, bits, s, zp), scheme(bits, group, False), want, f"zp {bits}")
            turned = draw.permutation(g)
            want = s.astype("f4")[:, turned] * (q - zp[:, turned]).astype("f4")
            m, text = check(folder, packed(q, bits, s, zp, g_idx=turned),
                            scheme(bits, group, False, actorder="group"), want, f"order {bits}")
            if k > group and not m.has_perm:
                sys.exit(text)
            turned[3] = -1 # anywhere: not used
            want = s.astype("f4")[:, g] * (q - zp[:, g]).astype("f4")
            check(folder, packed(q, bits, s, zp, g_idx=turned), scheme(bits, group, False), want,
                  f"-1 {bits}")
    q = np.arange(-8, 0)[None].repeat(2, 0)
    tensors = packed(q, 4, np.full((2, 1), .5, "f2"))
    if tensors["weight_packed"][0, 0] != 0x76543210:
        sys.exit("words() is wrong")
    check(folder, tensors, scheme(4), q / np.float32(2), "documented")
    eight = packed(draw.integers(-8, 8, (4, 64)), 8, np.ones((4, 1), "f2"))
    refuse(folder, eight, None, "fill as many words")
    refuse(folder, eight, scheme(4), "num_bits")
    wide = packed(draw.integers(-8, 8, (2, 64)), 4, np.ones((2, 1), "f2"))
    refuse(folder, wide, scheme(8), "no group of 4 bits")
    refuse(folder, {**wide, "weight_shape": np.array([2, 999])}, None, "no 999 codes")
    refuse(folder, {**wide, "weight_shape": np.array([3, 64])}, None, "is not that of")
    refuse(folder, {**wide, "weight_shape": np.array([2, -64])}, None, "is not that of")
    refuse(folder, {k: v for k, v in wide.items() if k != "weight_shape"}, None, "weight_shape")
    refuse(folder, {k: v for k, v in wide.items() if k != "weight_scale"}, None, "weight_scale")


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], "f4")


def e4m3(codes):
    codes = codes.astype("u1")
    e, m = (codes >> 3 & 15).astype("i4"), (codes & 7).astype("f4")
    size = np.where(e == 0, m * 2.0 ** -9, (1 + m / 8) * 2.0 ** (e - 7.0))
    return np.where(codes & 128, -size, size).astype("f4")


def save_raw(folder, tensors, settings):
    """safetensors by hand: numpy has no fp8. tensors: {name: (dtype, shape, bytes)}"""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header["m." + name] = {"dtype": dtype, "shape": list(shape),
                               "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(settings or {}, file)


def values_of(folder, tensors, settings=None):
    save_raw(folder, tensors, settings)
    with Checkpoint(folder) as c:
        return c.values("m.weight")


def check_nvfp4(folder):
    codes = draw.integers(0, 16, (4, 64), dtype="u1")
    scale = draw.integers(1, 0x7f, (4, 4), dtype="u1")
    raw = (codes[:, ::2] | codes[:, 1::2] << 4).tobytes()
    for factor in (4.0, 1536.7):
        tensors = {"weight_packed": ("U8", (4, 32), raw),
                   "weight_scale": ("F8_E4M3", (4, 4), scale.tobytes()),
                   "weight_global_scale": ("F32", (1,), struct.pack("<f", factor))}
        s = (e4m3(scale) / np.float32(factor)).astype("f4")
        got, rounded = values_of(folder, tensors)
        same_bits(got, E2M1[codes] * s.repeat(16, 1), "nvfp4")
        if (rounded > 0) != (factor != 4.0):
            sys.exit(f"nvfp4: {rounded} rounded for {factor}")
    # byte 0x97, scale 2, global 4: 3, -0.25
    one = {"weight_packed": ("U8", (1, 8), b"\x97" * 8),
           "weight_scale": ("F8_E4M3", (1, 1), b"\x40"),
           "weight_global_scale": ("F32", (1,), struct.pack("<f", 4))}
    same_bits(values_of(folder, one)[0][0, :2], [3, -.25], "documented")


def check_mx_blocks(folder):
    """gpt-oss: experts of E2M1 pairs in blocks of 32, exponents beside them."""
    codes = draw.integers(0, 16, (3, 5, 96), dtype="u1")
    scales = draw.integers(0, 253, (3, 5, 3), dtype="u1")
    scales[0, 0] = 0, 1, 252
    raw = (codes[..., ::2] | codes[..., 1::2] << 4).reshape(3, 5, 3, 16)
    want = E2M1[codes] * np.ldexp(np.float32(1), scales.astype("i4") - 127).repeat(32, 2)
    for experts, shape in ((3, np.s_[:]), (1, np.s_[1])):
        tensors = {"up_blocks": np.ascontiguousarray(raw[shape]),
                   "up_scales": np.ascontiguousarray(scales[shape]), "norm": np.zeros(4, "f4")}
        save(folder, tensors, None)
        with Checkpoint(folder) as c:
            m, (got, rounded) = c.module("up"), c.values("up")
            same_bits(got, want[shape].reshape(-1, 96), f"{experts} experts")
            same_bits(c.values("up", 2, 2)[0], want[shape].reshape(-1, 96)[2:4], "rows")
            if (m.experts, m.n, m.k, rounded) != (experts, 5 * experts, 96, 0):
                sys.exit(f"mx_blocks: {m.experts} {m.n} {m.k} {rounded}")
    # byte 0x97, scale 2: 12, -1
    one = {"up_blocks": np.full((1, 1, 16), 0x97, "u1"), "up_scales": np.full((1, 1), 0x80, "u1")}
    save(folder, one, None)
    with Checkpoint(folder) as c:
        same_bits(c.values("up")[0][0, :2], [12, -1], "documented")
    for wrong, words_ in (({"up_scales": np.zeros((1, 2), "u1")}, "one scale for each block"),
                          ({"up_scales": np.full((1, 1), 254, "u1")}, "beyond f32"),
                          ({"up_scales": np.full((1, 1), 255, "u1")}, "scale")):
        save(folder, {**one, **wrong}, None)
        with Checkpoint(folder) as c:
            refused(words_, c.values, "up")
    save(folder, {**one, "up_blocks": np.zeros((1, 1, 8), "u1")}, None)
    with Checkpoint(folder) as c:  # no blocks of 16 bytes: plain tensors
        if c.module("up_blocks").importer != b"":
            sys.exit("bytes of another kind are taken for blocks")


def check_int8(folder):
    q = draw.integers(-128, 128, (6, 64), dtype="i1")
    for shape in ((6, 1), (6,), (1,), (), (6, 4)):
        s = draw.uniform(.01, 1, shape).astype("f4")
        wide = np.broadcast_to(s.reshape(-1, 1) if s.size < 24 else s.repeat(16, 1), q.shape)
        check(folder, {"weight": q, "weight_scale": s}, scheme(8), wide * q.astype("f4"),
              f"{shape}")
    s, zp = draw.uniform(.01, 1, (6, 1)).astype("f4"), draw.integers(-9, 9, (6, 1), dtype="i1")
    dynamic = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
    m, text = check(folder, {"weight": q, "weight_scale": s, "weight_zero_point": zp},
                    scheme(8, activations=dynamic), s * (q.astype("f4") - zp), "zero point")
    if m.activation != 1:
        sys.exit(text)
    static = {**dynamic, "dynamic": False, "strategy": "tensor"}
    m, text = check(folder, {"weight": q, "weight_scale": s, "input_scale": np.array([.25], "f4"),
                             "input_zero_point": np.array([-3], "i1")},
                    scheme(8, activations=static), s * q.astype("f4"), "static")
    if (m.activation, m.input_scale, m.input_zero) != (2, .25, -3):
        sys.exit(text)
    four = draw.integers(-8, 8, (6, 64), dtype="i1")
    check(folder, {"weight": four, "weight_scale": s}, scheme(4), s * four.astype("f4"), "w4a8")
    refuse(folder, {"weight": q, "weight_scale": s}, scheme(4), "out of range")
    refuse(folder, {"weight": q, "weight_scale": s[:5]}, None, "5 rows for 6 outputs")
    refuse(folder, {"weight": q, "weight_scale": np.full((6, 1), np.nan, "f4")}, None, "not finite")


def check_fp8(folder):
    n, k = 300, 260
    raw = draw.integers(0, 256, (n, k), dtype="u1")
    raw[(raw & 127) == 127] = 0
    w = e4m3(raw)
    blocks = np.arange(n)[:, None] // 128 * 3 + np.arange(k)[None] // 128
    for name, shape, at in (("weight_scale", (n, 1), np.arange(n)[:, None]),
                            ("weight_scale", (1,), np.zeros((n, 1), int)),
                            ("weight_scale_inv", (3, 3), blocks)):
        s = draw.uniform(.01, 1, shape).astype("f4")
        tensors = {"weight": ("F8_E4M3", (n, k), raw.tobytes()),
                   name: ("F32", shape, s.tobytes())}
        got, rounded = values_of(folder, tensors, {"quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128]}} if len(s) == 3 else None)
        same_bits(got, w * s.reshape(-1)[at], f"fp8 {shape}")
        if rounded:
            sys.exit("fp8 is exact")
    with Checkpoint(folder) as c:
        same_bits(c.values("m.weight", 120, 20)[0], got[120:140], "fp8 rows across blocks")
    bad = dict(tensors, weight=("F8_E5M2", (n, k), raw.tobytes()))
    save_raw(folder, bad, None)
    with Checkpoint(folder) as c:
        refused("F8_E5M2", c.values, "m.weight")
    raw[7, 9] = 0x7f
    save_raw(folder, dict(tensors, weight=("F8_E4M3", (n, k), raw.tobytes())), None)
    with Checkpoint(folder) as c:
        refused("row 7, position 9 is NaN", c.values, "m.weight")


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], "f4")
FP4 = np.array([0, .0625, 8, 12, 4, 6, 2, 3, -0., -.0625, -8, -12, -4, -6, -2, -3], "f4") / 12


def four_bit(codes, absmax, block, table, kind, nested=None):
    n, k = codes.shape
    flat = np.append(codes.reshape(-1), np.zeros(codes.size % 2, "u1"))
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [n, k]}
    out = {"weight": (flat[::2] << 4 | flat[1::2]).reshape(-1, 1), "weight.absmax": absmax,
           "weight.quant_map": table}
    if nested:
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=float(nested[2]))
        out.update({"weight.nested_absmax": nested[0], "weight.nested_quant_map": nested[1]})
    text = np.frombuffer(json.dumps(state).encode(), "u1")
    out[f"weight.quant_state.bitsandbytes__{kind}"] = text
    return out


def check_bnb(folder):
    for kind, table in (("nf4", NF4), ("fp4", FP4)):
        for n, k, block in ((8, 128, 64), (7, 100, 64), (5, 33, 64), (4, 32, 64), (3, 96, 4096)):
            codes = draw.integers(0, 16, (n, k), dtype="u1")
            blocks = -(-n * k // block)
            at = (np.arange(n * k) // block).reshape(n, k)
            absmax = draw.uniform(.01, 2, blocks).astype("f4")
            m, text = check(folder, four_bit(codes, absmax, block, table, kind), None,
                            table[codes] * absmax[at], f"{kind} {n} {k} {block}")
            if (m.format.code == 2) != (kind == "nf4"):
                sys.exit(text)
            small = draw.integers(0, 256, blocks, dtype="u1")
            nested = (draw.uniform(.01, 2, -(-blocks // 256)).astype("f4"),
                      np.sort(draw.uniform(-1, 1, 256)).astype("f4"), np.float32(0.0421061478555))
            scale = nested[1][small] * nested[0][np.arange(blocks) // 256] + nested[2]
            check(folder, four_bit(codes, small, block, table, kind, nested), None,
                  table[codes] * scale.astype("f4")[at], f"nested {kind}")
    one = four_bit(np.array([[7, 15]], "u1"), np.array([2], "f4"), 64, NF4, "nf4")
    if one["weight"][0, 0] != 0x7f:
        sys.exit("four_bit() is wrong")
    check(folder, one, None, np.array([[0, 2]], "f4"), "documented")
    state = "weight.quant_state.bitsandbytes__nf4"
    for text, words_ in (("{", "ends too early"), ("{}", "no shape"), ("[" * 40, "too deeply"),
                         ('{"shape":[1,2]}', "no blocksize"), ('{"shape":[9,9],"blocksize":64}',
                                                               "has 1 bytes"),
                         ('{"shape":[1,2],"blocksize":1}', "absmax should be 2"),
                         ('{"shape":[4294967296,2147483647],"blocksize":1}', "no shape")):
        refuse(folder, {**one, state: np.frombuffer(text.encode(), "u1")}, None, words_)
    refuse(folder, {k: v for k, v in one.items() if "map" not in k}, None, "quant_map")
    q, scb = draw.integers(-127, 128, (6, 40), dtype="i1"), draw.uniform(1, 2, 6).astype("f4")
    want = (scb.astype("f8") / 127).astype("f4")[:, None] * q.astype("f4")
    check(folder, {"weight": q, "SCB": scb, "weight_format": np.array(0, "u1")}, None, want, "int8",
          rounded=True)
    check(folder, {"weight": q, "SCB": np.full(6, 127, "f4")}, None, q.astype("f4"), "int8 of 127")
    refuse(folder, {"weight": q, "SCB": scb, "weight_format": np.array(2, "u1")}, None, "old GPUs")
    refuse(folder, {"weight": q, "SCB": scb[:5]}, None, "SCB should be 6")


def main():
    with tempfile.TemporaryDirectory() as root:
        for test in (check_packed, check_nvfp4, check_mx_blocks, check_int8, check_fp8,
                     check_bnb):
            test(os.path.join(root, test.__name__))
    print("compressed-tensors, fp8 and bitsandbytes agree")


if __name__ == "__main__":
    main()
