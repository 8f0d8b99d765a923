# SPDX-License-Identifier: Apache-2.0
"""Arrays of others as the library's tensors, without a copy; and fresh arrays for results.

Taken: numpy arrays, torch tensors, whatever has __dlpack__, and what numpy makes an array of
without being asked twice (buffers; lists, which it copies). An array goes to the library as it
lies: with its strides, on its device. What the library cannot read is refused with the words that
help: negative strides, elements that do not follow each other, byte-swapped numbers.
"""
from __future__ import annotations

import ctypes
import sys
from typing import Any, Optional

import numpy as np

from . import _abi, errors

FAMILIES = ("numpy", "torch", "dlpack")

# The language's names of element types, as the library prints them, and their numbers.
CODES = {"f32": _abi.QN_F32, "f16": _abi.QN_F16, "bf16": _abi.QN_BF16, "i8": _abi.QN_I8,
         "u8": _abi.QN_U8, "i32": _abi.QN_I32, "i64": _abi.QN_I64, "f64": _abi.QN_F64,
         "e4m3": _abi.QN_E4M3, "e8m0": _abi.QN_E8M0, "bool": _abi.QN_BOOL, "i16": _abi.QN_I16,
         "u16": _abi.QN_U16, "u32": _abi.QN_U32, "u64": _abi.QN_U64, "e5m2": _abi.QN_E5M2}
NAMES = {code: name for name, code in CODES.items()}
NUMPY = {np.dtype(name): code for name, code in (
    ("<f4", _abi.QN_F32), ("<f2", _abi.QN_F16), ("i1", _abi.QN_I8), ("u1", _abi.QN_U8),
    ("<i4", _abi.QN_I32), ("<i8", _abi.QN_I64), ("<f8", _abi.QN_F64), ("?", _abi.QN_BOOL),
    ("<i2", _abi.QN_I16), ("<u2", _abi.QN_U16), ("<u4", _abi.QN_U32), ("<u8", _abi.QN_U64))}
FROM_CODE = {code: dtype for dtype, code in NUMPY.items()}
# Types that numpy has from ml_dtypes, and torch by itself.
ML_DTYPES = {"bfloat16": _abi.QN_BF16, "float8_e4m3fn": _abi.QN_E4M3,
             "float8_e8m0fnu": _abi.QN_E8M0, "float8_e5m2": _abi.QN_E5M2}
TORCH = {"float32": _abi.QN_F32, "float16": _abi.QN_F16, "bfloat16": _abi.QN_BF16,
         "int8": _abi.QN_I8, "uint8": _abi.QN_U8, "int32": _abi.QN_I32, "int64": _abi.QN_I64,
         "float64": _abi.QN_F64, "bool": _abi.QN_BOOL, "int16": _abi.QN_I16,
         "uint16": _abi.QN_U16, "uint32": _abi.QN_U32, "uint64": _abi.QN_U64,
         "float8_e4m3fn": _abi.QN_E4M3, "float8_e8m0fnu": _abi.QN_E8M0,
         "float8_e5m2": _abi.QN_E5M2}
TORCH_NAME = {code: name for name, code in TORCH.items()}
# DLPack's (code, bits) of one lane.
DLPACK = {(2, 32): _abi.QN_F32, (2, 16): _abi.QN_F16, (4, 16): _abi.QN_BF16, (0, 8): _abi.QN_I8,
          (1, 8): _abi.QN_U8, (0, 32): _abi.QN_I32, (0, 64): _abi.QN_I64, (2, 64): _abi.QN_F64,
          (6, 8): _abi.QN_BOOL, (0, 16): _abi.QN_I16, (1, 16): _abi.QN_U16, (1, 32): _abi.QN_U32,
          (1, 64): _abi.QN_U64, (10, 8): _abi.QN_E4M3, (14, 8): _abi.QN_E8M0,
          (12, 8): _abi.QN_E5M2}
