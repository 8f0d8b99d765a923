# SPDX-License-Identifier: Apache-2.0
"""Quantized weights: made from dense ones or from parts, looked at, packed for the kernels."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import numpy as np

from . import _abi, _arrays, errors
from ._arrays import View, view
from ._context import Context, default_context
from ._format import METHODS, RANGES, number_of, parse, spelt
from ._interrupt import Interruptible
from ._library import check, lib, new_error, sized


_NO_RELEASE = _abi.qn_release_fn()  # NULL: the objects here keep the memory themselves


class _Handle:
    """Something of the library's that is freed with the object. The context outlives it."""

    __slots__ = ("_ptr", "ctx", "_owner", "_keeper", "__weakref__")
    _destroy: Any = None

    def __init__(self, ptr: int, ctx: Context, owner: Any = None) -> None:
        self._ptr, self.ctx, self._owner = ptr, ctx, owner
        self._keeper = ctx._keeper.hold()

    def __del__(self) -> None:
        if hasattr(self, "_keeper"):
            self._destroy(self._ptr)
            self._keeper.drop()


def float_array(values: Any, length: int, name: str) -> Any:
    """f32 numbers that follow each other, copied where they do not."""
    made = np.ascontiguousarray(_host(values, name), dtype=np.float32)
    if made.shape != (length,):
        raise errors.ShapeError(f"{name} has the shape {made.shape}: ({length},) is wanted")
    return made


def _host(values: Any, name: str) -> Any:
    if _arrays.is_torch(values):
        found = view(values, name)
        if found.device[0] != _abi.QN_CPU:
            raise errors.DeviceError(f"{name} is on a GPU: pass {name}.cpu()")
        return values.detach().float().numpy()
    return values


# What scale (and a minimum) is made of, where the format has super-blocks.
_LEVELS = ("super_scale", "super_min", "sub_scale", "sub_min")


def pack_options(layout: Optional[str], x_block: int, sums: bool) -> Any:
    options = sized(_abi.qn_pack_options)
    options.layout = layout.encode() if layout is not None else None
    options.x_block, options.without_sums = x_block, 0 if sums else 1
    return options


