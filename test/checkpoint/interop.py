#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern's files against the numpy and safetensors packages, both ways, and which damaged files each
accepts. Environment: QUERN_LIBRARY, the shared library. Exit status 77: a package is missing.
"""
import ctypes as c
import json
import os
import random
import struct
import sys
import tempfile

try:
    import numpy as np
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install numpy safetensors)")
    sys.exit(77)
if "QUERN_LIBRARY" not in os.environ:
    print("skipped: QUERN_LIBRARY does not name libquern.so")
    sys.exit(77)

DTYPES = {1: "f4", 2: "f2", 4: "i1", 5: "u1", 6: "i4", 7: "i8", 8: "f8", 11: "?", 12: "i2",
          13: "u2", 14: "u4", 15: "u8"}
NUMBERS = {np.dtype(v): k for k, v in DTYPES.items()}


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("rank", c.c_int32),
                ("device_kind", c.c_int32), ("device_index", c.c_int32),
                ("shape", c.c_int64 * 6), ("stride", c.c_int64 * 6)]


class Entry(c.Structure):
    _fields_ = [("name", c.c_char_p), ("tensor", Tensor), ("dtype", c.c_char_p),
                ("offset", c.c_int64), ("bytes", c.c_size_t), ("is_aligned", c.c_int32),
                ("reserved", c.c_int32)]


class Error(c.Structure):
    _fields_ = [("status", c.c_int32), ("offset", c.c_int64), ("text", c.c_char * 496)]


lib = c.CDLL(os.environ["QUERN_LIBRARY"])
lib.qn_file_count.restype = c.c_int64
context = c.c_void_p()
if lib.qn_ctx_create(None, c.byref(context), None) != 0:
    sys.exit("no context")


def must(status, error=None):
    if status != 0:
        raise RuntimeError(f"status {status}: {error.text.decode() if error else ''}")


def tensor_of(array):
    t = Tensor(array.ctypes.data, NUMBERS[array.dtype], array.ndim, 1, 0)
    for i in range(array.ndim):
        t.shape[i] = array.shape[i]
        t.stride[i] = array.strides[i] // array.itemsize
    return t


def read(path):
    """{name: array} as quern sees the file; None for what it cannot view. Raises on refusal."""
    file, error, out = c.c_void_p(), Error(), {}
    must(lib.qn_file_open(context, os.fsencode(path), c.byref(file), c.byref(error)), error)
    for i in range(lib.qn_file_count(file)):
        entry = Entry()
        must(lib.qn_file_entry(file, c.c_int64(i), c.byref(entry)))
        t = entry.tensor
        name = entry.name.decode()
        if t.dtype not in DTYPES:
            out[name] = None
            continue
        array = np.empty(tuple(t.shape[:t.rank]), DTYPES[t.dtype])
        view = tensor_of(array)
        must(lib.qn_entry_copy(c.byref(entry), c.byref(view)))
        out[name] = array
    lib.qn_file_close(file)
    return out


def write(path, arrays, metadata):
    writer, error = c.c_void_p(), Error()
    must(lib.qn_writer_create(context, os.fsencode(path), c.byref(writer), c.byref(error)), error)
    for name, array in arrays.items():
        shape = (c.c_int64 * 6)(*array.shape)
        must(lib.qn_writer_add(writer, name.encode(), NUMBERS[array.dtype], array.ndim, shape, None,
                               c.byref(error)), error)
    for key, value in metadata.items():
        must(lib.qn_writer_metadata(writer, key.encode(), value.encode(), c.byref(error)), error)
    must(lib.qn_writer_begin(writer, 1, 0, c.byref(error)), error)
    for i, array in enumerate(arrays.values()):
        t = tensor_of(array)
        must(lib.qn_writer_put(writer, c.c_int64(i), c.byref(t), c.byref(error)), error)
    must(lib.qn_writer_finish(writer, c.byref(error)), error)


def same(a, b, what):
    if a is None or a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
        sys.exit(f"{what}: differs")


def arrays():
    draw = np.random.default_rng(1)
    for dtype in DTYPES.values():
        for shape in ((), (1,), (7,), (0,), (3, 5), (2, 0, 3), (2, 3, 1, 2, 1, 3)):
            raw = np.asarray(draw.integers(0, 2 if dtype == "?" else 120, shape)).astype(dtype)
            yield f"{dtype} {shape}", np.ascontiguousarray(raw).reshape(shape)


def check_npy(folder):
    path = os.path.join(folder, "x.npy")
    for what, array in arrays():
        for version in ((1, 0), (2, 0), (3, 0)):
            for ordered in (array, np.asfortranarray(array)):
                with open(path, "wb") as file:
                    np.lib.format.write_array(file, ordered, version)
                same(read(path)[""], array.reshape(ordered.shape), f"npy {what} {version}")
        t = tensor_of(array)
        error = Error()
        must(lib.qn_npy_write(os.fsencode(path), c.byref(t), 1, c.byref(error)), error)
        same(np.load(path), array, f"npy written {what}")
    wide = np.arange(24, dtype="f4").reshape(4, 6)[::2, 1::2]
    t = tensor_of(wide)
    must(lib.qn_npy_write(os.fsencode(path), c.byref(t), 1, None))
    same(np.load(path), np.ascontiguousarray(wide), "npy of a strided view")
    for dtype in ("c8", "U3", "S5", "M8[s]"):
        np.save(path, np.zeros(3, dtype))
        if read(path)[""] is not None:
            sys.exit(f"{dtype} was viewed")
    for bad in (np.zeros(3, ">f4"), np.array([{}]), np.zeros(3, [("a", "f4")])):
        np.save(path, bad)
        try:
            read(path)
        except RuntimeError:
            continue
        sys.exit(f"{bad.dtype} was read")


def check_safetensors(folder):
    path = os.path.join(folder, "x.safetensors")
    everything = {f"n\u00e4me \"{what}\"\n": array for what, array in arrays()}
    metadata = {"k\u00e9y": "v\U0001d11e", "": "", "format": "np"}
    save_file(everything, path, metadata)
    found = read(path)
    if set(found) != set(everything):
        sys.exit("names differ")
    for name, array in everything.items():
        same(found[name], array, name)
    write(path, everything, metadata)
    for name, array in load_file(path).items():
        same(everything[name], array, f"written {name}")
    with safe_open(path, "np") as file:
        if file.metadata() != metadata:
            sys.exit("metadata differs")


def theirs(content):
    from safetensors import deserialize
    try:
        deserialize(content)
        return True
    except (SafetensorError, ValueError, UnicodeDecodeError):
        return False


def ours(path):
    try:
        read(path)
        return True
    except RuntimeError:
        return False


# Texts that the reference reads and quern refuses, on purpose: what serde lets pass.
STRICTER = ("twice", "named", "NUL", "overflows", "does not begin", "larger than 2^63")


def check_damage(folder):
    """Whatever quern opens, the reference opens; the reverse but for the reasons above."""
    path = os.path.join(folder, "d.safetensors")
    save_file({"a": np.arange(4, dtype="f4"), "b\u00e9": np.arange(3, dtype="u1")}, path,
              {"k": "v"})
    with open(path, "rb") as file:
        good = file.read()
    draw = random.Random(2)
    header = struct.unpack("<Q", good[:8])[0]
    cases = [good[:i] for i in range(len(good))] + [good + b"\0"]
    cases += [good[:i] + bytes([good[i] ^ 1 << bit]) + good[i + 1:]
              for i in range(len(good)) for bit in range(8)]
    text = json.loads(good[8:8 + header])
    for _ in range(2000):
        broken = json.loads(json.dumps(text))
        tensor = broken[draw.choice(("a", "b\u00e9"))]
        value = draw.choice(
            (0, 1, 3, 4, 8, 16, 19, 20, -1, 2 ** 62, 2 ** 63, 2 ** 64, 1.5, "1", None))
        kind = draw.choice(("shape", "data_offsets", "dtype"))
        if kind == "dtype":
            tensor[kind] = draw.choice(("F32", "U8", "I64", "F4", "BOOL", "Q1", 7))
        elif draw.random() < 0.2:
            tensor[kind] = draw.choice(([], [value], [value] * 3, {}, "x"))
        else:
            tensor[kind][draw.randrange(len(tensor[kind]))] = value
        raw = json.dumps(broken).encode()
        cases.append(struct.pack("<Q", len(raw)) + raw + good[8 + header:])
    accepted = 0
    for content in cases:
        with open(path, "wb") as file:
            file.write(content)
        reference, mine = theirs(content), ours(path)
        accepted += mine
        if mine and not reference:
            # An unknown type is listed by quern and refused by the reference.
            if any(array is None for array in read(path).values()):
                continue
            sys.exit(f"only quern accepts {content!r}")
        if reference and not mine:
            try:
                read(path)
            except RuntimeError as error:
                if not any(word in str(error) for word in STRICTER):
                    sys.exit(f"only the reference accepts {content!r}: {error}")
    print(f"{len(cases)} damaged files: both accept {accepted}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_npy(folder)
        check_safetensors(folder)
        check_damage(folder)
    lib.qn_ctx_destroy(context)
    print("numpy", np.__version__, "and safetensors agree with quern")


if __name__ == "__main__":
    main()