DEVICES = {1: _abi.QN_CPU, 3: _abi.QN_CPU, 2: _abi.QN_CUDA, 13: _abi.QN_CUDA}


class View:
    """Where an array lies and what it holds. `owner` keeps the memory."""

    __slots__ = ("name", "data", "code", "shape", "strides", "device", "owner", "family",
                 "is_read_only")

    def __init__(self, name: str, family: str, owner: Any) -> None:
        self.name, self.family, self.owner = name, family, owner
        self.data, self.code = 0, 0
        self.shape: tuple[int, ...] = ()
        self.strides: tuple[int, ...] = ()
        self.device = (_abi.QN_CPU, 0)
        self.is_read_only = False

    def checked(self) -> View:
        """Strides that nobody follows (one element, or none) may be anything; the rest is as the
        library takes it or refused here, in Python's words."""
        if len(self.shape) > _abi.QN_MAX_RANK:
            raise errors.ShapeError(f"{self.name} has {len(self.shape)} dimensions, quern takes "
                                    f"at most {_abi.QN_MAX_RANK}")
        natural, plain = 1, []
        for size in reversed(self.shape):
            plain.append(natural)
            natural *= max(size, 1)
        plain.reverse()
        empty = 0 in self.shape
        self.strides = tuple(natural if empty or size <= 1 else stride for natural, size, stride
                             in zip(plain, self.shape, self.strides))
        if any(stride < 0 for stride in self.strides):
            raise errors.StrideError(
                f"{self.name} has the strides {self.strides} (in elements): quern reads no array "
                f"backwards; pass a copy, {self.copied()}")
        return self

    def copied(self) -> str:
        return f"{self.name}.contiguous()" if self.family == "torch" else \
            f"numpy.ascontiguousarray({self.name})"

    def need_rows(self) -> None:
        """The last dimension must lie together."""
        if self.strides and self.strides[-1] != 1:
            raise errors.StrideError(
                f"{self.name} has the strides {self.strides} (in elements): those of a row must "
                f"follow each other; pass a copy, {self.copied()}")

    def need_together(self) -> None:
        natural = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if stride != natural:
                raise errors.StrideError(f"{self.name} has the strides {self.strides} (in "
                                         f"elements) and must be contiguous; {self.copied()}")
            natural *= max(size, 1)

    def rows(self) -> View:
        """The same elements as a matrix: leading dimensions become one, where they can."""
        if len(self.shape) < 1:
            raise errors.ShapeError(f"{self.name} has no dimension: a row at least")
        self.need_rows()
        made = View(self.name, self.family, self.owner)
        made.data, made.code, made.device = self.data, self.code, self.device
        made.is_read_only = self.is_read_only
        count, step = 1, self.shape[-1]
        for size, stride in zip(reversed(self.shape[:-1]), reversed(self.strides[:-1])):
            if size == 1:
                continue
            if count == 1:
                step = stride
            elif stride != step * count and 0 not in self.shape:
                raise errors.StrideError(
                    f"{self.name} has the strides {self.strides} (in elements), which are not "
                    f"those of rows at one distance; pass a copy, {self.copied()}")
            count *= size
        made.shape, made.strides = (count, self.shape[-1]), (max(step, self.shape[-1]), 1)
        if count > 1 and self.shape[-1] > 0:
            made.strides = (step, 1)
        return made

    def fill(self, tensor: _abi.qn_tensor) -> None:
        rank = len(self.shape)
        tensor.data, tensor.dtype, tensor.rank = self.data, self.code, rank
        tensor.device.kind, tensor.device.index = self.device
        tensor.shape[:rank] = self.shape
        tensor.stride[:rank] = self.strides

    def tensor(self) -> _abi.qn_tensor:
        made = _abi.qn_tensor()
        self.fill(made)
        return made


def _torch() -> Any:
    """torch, if the program has it."""
    found = sys.modules.get("torch")
    return found if hasattr(found, "Tensor") else None


