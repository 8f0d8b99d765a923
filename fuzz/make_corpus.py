#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets to fuzz/corpus/<target>/: small, valid, one idea each.

    make_corpus.py [FOLDER]
"""
import json
import os
import struct
import sys


def safetensors(tensors, metadata=None, align=8):
    """tensors: [(name, dtype, shape, bytes)]"""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    return struct.pack("<Q", len(text)) + text + data


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def weight(form, n, k, parts, **geometry):
    description = {"version": 1, "format": form, "n": n, "k": k, "kh": 1, "kw": 1,
                   "conv_groups": 1, **geometry}
    tensors = [("w" + suffix, *rest) for suffix, *rest in parts]
    text = json.dumps(description, separators=(",", ":"))
    return safetensors(tensors, {"quern.weight.w": text}, 64)


def npy(descr, shape, data, fortran=False, version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return bytes([version, 0]) + length + text + data  # the target puts the magic in front


PERM = struct.pack("<4i", 3, 1, 0, 2)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(tensors, keys=()):
    """tensors: [(name, dims from the fastest, type, bytes)]; keys: [(key, type, bytes)]"""
    head, data = b"", b""
    for key, kind, raw in keys:
        head += text(key) + struct.pack("<I", kind) + raw
    for name, dims, kind, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + head
    return head + b"\0" * (-len(head) % 32) + data


# Type, elements and bytes of a block, for one seed each.
BLOCKS = {2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18),
          23: (256, 136), 39: (32, 17), 40: (64, 36)}


def folder(config, tensors):
    raw = json.dumps(config).encode() if config else b""
    return struct.pack("<H", len(raw)) + raw + safetensors(tensors)


def quantization(**keys):
    return {"quantization_config": keys}


def proto(number, value):
    """A field of a protobuf: bytes or text, or an integer."""
    def varint(v):
        out = b""
        while v > 127:
            out += bytes([v & 127 | 128])
            v >>= 7
        return out + bytes([v])
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def onnx_tensor(name, kind, shape, raw=None, numbers=None):
    out = proto(1, bytes(shape)) + proto(2, kind)
    out += proto(5, bytes(numbers)) if numbers is not None else b""
    return out + proto(8, name) + (proto(9, raw) if raw is not None else b"")


def onnx_node(op, inputs, domain="", **attributes):
    out = b"".join(proto(1, name) for name in inputs) + proto(2, "o_" + op) + proto(4, op)
    for key, value in attributes.items():
        out += proto(5, proto(1, key) + proto(3, value))
    return out + (proto(7, domain) if domain else b"")


def onnx(nodes, tensors):
    return proto(7, b"".join(proto(1, n) for n in nodes) + b"".join(proto(5, t) for t in tensors))


class Flat:
    """A flatbuffer, from the root on: every table before what it leads to."""

    def __init__(self):
        self.data = bytearray(8)
        struct.pack_into("<I", self.data, 0, self.table(4, {}))

    def table(self, fields, values):
        """All fields have four bytes; values: field to number, bytes of four, or None for a place
        that lead() fills."""
        start = len(self.data)
        there = [4 + 4 * i if i in values or not values else 0 for i in range(fields)]
        self.data += struct.pack(f"<HH{fields}H", 4 + 2 * fields, 4 + 4 * fields, *there)
        self.data += bytes(-len(self.data) % 4)
        table = len(self.data)
        self.data += struct.pack("<i", table - start) + bytes(4 * fields)
        for i, value in values.items():
            raw = value if isinstance(value, bytes) else struct.pack("<i", value or 0)
            self.data[table + 4 + 4 * i:table + 8 + 4 * i] = raw
        return table

    def lead(self, table, field, to=None):
        """The field leads to a table, or to what comes next."""
        at = table + 4 + 4 * field
        struct.pack_into("<I", self.data, at, (to or len(self.data)) - at)

    def vector(self, table, field, count, raw):
        self.data += bytes(-len(self.data) % 4)
        self.lead(table, field)
        self.data += struct.pack("<I", count) + raw + bytes(-len(raw) % 4)


def mnn_stream(codes, bits, wide=False, table=None):
    """IDSTQuan's buffer of codes [n, k], the highest bit first."""
    half = 1 << (bits - 1)
    table = range(-half, half) if table is None else table
    text = "".join(f"{u:0{bits}b}" for row in codes for u in row)
    text += "0" * (-len(text) % 8)
    stream = bytes(int(text[i:i + 8], 2) for i in range(0, len(text), 8))
    return (b"\2" + struct.pack("<II" if wide else "<HH", len(codes), len(codes[0])) +
            bytes([len(table) & 255]) + struct.pack(f"{len(table)}b", *table) + stream)


