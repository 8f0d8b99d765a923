# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions: arguments become the library's structs, plans are kept, results are
fresh arrays or go where the caller says.

Every call of one make (weights, shapes, types, options) is prepared once: struct and plan wait in
the weights' own dictionary, in a list from which a call takes one and to which it gives it back, so
that threads never share one. A call that finds one sets two pointers and runs.
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _abi, _arrays, errors
from ._arrays import View, view
from ._context import Context, isa_names
from ._format import ACTS, GATES, IMAGES, STRATEGIES, number_of
from ._library import check, lib, new_error, sized, text_of, with_error
from ._weight import Packed, Weight

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    class Options(TypedDict, total=False):
        bias: Any
        residual: Any
        residual_after: bool
        act: Optional[str]
        clamp: Optional[tuple[float, float]]
        row_scale: Any
        col_scale: Any
        strategy: str
        dtype: Any
        x_scale: float
        x_zero: int
        y_scale: float
        y_zero: int
        symmetric: bool
        strict: bool
        kernel: Optional[str]
        residual_scale: float
        residual_zero: int
        leaky_slope: float
        hard_slope: float
        hard_shift: float
        gate: Optional[str]
        factor: Any


class How(NamedTuple):
    """What can be said of every product."""

    bias: Any
    residual: Any
    residual_after: bool
    act: Optional[str]
    clamp: Optional[tuple[float, float]]
    row_scale: Any
    col_scale: Any
    strategy: str
    dtype: Any
    x_scale: float
    x_zero: int
    y_scale: float
    y_zero: int
    symmetric: bool
    strict: bool
    kernel: Optional[str]
    more: tuple[tuple[str, float], ...] = ()  # numbers of qn_epilogue_more that are no defaults
    gate: Optional[str] = None
    factor: Any = None

    def has_operands(self) -> bool:
        return (self.bias is not None or self.residual is not None or self.row_scale is not None
                or self.col_scale is not None or self.factor is not None)

    def columns(self, n: int) -> int:
        """Of y, for weights of n outputs."""
        return n if self.gate is None else n // 2

    def fill(self, args: Any, keep: list[Any]) -> None:
        """Write it to an argument struct; keep: what must live as long as the call."""
        e = args.epilogue
        e.act = number_of(ACTS, self.act, "act")
        e.residual_after = 1 if self.residual_after else 0
        if self.clamp is not None:
            e.clamp_lo, e.clamp_hi = self.clamp
        e.y_scale, e.y_zero = self.y_scale, self.y_zero
        args.quant.x_scale, args.quant.x_zero = self.x_scale, self.x_zero
        args.quant.symmetric = 1 if self.symmetric else 0
        args.strategy = number_of(STRATEGIES, self.strategy, "strategy")
        args.strict = 1 if self.strict else 0
        args.kernel = self.kernel.encode() if self.kernel is not None else None
        if self.more or self.gate is not None or self.factor is not None:
            more = sized(_abi.qn_epilogue_more)
            for name, value in self.more:
                setattr(more, name, value)
            more.gate = number_of(GATES, self.gate, "gate")
            if self.factor is not None:
                keep.append(view(self.factor, "factor").rows())
                keep[-1].fill(more.factor)
            args.more = ctypes.pointer(more)
            keep.append(more)
        for name in ("bias", "row_scale", "col_scale"):
            values = getattr(self, name)
            if values is not None:
                keep.append(view(values, name))
                keep[-1].fill(getattr(e, name))


_MORE = {"residual_scale", "residual_zero", "leaky_slope", "hard_slope", "hard_shift"}


def _how(*, bias: Any = None, residual: Any = None, residual_after: bool = False,
         act: Optional[str] = None, clamp: Optional[tuple[float, float]] = None,
         row_scale: Any = None, col_scale: Any = None, strategy: str = "float",
         dtype: Any = None, x_scale: float = 1.0, x_zero: int = 0, y_scale: float = 1.0,
         y_zero: int = 0, symmetric: bool = False, strict: bool = False,
         kernel: Optional[str] = None, gate: Optional[str] = None, factor: Any = None,
         **more: float) -> How:
    unknown = sorted(set(more) - _MORE)
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}")
    return How(bias, residual, residual_after, act, clamp, row_scale, col_scale, strategy, dtype,
               x_scale, x_zero, y_scale, y_zero, symmetric, strict, kernel,
               tuple(sorted(more.items())), gate, factor)


_PLAIN = _how()


def _y_code(x: View, how: How) -> int:
    if how.dtype is not None:
        return _arrays.code_of(how.dtype)
    return _abi.QN_F32 if how.strategy == "int8-static" else x.code