class Weight(_Handle):
    """A quantized weight in canonical form: w[n, k] = scale * code + offset, group by group.

    Made by quantize(), load(), or from parts. Its arrays can be looked at without a copy; to
    multiply with it, pack() it.

    >>> import numpy as np
    >>> w = quantize(np.eye(4, 32, dtype=np.float32), "int4:g32")
    >>> w.shape, w.format, w.codes.shape, w.scale.shape
    ((4, 32), 'int4:g32', (4, 32), (4, 1))
    >>> bool((w.dequantize() == np.eye(4, 32)).all())
    True
    """

    __slots__ = ("_parts",)
    _destroy = staticmethod(lib.qn_weight_destroy)

    def __init__(self, ptr: int, ctx: Context, owner: Any = None) -> None:
        super().__init__(ptr, ctx, owner)
        self._parts = sized(_abi.qn_weight_parts)
        check(lib.qn_weight_view(ptr, ctypes.byref(self._parts)))

    @classmethod
    def from_parts(cls, codes: Any, scale: Any, format: str, *, zero: Any = None,
                   offset: Any = None, perm: Any = None, prescale: Any = None, table: Any = None,
                   super_scale: Any = None, super_min: Any = None, sub_scale: Any = None,
                   sub_min: Any = None,
                   kernel_size: tuple[int, int] = (1, 1), conv_groups: int = 1,
                   ctx: Optional[Context] = None) -> Weight:
        """Check and copy parts: codes [n, k] u8 (code + 2^(bits-1) for integers, the index of a
        table else; of f32, f16 and bf16 the bytes of the numbers, [n, k * bits / 8]), scale (None
        for these), zero, offset [n, groups], perm, prescale [k], table [2^bits]. Of
        formats with super-blocks super_scale, super_min [n, supers] and sub_scale, sub_min [n,
        groups] i16 make scale and offset, which may then be None.

        >>> import numpy as np
        >>> w = Weight.from_parts(np.full((1, 4), 9, np.uint8), [[0.5]], "int4:pc")
        >>> w.dequantize().tolist()
        [[0.5, 0.5, 0.5, 0.5]]
        """
        ctx = ctx or default_context()
        parts = sized(_abi.qn_weight_parts)
        parts.format = parse(format)
        found = np.ascontiguousarray(codes)
        if found.dtype != np.uint8 or found.ndim != 2:
            raise errors.DtypeError("codes is no matrix of uint8: code + 2^(bits-1) for integers, "
                                    "the index of a table else")
        parts.n, parts.k = found.shape
        if parts.format.code == _abi.QN_CODE_FLOAT:
            parts.k //= parts.format.bits // 8
        parts.kh, parts.kw = kernel_size
        parts.conv_groups = conv_groups
        taps = max(1, parts.kh * parts.kw)
        groups = lib.qn_format_groups(ctypes.byref(parts.format), parts.k, parts.k // taps)
        supers = -(-groups // max(1, parts.format.superblock))
        keep = [found]
        parts.codes = found.ctypes.data
        for name, values, dtype, shape in (
                ("scale", scale, np.float32, (parts.n, groups)),
                ("zero", zero, np.int32, (parts.n, groups)),
                ("offset", offset, np.float32, (parts.n, groups)),
                ("perm", perm, np.int32, (parts.k,)),
                ("prescale", prescale, np.float32, (parts.k,)),
                ("table", table, np.float32, (1 << min(parts.format.bits, 8),)),
                ("super_scale", super_scale, np.float32, (parts.n, supers)),
                ("super_min", super_min, np.float32, (parts.n, supers)),
                ("sub_scale", sub_scale, np.int16, (parts.n, groups)),
                ("sub_min", sub_min, np.int16, (parts.n, groups))):
            if values is None:
                continue
            array = np.ascontiguousarray(_host(values, name), dtype=dtype)
            if array.shape != shape:
                raise errors.ShapeError(f"{name} has the shape {array.shape}: {shape} is wanted")
            keep.append(array)
            setattr(parts, name, array.ctypes.data)
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_weight_create(ctx._ptr, ctypes.byref(parts), ctypes.byref(made),
                                   ctypes.byref(error)), error)
        return cls(_address(made), ctx)

    @staticmethod
    def concat(weights: Sequence[Weight]) -> Weight:
        """Weights that read the same x (q, k and v; gate and up), joined along n."""
        if not weights:
            raise errors.ArgumentError("no weight is given to be joined")
        ctx = weights[0].ctx
        pointers = (ctypes.c_void_p * len(weights))(*[w._ptr for w in weights])
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_weight_concat(ctx._ptr, len(weights), pointers, ctypes.byref(made),
                                   ctypes.byref(error)), error)
        return Weight(_address(made), ctx)

    def __reduce__(self) -> Any:
        return _weight_from, (np.array(self.codes), _plain(self.scale), self.format, {
            "zero": _plain(self.zero), "offset": _plain(self.offset), "perm": _plain(self.perm),
            "prescale": _plain(self.prescale), **{
                name: _plain(getattr(self, name)) for name in _LEVELS},
            "table": _plain(self.table) if self._parts.format.code == _abi.QN_CODE_TABLE else None,
            "kernel_size": self.kernel_size, "conv_groups": self.conv_groups})

    def __repr__(self) -> str:
        return f"quern.Weight({self.shape[0]} x {self.shape[1]}, {self.format!r})"

    # ---- facts

    @property
    def shape(self) -> tuple[int, int]:
        return self._parts.n, self._parts.k

    @property
    def format(self) -> str:
        return spelt(self._parts.format)

    @property
    def kernel_size(self) -> tuple[int, int]:
        return self._parts.kh, self._parts.kw

    @property
    def conv_groups(self) -> int:
        return int(self._parts.conv_groups)

    @property
    def n_groups(self) -> int:
        """Groups of a row."""
        return int(self._parts.n_groups)

    def _array(self, address: Optional[int], shape: tuple[int, ...], code: int) -> Any:
        if address is None:
            return None
        return _arrays.borrowed(address, shape, code, self)

    @property
    def codes(self) -> Any:
        """[n, k] u8: code + 2^(bits-1) for integers, the index of a table else; of f32, f16 and
        bf16 the bytes of the numbers, [n, k * bits / 8]. Not a copy."""
        n, k = self.shape
        if self._parts.format.code == _abi.QN_CODE_FLOAT:
            k *= self._parts.format.bits // 8
        return self._array(self._parts.codes or 0, (n, k), _abi.QN_U8)

    @property
    def scale(self) -> Any:
        """[n, n_groups] f32."""
        return self._array(self._parts.scale or 0, (self.shape[0], self.n_groups), _abi.QN_F32)

    @property
    def zero(self) -> Any:
        """[n, n_groups] i32, or None."""
        return self._array(self._parts.zero, (self.shape[0], self.n_groups), _abi.QN_I32)

    @property
    def offset(self) -> Any:
        """[n, n_groups] f32: offsets, or minima of codes that count from 0; or None."""
        return self._array(self._parts.offset, (self.shape[0], self.n_groups), _abi.QN_F32)

    @property
    def super_scale(self) -> Any:
        """[n, n_supers] f32: the common scale of each super-block; or None."""
        return self._supers(self._parts.super_scale)

    @property
    def super_min(self) -> Any:
        """[n, n_supers] f32: the common minimum of each super-block; or None."""
        return self._supers(self._parts.super_min)

    @property
    def sub_scale(self) -> Any:
        """[n, n_groups] i16: scale = super_scale * sub_scale; or None."""
        return self._array(self._parts.sub_scale, (self.shape[0], self.n_groups), _abi.QN_I16)

    @property
    def sub_min(self) -> Any:
        """[n, n_groups] i16: offset = -(super_min * sub_min); or None."""
        return self._array(self._parts.sub_min, (self.shape[0], self.n_groups), _abi.QN_I16)

    def _supers(self, address: Optional[int]) -> Any:
        return self._array(address, (self.shape[0], int(self._parts.n_supers)), _abi.QN_F32)

    @property
    def perm(self) -> Any:
        """[k] i32: position p reads column perm[p]; or None."""
        return self._array(self._parts.perm, (self.shape[1],), _abi.QN_I32)

    @property
    def prescale(self) -> Any:
        """[k] f32, by which x is multiplied first; or None."""
        return self._array(self._parts.prescale, (self.shape[1],), _abi.QN_F32)

    @property
    def table(self) -> Any:
        """[2^bits] f32 of a codebook, or None."""
        return self._array(self._parts.table, (1 << self._parts.format.bits,), _abi.QN_F32)

    # ---- what can be done with it

    def dequantize(self, out: Any = None, *, apply_prescale: bool = True) -> Any:
        """The values in f32, [n, k]."""
        made = np.empty(self.shape, np.float32) if out is None else out
        found = view(made, "out", write=True)
        tensor = found.tensor()
        status = lib.qn_weight_dequantize(self.ctx._ptr, self._ptr, apply_prescale,
                                          ctypes.byref(tensor))
        if status != 0:
            _refuse_out(status, found, self.shape, ("f32",))
        return made

    def rows(self, ids: Any, *, dtype: Any = "f32", out: Any = None,
             apply_prescale: bool = True) -> Any:
        """Rows by index, as an embedding looks them up: [len(ids), k]."""
        return _rows(lib.qn_weight_rows, self, self.shape[1], ids, dtype, out, apply_prescale)

    def slice(self, rows: slice = slice(None), columns: slice = slice(None)) -> Weight:
        """Outputs and columns as a weight of its own; columns end at borders of groups."""
        (first_n, n), (first_k, k) = (_range(part, size, name) for part, size, name in (
            (rows, self.shape[0], "rows"), (columns, self.shape[1], "columns")))
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_weight_slice(self.ctx._ptr, self._ptr, first_n, n, first_k, k,
                                  ctypes.byref(made), ctypes.byref(error)), error)
        return Weight(_address(made), self.ctx)

    def pack(self, ctx: Optional[Context] = None, *, layout: Optional[str] = None,
             x_block: int = 0, sums: bool = True, into: Any = None) -> Packed:
        """Lay the weight out as kernels of the context's device read it. layout: one of layouts(),
        or the best. x_block: of int8-block, 0 for the weight's group. sums=False is smaller, and
        refuses asymmetric int8 activations. into: a writable buffer at a multiple of 64 (shared
        memory, an mmap), which then holds the packed weights; by default new memory."""
        ctx = ctx or self.ctx
        options = pack_options(layout, x_block, sums)
        made, error = ctypes.c_void_p(), new_error()
        if into is None:
            check(lib.qn_pack(ctx._ptr, self._ptr, ctypes.byref(options), ctypes.byref(made),
                              ctypes.byref(error)), error)
            return Packed(_address(made), ctx)
        buffer = _bytes_of(into, "into")
        if not buffer.flags.writeable:
            raise errors.ArgumentError("into is read-only, and the weights would be written to it")
        check(lib.qn_pack_into(ctx._ptr, self._ptr, ctypes.byref(options), buffer.ctypes.data,
                               buffer.size, ctypes.byref(made), ctypes.byref(error)), error)
        return Packed(_address(made), ctx, buffer)

    def save(self, path: Any, name: str = "weight", *, overwrite: bool = False) -> None:
        """Keep it in a file of its own; quern.save() keeps several."""
        from ._files import save
        save(path, {name: self}, overwrite=overwrite, ctx=self.ctx)


