#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What qn_export_create() writes, against packings that packers.py and the gguf package make of the
same codes, byte for byte; and back through the importers, value for value; and what is refused.
Environment: QUERN_LIBRARY. Exit status 77: a package is missing."""
import json
import os
import sys
import tempfile
from ctypes import byref, c_int64, c_void_p, sizeof

try:
    import numpy as np
    from packers import awq_gemm, gptq
    from test_compressed import save_raw
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install numpy safetensors)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, Parts, Weight, context, lib, refused, same_bits

draw = np.random.default_rng(22)
V1 = {"meta": {"quantizer": ["quern:0"]}}


def halves(*shape):
    return draw.uniform(0.001, 0.02, shape).astype("f2").astype("f4")


def config(method, **keys):
    return {"quantization_config": {"quant_method": method, **keys}}


def scheme(bits, group, symmetric, kind="int", activations=None):
    return config("compressed-tensors", config_groups={"group_0": {
        "targets": ["Linear"], "input_activations": activations, "weights": {
            "num_bits": bits, "type": kind, "symmetric": symmetric, "group_size": group}}})


def back(folder, tensors, settings, weight, what):
    """The importers read from the tensors what the weight is."""
    save_raw(folder, {k[1:]: v for k, v in tensors.raw.items()}, settings)
    with Checkpoint(folder) as c:
        values, rounded = c.values("m.weight")
        same_bits(values, weight.values(), what)
        return c.module("m.weight"), rounded


def make(bits, n, k, group, has_zero, has_order=False, least=None, scale=None):
    u = draw.integers(0, 1 << bits, (n, k), dtype="u1")
    groups = -(-k // group)
    half = 1 << (bits - 1)
    z = draw.integers(0 if least is None else least, 1 << bits, (n, groups))
    s = halves(n, groups) if scale is None else scale
    perm = None
    if has_order: # a stable order of groups, as importers make it
        g = draw.permutation(np.arange(k) // group)
        perm = np.argsort(g, kind="stable")
    name = f"int{bits}:g{group}" + (":zp" if has_zero else "") + ":f16"
    return Weight(name, u, s, z - half if has_zero else None, perm=perm), u, z, s, perm


def check_awq(folder):
    for n, k, group in ((64, 64, 32), (72, 128, 128), (8, 260, 65)):
        for has_zero in (True, False):
            w, u, z, s, _ = make(4, n, k, group, has_zero)
            z = z if has_zero else np.full_like(z, 8)
            t = w.export("awq")
            what = f"awq {n} {k} {group}"
            assert (t[".qweight"] == awq_gemm(u.T)).all(), what
            assert (t[".qzeros"] == awq_gemm(z.T.astype("u1"))).all(), what
            assert (t[".scales"] == s.T.astype("f2")).all(), what
            back(folder, t, config("awq", bits=4, group_size=group, version="gemm"), w, what)
    w, u, _, s, _ = make(3, 16, 64, 32, False) # three bits are four, shifted
    back(folder, w.export("awq"), config("awq", bits=4, group_size=32), w, "awq of 3 bits")
    w, u, _, s, _ = make(4, 16, 128, 64, True) # a group may be cut
    t = w.export("awq", group=32)
    assert t[".scales"].shape == (4, 16)
    back(folder, t, config("awq", bits=4, group_size=32), w, "awq in smaller groups")


def check_gptq(folder):
    for bits in (2, 3, 4, 8):
        for n, k, group, order in ((64, 64, 32, False), (32, 160, 64, False), (96, 96, 32, True),
                                   (32, 160, 64, True)):
            for v1 in (True, False):
                w, u, z, s, perm = make(bits, n, k, group, True, order, least=1 if v1 else 0)
                g_idx = np.arange(k) // group
                columns = u.copy()
                if perm is not None:
                    g_idx = np.empty(k, int)
                    g_idx[perm] = np.arange(k) // group
                    columns[:, perm] = u
                want = gptq(columns.T, z.T, s.T.astype("f2"), bits, g_idx=g_idx, v1=v1)
                t = w.export("gptq" if v1 else "gptq_v2")
                what = f"gptq {bits} bits, {n} {k} {group}, v1 {v1}, order {order}"
                for key, value in want.items():
                    assert (t["." + key] == value).all(), f"{what}: {key}"
                settings = config("gptq", bits=bits, group_size=group, desc_act=order, sym=False,
                                  checkpoint_format="gptq" if v1 else "gptq_v2", **V1)
                m, _ = back(folder, t, settings, w, what)
                assert m.has_perm == order, what
    for bits in (2, 3, 4, 5, 6, 7, 8):
        for n, k, group, order in ((64, 64, 32, False), (32, 160, 32, True), (96, 32, 16, False)):
            w, u, z, s, perm = make(bits, n, k, group, True, order, least=0)
            g_idx = np.arange(k) // group
            columns = u.copy()
            if perm is not None:
                g_idx = np.empty(k, int)
                g_idx[perm] = np.arange(k) // group
                columns[:, perm] = u
            want = gptq(columns.T, z.T, s.T.astype("f2"), bits, g_idx=g_idx, v1=False,
                        planar=bits in (3, 5, 6, 7))
            t = w.export("gptq_p")
            for key, value in want.items():
                assert (t["." + key] == value).all(), f"gptq_p {bits} bits: {key}"
            back(folder, t, config("gptq", bits=bits, group_size=group, desc_act=order, sym=False,
                                   checkpoint_format="gptq_p"), w, f"gptq_p {bits} bits")
    # Symmetric: the words that formats.md gives, and v2 under the label of v1.
    w, *_ = make(4, 32, 64, 32, False)
    assert (w.export("gptq")[".qzeros"].view("u4") == 0x77777777).all()
    assert (w.export("gptq_v2")[".qzeros"].view("u4") == 0x88888888).all()
    back(folder, w.export("gptq_v2"), config("gptq", bits=4, group_size=32), w, "mislabelled")
    # Five bits become eight; bf16 scales stay bf16.
    s = (draw.integers(1, 99, (32, 2)).astype("f4") * np.float32(2.0 ** -30))
    w, *_ = make(5, 32, 64, 32, False, scale=s)
    back(folder, w.export("gptq_v2"), config("gptq", bits=8, group_size=32, sym=True), w, "5 bits")


def check_ct(folder):
    for bits in (2, 3, 4, 5, 8):
        for n, k, group, order in ((64, 64, 32, False), (33, 96, 32, True), (8, 256, 128, False)):
            for has_zero in (True, False):
                w, u, z, s, perm = make(bits, n, k, group, has_zero, order)
                t = w.export("ct")
                what = f"ct {bits} bits, {n} {k} {group}"
                kept = {3: 4, 5: 8}.get(bits, bits)
                assert t[".weight_shape"].tolist() == [n, k], what
                assert t[".weight_packed"].shape == (n, -(-k // (32 // kept))), what
                word = t[".weight_packed"].view("u4")[0, 0]
                first = u[0] if perm is None else u[0][np.argsort(perm)]
                shift = (1 << kept - 1) - (1 << bits - 1)
                for i in range(32 // kept):
                    code = word >> np.uint32(kept * i) & ((1 << kept) - 1)
                    assert code == first[i] + shift, what
                back(folder, t, scheme(kept, group, not has_zero), w, what)
    w, u, z, s, _ = make(8, 24, 64, 64, True)
    t = w.export("ct:int-quantized")
    assert (t[".weight"] == u.astype("i2") - 128).all()
    back(folder, t, scheme(8, 64, False), w, "int-quantized")
    w, u, z, s, _ = make(4, 24, 64, 64, False)
    t = w.export("ct", activation=2, input_scale=0.5, input_zero=-3)
    m, _ = back(folder, t, scheme(4, 64, True, activations={
        "num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"}), w, "static")
    assert (m.activation, m.input_scale, m.input_zero) == (2, 0.5, -3)


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], "f4")


def check_floats(folder):
    u = draw.integers(0, 16, (12, 96), dtype="u1")
    exponents = draw.integers(100, 140, (12, 3))
    w = Weight("mxfp4", u, np.ldexp(np.float32(1), exponents - 127))
    t = w.export("ct")
    assert (t[".weight_packed"] == u[:, ::2] | u[:, 1::2] << 4).all()
    assert (t[".weight_scale"] == exponents).all()
    back(folder, t, scheme(4, 32, True, "float"), w, "mxfp4")
    # NVFP4: the scales are quotients, and the global scale is found again.
    for given in (1.0, 448 * 6 / 3.7, 1234.5678, 0.37):
        codes = draw.integers(1, 0x7f, (12, 6), dtype="u1")
        codes[0, 0] = 0x7e
        e, m = codes >> 3, codes & 7
        real = np.where(e > 0, np.ldexp(1 + m / 8, e.astype(int) - 7), m * 2.0 ** -9)
        w = Weight("nvfp4", u, (real / np.float64(np.float32(given))).astype("f4"))
        t = w.export("ct")
        if given != 1.0:
            assert np.isclose(t[".weight_global_scale"][0], given, rtol=1e-6), t
            assert (t[".weight_scale"] == codes).all()
        back(folder, t, scheme(4, 16, True, "float"), w, f"nvfp4 over {given}")
    codes = draw.integers(0, 0x7f, (12, 40), dtype="u1")
    w = Weight("fp8:pc", codes, halves(12, 1))
    back(folder, w.export("ct"), scheme(8, None, True, "float"), w, "fp8")


def check_bnb(folder):
    for n, k, group, block in ((16, 128, 64, 64), (7, 96, 32, 32), (6, 64, 64, 64)):
        u = draw.integers(0, 16, (n, k), dtype="u1")
        s = draw.uniform(0.01, 1, (n, k // group)).astype("f4")
        w = Weight(f"nf4:g{group}", u, s)
        t = w.export("bnb")
        assert (t[".weight"].ravel() == u.ravel()[::2] << 4 | u.ravel()[1::2]).all()
        assert (t[".weight.absmax"] == s.ravel()).all()
        state = json.loads(t[".weight.quant_state.bitsandbytes__nf4"].tobytes())
        assert state["blocksize"] == block and state["shape"] == [n, k], state
        back(folder, t, None, w, "nf4")
    # Blocks that cross rows: what the importer holds in groups of 32 becomes blocks of 64 again.
    u = draw.integers(0, 16, (4, 96), dtype="u1")
    s = np.repeat(draw.uniform(0.01, 1, 6).astype("f4"), 2).reshape(4, 3)
    w = Weight("nf4:g32", u, s)
    t = w.export("bnb")
    assert t[".weight.absmax"].shape == (6,)
    back(folder, t, None, w, "nf4 across rows")
    most = draw.uniform(0.01, 9, 40).astype("f4")
    u = draw.integers(1, 256, (40, 32), dtype="u1")
    w = Weight("int8:pc", u, (most.astype("f8") / 127).astype("f4")[:, None])
    t = w.export("bnb")
    assert np.allclose(t[".SCB"], most, rtol=2e-7) and (t[".weight"] == u.astype("i2") - 128).all()
    back(folder, t, None, w, "LLM.int8")


def check_refusals(_):
    w, *_ = make(4, 64, 64, 32, True, least=0)
    refused("zero point 0 is outside", w.export, "gptq")
    refused("awq, gptq_v2, gptq_p, ct, gguf, onnx, quern could hold it", w.export, "gptq")
    w = Weight("int4:g32:off", draw.integers(0, 16, (8, 32), dtype="u1"), np.full((8, 1), 0.25),
               offset=np.full((8, 1), 0.3))
    refused("row 0, group 0: offset 0.3", w.export, "awq")
    w = Weight("int4:g32", draw.integers(0, 16, (8, 32), dtype="u1"), np.full((8, 1), 0.1))
    refused("scale 0.1", w.export, "awq")
    refused("; ct, onnx, quern could hold it", w.export, "awq")
    refused("no block of any type", w.export, "gguf")
    w, *_ = make(4, 8, 64, 32, True, True)
    refused("act-order", w.export, "awq")
    refused("act-order", w.export, "gguf")
    w, *_ = make(4, 12, 64, 32, True)
    refused("no multiple of 8", w.export, "awq")
    w, *_ = make(6, 48, 64, 32, True)
    refused("planes of bits have 32 codes each", w.export, "gptq_p")
    refused("codes of 6 bits do not fit 4", lambda: w.export("gptq_p", bits=4))
    w, *_ = make(8, 32, 64, 32, True)
    refused("codes of 8 bits", w.export, "awq")
    refused("do not divide", lambda: w.export("gptq", group=24))
    refused("no such target", w.export, "onnx9")
    w = Weight("int4:g32", draw.integers(0, 16, (8, 32), dtype="u1"), np.full((8, 1), 0.5),
               prescale=np.full(32, 0.5))
    for target in ("awq", "gptq", "gptq_v2", "gptq_p", "ct", "bnb", "gguf"):
        refused("prescale", w.export, target)


def through_a_quern_file(folder, weight):
    """Written by the library's own writer, and read as a checkpoint."""
    path = os.path.join(folder, "w.st")
    writer, index, parts = c_void_p(), c_int64(), Parts(sizeof(Parts))
    lib.qn_weight_view(weight.handle, byref(parts))
    assert lib.qn_writer_create(context, path.encode(), byref(writer), None) == 0
    assert lib.qn_writer_add_weight(writer, b"w", byref(parts), byref(index), None) == 0
    assert lib.qn_writer_begin(writer, 1, 0, None) == 0
    assert lib.qn_writer_put_weight(writer, index, weight.handle, None) == 0
    assert lib.qn_writer_finish(writer, None) == 0
    with Checkpoint(path) as c:
        assert c.names() == ["w"], c.names()
        part, whole = c.values("w", 1, 3)[0], c.values("w")[0]
        same_bits(part, whole[1:4], "rows of a quern file")
        return Weight(checkpoint=c, name="w")