def mnn(name, outputs, buffer, alpha, bits=4, least=-8, asymmetric=True, kernel=(1, 1), groups=1,
        kind=1, inputs=0, op=12, wide=False, bias=None, external=None):
    """A model of one convolution. external: the place and lengths of buffer, alpha and bias in
    another file; the model then holds none of them."""
    f = Flat()
    net = struct.unpack_from("<I", f.data, 0)[0]
    f.data += bytes(-len(f.data) % 4)
    f.lead(net, 3)
    ops = len(f.data)
    f.data += struct.pack("<II", 1, 0)
    main = f.table(6, {1: b"\x09\0\0\0", 2: None, 3: None, 5: op})
    struct.pack_into("<I", f.data, ops + 4, main - ops - 4)
    f.vector(main, 3, len(name), name.encode() + b"\0")
    conv = f.table(*((4, {0: None, 2: None, 3: None}) if external is None else
                     (7, {0: None, 2: None, 3: None, 6: None})))
    f.lead(main, 2, conv)
    f.lead(conv, 0, f.table(12, {2: kernel[1], 3: kernel[0], 9: groups, 10: outputs, 11: inputs}))
    if external is None:
        f.vector(conv, 2, outputs, floats(*(bias if bias is not None else [0] * outputs)))
    else:
        f.vector(conv, 2, 0, b"")
        f.vector(conv, 6, len(external), struct.pack(f"<{len(external)}q", *external))
    quan = f.table(12, {0: None, 1: None, 2: kind, 4: floats(1), 7: bits, 8: least,
                        9: int(asymmetric), **({11: b"\1\0\0\0"} if wide else {})})
    f.lead(conv, 3, quan)
    if external is not None:
        buffer, alpha = b"", []
    f.vector(quan, 0, len(buffer), buffer)
    f.vector(quan, 1, len(alpha), floats(*alpha))
    return bytes(f.data)