def _need_packed(w: Any, name: str = "w") -> None:
    if isinstance(w, Weight):
        raise errors.ArgumentError(f"{name} is a quern.Weight: kernels read packed ones, "
                                   f"{name}.pack(), made once")
    if not isinstance(w, Packed):
        raise errors.ArgumentError(f"{name} is a {type(w).__name__}: a quern.Packed is wanted, "
                                   f"quern.quantize({name}, \"int4:g128\").pack()")


# ------------------------------------------------------------------------------------------ plans


class Plan:
    """How a product will be computed, chosen once: quern.plan() makes one to be read, the
    operations keep their own."""

    __slots__ = ("_ptr", "_keeper", "_w", "_info")

    def __init__(self, ptr: int, ctx: Context, w: Any) -> None:
        self._ptr, self._keeper, self._w = ptr, ctx._keeper.hold(), w
        self._info: Any = None

    def __del__(self, _lib: Any = lib) -> None:
        _lib.qn_plan_destroy(self._ptr)
        self._keeper.drop()

    def __repr__(self) -> str:
        return f"quern.Plan({self.kernel!r}, scratch_bytes={self.scratch_bytes})"

    def explain(self) -> str:
        """Why: the kernel, tiles, bytes, operations and the machine's limit; then every other
        row with its reason for refusing."""
        return text_of(lib.qn_plan_explain, self._ptr)

    def _facts(self) -> Any:
        if self._info is None:
            info = sized(_abi.qn_plan_info)
            check(lib.qn_plan_query(self._ptr, ctypes.byref(info)))
            self._info = info
        return self._info

    @property
    def kernel(self) -> str:
        """The row that serves the largest number of rows of x."""
        return str((self._facts().kernel or b"").decode())

    @property
    def isa(self) -> tuple[str, ...]:
        """What that kernel needs."""
        return isa_names(self._facts().isa)

    @property
    def threads(self) -> int:
        return int(self._facts().n_threads)

    @property
    def is_fallback(self) -> bool:
        """A kernel of a slower class than this machine could run stands in."""
        return bool(self._facts().is_fallback)

    @property
    def is_exact(self) -> bool:
        """The same bits on every CPU."""
        return bool(self._facts().is_exact)

    @property
    def scratch_bytes(self) -> int:
        return int(lib.qn_plan_scratch_bytes(self._ptr))

    @property
    def bytes(self) -> float:
        """Fewest bytes that must move: weights, x, y."""
        return float(self._facts().bytes)

    @property
    def ops(self) -> float:
        """2 m n k."""
        return float(self._facts().ops)


class _Operation(NamedTuple):
    """The library's functions of one operation."""

    name: str
    args: Any
    plan: Any
    run: Any
    explain: Any
    shape: Any = None


_MATMUL = _Operation("matmul", _abi.qn_matmul_args, lib.qn_matmul_plan, lib.qn_matmul_run,
                     lib.qn_matmul_explain)
_GROUPED = _Operation("grouped", _abi.qn_grouped_args, lib.qn_grouped_plan, lib.qn_grouped_run,
                      lib.qn_grouped_explain)
_CONV = _Operation("conv2d", _abi.qn_conv_args, lib.qn_conv2d_plan, lib.qn_conv2d_run,
                   lib.qn_conv2d_explain, lib.qn_conv2d_shape)
_TRANSPOSE = _Operation("conv_transpose2d", _abi.qn_conv_args, lib.qn_conv_transpose2d_plan,
                        lib.qn_conv_transpose2d_run, lib.qn_conv_transpose2d_explain,
                        lib.qn_conv_transpose2d_shape)


class _Call:
    """An argument struct with its plan, for one thread at a time."""

    __slots__ = ("args", "ref", "error", "plan", "plan_ptr", "scratch_bytes", "x", "y", "shape",
                 "dtype", "empty", "is_numpy")

    def __init__(self, op: _Operation, ctx: Context, args: Any, w: Any) -> None:
        self.bind(args)
        made, error = ctypes.c_void_p(), new_error()
        check(op.plan(ctx._ptr, self.ref, ctypes.byref(made), ctypes.byref(error)), error)
        self.plan = Plan(made.value or 0, ctx, w)
        self.plan_ptr = self.plan._ptr
        self.scratch_bytes = self.plan.scratch_bytes

    def bind(self, args: Any) -> None:
        """From now on with this struct, which has the types and shapes of the first."""
        self.args, self.ref = args, ctypes.byref(args)
        self.error = with_error(args)

    def returns(self, y: Any) -> None:
        """Prepare for results like y."""
        self.x, self.y = self.args.x, self.args.y
        self.shape, self.dtype = y.shape, y.dtype
        self.is_numpy = type(y) is _ndarray
        self.empty = _empty if self.is_numpy else _arrays.torch_empty