class Packed(_Handle):
    """Weights as kernels read them: what matmul(), grouped() and the convolutions multiply with.

    >>> import numpy as np
    >>> p = quantize(np.ones((64, 128), np.float32), "int4:g32").pack()
    >>> p.shape, p.format, p.device
    ((64, 128), 'int4:g32', 'cpu')
    """

    __slots__ = ("_info", "_ready")
    _destroy = staticmethod(lib.qn_packed_destroy)

    def __init__(self, ptr: int, ctx: Context, owner: Any = None) -> None:
        super().__init__(ptr, ctx, owner)
        self._ready: dict[Any, list[Any]] = {}  # prepared calls, by what they are for
        self._info = sized(_abi.qn_packed_info)
        check(lib.qn_packed_query(ptr, ctypes.byref(self._info)))

    @classmethod
    def from_buffer(cls, buffer: Any, ctx: Optional[Context] = None) -> Packed:
        """Packed weights where they lie: the bytes that data gave, or that pack(into=) wrote, at a
        multiple of 64. On the CPU nothing is copied; the buffer must not change. Everything that a
        kernel uses as a place or a size is checked."""
        ctx, memory = ctx or default_context(), _bytes_of(buffer, "buffer")
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_packed_from_memory(ctx._ptr, memory.ctypes.data, memory.size, _NO_RELEASE,
                                        None, ctypes.byref(made), ctypes.byref(error)), error)
        return cls(_address(made), ctx, memory)

    @property
    def data(self) -> Any:
        """The packed bytes: on the CPU a view of them, read-only; of a GPU a copy."""
        if self._info.device.kind == _abi.QN_CPU:
            at, size = ctypes.c_void_p(), ctypes.c_size_t()
            check(lib.qn_packed_data(self._ptr, ctypes.byref(at), ctypes.byref(size)))
            return _arrays.borrowed(at.value or 0, (size.value,), _abi.QN_U8, self)
        copy, error = np.empty(self.nbytes, np.uint8), new_error()
        check(lib.qn_packed_copy(self.ctx._ptr, self._ptr, copy.ctypes.data, copy.size,
                                 ctypes.byref(error)), error)
        return copy

    def __reduce__(self) -> Any:
        if self.ctx._device[0] != _abi.QN_CPU:
            raise errors.UnsupportedError("packed weights on a GPU are not pickled: unpack() them, "
                                          "and pack the weight where it is read")
        return _packed_from, (self.unpack(), self.x_block, self.has_sums)

    def __repr__(self) -> str:
        return (f"quern.Packed({self.shape[0]} x {self.shape[1]}, {self.format!r}, "
                f"layout={self.layout!r}, device={self.device!r})")

    @property
    def shape(self) -> tuple[int, int]:
        return self._info.n, self._info.k

    @property
    def format(self) -> str:
        return spelt(self._info.format)

    @property
    def kernel_size(self) -> tuple[int, int]:
        return self._info.kh, self._info.kw

    @property
    def conv_groups(self) -> int:
        return int(self._info.conv_groups)

    @property
    def device(self) -> str:
        device = self._info.device
        return "cpu" if device.kind == _abi.QN_CPU else f"cuda:{device.index}"

    @property
    def layout(self) -> str:
        return str(self._info.layout.decode())

    @property
    def nbytes(self) -> int:
        """All that the packed weights hold."""
        return int(self._info.bytes)

    @property
    def x_block(self) -> int:
        """Of the int8-block strategy."""
        return int(self._info.x_block)

    @property
    def has_sums(self) -> bool:
        return bool(self._info.has_sums)

    def unpack(self) -> Weight:
        """Back to the canonical form, bit for bit."""
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_unpack(self.ctx._ptr, self._ptr, ctypes.byref(made), ctypes.byref(error)),
              error)
        return Weight(_address(made), self.ctx)

    def rows(self, ids: Any, *, dtype: Any = "f32", out: Any = None,
             apply_prescale: bool = True) -> Any:
        """Rows by index, as an embedding looks them up: [len(ids), k]."""
        return _rows(lib.qn_packed_rows, self, self.shape[1], ids, dtype, out, apply_prescale)

    def save(self, path: Any, name: str = "weight", *, overwrite: bool = False) -> None:
        """Keep it in a file of its own, from which it is used without a copy."""
        from ._files import save
        save(path, {name: self}, overwrite=overwrite, ctx=self.ctx)