def is_torch(array: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(array, torch.Tensor)


def code_of_numpy(dtype: np.dtype[Any], name: str) -> int:
    code = NUMPY.get(dtype) or ML_DTYPES.get(dtype.name)
    if code is not None and dtype.isnative:
        return code
    why = "its bytes are swapped, " if not dtype.isnative and NUMPY.get(dtype.newbyteorder()) \
        else ""
    raise errors.DtypeError(f"{name} is of type {dtype}: {why}quern takes float32, float16, "
                            "bfloat16 (torch or ml_dtypes), int8, uint8 and int32; convert it "
                            "with astype()")


def code_of(dtype: Any, name: str = "dtype") -> int:
    """The number of a type given as "bf16", numpy.float32, torch.bfloat16, ..."""
    if isinstance(dtype, str) and dtype in CODES:
        return CODES[dtype]
    torch = _torch()
    if torch is not None and isinstance(dtype, torch.dtype):
        code = TORCH.get(str(dtype).partition(".")[2])
        if code is not None:
            return code
        raise errors.DtypeError(f"{name} is {dtype}, which quern does not have")
    try:
        return code_of_numpy(np.dtype(dtype), name)
    except TypeError as why:
        if isinstance(why, errors.DtypeError):
            raise
        raise errors.DtypeError(f"{name} is {dtype!r}, which names no type; one of "
                                f"{', '.join(CODES)}, or a type of numpy or torch") from None


def view(array: Any, name: str, write: bool = False) -> View:
    """Look at an array of anybody's."""
    if isinstance(array, np.ndarray):
        made = _of_numpy(array, name)
    elif is_torch(array):
        made = _of_torch(array, name)
    elif hasattr(array, "__dlpack__") and not hasattr(array, "__array_interface__"):
        made = _of_dlpack(array, name)
    elif write:
        raise errors.ArgumentError(f"{name} is a {type(array).__name__}: results are written to "
                                   "a numpy array, a torch tensor or what has __dlpack__")
    else:
        made = _of_anything(array, name)
    if write and made.is_read_only:
        raise errors.ArgumentError(f"{name} is read-only, and the result would be written to it")
    return made.checked()


def _of_anything(array: Any, name: str) -> View:
    try:
        found = np.asarray(array)
    except Exception as why:
        raise errors.ArgumentError(f"{name} is a {type(array).__name__}, which is no array: "
                                   f"{why}") from None
    if found.dtype.kind not in "fiub" and found.dtype.name not in ML_DTYPES:
        raise errors.DtypeError(f"{name} is a {type(array).__name__}, which is no array of "
                                "numbers")
    return _of_numpy(found, name)


def _of_numpy(array: np.ndarray[Any, Any], name: str) -> View:
    made = View(name, "numpy", array)
    made.code = code_of_numpy(array.dtype, name)
    made.data, made.is_read_only = array.ctypes.data, not array.flags.writeable
    made.shape = array.shape
    size = array.itemsize
    if any(stride % size for stride, n in zip(array.strides, array.shape) if n > 1):
        raise errors.StrideError(f"{name} has the strides {array.strides} (in bytes), which are "
                                 f"no multiples of its {size}-byte elements; pass a copy")
    made.strides = tuple(stride // size for stride in array.strides)
    return made


def _of_torch(array: Any, name: str) -> View:
    torch = _torch()
    if array.requires_grad and torch.is_grad_enabled():
        raise errors.ArgumentError(f"{name} requires grad, and this function has no gradient: "
                                   f"pass {name}.detach(), or call it under torch.no_grad()")
    kind = array.device.type
    if kind not in ("cpu", "cuda"):
        raise errors.DeviceError(f"{name} is on the device {array.device}: quern computes on cpu "
                                 "and cuda")
    if array.layout is not torch.strided or array.is_conj() or array.is_neg():
        raise errors.StrideError(f"{name} is a sparse, conjugated or negated tensor: pass a dense "
                                 f"one, {name}.to_dense() or {name}.resolve_neg()")
    made = View(name, "torch", array)
    code = TORCH.get(str(array.dtype).partition(".")[2])
    if code is None:
        raise errors.DtypeError(f"{name} is of type {array.dtype}, which quern does not have")
    made.code, made.data = code, array.data_ptr()
    made.shape, made.strides = tuple(array.shape), tuple(array.stride())
    if kind == "cuda":
        made.device = (_abi.QN_CUDA, array.device.index or 0)
    return made


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _of_dlpack(array: Any, name: str) -> View:
    """The capsule is looked at and not consumed: it frees what it holds when the view goes."""
    try:
        capsule = array.__dlpack__()
        found = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    except Exception as why:
        raise errors.ArgumentError(f"{name} is a {type(array).__name__} whose __dlpack__() fails: "
                                   f"{why}") from None
    made = View(name, "dlpack", (array, capsule))
    code = DLPACK.get((found.code, found.bits)) if found.lanes == 1 else None
    if code is None:
        raise errors.DtypeError(f"{name} is of DLPack's type {found.code} with {found.bits} bits, "
                                "which quern does not have")
    if found.device_type not in DEVICES:
        raise errors.DeviceError(f"{name} is on DLPack's device {found.device_type}: quern "
                                 "computes on cpu (1) and cuda (2)")
    kind = DEVICES[found.device_type]
    made.code, made.device = code, (kind, found.device_id if kind == _abi.QN_CUDA else 0)
    made.data = (found.data or 0) + found.byte_offset
    made.shape = tuple(found.shape[i] for i in range(found.ndim))
    if found.strides:
        made.strides = tuple(found.strides[i] for i in range(found.ndim))
    else:
        natural, strides = 1, []
        for size in reversed(made.shape):
            strides.append(natural)
            natural *= size
        made.strides = tuple(reversed(strides))
    return made


# ---------------------------------------------------------------------------------------- results


def numpy_dtype(code: int, name: str = "the result") -> np.dtype[Any]:
    found = FROM_CODE.get(code)
    if found is not None:
        return found
    wanted = next((word for word, c in ML_DTYPES.items() if c == code), None)
    try:
        import ml_dtypes
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(wanted)))
        return dtype
    except (ImportError, AttributeError):
        raise errors.DtypeError(
            f"{name} would be of type {NAMES.get(code, '?')}, which numpy does not have: install "
            "ml_dtypes, use torch tensors, or ask for dtype='f32'") from None