ONE = b"\0\x3c"  # f16
INT4 = {"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 8}}}}
STATE = b'{"shape":[2,6],"blocksize":4}'

CORPUS = {
    "fuzz_json": {
        "header": b'{"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}',
        "all": b'[null,true,false,-1.5e+3,0,"\\u00e9\\ud834\\udd1e\\n",{"a":[{}]}, "\xc3\xa9"]',
    },
    "fuzz_safetensors": {
        "golden": safetensors([("t", "I8", [2], b"\x05\xfb")]),
        "empty": safetensors([]),
        "types": safetensors([("d", "F64", [1], b"\0" * 8), ("f", "F32", [1], floats(1)),
                              ("h", "F16", [2], b"\0\x3c" * 2), ("b", "BF16", [1, 1], b"\x80\x3f"),
                              ("e", "F8_E4M3", [3], b"\x38\x40\x7f"), ("q", "F4", [2], b"\x12"),
                              ("z", "U8", [0, 7], b""), ("s", "I8", [], b"\x01")],
                             {"format": "pt", "": "\u20ac"}),
    },
    "fuzz_npy": {
        "v1": npy("<f4", (2, 3), floats(1, 2, 3, 4, 5, 6)),
        "v2": npy("<i2", (2,), b"\1\0\2\0", version=2),
        "fortran": npy("<f8", (1, 2), b"\0" * 16, fortran=True, version=3),
        "scalar": npy("|b1", (), b"\1"),
        "complex": npy("<c8", (1,), b"\0" * 8),
    },
    "fuzz_format": {name.replace(":", "_"): name.encode() for name in (
        "int4:g128", "int4:g64:zp:f16", "int4:c64:off", "int8:pc", "int3:g32", "nf4:g64", "fp8:pt",
        "e2m1:g32:e8m0", "table5:pc:bf16", "int4:g32:s8x6", "q4_k", "mxfp4", "iq4nl:g32:e4m3")},
    "fuzz_weight": {
        "int4": weight("int4:g2", 2, 3, [(".scale", "F32", [2, 2], floats(1, 2, 3, 4)),
                                         (".codes", "U8", [2, 2], b"\x21\x03\x54\x06")]),
        "zero": weight("int3:g2:zp:f16", 1, 4, [(".perm", "I32", [4], PERM),
                                                (".prescale", "F32", [4], floats(1, 2, 3, 4)),
                                                (".scale", "F16", [1, 2], b"\0\x3c\0\x40"),
                                                (".zero", "I8", [1, 2], b"\1\xfe"),
                                                (".codes", "U8", [1, 2], b"\x88\x06")]),
        "offset": weight("int8:pc:off", 2, 2, [(".scale", "F32", [2, 1], floats(1, 2)),
                                               (".offset", "F32", [2, 1], floats(-1, 2)),
                                               (".codes", "U8", [2, 2], b"\0\1\2\3")]),
        "unit": weight("nvfp4", 1, 2, [(".unit", "F32", [1], floats(0.5)),
                                       (".scale", "F8_E4M3", [1, 1], b"\x38"),
                                       (".codes", "U8", [1, 1], b"\x21")]),
        "table": weight("table2:pc", 1, 4, [(".scale", "F32", [1, 1], floats(1)),
                                            (".table", "F32", [4], floats(-1, 0, 1, 2)),
                                            (".codes", "U8", [1, 1], b"\xe4")]),
        "conv": weight("int4:c1", 2, 4, [(".scale", "F32", [2, 2], floats(1, 2, 3, 4)),
                                         (".codes", "U8", [2, 2], b"\x21\x43\x65\x87")],
                       kw=2, conv_groups=2),
    },
    "fuzz_gguf": {
        "plain": gguf([("a", [3, 2], 0, floats(1, 2, 3, 4, 5, 6)), ("b", [2], 1, ONE * 2)],
                      [("general.alignment", 4, struct.pack("<I", 32)), ("s", 8, text("llama")),
                       ("w", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
                       ("f", 6, floats(1.5)), ("t", 7, b"\1")]),
        **{f"type{kind}": gguf([("w.weight", [k, 1], kind, b"\1" * size)])
           for kind, (k, size) in BLOCKS.items()},
    },
    "fuzz_mnn": {
        "int4": mnn("c", 2, mnn_stream([[2, 1, 3, 4], [5, 6, 7, 8]], 4), [-1, 0.2, 0, 1]),
        "blocks": mnn("c", 1, mnn_stream([[1] * 8], 2), [1, 2], 2, -2, False, (2, 2), kind=1),
        "int8": mnn("c", 2, bytes(range(8)), [1, 2], 8, -128, False, kind=4),
        "table": mnn("c", 1, mnn_stream([[0, 1, 2, 2]], 2, True, (-3, 0, 7)), [1], 2, 0, False,
                     wide=True),
        "half": mnn("c", 1, ONE * 4, [1], kind=3),
        "external": mnn("c", 2, b"", [], 8, -128, False, kind=4, external=(0, 8, 8, 8)),
    },
    "fuzz_onnx": {  # fuzz_onnx puts the version and the producer in front
        "nbits": onnx([onnx_node("MatMulNBits", ["x", "b", "s", "z", "g"], "com.microsoft", K=20,
                                 N=2, bits=4, block_size=16)],
                      [onnx_tensor("b", 2, [2, 2, 8], b"\x21" * 32),
                       onnx_tensor("s", 1, [4], floats(1, 2, 3, 4)),
                       onnx_tensor("z", 2, [2, 1], b"\x98\x76"),
                       onnx_tensor("g", 6, [20], None, [0] * 16 + [1] * 4)]),
        "float_zeros": onnx([onnx_node("MatMulNBits", ["x", "b", "s", "z"], "com.microsoft", K=16,
                                       N=1, bits=2, block_size=16)],
                            [onnx_tensor("b", 2, [1, 1, 4], b"\x1b" * 4),
                             onnx_tensor("s", 1, [1], floats(0.5)),
                             onnx_tensor("z", 1, [1], floats(1.5))]),
        "qdq": onnx([onnx_node("DequantizeLinear", ["w", "s", "z"], axis=0, block_size=2),
                     onnx_node("MatMul", ["x", "o_DequantizeLinear"])],
                    [onnx_tensor("w", 22, [4, 3], None, [0x21, 0xf8, 0, 1, 2, 3]),
                     onnx_tensor("s", 10, [2, 3], ONE * 6),
                     onnx_tensor("z", 22, [2, 3], b"\1\2\3")]),
        "conv": onnx([onnx_node("QLinearConv", ["x", "xs", "xz", "w", "s", "z", "ys", "yz", "b"],
                                group=2)],
                     [onnx_tensor("xs", 1, [], floats(0.5)), onnx_tensor("xz", 2, [], b"\x80"),
                      onnx_tensor("w", 3, [2, 1, 2, 2], bytes(range(8))),
                      onnx_tensor("s", 1, [2], floats(1, 2)), onnx_tensor("z", 3, [2], b"\0\0"),
                      onnx_tensor("b", 6, [2], None, [1, 2])]),
        "turned": onnx([onnx_node("DequantizeLinear", ["w", "s"], axis=1),
                        onnx_node("ConvTranspose", ["x", "o_DequantizeLinear"], group=2)],
                       [onnx_tensor("w", 2, [2, 3, 1, 2], bytes(range(12))),
                        onnx_tensor("s", 1, [3], floats(1, 2, 3))]),
        "integer": onnx([onnx_node("MatMulInteger", ["x", "w", "xz", "z"]),
                         onnx_node("Cast", ["o_MatMulInteger"]),
                         onnx_node("Mul", ["o_Cast", "s"])],
                        [onnx_tensor("w", 2, [3, 2], bytes(6)), onnx_tensor("z", 2, [], b"\x80"),
                         onnx_tensor("s", 1, [], floats(0.25))]),
    },
    "fuzz_folder": {
        "gptq": folder(quantization(quant_method="gptq", bits=4, group_size=8, sym=True), [
            ("m.qweight", "I32", [2, 8], b"\x9f" * 64), ("m.qzeros", "I32", [2, 1], b"\x77" * 8),
            ("m.scales", "F16", [2, 8], ONE * 16),
            ("m.g_idx", "I32", [16], struct.pack("<16i", *([0, 1] * 8)))]),
        "awq": folder(quantization(quant_method="awq", bits=4, group_size=32, version="gemm"), [
            ("m.qweight", "I32", [32, 1], b"\x9f" * 128), ("m.qzeros", "I32", [1, 1], b"\x77" * 4),
            ("m.scales", "F16", [1, 8], ONE * 8)]),
        "awq_fast": folder(None, [
            ("m.qweight", "I16", [1, 64], b"\x9f" * 128), ("m.scales", "F16", [32, 4], ONE * 128),
            ("m.scaled_zeros", "F16", [32, 4], ONE * 128)]),
        "packed": folder(quantization(**INT4), [
            ("m.weight_packed", "I32", [3, 2], b"\x9f" * 24),
            ("m.weight_scale", "F16", [3, 2], ONE * 6),
            ("m.weight_zero_point", "I32", [1, 2], b"\x78" * 8),
            ("m.weight_shape", "I64", [2], struct.pack("<2q", 3, 16))]),
        "nvfp4": folder(None, [
            ("m.weight_packed", "U8", [2, 8], b"\x97" * 16),
            ("m.weight_scale", "F8_E4M3", [2, 1], b"88"),
            ("m.weight_global_scale", "F32", [1], floats(4))]),
        "mxfp4": folder(None, [("m.up_blocks", "U8", [2, 3, 1, 16], b"\x97" * 96),
                               ("m.up_scales", "U8", [2, 3, 1], b"\x80" * 6)]),
        "int8": folder(quantization(**INT4), [
            ("m.weight", "I8", [2, 16], b"\xfc" * 32), ("m.weight_scale", "F32", [2, 2],
                                                        floats(1, 2, 3, 4))]),
        "fp8": folder(quantization(weight_block_size=[1, 4]), [
            ("m.weight", "F8_E4M3", [2, 8], b"8" * 16),
            ("m.weight_scale_inv", "F32", [2, 2], floats(1, 2, 3, 4))]),
        "bnb": folder(None, [
            ("m.weight", "U8", [6, 1], b"\x7f" * 6), ("m.weight.absmax", "F32", [3],
                                                      floats(1, 2, 3)),
            ("m.weight.quant_map", "F32", [16], floats(*range(16))),
            ("m.weight.quant_state.bitsandbytes__fp4", "U8", [len(STATE)], STATE)]),
        "bnb8": folder(None, [("m.weight", "I8", [2, 4], b"\x7f" * 8),
                              ("m.SCB", "F32", [2], floats(1, 2))]),
    },
    "fuzz_packed": {f"format{i}": bytes([2 * i, 0, 0, 56]) for i in range(8)},
}


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "corpus")
    for target, seeds in CORPUS.items():
        os.makedirs(os.path.join(root, target), exist_ok=True)
        for name, content in seeds.items():
            with open(os.path.join(root, target, name), "wb") as file:
                file.write(content)


if __name__ == "__main__":
    main()