def _bytes_of(buffer: Any, name: str) -> Any:
    try:
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError) as why:
        raise errors.ArgumentError(f"{name} is a {type(buffer).__name__}, which is no buffer of "
                                   f"bytes: {why}") from None


def _address(made: ctypes.c_void_p) -> int:
    assert made.value is not None
    return made.value


def _plain(array: Any) -> Any:
    return None if array is None else np.array(array)


def _weight_from(codes: Any, scale: Any, format: str, more: dict[str, Any]) -> Weight:
    return Weight.from_parts(codes, scale, format, **more)


def _packed_from(weight: Weight, x_block: int, sums: bool) -> Packed:
    return weight.pack(x_block=x_block, sums=sums)


def _range(part: slice, size: int, name: str) -> tuple[int, int]:
    first, last, step = part.indices(size)
    if step != 1:
        raise errors.ArgumentError(f"{name} has the step {step}: a slice of a weight goes by ones")
    return first, max(0, last - first)


def _refuse_out(status: int, out: View, shape: tuple[int, ...], types: Iterable[str]) -> None:
    """What is wrong with `out` in words; the call had none."""
    if out.shape != shape:
        raise errors.ShapeError(f"out has the shape {out.shape}: {shape} is wanted")
    if _arrays.NAMES[out.code] not in types:
        raise errors.DtypeError(f"out is of type {_arrays.NAMES[out.code]}: "
                                f"{', '.join(types)} is wanted")
    out.need_rows()
    check(status)


