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