def _run(op: _Operation, ctx: Context, call: _Call) -> None:
    scratch = ctx._take(call.scratch_bytes)
    status = op.run(call.plan_ptr, call.ref, scratch.address, scratch.bytes)
    ctx._scratch.append(scratch)
    check(status, call.error)


def _join_stream(ctx: Context, x: View) -> None:
    """Work on a tensor of torch on a GPU joins torch's current stream."""
    if x.device[0] == _abi.QN_CUDA and x.family == "torch" and \
            ctx._device == x.device:
        import torch
        ctx.set_stream(torch.cuda.current_stream(x.device[1]))


# ------------------------------------------------------------------------------------------- rows


class Prepared:
    """Rows of x, quantized once for several products: quern.prepare()."""

    __slots__ = ("shape", "strategy", "symmetric", "_code", "_memory", "_address")

    def __init__(self, x: View, strategy: str, symmetric: bool, n_bytes: int) -> None:
        self.shape, self.strategy, self.symmetric = x.shape, strategy, bool(symmetric)
        self._code = x.code
        self._memory = np.empty(n_bytes + 64, np.uint8)
        self._address = self._memory.ctypes.data + -self._memory.ctypes.data % 64

    def __repr__(self) -> str:
        return f"quern.Prepared({self.shape}, {self.strategy!r})"

    def _view(self) -> View:
        """x as far as a product still asks: type and shape."""
        made = View("x", "numpy", self)
        made.code, made.shape = self._code, self.shape
        step, strides = 1, []
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(size, 1)
        made.strides = tuple(reversed(strides))
        return made

    def _fill(self, args: Any, how: How) -> None:
        if how.strategy != self.strategy or bool(how.symmetric) != self.symmetric:
            raise errors.ArgumentError(
                f"x was prepared for strategy={self.strategy!r}, symmetric={self.symmetric}: the "
                f"product asks for {how.strategy!r}, {how.symmetric}")
        args.prepared = self._address


def prepare(x: Any, w: Packed, *, strategy: str = "int8-row", symmetric: bool = False) -> Prepared:
    """Quantize rows of x once, for products that read the same x (q, k and v; experts): pass the
    result as x to matmul() and grouped(), with this strategy. w: one of the weights; the others
    must have its groups along k, x_block, act-order and prescale. The bits are those without.

    >>> import numpy as np
    >>> q, k = (quantize(np.ones((n, 64), np.float32), "int4:g32").pack() for n in (16, 32))
    >>> x = prepare(np.ones((3, 64), np.float32), q)
    >>> [matmul(x, w, strategy="int8-row").shape for w in (q, k)]
    [(3, 16), (3, 32)]
    """
    _need_packed(w)
    found = view(x, "x")
    args = sized(_abi.qn_prepare_args)
    args.w = w._ptr
    found.rows().fill(args.x)
    args.strategy = number_of(STRATEGIES, strategy, "strategy")
    args.quant.symmetric = 1 if symmetric else 0
    error, size = with_error(args), ctypes.c_size_t()
    check(lib.qn_prepare_bytes(w.ctx._ptr, ctypes.byref(args), ctypes.byref(size)), error)
    made = Prepared(found, strategy, symmetric, size.value)
    check(lib.qn_prepare(w.ctx._ptr, ctypes.byref(args), made._address, size.value), error)
    return made


# ----------------------------------------------------------------------------------------- matmul

_MOST_READY = 64  # makes of calls that weights remember; then they begin anew
_ndarray, _empty, _byte = np.ndarray, np.empty, ctypes.c_char.from_buffer
_address, _matmul_run = ctypes.addressof, lib.qn_matmul_run


