# SPDX-License-Identifier: Apache-2.0
"""qn_checkpoint through ctypes, for the judges of importers: open(path) gives modules by name, each
with its facts, its provenance and its values in f32. QUERN_LIBRARY names the shared library."""
import ctypes as c
import os
import subprocess
import sys

import numpy as np

if "QUERN_LIBRARY" not in os.environ:
    print("skipped: QUERN_LIBRARY does not name libquern.so")
    sys.exit(77)


PROGRAM = os.path.join(os.path.dirname(os.path.abspath(os.environ["QUERN_LIBRARY"])), "quern")


def needs_program():
    """Ends the test as skipped where the quern program is not beside the library."""
    if not os.path.exists(PROGRAM):
        print("skipped: the quern program was not built")
        sys.exit(77)


def quern(*args, status=0):
    """What the program prints: on standard error where `status`, its exit status, is not 0."""
    done = subprocess.run([PROGRAM, *args], capture_output=True, text=True, check=False)
    if done.returncode != status:
        sys.exit(f"quern {' '.join(args)}: {done.returncode}: {done.stderr}")
    return done.stderr if status else done.stdout


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("rank", c.c_int32),
                ("device_kind", c.c_int32), ("device_index", c.c_int32),
                ("shape", c.c_int64 * 6), ("stride", c.c_int64 * 6)]


class Error(c.Structure):
    _fields_ = [("status", c.c_int32), ("offset", c.c_int64), ("text", c.c_char * 496)]


class Format(c.Structure):
    _fields_ = [("code", c.c_int32), ("bits", c.c_int32), ("group", c.c_int64),
                ("blocks", c.c_int32), ("shift", c.c_int32), ("scale_dtype", c.c_int32),
                ("superblock", c.c_int32), ("superbits", c.c_int32), ("reserved", c.c_int32)]


class Module(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("importer", c.c_char_p),
                ("dtype", c.c_char_p), ("bias", c.c_char_p), ("role", c.c_int32),
                ("activation", c.c_int32), ("format", Format), ("n", c.c_int64), ("k", c.c_int64),
                ("experts", c.c_int64), ("kh", c.c_int32), ("kw", c.c_int32),
                ("conv_groups", c.c_int32), ("has_perm", c.c_int32), ("has_prescale", c.c_int32),
                ("input_scale", c.c_float), ("input_zero", c.c_int32), ("n_tensors", c.c_int32),
                ("bytes", c.c_size_t)]


class Facts(c.Structure):
    _fields_ = [("size", c.c_size_t), ("groups", c.c_int64), ("rounded", c.c_int64)]


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("gptq_zeros", c.c_int32), ("reserved", c.c_int32)]


class Parts(c.Structure):
    _fields_ = [("size", c.c_size_t), ("format", Format), ("n", c.c_int64), ("k", c.c_int64),
                ("kh", c.c_int32), ("kw", c.c_int32), ("conv_groups", c.c_int32),
                ("reserved", c.c_int32), ("codes", c.c_void_p), ("scale", c.c_void_p),
                ("zero", c.c_void_p), ("offset", c.c_void_p), ("perm", c.c_void_p),
                ("prescale", c.c_void_p), ("table", c.c_void_p), ("n_groups", c.c_int64),
                ("super_scale", c.c_void_p), ("super_min", c.c_void_p),
                ("sub_scale", c.c_void_p), ("sub_min", c.c_void_p), ("n_supers", c.c_int64)]


lib = c.CDLL(os.environ["QUERN_LIBRARY"])
lib.qn_checkpoint_count.restype = c.c_int64
lib.qn_checkpoint_find.restype = c.c_int64
lib.qn_checkpoint_provenance.restype = c.c_size_t
lib.qn_format_print.restype = c.c_size_t
lib.qn_weight_destroy.argtypes = [c.c_void_p]
lib.qn_checkpoint_close.argtypes = [c.c_void_p]
context = c.c_void_p()
if lib.qn_ctx_create(None, c.byref(context), None) != 0:
    sys.exit("no context")


