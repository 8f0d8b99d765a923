#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The 26 known traps of quantized-weight formats, one named test each: worked examples with the
values that they must have, and what must be refused. Environment: QUERN_LIBRARY. Exit status 77: a
package is missing."""
import ctypes
import json
import os
import struct
import sys
import tempfile

try:
    import numpy as np
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fuzz"))
    from make_corpus import mnn, mnn_stream, onnx, onnx_node, onnx_tensor
    from packers import awq_fast, awq_gemm, awq_width, gptq, save, stream
    from test_compressed import save_raw
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install numpy safetensors)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, Refused, Tensor, Weight, context, lib, refused

ROOT = None
HALF = np.float16(0.5)


def folder(name="m"):
    return os.path.join(ROOT, name)


def of(tensors, settings=None, zeros=0):
    """Values of the module that numpy arrays make."""
    save(folder(), {f"m.{k}": v for k, v in tensors.items()}, settings)
    with Checkpoint(folder(), zeros) as c:
        return c.values("m.weight")[0]


def raw(tensors, settings=None):
    """The same of (dtype, shape, bytes)."""
    save_raw(folder(), tensors, settings)
    with Checkpoint(folder()) as c:
        return c.values("m.weight")[0]


def said(method, **keys):
    return {"quantization_config": {"quant_method": method, **keys}}


def scheme(bits, group, **keys):
    return said("compressed-tensors", config_groups={"g": {"targets": ["Linear"], "weights": {
        "num_bits": bits, "type": "int", "group_size": group, **keys}}})


def gguf(tensors, keys=b"", n_keys=0, name="t.gguf"):
    """tensors: [(name, dims from the fastest, type, bytes)]; the file's path."""
    head, data = b"", b""
    for tensor, dims, kind, block in tensors:
        head += struct.pack(f"<Q{len(tensor)}sI{len(dims)}QIQ", len(tensor), tensor.encode(),
                            len(dims), *dims, kind, len(data))
        data += block + bytes(-len(block) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys) + keys + head
    with open(folder(name), "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)
    return folder(name)


def block(kind, elements, data):
    with Checkpoint(gguf([("w", [elements], kind, data)])) as c:
        return c.values("w")[0][0]


def is_equal(mine, theirs):
    if not np.array_equal(np.asarray(mine, "f8"), np.asarray(theirs, "f8")):
        raise AssertionError(f"{mine} for {theirs}")


def i32(*values):
    return np.array(values, "u4").view("i4")


def f16(value):
    return struct.pack("<e", value)


def trap_01_awq_order():
    """Half-byte i of a word is column 0 2 4 6 1 3 5 7."""
    t = {"qweight": np.full((32, 1), 0x75316420, "i4"), "qzeros": i32(0x88888888)[:, None],
         "scales": np.full((1, 8), HALF)}
    is_equal(of(t, said("awq", group_size=32))[:, 0], np.arange(-8, 0) / 2)


def trap_02_awq_gemv_padded_columns():
    """Scales and zeros have columns that are padding, and may hold anything."""
    n, k, group = 8, 64, 32
    width = awq_width(k, group)
    scales = np.full((n, 8 * width), np.nan, "f2")
    scales[:, :2] = 0.5
    zeros = np.full((n, 8 * width), 15, "u1")
    zeros[:, :2] = 8
    t = {"qweight": stream(np.full((n, k), 9, "u1"), 4, 32), "qzeros": stream(zeros, 4, 32),
         "scales": scales}
    is_equal(of(t, said("awq", group_size=32, version="gemv")), np.full((n, k), 0.5))


def trap_03_awq_gemv_fast_zeros():
    """Words of 16 bits; zeros are floats, scaled and negated."""
    n, k = 8, 64
    u = np.tile(np.arange(16, dtype="u1"), (n, 4))
    width = awq_width(k, 64)
    scales, zeros = np.full((8 * width, n), 9, "f2"), np.full((8 * width, n), 9, "f2")
    scales[0], zeros[0] = 0.5, -4
    t = {"qweight": awq_fast(u), "scales": scales, "qzeros": zeros}
    is_equal(of(t, said("awq", group_size=64, version="gemv_fast")), u * 0.5 - 4)


def trap_04_gptq_v1_and_mislabelled_v2():
    """v1 stores z - 1, v2 stores z; words of symmetric weights tell, whatever the label says."""
    t = {"qweight": i32(0x76543210).repeat(8)[None], "scales": np.full((1, 8), HALF)}
    for label in ("gptq", "gptq_v2", None):
        for word in (0x77777777, 0x88888888):
            keys = {} if label is None else {"checkpoint_format": label}
            values = of({**t, "qzeros": i32(word)[:, None]}, said("gptq", bits=4, **keys))
            is_equal(values[0], np.arange(-8, 0) / 2)


def trap_05_gptq_v1_three_readings():
    """A stored 15 is 16, 0 or 15; which is an option, and without it refused."""
    t = {"qweight": i32(0).repeat(8)[None], "qzeros": i32(0xfedcba98)[:, None],
         "scales": np.ones((1, 8), "f2")}
    settings = said("gptq", bits=4, sym=False, checkpoint_format="gptq")
    refused("gptq_zeros", of, t, settings)
    for zeros, want in ((1, 16), (2, 0), (3, 15)):
        is_equal(of(t, settings, zeros)[7], np.full(8, -want))


def trap_06_gptq_3_bits():
    """32 codes in three words, across their borders."""
    u = (np.arange(32) % 8).astype("u1")[:, None].repeat(32, 1)
    t = gptq(u, np.full((1, 32), 4), np.ones((1, 32), "f2"), 3)
    assert [hex(w) for w in t["qweight"][:, 0].view("u4")] == ["0x88fac688", "0xc688fac6",
                                                              "0xfac688fa"]
    assert [hex(w) for w in t["qzeros"].view("u4")[0]] == ["0xdb6db6db", "0xb6db6db6", "0x6db6db6d"]
    is_equal(of(t, said("gptq", bits=3)), (u.T.astype("i4") - 4))


def trap_07_gptq_planar():
    """gptq_p with 3 bits keeps planes, which the label alone tells; with 4 bits it is gptq_v2."""
    u = np.arange(32, dtype="u1")[:, None].repeat(32, 1) % 8
    t = gptq(u, np.full((1, 32), 4), np.ones((1, 32), "f2"), 3, v1=False, planar=True)
    assert [f"{x:08X}" for x in t["qweight"][:, 0].view("u4")] == [
        "E4E4E4E4", "E4E4E4E4", "F0F0F0F0"]
    is_equal(of(t, said("gptq", bits=3, checkpoint_format="gptq_p"))[0], np.arange(32) % 8 - 4.0)
    t = gptq(np.zeros((32, 32), "u1"), np.full((1, 32), 8), np.ones((1, 32), "f2"), 4, v1=False)
    is_equal(of(t, said("gptq", bits=4, checkpoint_format="gptq_p")), np.full((32, 32), -8))
    refused("neither gptq nor", of, t, said("gptq", bits=4, checkpoint_format="gptq_x"))


def trap_08_g_idx():
    """Of any order, absent, all 0 and -1."""
    u = np.arange(16, dtype="u1")[:, None].repeat(8, 1)
    s = np.array([1, 2], "f2")[:, None].repeat(8, 1)
    z = np.full((2, 8), 8)
    settings = said("gptq", bits=4, group_size=8, desc_act=True)
    order = np.array([0, 1] * 8)
    want = (np.arange(16) - 8) * s[order, 0].astype("f4")
    is_equal(of(gptq(u, z, s, 4, g_idx=order), settings)[0], want)
    want = (np.arange(16) - 8) * s[np.arange(16) // 8, 0].astype("f4")
    is_equal(of(gptq(u, z, s, 4), settings)[0], want)
    refused("g_idx is all 0", of, gptq(u, z, s, 4, g_idx=np.zeros(16)), settings)
    settings["quantization_config"]["desc_act"] = False
    is_equal(of(gptq(u, z, s, 4, g_idx=np.zeros(16)), settings)[0], want)
    refused("g_idx[3] is -1", of, gptq(u, z, s, 4, g_idx=[1, 0, 1, -1] * 4), settings)


def trap_09_short_last_group():
    """40 columns in groups of 32: the last has 8."""
    u = np.full((40, 8), 9, "u1")
    s = np.array([1, 4], "f2")[:, None].repeat(8, 1)
    values = of(gptq(u, np.full((2, 8), 8), s, 4, g_idx=np.arange(40) // 32),
                said("gptq", bits=4, group_size=32))
    is_equal(values[0], [1] * 32 + [4] * 8)


def trap_10_ct_weight_shape():
    """Declared i32, written i64: both are read."""
    for dtype in ("i4", "i8"):
        t = {"weight_packed": i32(0x76543210)[:, None].repeat(2, 0),
             "weight_scale": np.full((2, 1), HALF), "weight_shape": np.array([2, 8], dtype)}
        is_equal(of(t, scheme(4, None))[1], np.arange(-8, 0) / 2)


def trap_11_ct_3_bits():
    """Ten codes a word; two bits are nobody's."""
    word = sum((i % 8) << (3 * i) for i in range(10)) | 3 << 30
    t = {"weight_packed": i32(word, 5)[None], "weight_scale": np.ones((1, 1), "f2"),
         "weight_shape": np.array([1, 11])}
    is_equal(of(t, scheme(3, None))[0], [i % 8 - 4 for i in range(10)] + [1])


def trap_12_ct_zero_points_along_n():
    t = {"weight_packed": np.zeros((9, 1), "i4"), "weight_scale": np.ones((9, 1), "f2"),
         "weight_shape": np.array([9, 8]), "weight_zero_point": i32(0x76543210, 0xf)[:, None]}
    is_equal(of(t, scheme(4, None, symmetric=False))[:, 0],
             [-8 - (z - 8) for z in (0, 1, 2, 3, 4, 5, 6, 7, 15)])


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("rest", ctypes.c_uint8 * 256)]


def trap_13_three_symmetric_scales():
    """amax / 7, / 7.5 and / -8 are the narrow, half and full range of a quantizer."""
    from quern_checkpoint import Format, Parts
    for range_, want in ((0, 7.5 / 7), (1, 1.0), (2, 7.5 / -8)):
        x = np.zeros((1, 32), "f4")
        x[0, :2] = 7.5, -3
        t = Tensor(x.ctypes.data, 1, 2, 1, 0)
        t.shape[0], t.shape[1], t.stride[0], t.stride[1] = 1, 32, 32, 1
        made = ctypes.c_void_p()
        options = Options()
        lib.qn_quantize_options_init_sized(ctypes.byref(options), ctypes.c_size_t(160))
        at = ctypes.addressof(options)
        format_ = Format.from_address(at + 8)
        assert lib.qn_format_parse(b"int4:g32", ctypes.byref(format_), None) == 0
        ctypes.c_int32.from_address(at + 8 + ctypes.sizeof(Format) + 4).value = range_
        assert lib.qn_quantize(context, ctypes.byref(t), ctypes.byref(options), ctypes.byref(made),
                               None) == 0
        parts = Parts(ctypes.sizeof(Parts))
        lib.qn_weight_view(made, ctypes.byref(parts))
        scale = ctypes.cast(parts.scale, ctypes.POINTER(ctypes.c_float))[0]
        lib.qn_weight_destroy(made)
        assert abs(scale - want) < 1e-6, (range_, scale, want)


def nf4(tensors, n, k, block_size, **keys):
    state = json.dumps({"quant_type": "nf4", "blocksize": block_size, "dtype": "float16",
                        "shape": [n, k], **keys}).encode()
    table = np.array([-1, -.75, -.5, -.25, -.2, -.1, -.05, 0, .1, .2, .3, .4, .5, .6, .7, 1], "f4")
    return {**tensors, "weight.quant_map": table,
            "weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, "u1")}


def trap_14_bnb_high_half_rows_and_nesting():
    """The first element is the high half; blocks run across rows; absmax may be quantized."""
    t = {"weight": np.full((6, 1), 0x7f, "u1"), "weight.absmax": np.array([2, 4, 8], "f4")}
    values = of(nf4(t, 2, 6, 4))
    is_equal(values, [[0, 2, 0, 2, 0, 4], [0, 4, 0, 8, 0, 8]])
    t = {"weight": np.full((6, 1), 0xff, "u1"), "weight.absmax": np.array([0, 1, 2], "u1"),
         "weight.nested_absmax": np.array([2, 3], "f4"),
         "weight.nested_quant_map": np.arange(256, dtype="f4")}
    values = of(nf4(t, 2, 6, 4, nested_blocksize=2, nested_offset=0.5))
    is_equal(values.ravel()[[0, 4, 8]], [0.5, 2.5, 6.5])


def trap_15_scb_is_a_largest_magnitude():
    t = {"weight": np.full((2, 4), 127, "i1"), "SCB": np.array([2, 127], "f4")}
    values = of(t)
    assert abs(values[0, 0] - 2) < 1e-6 and values[1, 0] == 127


def trap_16_gguf_split_halves():
    """Q4_0: byte j is elements j and j + 16, not 2j and 2j + 1."""
    values = block(2, 32, f16(0.5) + b"\x21" + b"\x88" * 15)
    is_equal(values[[0, 1, 16]], [-3.5, 0, -3])


def trap_17_q4_k_scales_of_6_bits():
    scales = bytearray(12)
    scales[0], scales[4], scales[8] = 0x80, 0x40, 0xA5
    values = block(12, 256, f16(1 / 16) + f16(1 / 32) + scales + b"\x77" * 128)
    assert values[128] == 15.375, values[128]


def trap_18_q6_k_scale_last():
    data = bytearray(210)
    data[0], data[32], data[128] = 0x21, 0x43, 0xE4
    data[192:208] = b"\2" * 16
    data[208:] = f16(0.5)
    is_equal(block(14, 256, bytes(data))[[0, 32, 64, 96]], [-31, -13, 2, 20])


def trap_19_negative_scales():
    is_equal(block(2, 32, f16(-0.5) + b"\x08" * 16)[[0, 16]], [0, 4])
    with Checkpoint(gguf([("w", [256], 15, bytes(292))])) as c:
        refused("type Q8_K is not imported", c.module, "w")


def trap_20_q8_1_is_intermediate():
    """Its s is another number in each program: refused by name."""
    with Checkpoint(gguf([("w", [32], 9, bytes(36))])) as c:
        refused("type Q8_1 is not imported", c.module, "w")


def trap_21_gguf_attacks():
    """Alignments of 0 and 2^30, dimensions whose product overflows, offsets of nobody's."""
    key = b"general.alignment"
    for alignment in (0, 3, 1 << 30):
        keys = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, alignment)
        refused("alignment", Checkpoint, gguf([("w", [32], 8, bytes(34))], keys, 1))
    refused("overflows", Checkpoint, gguf([("w", [1 << 32, 1 << 32], 0, b"")]))
    path = gguf([("w", [32], 8, bytes(34))])
    data = bytearray(open(path, "rb").read())
    at = data.index(struct.pack("<IQ", 8, 0)) + 4
    data[at:at + 8] = struct.pack("<Q", 32)
    with open(path, "wb") as file:
        file.write(data)
    refused("does not begin where", Checkpoint, path)


def trap_22_safetensors_holes_overlaps_duplicates():
    def write(header, size):
        text = header.encode()
        path = folder("x.safetensors")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + bytes(size))
        return path

    one = '"%s":{"dtype":"U8","shape":[4],"data_offsets":[%d,%d]}'
    for second, size in ((one % ("b", 5, 9), 9), (one % ("b", 3, 7), 7), (one % ("a", 4, 8), 8),
                         (one % ("b", 4, 8), 9)):
        path = write("{" + one % ("a", 0, 4) + "," + second + "}", size)
        try:
            Checkpoint(path)
        except Refused:
            continue
        raise AssertionError(f"opened: {second}")
    # Data that are not aligned are legal.
    path = write('{"m.weight":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},"a":{"dtype":"U8",'
                 '"shape":[1],"data_offsets":[0,1]}}', 5)
    with Checkpoint(path) as c:
        assert sorted(c.names()) == ["a", "m.weight"]


def refuse_file(data, words):
    with open(folder("other"), "wb") as file:
        file.write(data)
    refused(words, Checkpoint, folder("other"))


def onnx_values(nodes, tensors):
    with open(folder("m.onnx"), "wb") as file:
        file.write(b"\x08\x0a\x12\x04test" + onnx(nodes, tensors))
    with Checkpoint(folder("m.onnx")) as c:
        return c.values("w")[0]


def trap_23_onnx_matmulnbits():
    """An absent zero point is 2^(bits-1) there and 0 in DequantizeLinear; each row of packed zero
    points has whole bytes; zero points may be floats; bytes hold their low half first."""
    def nbits(zeros):
        node = onnx_node("MatMulNBits", ["x", "w", "s"] + ["z"] * len(zeros), "com.microsoft",
                         K=48, N=2, bits=4, block_size=16)
        scales = onnx_tensor("s", 1, [2, 3], struct.pack("<6f", 1, 2, 4, 1, 1, 1))
        codes = onnx_tensor("w", 2, [2, 3, 8], b"\x21" * 48)
        return onnx_values([node], [codes, scales] + zeros)[:, [0, 1, 16, 32]]

    is_equal(nbits([]), [[-7, -6, -14, -28], [-7, -6, -7, -7]])
    packed = onnx_tensor("z", 2, [2, 2], b"\x21\xf3\x54\xf6")  # the last half byte is padding
    is_equal(nbits([packed]), [[0, 1, -2, -8], [-3, -2, -4, -5]])
    floats = onnx_tensor("z", 1, [2, 3], struct.pack("<6f", 0.5, -1, 2, 0, 8, 8))
    is_equal(nbits([floats]), [[0.5, 1.5, 4, -4], [1, 2, -7, -7]])
    pair = [onnx_node("DequantizeLinear", ["w", "s"], axis=0),
            onnx_node("Gemm", ["x", "o_DequantizeLinear"], transB=1)]
    tensors = [onnx_tensor("w", 21, [2, 2], b"\x21\xf8"),
               onnx_tensor("s", 1, [2], struct.pack("<2f", 1, 2))]
    is_equal(onnx_values(pair, tensors), [[1, 2], [16, 30]])


def trap_24_round_half_to_even():
    """What QLinear operators and quantize_rows round with: 0.5 to 0, 1.5 and 2.5 to 2."""
    w = Weight("int8:pc", np.full((1, 32), 129, "u1"), np.ones((1, 1)))
    assert (w.export("ct:int-quantized")[".weight"] == 1).all()
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], "f4")
    assert np.rint(x).tolist() == [0, 2, 2, 0, -2] # as the reference of api.quantize_rows has it