def matmul(x: Any, w: Packed, out: Any = None, *, bias: Any = None, residual: Any = None,
           residual_after: bool = False, act: Optional[str] = None,
           clamp: Optional[tuple[float, float]] = None, row_scale: Any = None,
           col_scale: Any = None, strategy: str = "float", dtype: Any = None,
           x_scale: float = 1.0, x_zero: int = 0, y_scale: float = 1.0, y_zero: int = 0,
           symmetric: bool = False, strict: bool = False, kernel: Optional[str] = None,
           **more: Any) -> Any:
    """y[..., n] = act( scale * (x[..., k] . w^T) + bias + residual ), clamped.

    x: f32, f16, bf16, what prepare() gives, or with strategy="int8-static" i8 and u8 of scale
    x_scale and zero point x_zero. Rows may lie at any distance; what cannot be read as it lies is
    refused, never copied.
    out: where y goes; else a new array of x's family and, unless dtype says otherwise, type.

    strategy: "float" (activations stay floats), "int8-row", "int8-block" (dynamic int8; symmetric
    without offsets), "int8-static", "dense". act: "relu", "relu6", "gelu", "gelu_tanh", "silu",
    "sigmoid", "tanh", "hardswish", "hardsigmoid" (hard_slope=, hard_shift=), "leaky_relu"
    (leaky_slope=). residual: of y's shape, before act, or after it; of i8 or u8 it is
    residual_scale * (code - residual_zero). gate: "halves" or "pairs" of outputs, y = act(one) *
    the other; factor: of y's shape, y = act(...) * factor. row_scale [rows], col_scale [n]: f32.
    y of i8, u8: y = saturate(v / y_scale + y_zero). strict: FallbackError rather than a slower
    class of kernel. kernel: the row of the kernel table to use.

    >>> import numpy as np
    >>> w = quantize(np.eye(8, 32, dtype=np.float32), "int4:g32").pack()
    >>> matmul(np.arange(32, dtype=np.float32), w).round(3).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    >>> matmul(np.zeros((2, 31), np.float32), w)
    Traceback (most recent call last):
        ...
    quern.errors.ShapeError: ...
    """
    if out is bias is residual is row_scale is col_scale is None and clamp is None \
            and kernel is None and type(w) is Packed and x_scale == 1.0 and y_scale == 1.0 \
            and not (symmetric or x_zero or y_zero or strict or more):
        try:  # what cannot be looked at so fast takes the way below: read-only, empty, strided
            if type(x) is _ndarray:
                address = _address(_byte(x))  # type: ignore[arg-type]
            elif x.is_cpu and x.is_contiguous() and not (x.requires_grad or x.is_neg()):
                address = x.data_ptr()
            else:
                address = None
            ready = w._ready[x.dtype, x.shape, strategy, act, dtype]
            call = ready.pop() if address else None
        except (KeyError, IndexError, TypeError, ValueError, BufferError, AttributeError,
                RuntimeError):
            call = None
        if call is not None:
            y = call.empty(call.shape, dtype=call.dtype)
            call.x.data = address
            call.y.data = _address(_byte(y)) if call.is_numpy else y.data_ptr()
            ctx = w.ctx
            scratch = ctx._take(call.scratch_bytes)
            status = _matmul_run(call.plan_ptr, call.ref, scratch.address, scratch.bytes)
            ctx._scratch.append(scratch)
            ready.append(call)
            if status != 0:
                check(status, call.error)
            return y
    how = _how(bias=bias, residual=residual, residual_after=residual_after, act=act, clamp=clamp,
               row_scale=row_scale, col_scale=col_scale, strategy=strategy, dtype=dtype,
               x_scale=x_scale, x_zero=x_zero, y_scale=y_scale, y_zero=y_zero,
               symmetric=symmetric, strict=strict, kernel=kernel, **more)
    return _matmul(x, w, out, how)


def _matmul_args(x: View, w: Packed, out: Any, how: How,
                 keep: list[Any]) -> tuple[Any, Any, tuple[int, ...]]:
    """(struct, y, y's shape); y None where there is nothing to write to (a plan)."""
    rows = x.rows()
    if rows.shape[1] != w._info.k:
        raise errors.ShapeError(f"x has the shape {x.shape}, w is {w.shape[0]} x {w.shape[1]}: "
                                f"the last dimension of x must be {w.shape[1]}")
    shape = x.shape[:-1] + (how.columns(w._info.n),)
    args = sized(_abi.qn_matmul_args)
    args.w = w._ptr
    rows.fill(args.x)
    how.fill(args, keep)
    y = _arrays.empty(shape, _y_code(x, how), x) if out is None else out
    to = view(y, "out", write=True)
    if to.shape != shape:
        raise errors.ShapeError(f"out has the shape {to.shape}: {shape} is wanted")
    to.rows().fill(args.y)
    if how.residual is not None:
        found = view(how.residual, "residual")
        if found.shape != shape:
            raise errors.ShapeError(f"residual has the shape {found.shape}: {shape} is wanted")
        keep.append(found)
        found.rows().fill(args.epilogue.residual)
    return args, y, shape