def copies(parts):
    sizes = {"codes": (parts.k, "u1"), "scale": (parts.n_groups, "f4"),
             "offset": (parts.n_groups, "f4"), "super_scale": (parts.n_supers, "f4"),
             "super_min": (parts.n_supers, "f4"), "sub_scale": (parts.n_groups, "i2"),
             "sub_min": (parts.n_groups, "i2")}
    out = {}
    for name, (columns, kind) in sizes.items():
        if getattr(parts, name):
            bytes_of = c.string_at(getattr(parts, name),
                                   parts.n * columns * np.dtype(kind).itemsize)
            out[name] = np.frombuffer(bytes_of, kind).reshape(parts.n, columns)
    return out


class Refused(Exception):
    pass


def must(status, error):
    if status != 0:
        raise Refused(error.text.decode())


class Checkpoint:
    """with Checkpoint(path) as c: c.values("name")"""

    def __init__(self, path, gptq_zeros=0):
        self.handle, error = c.c_void_p(), Error()
        options = Options(c.sizeof(Options), gptq_zeros, 0)
        must(lib.qn_checkpoint_open(context, os.fsencode(path), c.byref(options),
                                    c.byref(self.handle), c.byref(error)), error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.qn_checkpoint_close(self.handle)

    def count(self):
        return lib.qn_checkpoint_count(self.handle)

    def index(self, name):
        i = lib.qn_checkpoint_find(self.handle, name.encode())
        if i < 0:
            raise KeyError(name)
        return i

    def module(self, i):
        """Facts of module i (or of that name); raises Refused."""
        i = self.index(i) if isinstance(i, str) else i
        module, error = Module(c.sizeof(Module)), Error()
        must(lib.qn_checkpoint_module(self.handle, c.c_int64(i), c.byref(module), c.byref(error)),
             error)
        return module

    def names(self):
        """All names, refused modules as well."""
        out = []
        for i in range(self.count()):
            module = Module(c.sizeof(Module))
            lib.qn_checkpoint_module(self.handle, c.c_int64(i), c.byref(module), None)
            out.append(module.name.decode())
        return out

    def format(self, name):
        text = c.create_string_buffer(96)
        module = self.module(name)
        lib.qn_format_print(c.byref(module.format), text, c.c_size_t(96))
        return text.value.decode()

    def provenance(self, name):
        text = c.create_string_buffer(4096)
        lib.qn_checkpoint_provenance(self.handle, c.c_int64(self.index(name)), text,
                                     c.c_size_t(4096))
        return text.value.decode()

    def values(self, name, first=0, n=-1):
        """([n, k] f32, groups that were rounded); raises Refused. self.arrays: copies of the
        canonical weight's arrays, by name."""
        return self._take(lib.qn_checkpoint_load, name, c.c_int64(first), c.c_int64(n))

    def part(self, name, first_n, n, first_k, k):
        """[n, k] f32: a rectangle of it."""
        rectangle = (c.c_int64 * 4)(first_n, n, first_k, k)
        return self._take(lib.qn_checkpoint_load_part, name, rectangle)[0]

    def _take(self, load, name, *what):
        weight, error, facts = c.c_void_p(), Error(), Facts(c.sizeof(Facts))
        must(load(context, self.handle, c.c_int64(self.index(name)), *what, c.byref(weight),
                  c.byref(facts), c.byref(error)), error)
        parts = Parts(c.sizeof(Parts))
        lib.qn_weight_view(weight, c.byref(parts))
        self.arrays = copies(parts)
        out = np.empty((parts.n, parts.k), "f4")
        t = Tensor(out.ctypes.data, 1, 2, 1, 0)
        t.shape[0], t.shape[1], t.stride[0], t.stride[1] = parts.n, parts.k, parts.k, 1
        status = lib.qn_weight_dequantize(context, weight, True, c.byref(t))
        lib.qn_weight_destroy(weight)
        if status != 0:
            sys.exit(f"{name}: dequantize says {status}")
        return out, facts.rounded


class ExportOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("target", c.c_char_p), ("bits", c.c_int32),
                ("scale_dtype", c.c_int32), ("group", c.c_int64), ("activation", c.c_int32),
                ("input_scale", c.c_float), ("input_zero", c.c_int32), ("reserved", c.c_int32)]


class Entry(c.Structure):
    _fields_ = [("name", c.c_char_p), ("tensor", Tensor), ("dtype", c.c_char_p),
                ("offset", c.c_int64), ("bytes", c.c_size_t), ("is_aligned", c.c_int32),
                ("reserved", c.c_int32)]