def _rows(function: Any, weight: Any, k: int, ids: Any, dtype: Any, out: Any,
          apply_prescale: bool) -> Any:
    which = view(ids, "ids")
    if out is None:
        out = _arrays.empty(which.shape + (k,), _arrays.code_of(dtype), which)
    to = view(out, "out", write=True).rows()
    flat = View("ids", which.family, which.owner)
    flat.data, flat.code, flat.device = which.data, which.code, which.device
    which.need_together()
    count = 1
    for size in which.shape:
        count *= size
    flat.shape, flat.strides = (count,), (1,)
    ids_tensor, to_tensor, error = flat.tensor(), to.tensor(), new_error()
    check(function(weight.ctx._ptr, weight._ptr, ctypes.byref(ids_tensor), apply_prescale,
                   ctypes.byref(to_tensor), ctypes.byref(error)), error)
    return out


# ---------------------------------------------------------------------------------- quantizing

# Where [n, kh, kw, ci] of a kernel lies in the order that a framework keeps.
_ORDERS = {"oihw": (0, 2, 3, 1), "ohwi": (0, 1, 2, 3), "iohw": (1, 2, 3, 0)}


def _kernel(w: Any, order: str, conv_groups: int) -> Any:
    """Dense weights of a convolution as [n, kh, kw, ci]. One of one dimension has kh = 1."""
    number_of({name: 0 for name in _ORDERS}, order, "order")
    if _arrays.is_torch(w):
        # Refused as everywhere else; numpy then sees the same memory (bf16 has no name there).
        view(w, "w")
        w = w.detach()
        w = w.float().numpy() if str(w.dtype) == "torch.bfloat16" else w.numpy()
    w = np.asarray(w)
    if w.ndim == 3:
        w = w[:, None] if order == "ohwi" else w[:, :, None]
    if order == "iohw" and conv_groups > 1:
        # [ci, co / groups, ...]: the channels of a group belong to the outputs of that group.
        ci = w.shape[0] // conv_groups
        w = w.reshape((conv_groups, ci) + w.shape[1:])
        w = w.transpose(0, 2, 3, 4, 1).reshape((-1,) + w.shape[3:] + (ci,))
        return np.ascontiguousarray(w)
    return np.ascontiguousarray(w.transpose(_ORDERS[order]))