def _matmul(x: Any, w: Packed, out: Any, how: How) -> Any:
    _need_packed(w)
    is_prepared = isinstance(x, Prepared)
    found, keep = x._view() if is_prepared else view(x, "x"), list[Any]()
    args, y, shape = _matmul_args(found, w, out, how, keep)
    if is_prepared:
        x._fill(args, how)
    _join_stream(w.ctx, found)
    call, key = _planned(args, w, how)
    _run(_MATMUL, w.ctx, call)
    is_plain = not is_prepared and out is None and not how.has_operands() and \
        how == _PLAIN._replace(strategy=how.strategy, act=how.act, dtype=how.dtype)
    if is_plain and found.device[0] == _abi.QN_CPU and found.family != "dlpack" and \
            type(y) is type(x) and y.size != 0 and _is_natural(found):
        call.returns(y)
        key = (x.dtype, x.shape, how.strategy, how.act, how.dtype)
    _remember(call, w, key)
    return y


def _is_natural(x: View) -> bool:
    try:
        x.need_together()
    except errors.StrideError:
        return False
    return True


def _planned(args: Any, w: Packed, how: How) -> tuple[_Call, Any]:
    """A call for this struct: its plan may be one that was made for another of the same make."""
    e = args.epilogue
    key = (args.x.dtype, args.x.device.kind, args.x.shape[0], args.y.dtype, args.strategy,
           args.strict, how.kernel, how.symmetric, how.x_zero != 0, e.bias.dtype,
           e.residual.dtype, how.residual_after, e.row_scale.dtype, e.col_scale.dtype, how.gate,
           args.more.contents.factor.dtype if args.more else 0)
    try:
        call = w._ready[key].pop()
        call.bind(args)
    except (KeyError, IndexError):
        call = _Call(_MATMUL, w.ctx, args, None)
    return call, key


def _remember(call: _Call, w: Packed, key: Any) -> None:
    try:
        if len(w._ready) >= _MOST_READY:
            w._ready.clear()
        w._ready.setdefault(key, []).append(call)
    except TypeError:  # a dtype of one's own that has no hash
        pass


# ---------------------------------------------------------------------------------------- grouped


def _indices(values: Any, name: str, args: Any, keep: list[Any]) -> None:
    if values is None:
        return
    if isinstance(values, (list, tuple)):
        values = np.asarray(values, np.int32)
    found = view(values, name)
    if found.code != _abi.QN_I32:
        raise errors.DtypeError(f"{name} is of type {_arrays.NAMES[found.code]}: i32 is wanted")
    keep.append(found)
    found.fill(getattr(args, name))


def grouped(x: Any, experts: Sequence[Packed], out: Any = None, *, offsets: Any = None,
            ids: Any = None, x_rows: Any = None, **how: Unpack[Options]) -> Any:
    """Rows of y = rows of x by the weights of their experts (mixture of experts).

    experts: weights of one shape, format and layout. offsets [n_experts + 1] i32: rows offsets[e]
    to offsets[e + 1] belong to expert e; or ids [rows of y] i32: the expert of each row. Rows of no
    expert (a negative id) are left as they are in out, and are 0 in a new array. x_rows [rows of y]
    i32: the row of x that each row of y reads. The rest is as for matmul(); bias and col_scale
    also [n_experts, n].

    >>> import numpy as np
    >>> one = quantize(np.eye(4, 32, dtype=np.float32), "int4:g32").pack()
    >>> two = quantize(np.eye(4, 32, dtype=np.float32) * 2, "int4:g32").pack()
    >>> grouped(np.ones((3, 32), np.float32), [one, two], ids=[1, 0, -1])[:, 0].tolist()
    [2.0, 1.0, 0.0]
    """
    chosen = _how(**how)
    weights = list(experts)
    if not weights:
        raise errors.ArgumentError("experts is empty: one weight at least")
    for i, w in enumerate(weights):
        _need_packed(w, f"experts[{i}]")
    is_prepared = isinstance(x, Prepared)
    found, keep = x._view() if is_prepared else view(x, "x"), list[Any]()
    if len(found.shape) != 2:
        raise errors.ShapeError(f"x has the shape {found.shape}: [rows, k] is wanted")
    args = sized(_abi.qn_grouped_args)
    if is_prepared:
        x._fill(args, chosen)
    args.w = (ctypes.c_void_p * len(weights))(*[w._ptr for w in weights])
    args.n_experts = len(weights)
    found.need_rows()
    found.fill(args.x)
    for name, values in (("offsets", offsets), ("ids", ids), ("x_rows", x_rows)):
        _indices(values, name, args, keep)
    chosen.fill(args, keep)
    rows = args.x_rows if args.x_rows.rank else args.ids if args.ids.rank else args.x
    shape = (rows.shape[0], chosen.columns(weights[0].shape[0]))
    y = out
    if y is None:
        y = _arrays.empty(shape, _y_code(found, chosen), found)
        y[...] = 0
    to = view(y, "out", write=True)
    to.need_rows()
    to.fill(args.y)
    if chosen.residual is not None:
        keep.append(view(chosen.residual, "residual"))
        keep[-1].fill(args.epilogue.residual)
    ctx = weights[0].ctx
    _join_stream(ctx, found)
    _run(_GROUPED, ctx, _Call(_GROUPED, ctx, args, weights))
    return y