lib.qn_export_count.restype = c.c_int64
lib.qn_export_destroy.argtypes = [c.c_void_p]
DTYPES = {"I32": "<i4", "I64": "<i8", "I8": "i1", "U8": "u1", "F16": "<f2", "F32": "<f4",
          "BF16": "<u2", "F8_E4M3": "u1"}


class Tensors(dict):
    def __init__(self):
        self.raw = {}


class Weight:
    """A canonical weight: of arrays as numpy has them, or module `name` of a checkpoint."""

    def __init__(self, format=None, codes=None, scale=None, zero=None, offset=None, perm=None,
                 prescale=None, checkpoint=None, name=None):
        self.handle, error = c.c_void_p(), Error()
        if checkpoint is not None:
            must(lib.qn_checkpoint_load(context, checkpoint.handle,
                                        c.c_int64(checkpoint.index(name)), c.c_int64(0),
                                        c.c_int64(-1), c.byref(self.handle), None,
                                        c.byref(error)), error)
            return
        parts = Parts(c.sizeof(Parts))
        must(lib.qn_format_parse(format.encode(), c.byref(parts.format), c.byref(error)), error)
        parts.n, parts.k = codes.shape
        parts.kh = parts.kw = parts.conv_groups = 1
        kept = []
        for key, value, dtype in (("codes", codes, "u1"), ("scale", scale, "f4"),
                                  ("zero", zero, "i4"), ("offset", offset, "f4"),
                                  ("perm", perm, "i4"), ("prescale", prescale, "f4")):
            if value is not None:
                kept.append(np.ascontiguousarray(value, dtype))
                setattr(parts, key, kept[-1].ctypes.data)
        must(lib.qn_weight_create(context, c.byref(parts), c.byref(self.handle), c.byref(error)),
             error)

    def __del__(self):
        lib.qn_weight_destroy(self.handle)

    def values(self):
        parts = Parts(c.sizeof(Parts))
        lib.qn_weight_view(self.handle, c.byref(parts))
        out = np.empty((parts.n, parts.k), "f4")
        t = Tensor(out.ctypes.data, 1, 2, 1, 0)
        t.shape[0], t.shape[1], t.stride[0], t.stride[1] = parts.n, parts.k, parts.k, 1
        if lib.qn_weight_dequantize(context, self.handle, True, c.byref(t)) != 0:
            sys.exit("dequantize failed")
        return out

    def export(self, target, **options):
        """{ending: array}, with .raw {ending: (dtype, shape, bytes)}; blocks of GGUF are ("Q4_0",
        bytes by row); raises Refused."""
        made, error = c.c_void_p(), Error()
        own = ExportOptions(c.sizeof(ExportOptions), target.encode(), **options)
        must(lib.qn_export_create(context, self.handle, c.byref(own), c.byref(made),
                                  c.byref(error)), error)
        out = Tensors()
        for i in range(lib.qn_export_count(made)):
            e = Entry()
            lib.qn_export_entry(made, c.c_int64(i), c.byref(e))
            raw = np.frombuffer(c.string_at(e.tensor.data, e.bytes), "u1").copy()
            dtype = e.dtype.decode()
            shape = [e.tensor.shape[d] for d in range(e.tensor.rank)]
            out.raw[e.name.decode()] = (dtype, tuple(shape), raw.tobytes())
            if dtype in DTYPES:
                out[e.name.decode()] = raw.view(DTYPES[dtype]).reshape(shape)
            else:
                out[e.name.decode()] = (dtype, raw.reshape(shape[0], -1))
        lib.qn_export_destroy(made)
        return out


def same_bits(mine, theirs, what):
    """Equal bit for bit; a zero may have either sign."""
    mine, theirs = np.asarray(mine, "f4"), np.asarray(theirs, "f4").reshape(np.shape(mine))
    wrong = (mine.view("u4") != theirs.view("u4")) & ~((mine == 0) & (theirs == 0))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        sys.exit(f"{what}: {wrong.sum()} of {wrong.size} differ, first at {at}: "
                 f"{mine[at]!r} for {theirs[at]!r}")


def refused(words, call, *args):
    """The call raises Refused with these words in its sentence."""
    try:
        call(*args)
    except Refused as error:
        if words.lower() in str(error).lower():
            return
        sys.exit(f"refused, but not with '{words}': {error}")
    sys.exit(f"not refused: '{words}' was expected")