def empty(shape: tuple[int, ...], code: int, like: View) -> Any:
    """A new array of the family and on the device of another. (numpy where that is unknown.)"""
    if like.family == "torch":
        torch = _torch()
        wanted = getattr(torch, TORCH_NAME[code], None)
        if wanted is None:
            raise errors.DtypeError(f"this torch has no type for {NAMES[code]}")
        return torch.empty(shape, dtype=wanted, device=like.owner.device)
    if like.device[0] != _abi.QN_CPU:
        raise errors.DeviceError(f"{like.name} is on a GPU and not a torch tensor: where its "
                                 "result shall lie is told by out=")
    return np.empty(shape, numpy_dtype(code))


def torch_empty(shape: tuple[int, ...], dtype: Any) -> Any:
    return sys.modules["torch"].empty(shape, dtype=dtype, device="cpu")


class _Memory:
    """Memory of somebody else as numpy sees it; the array keeps this, and this keeps the owner."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any],
                 owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str,
                                    "data": (address, True)}


def borrowed(address: int, shape: tuple[int, ...], code: int, owner: Any) -> Any:
    """A read-only array over memory that `owner` keeps."""
    dtype = numpy_dtype(code)
    if 0 in shape:
        return np.empty(shape, dtype)
    if dtype.kind == "V" or dtype.name in ML_DTYPES:  # the interface has no word for these
        plain = np.dtype(f"u{dtype.itemsize}")
        return np.asarray(_Memory(address, shape, plain, owner)).view(dtype)
    return np.asarray(_Memory(address, shape, dtype, owner))