def trap_25_mnn():
    """High half first, a stream from the highest bit, minima that make float offsets, blocks of
    channels and all their taps."""
    def values(*args, **keys):
        with open(folder("m.mnn"), "wb") as file:
            file.write(mnn("w", *args, **keys))
        with Checkpoint(folder("m.mnn")) as c:
            return c.values("w.weight")[0]

    # minimum -1 of scale 0.2 is offset 0.6: 2 and 1 of byte 0x21 are -0.6 and -0.8
    w = values(1, mnn_stream([[2, 1]], 4), [-1, 0.2])
    assert np.allclose(w, [[-0.6, -0.8]], atol=1e-7), w
    w = values(1, mnn_stream([[1, 2, 3, 4, 5, 6, 7, 0]], 3), [-4, 1], bits=3, least=-4)
    is_equal(w, [[-3, -2, -1, 0, 1, 2, 3, -4]])
    # [channel, tap] of two channels and two taps, a block a channel; ours is [tap, channel]
    w = values(1, mnn_stream([[9, 10, 11, 12]], 4), [1, 100], asymmetric=False, kernel=(1, 2))
    is_equal(w, [[1, 300, 2, 400]])
    w = values(1, mnn_stream([[0, 2, 1, 0]], 2, table=(-3, 0, 7)), [2], asymmetric=False)
    is_equal(w, [[-6, 14, 0, -6]])