def quantize(w: Any, format: str = "int4:g128", *, method: str = "rtn", range: str = "narrow",
             importance: Any = None, hessian: Any = None, samples: Any = None,
             act_order: bool = False, damping: float = 0.01, prescale: Any = None,
             order: str = "oihw", conv_groups: int = 1,
             progress: Union[Callable[[int, int], Any], Any, None] = None,
             ctx: Optional[Context] = None) -> Weight:
    """Quantize dense weights, f32, f16 or bf16.

    w: [n, k]; of a convolution [co, ci, kh, kw] or [co, ci, kw] as torch has them (order="oihw"),
    with order="ohwi" channels last, with order="iohw" as torch keeps a transposed one. format: the
    small language, "int4:g128", "int8:pc", "q4_k", ... method: "rtn", "search" (with importance
    [k], the mean of x^2), "gptq" (with hessian [k, k] or samples [rows, k]). prescale: [k], stored
    with the weight, which is divided by it.

    progress: called with rows done and rows in all, or a bar that has update() as tqdm's. What it
    raises ends the work and reaches the caller, and so does ^C, with or without one.

    >>> import numpy as np
    >>> w = np.random.default_rng(0).normal(size=(16, 256)).astype(np.float32)
    >>> quantize(w, "int4:g128")
    quern.Weight(16 x 256, 'int4:g128')
    >>> quantize(w, "int4:x128")
    Traceback (most recent call last):
        ...
    quern.errors.FormatError: ...
    """
    ctx = ctx or default_context()
    options = sized(_abi.qn_quantize_options)
    options.format = parse(format)
    options.method = number_of(METHODS, method, "method")
    options.range = number_of(RANGES, range, "range")
    options.damping, options.act_order = damping, 1 if act_order else 0
    options.conv_groups = conv_groups
    keep: list[Any] = []
    if getattr(w, "ndim", 2) in (3, 4):
        w = _kernel(w, order, conv_groups)
        options.kh, options.kw = w.shape[1:3]
        w = w.reshape(w.shape[0], -1)
    dense = view(w, "w")
    if len(dense.shape) != 2:
        raise errors.ShapeError(f"w has the shape {dense.shape}: [n, k], or of a convolution "
                                "[co, ci, kw] or [co, ci, kh, kw]")
    dense.need_rows()
    for name, values in (("importance", importance), ("prescale", prescale)):
        if values is not None:
            keep.append(float_array(values, dense.shape[1], name))
            setattr(options, name, keep[-1].ctypes.data)
    for name, values in (("hessian", hessian), ("samples", samples)):
        if values is not None:
            keep.append(view(values, name))
            tensor = keep[-1].tensor()
            setattr(options, name, ctypes.pointer(tensor))
    made, error, tensor = ctypes.c_void_p(), new_error(), dense.tensor()
    with Interruptible(progress) as work:
        options.progress = work.callback
        work.status = lib.qn_quantize(ctx._ptr, ctypes.byref(tensor), ctypes.byref(options),
                                      ctypes.byref(made), ctypes.byref(error))
    if made.value is None:
        check(work.status, error)
    return Weight(_address(made), ctx)