def combine_rows(x: Any, weights: Any, out: Any = None, *, rows: Any = None, add: Any = None,
                 dtype: Any = None, ctx: Optional[Context] = None) -> Any:
    """y[t] = add[t] + the sum over j of weights[t, j] * x[rows[t, j]]: what the experts of a token
    gave becomes one row, in one fixed order. weights: [tokens, top_k] f32. rows: [tokens, top_k]
    i32, of which negative ones are left out; without, those of a token follow each other in x.

    >>> import numpy as np
    >>> x = np.arange(8, dtype=np.float32).reshape(4, 2)
    >>> combine_rows(x, np.array([[1.0, 0.5], [2.0, 0.0]], np.float32)).tolist()
    [[1.0, 2.5], [8.0, 10.0]]
    """
    from ._context import default_context
    ctx = ctx or default_context()
    found, keep = view(x, "x"), list[Any]()
    args = sized(_abi.qn_combine_rows_args)
    found.fill(args.x)
    keep.append(view(weights, "weights"))
    keep[-1].fill(args.weights)
    _indices(rows, "rows", args, keep)
    if add is not None:
        keep.append(view(add, "add"))
        keep[-1].fill(args.add)
    y = out
    if y is None:
        shape = (keep[0].shape[0] if keep[0].shape else 0, found.shape[-1] if found.shape else 0)
        y = _arrays.empty(shape, found.code if dtype is None else _arrays.code_of(dtype), found)
    view(y, "out", write=True).fill(args.y)
    error = with_error(args)
    check(lib.qn_combine_rows(ctx._ptr, ctypes.byref(args)), error)
    return y


# ------------------------------------------------------------------------------------ convolution


def _pair(value: Any, name: str) -> tuple[int, int]:
    try:
        first, second = (value, value) if isinstance(value, int) else value
        return int(first), int(second)
    except (TypeError, ValueError):
        raise errors.ArgumentError(f"{name} is {value!r}: a number, or two for h and w") from None