def check_gguf(folder):
    try:
        import gguf
        from gguf.quants import dequantize
        from test_gguf import TYPES, random_blocks, type_of, write
    except ImportError:
        print("without the gguf package, GGUF's blocks are not compared")
        return
    os.makedirs(folder)
    path = os.path.join(folder, "t.gguf")
    for name in TYPES:
        kind = type_of(name)
        if kind is None:
            continue
        for wide in (False, True):
            raw = random_blocks(draw, name, 5, 3, wide)
            if name == "NVFP4": # scales have two codes of 0
                scales = raw.reshape(5, -1, 36)[..., :4]
                scales[scales == 0x7f] = 0
            write(path, [("w.weight", raw, kind)])
            with Checkpoint(path) as c:
                w = Weight(checkpoint=c, name="w.weight")
            made, mine = w.export(f"gguf:{name.lower()}")[".weight"]
            assert made == name
            if (mine != raw).any():
                sys.exit(f"{name}: bytes differ at {np.argwhere(mine != raw)[0]}")
            assert wide or w.export("gguf")[".weight"][0] == name, name
            _, mine = through_a_quern_file(folder, w).export(f"gguf:{name.lower()}")[".weight"]
            assert (mine == raw).all(), f"{name} through a quern file"
    # AWQ's zero points fit Q5_0; 4 bits of any group of whole blocks are Q4_0.
    w, *_ = make(4, 16, 128, 64, True)
    made, mine = w.export("gguf")[".weight"]
    assert made == "Q5_0"
    same_bits(dequantize(mine, gguf.GGMLQuantizationType.Q5_0), w.values(), "AWQ as Q5_0")
    w, *_ = make(4, 16, 128, 128, False)
    made, mine = w.export("gguf")[".weight"]
    assert made == "Q4_0"
    same_bits(dequantize(mine, gguf.GGMLQuantizationType.Q4_0), w.values(), "GPTQ as Q4_0")


def main():
    with tempfile.TemporaryDirectory() as root:
        for test in (check_awq, check_gptq, check_ct, check_floats, check_bnb, check_refusals,
                     check_gguf):
            test(os.path.join(root, test.__name__))
    print("exports agree")


if __name__ == "__main__":
    main()