def smooth_scales(w: Any, x_amax: Any, alpha: float = 0.5, *, ctx: Optional[Context] = None) -> Any:
    """SmoothQuant's scales s [k] for weights [n, k] and the largest |x| of each column: pass 1 / s
    as prescale, and w, which quantize() divides by the prescale, as it is."""
    ctx = ctx or default_context()
    dense = view(w, "w")
    if len(dense.shape) != 2:
        raise errors.ShapeError(f"w has the shape {dense.shape}: [n, k] is wanted")
    amax = float_array(x_amax, dense.shape[1], "x_amax")
    out, error, tensor = np.empty(dense.shape[1], np.float32), new_error(), dense.tensor()
    check(lib.qn_smooth_scales(ctx._ptr, ctypes.byref(tensor), amax.ctypes.data, alpha,
                               out.ctypes.data, ctypes.byref(error)), error)
    return out


def awq_scales(w: Any, samples: Any, format: str = "int4:g128", *, x_mean: Any = None,
               ctx: Optional[Context] = None) -> Any:
    """AWQ's scales s [k] for weights [n, k] and samples of x [rows, k]: pass 1 / s as prescale to
    quantize(). x_mean: the mean |x| of each column; by default that of the samples."""
    ctx = ctx or default_context()
    dense, rows = view(w, "w"), view(samples, "samples")
    if len(dense.shape) != 2 or len(rows.shape) != 2:
        raise errors.ShapeError(f"w has the shape {dense.shape} and samples {rows.shape}: [n, k] "
                                "and [rows, k] are wanted")
    if x_mean is None:
        x_mean = np.abs(np.asarray(_host(samples, "samples"), np.float32)).mean(0)
    mean = float_array(x_mean, dense.shape[1], "x_mean")
    out, error, spec = np.empty(dense.shape[1], np.float32), new_error(), parse(format)
    a, b = dense.tensor(), rows.tensor()
    check(lib.qn_awq_scales(ctx._ptr, ctypes.byref(a), mean.ctypes.data, ctypes.byref(b),
                            ctypes.byref(spec), out.ctypes.data, ctypes.byref(error)), error)
    return out