def _pads(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * 4
    try:
        found = tuple(int(pad) for pad in value)
    except (TypeError, ValueError):
        found = ()
    if len(found) == 2:
        return (found[0], found[1], found[0], found[1])
    if len(found) == 4:
        return found
    raise errors.ArgumentError(f"padding is {value!r}: a number, two for h and w, or four: top, "
                               "left, bottom, right")


class _Geometry(NamedTuple):
    stride: Any
    padding: Any
    dilation: Any
    out_padding: Any
    image: str


def _conv_args(op: _Operation, x: View, w: Packed, where: _Geometry, how: How,
               keep: list[Any]) -> Any:
    if len(x.shape) not in (3, 4):
        wanted = "[n, c, h, w]" if where.image == "nchw" else "[n, h, w, c]"
        raise errors.ShapeError(f"x has the shape {x.shape}: {wanted} is wanted, or without h")
    x.need_rows()
    args = sized(_abi.qn_conv_args)
    args.w = w._ptr
    x.fill(args.x)
    args.image = number_of(IMAGES, where.image, "image")
    args.stride[:] = _pair(where.stride, "stride")
    args.dilation[:] = _pair(where.dilation, "dilation")
    args.out_pad[:] = _pair(where.out_padding, "out_padding")
    args.pad[:] = _pads(where.padding)
    how.fill(args, keep)
    args.y.dtype = _y_code(x, how)
    args.y.device.kind, args.y.device.index = x.device
    error = with_error(args)
    check(op.shape(ctypes.byref(args)), error)
    return args


def _convolve(op: _Operation, x: Any, w: Packed, out: Any, where: _Geometry, how: How) -> Any:
    _need_packed(w)
    found, keep = view(x, "x"), list[Any]()
    args = _conv_args(op, found, w, where, how, keep)
    shape = tuple(args.y.shape[:args.y.rank])
    y = _arrays.empty(shape, args.y.dtype, found) if out is None else out
    to = view(y, "out", write=True)
    if to.shape != shape:
        raise errors.ShapeError(f"out has the shape {to.shape}: {shape} is wanted")
    to.need_rows()
    to.fill(args.y)
    if how.residual is not None:
        keep.append(view(how.residual, "residual"))
        keep[-1].fill(args.epilogue.residual)
    _join_stream(w.ctx, found)
    _run(op, w.ctx, _Call(op, w.ctx, args, w))
    return y


def conv2d(x: Any, w: Packed, out: Any = None, *, stride: Any = 1, padding: Any = 0,
           dilation: Any = 1, image: str = "nchw", **how: Unpack[Options]) -> Any:
    """Convolution of x [n, c, h, w], or [n, c, w] of one dimension; image="nhwc": channels last.

    Kernel size, groups and channels come from w (quantize() of [co, ci, kh, kw]). stride,
    dilation: a number or (h, w); padding also (top, left, bottom, right). The rest is as for
    matmul(), without row_scale.

    >>> import numpy as np
    >>> w = quantize(np.ones((4, 32, 3, 3), np.float32), "int8:pc").pack()
    >>> conv2d(np.ones((1, 32, 8, 8), np.float32), w, padding=1).shape
    (1, 4, 8, 8)
    """
    return _convolve(_CONV, x, w, out, _Geometry(stride, padding, dilation, 0, image), _how(**how))


def conv_transpose2d(x: Any, w: Packed, out: Any = None, *, stride: Any = 1, padding: Any = 0,
                     dilation: Any = 1, out_padding: Any = 0, image: str = "nchw",
                     **how: Unpack[Options]) -> Any:
    """Transposed convolution; weights of torch's are quantized with order="iohw".

    >>> import numpy as np
    >>> w = quantize(np.ones((32, 4, 2, 2), np.float32), "int8:pc", order="iohw").pack()
    >>> conv_transpose2d(np.ones((1, 32, 8, 8), np.float32), w, stride=2).shape
    (1, 4, 16, 16)
    """
    return _convolve(_TRANSPOSE, x, w, out,
                     _Geometry(stride, padding, dilation, out_padding, image), _how(**how))


# ------------------------------------------------------------------------------ a plan to be read


def _asked(op: str, w: Any, shape: tuple[int, ...], x_dtype: Any, where: _Geometry,
           how: How) -> tuple[_Operation, Any, list[Any]]:
    """The struct of a problem without data, and what it borrows."""
    known = {"matmul": _MATMUL, "conv2d": _CONV, "conv_transpose2d": _TRANSPOSE}
    number_of({name: 0 for name in known}, op, "op")
    _need_packed(w)
    keep = list[Any]()
    x = View("x", "plan", None)
    x.code, x.shape = _arrays.code_of(x_dtype, "x_dtype"), tuple(shape)
    x.device = (w._info.device.kind, w._info.device.index)
    natural, strides = 1, []
    for size in reversed(x.shape):
        strides.append(natural)
        natural *= max(int(size), 1)
    x.strides = tuple(reversed(strides))
    if op != "matmul":
        return known[op], _conv_args(known[op], x, w, where, how, keep), keep
    args = sized(_abi.qn_matmul_args)
    args.w = w._ptr
    x.rows().fill(args.x)
    how.fill(args, keep)
    x.rows().fill(args.y)
    args.y.shape[1] = args.y.stride[0] = w._info.n
    args.y.dtype = _y_code(x, how)
    return _MATMUL, args, keep


def plan(op: str, w: Any, x: tuple[int, ...], *, x_dtype: Any = "f32", stride: Any = 1,
         padding: Any = 0, dilation: Any = 1, out_padding: Any = 0, image: str = "nchw",
         **how: Unpack[Options]) -> Plan:
    """How an operation would be computed for x of this shape: nothing is run. Where nothing
    serves it, the exception says why; explain() lists every row's reason then, too.

    op: "matmul", "conv2d", "conv_transpose2d". The rest is as for these.

    >>> import numpy as np
    >>> w = quantize(np.ones((64, 128), np.float32), "int4:g32").pack()
    >>> p = plan("matmul", w, x=(8, 128), strategy="int8-block")
    >>> p.kernel.startswith("qni_matmul_q8b_"), p.is_exact
    (True, True)
    >>> print(p.explain().splitlines()[0])
    matmul: m 8, n 64, k 128; x f32, y f32; strategy int8-block
    """
    where = _Geometry(stride, padding, dilation, out_padding, image)
    operation, args, _ = _asked(op, w, x, x_dtype, where, _how(**how))
    return _Call(operation, w.ctx, args, w).plan


def explain(op: str, w: Any, x: tuple[int, ...], *, x_dtype: Any = "f32", stride: Any = 1,
            padding: Any = 0, dilation: Any = 1, out_padding: Any = 0, image: str = "nchw",
            **how: Unpack[Options]) -> str:
    """What plan(...).explain() says; and where there is no plan, why: the governing reason first,
    then each row's own.

    >>> import numpy as np
    >>> w = quantize(np.ones((64, 128), np.float32), "int4:g32").pack()
    >>> "no kernel serves this" in explain("matmul", w, (8, 128), kernel="none_such")
    True
    """
    where = _Geometry(stride, padding, dilation, out_padding, image)
    operation, args, _ = _asked(op, w, x, x_dtype, where, _how(**how))
    return text_of(operation.explain, w.ctx._ptr, ctypes.byref(args))


# --------------------------------------------------------------------------- rows of activations


class RowCodes(NamedTuple):
    """What quantize_rows() gives: x = scale * codes + offset, or scale * (codes - zero), block by
    block."""

    codes: Any
    scale: Any
    offset: Any
    sum: Any
    zero: Any = None


def quantize_rows(x: Any, block: Union[int, str] = 0, *, symmetric: bool = True, dtype: Any = "i8",
                  sums: bool = False, zero_points: bool = False, scale: Any = None,
                  zero: Any = None, ctx: Optional[Context] = None) -> RowCodes:
    """Quantize activations to int8: one scale a row (block=0), or one for each `block` columns.

    symmetric=False adds an offset; dtype "u8" is for that alone. sums: also the sum of the codes.

    zero_points: integer ones, as ONNX's DynamicQuantizeLinear finds them (dtype "u8" or "i8");
    scale, and zero: given ones, as QuantizeLinear takes them, [m, blocks] or numbers. Of these two,
    block="tensor" has one scale for all of x.

    >>> import numpy as np
    >>> found = quantize_rows(np.array([[127.0, -64.0, 1.0]], np.float32))
    >>> found.codes.tolist(), found.scale.tolist()
    ([[127, -64, 1]], [[1.0]])
    """
    from ._context import default_context
    ctx = ctx or default_context()
    found = view(x, "x")
    if len(found.shape) != 2:
        raise errors.ShapeError(f"x has the shape {found.shape}: [rows, k] is wanted")
    found.need_rows()
    is_given, is_whole = scale is not None, block == "tensor"
    is_linear = zero_points or is_given or zero is not None
    size = _abi.QN_GROUP_PER_TENSOR if is_whole else block
    if not isinstance(size, int) or (size < 0 and not (is_whole and is_linear)):
        raise errors.ArgumentError(f"block is {block!r}: 0 for one scale a row, or columns of one; "
                                   "\"tensor\" with zero_points or a scale")
    if zero is not None and not is_given:
        raise errors.ArgumentError("zero is given without scale")
    m, k = found.shape
    blocks = 1 if size <= 0 else max(1, -(-k // size))
    numbers = (1, 1) if is_whole else (m, blocks)
    args = sized(_abi.qn_quantize_rows_args)
    found.fill(args.x)
    args.block, args.given = size, 1 if is_given else 0
    keep: list[Any] = []

    def result(name: str, shape: tuple[int, int], code: int) -> Any:
        made = _arrays.empty(shape, code, found)
        view(made, name, write=True).fill(getattr(args, name))
        return made

    def given(name: str, values: Any, of: Any) -> Any:
        """Numbers, or an array of the right shape."""
        if np.ndim(values) == 0:
            values = np.full(numbers, values, of)
        keep.append(view(values, name))
        keep[-1].fill(getattr(args, name))
        return values

    code = _arrays.code_of(dtype)
    codes = result("codes", (m, k), code)
    if is_given:
        scale = given("scale", scale, np.float32)
        zero = None if zero is None else given("zero", zero, _arrays.numpy_dtype(code))
    else:
        scale = result("scale", numbers, _abi.QN_F32)
        zero = result("zero", numbers, code) if zero_points else None
    offset = None if symmetric or is_linear else result("offset", (m, blocks), _abi.QN_F32)
    total = result("sum", (m, blocks), _abi.QN_I32) if sums else None
    _join_stream(ctx, found)
    error = with_error(args)
    check(lib.qn_quantize_rows(ctx._ptr, ctypes.byref(args)), error)
    return RowCodes(codes, scale, offset, total, zero)