def trap_26_mx_nan_and_nvfp4_divides():
    """An E8M0 scale of 255 is no number; compressed-tensors divides by the global scale."""
    with Checkpoint(gguf([("w", [32], 39, b"\xff" + bytes(16))])) as c:
        refused("not finite", c.values, "w")
    is_equal(block(39, 32, b"\x7f" + b"\x97" + bytes(15))[[0, 16]], [6, -0.5])
    values = raw({"weight_packed": ("U8", (1, 8), b"\x97" + bytes(7)),
                  "weight_scale": ("F8_E4M3", (1, 1), b"\x40"),
                  "weight_global_scale": ("F32", (1,), struct.pack("<f", 4))})
    is_equal(values[0, :2], [3, -0.25])


def main():
    global ROOT
    traps = [(name, test) for name, test in sorted(globals().items()) if name.startswith("trap_")]
    if [int(name[5:7]) for name, _ in traps] != list(range(1, 27)):
        sys.exit("not 26 traps")
    failed = 0
    for name, test in traps:
        with tempfile.TemporaryDirectory() as ROOT:
            try:
                test()
            except (AssertionError, Refused, SystemExit) as error:
                print(f"FAILED {name}: {error}")
                failed += 1
    if failed:
        sys.exit(f"{failed} of 26 traps failed")
    print("26 traps")


if __name__ == "__main__":
    main()
