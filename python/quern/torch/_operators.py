# SPDX-License-Identifier: Apache-2.0
"""The operators of torch's namespace "quern": kernels, shapes without data, gradients.

The kernels are registered from C (libquern_torch.so) through torch's stable C interface. Where that
cannot be (a torch that lacks its functions, a package without that library), the same operators are
registered from Python: slower to call, the same numbers. REGISTERED_FROM and WHY say which it is.

Operators name their weights by a number, so that graphs can hold them; Held gives it out.
"""
from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Optional, Sequence

import torch

from .. import _abi, _library, errors
from .. import _ops as ops
from .._format import ACTS, STRATEGIES
from .._library import lib, native
from .._weight import Packed

SPACE = "quern"
_HOW = "int strategy, int act"
_GEOMETRY = ("int stride_h, int stride_w, int pad_top, int pad_left, int pad_bottom, "
             "int pad_right, int dilation_h, int dilation_w")
SCHEMAS = {
    "matmul": f"(Tensor x, int w, Tensor? bias, {_HOW}) -> Tensor",
    "grouped": "(Tensor x, int w, Tensor? offsets, Tensor? ids, Tensor? x_rows, Tensor? bias, "
               f"{_HOW}) -> Tensor",
    "conv2d": f"(Tensor x, int w, Tensor? bias, {_HOW}, {_GEOMETRY}) -> Tensor",
    "conv_transpose2d": f"(Tensor x, int w, Tensor? bias, {_HOW}, {_GEOMETRY}, int out_pad_h, "
                        "int out_pad_w) -> Tensor",
    "embedding": "(Tensor ids, int w, int dtype) -> Tensor",
    "dense": "(Tensor like, int w) -> Tensor",
}
# What has a gradient is there a second time without one: torch looks for gradients in Python, which
# takes longer than a small product. A layer calls the second where no gradient is wanted.
DIFFERENTIABLE = ("matmul", "grouped", "conv2d", "conv_transpose2d")
SCHEMAS.update({f"{name}_inference": SCHEMAS[name] for name in DIFFERENTIABLE})
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_STRATEGY_NAMES = {number: name for name, number in STRATEGIES.items()}
_ACT_NAMES = {number: name for name, number in ACTS.items()}


# ----------------------------------------------------------------------------------- registration


def _open() -> tuple[Any, str]:
    """(libquern_torch.so, ""), or (None, why not)."""
    named = os.environ.get("QUERN_LIBRARY")
    beside = os.path.join(os.path.dirname(named), "libquern_torch.so") if named else None
    path = beside if beside and os.path.exists(beside) else native("libquern_torch.so")
    if path is None:
        return None, "libquern_torch.so is not in the package"
    try:
        # libquern.so is loaded already, and found by its name.
        found = ctypes.CDLL(path)
    except OSError as why:
        return None, f"{path} cannot be loaded: {why}"
    found.qn_torch_register.restype = ctypes.c_int32
    found.qn_torch_register.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p),
                                        ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t]
    found.qn_torch_hold.restype = ctypes.c_int64
    found.qn_torch_hold.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
                                    ctypes.c_int32]
    found.qn_torch_drop.restype, found.qn_torch_drop.argtypes = None, [ctypes.c_int64]
    found.qn_torch_after_fork.restype, found.qn_torch_after_fork.argtypes = None, []
    return found, ""


def _show_symbols() -> None:
    """Make torch's functions visible to dlsym() wherever the interpreter loaded them privately."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    for name in ("libc10.so", "libtorch_cpu.so", "libtorch_cuda.so"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            try:
                ctypes.CDLL(path, ctypes.RTLD_GLOBAL | getattr(os, "RTLD_NOLOAD", 0))
            except OSError:  # it is not part of this process
                pass


def _register_from_c(library: Any) -> str:
    """"" if it went well, or why not."""
    _show_symbols()
    schemas = (ctypes.c_char_p * len(SCHEMAS))(
        *[f"{name}{schema}".encode() for name, schema in SCHEMAS.items()])
    text = ctypes.create_string_buffer(400)
    failed = library.qn_torch_register(SPACE.encode(), schemas, len(SCHEMAS), text, len(text))
    return text.value.decode() if failed else ""


def _register() -> tuple[Any, str]:
    """(the library of the kernels or None, why they are not from C)."""
    library, why = _open()
    if library is not None:
        why = _register_from_c(library)
        if not why:
            os.register_at_fork(after_in_child=library.qn_torch_after_fork)
            return library, ""
    _define.define_all()
    return None, why


class _Definitions:
    """The operators as Python registers them; the object keeps the registration."""

    def __init__(self) -> None:
        self.library: Any = None

    def define_all(self) -> None:
        self.library = torch.library.Library(SPACE, "FRAGMENT")
        for name, schema in SCHEMAS.items():
            self.library.define(name + schema)
            for key in ("CPU",) if name == "embedding" else ("CPU", "CUDA"):
                self.library.impl(name, _IN_PYTHON[name], key)

    def add_dense_for_gpus(self) -> None:
        self.library = torch.library.Library(SPACE, "IMPL")
        self.library.impl("dense", _dense, "CUDA")


# ------------------------------------------------------------------------------ weights by number

_all: "weakref.WeakValueDictionary[int, Held]" = weakref.WeakValueDictionary()


class Held:
    """Packed weights that operators find by `number`, as long as this object lives."""

    def __init__(self, weights: Sequence[Packed]) -> None:
        self.weights = tuple(weights)
        first = self.weights[0]
        self.n, self.k = first.shape
        self.kernel_size, self.conv_groups = first.kernel_size, first.conv_groups
        if _c is None:
            global _made
            _made += 1
            self.number = _made
        else:
            pointers = (ctypes.c_void_p * len(self.weights))(*[w._ptr for w in self.weights])
            self.number = int(_c.qn_torch_hold(first.ctx._ptr, pointers, len(self.weights)))
            if self.number < 0:
                raise errors.OutOfMemoryError("out of memory for one more weight")
        _all[self.number] = self

    def __deepcopy__(self, memo: Any) -> Held:
        return self  # weights do not change

    def __reduce__(self) -> Any:
        return Held, (self.weights,)

    def __del__(self) -> None:
        if _c is not None and getattr(self, "number", -1) >= 0:
            _c.qn_torch_drop(self.number)


_made = 0


def held(number: int) -> Held:
    """The weights of a number."""
    found = _all.get(number)
    if found is None:
        raise errors.NotFoundError(
            "its weights are gone: the layer that held them was deleted, or the graph was made in "
            "another process (quern.torch.load_program() brings both)")
    return found


# ---------------------------------------------------------------------- kernels written in Python


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    try:
        x.view(-1, x.shape[-1])
        return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()
    except RuntimeError:
        return x.contiguous()


def _how(strategy: int, act: int) -> dict[str, Any]:
    return {"strategy": _STRATEGY_NAMES.get(strategy, strategy), "act": _ACT_NAMES.get(act, act)}


def _matmul(x: Any, w: int, bias: Any, strategy: int, act: int) -> Any:
    (weights,) = held(w).weights
    with torch.no_grad():
        return ops.matmul(_in_rows(x.detach()), weights, bias=bias, **_how(strategy, act))


def _grouped(x: Any, w: int, offsets: Any, ids: Any, x_rows: Any, bias: Any, strategy: int,
             act: int) -> Any:
    with torch.no_grad():
        return ops.grouped(x.detach().contiguous(), held(w).weights, offsets=offsets, ids=ids,
                           x_rows=x_rows, bias=bias, **_how(strategy, act))


def _conv2d(x: Any, w: int, bias: Any, strategy: int, act: int, *g: int) -> Any:
    with torch.no_grad():
        return ops.conv2d(x.detach().contiguous(), held(w).weights[0], bias=bias, stride=g[:2],
                          padding=g[2:6], dilation=g[6:8], **_how(strategy, act))


def _conv_transpose2d(x: Any, w: int, bias: Any, strategy: int, act: int, *g: int) -> Any:
    with torch.no_grad():
        return ops.conv_transpose2d(
            x.detach().contiguous(), held(w).weights[0], bias=bias, stride=g[:2], padding=g[2:6],
            dilation=g[6:8], out_padding=g[8:10], **_how(strategy, act))


def _embedding(ids: Any, w: int, dtype: int) -> Any:
    return held(w).weights[0].rows(ids.contiguous(), dtype=DTYPES[dtype])


def _dense(like: Any, w: int) -> Any:
    found = torch.from_numpy(held(w).weights[0].unpack().dequantize())
    return found.to(device=like.device, dtype=like.dtype)


_IN_PYTHON = {"matmul": _matmul, "grouped": _grouped, "conv2d": _conv2d,
              "conv_transpose2d": _conv_transpose2d, "embedding": _embedding, "dense": _dense}
_IN_PYTHON.update({f"{name}_inference": _IN_PYTHON[name] for name in DIFFERENTIABLE})
_define = _Definitions()
_c, WHY = _register()
REGISTERED_FROM = "Python" if _c is None else "C"
if _c is not None:
    _define.add_dense_for_gpus()

_op = torch.ops.quern


# ---------------------------------------------------------------------------- shapes without data


def _fake(name: str) -> Any:
    """Of an operator, and of its like without a gradient."""
    def add(function: Any) -> Any:
        torch.library.register_fake(f"quern::{name}")(function)
        if name in DIFFERENTIABLE:
            torch.library.register_fake(f"quern::{name}_inference")(function)
        return function
    return add


@_fake("matmul")
def _(x: Any, w: int, bias: Any, strategy: int, act: int) -> Any:
    weights = held(w)
    torch._check(x.shape[-1] == weights.k,
                 lambda: f"x has {x.shape[-1]} columns, the weight {weights.k}")
    return x.new_empty(x.shape[:-1] + (weights.n,))


@_fake("grouped")
def _(x: Any, w: int, offsets: Any, ids: Any, x_rows: Any, bias: Any, strategy: int,
      act: int) -> Any:
    rows = x_rows if x_rows is not None else ids if ids is not None else x
    return x.new_empty((rows.shape[0], held(w).n))


def _conv_size(size: Any, kernel: int, stride: int, pads: int, dilation: int) -> Any:
    return (size + pads - dilation * (kernel - 1) - 1) // stride + 1


@_fake("conv2d")
def _(x: Any, w: int, bias: Any, strategy: int, act: int, sh: int, sw: int, top: int, left: int,
      bottom: int, right: int, dh: int, dw: int) -> Any:
    weights = held(w)
    kh, kw = weights.kernel_size
    wide = _conv_size(x.shape[-1], kw, sw, left + right, dw)
    if x.dim() == 3:
        return x.new_empty((x.shape[0], weights.n, wide))
    high = _conv_size(x.shape[2], kh, sh, top + bottom, dh)
    return x.new_empty((x.shape[0], weights.n, high, wide))


@_fake("conv_transpose2d")
def _(x: Any, w: int, bias: Any, strategy: int, act: int, sh: int, sw: int, top: int, left: int,
      bottom: int, right: int, dh: int, dw: int, oh: int, ow: int) -> Any:
    weights = held(w)
    kh, kw = weights.kernel_size
    wide = (x.shape[-1] - 1) * sw - left - right + dw * (kw - 1) + 1 + ow
    if x.dim() == 3:
        return x.new_empty((x.shape[0], weights.n, wide))
    high = (x.shape[2] - 1) * sh - top - bottom + dh * (kh - 1) + 1 + oh
    return x.new_empty((x.shape[0], weights.n, high, wide))


@_fake("embedding")
def _(ids: Any, w: int, dtype: int) -> Any:
    return ids.new_empty(tuple(ids.shape) + (held(w).k,), dtype=DTYPES[dtype])


@_fake("dense")
def _(like: Any, w: int) -> Any:
    weights = held(w)
    return like.new_empty((weights.n, weights.k))


# -------------------------------------------------------------------------------------- gradients
# Of x, and of bias. A gradient is that of the dense weight: what int8 strategies round is not
# differentiated (the straight-through rule).


def _before_act(dy: Any, act: int, product: Any) -> Any:
    """The gradient of what the activation got; product() computes that again."""
    if act == _abi.QN_ACT_NONE:
        return dy
    z = product()
    aten = torch.ops.aten
    if act == _abi.QN_ACT_RELU:
        return dy * (z > 0)
    if act == _abi.QN_ACT_RELU6:
        return dy * ((z > 0) & (z < 6))
    if act == _abi.QN_ACT_SILU:
        return aten.silu_backward(dy, z)
    return aten.gelu_backward(dy, z, approximate="tanh" if act == _abi.QN_ACT_GELU_TANH
                              else "none")


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    tensors = [inputs[0], *(v for v in inputs[1:] if isinstance(v, torch.Tensor))]
    ctx.save_for_backward(*tensors)
    ctx.arguments = tuple(None if isinstance(v, torch.Tensor) else v for v in inputs)
    ctx.places = [i for i, v in enumerate(inputs) if isinstance(v, torch.Tensor)]


def _kept(ctx: Any) -> list[Any]:
    found = list(ctx.arguments)
    for place, tensor in zip(ctx.places, ctx.saved_tensors):
        found[place] = tensor
    return found


def _matmul_backward(ctx: Any, dy: Any) -> Any:
    x, w, bias, strategy, act = _kept(ctx)
    dz = _before_act(dy, act, lambda: _op.matmul(x, w, bias, strategy, _abi.QN_ACT_NONE))
    dx = dz @ _op.dense(dz, w) if ctx.needs_input_grad[0] else None
    db = None
    if ctx.needs_input_grad[2]:
        db = dz.reshape(-1, dz.shape[-1]).sum(0).to(bias.dtype)
    return dx, None, db, None, None


torch.library.register_autograd("quern::matmul", _matmul_backward, setup_context=_keep)


def _kernel_of(dz: Any, w: int, is_transposed: bool) -> Any:
    """The dense kernel as torch keeps it."""
    weights = held(w)
    (kh, kw), groups = weights.kernel_size, weights.conv_groups
    ci = weights.k // (kh * kw)
    dense = _op.dense(dz, w).view(weights.n, kh, kw, ci)
    if not is_transposed:
        return dense.permute(0, 3, 1, 2)
    per = weights.n // groups
    dense = dense.view(groups, per, kh, kw, ci).permute(0, 4, 1, 2, 3)
    return dense.reshape(groups * ci, per, kh, kw)


def _conv_backward(ctx: Any, dy: Any, is_transposed: bool) -> Any:
    x, w, bias, strategy, act, *g = _kept(ctx)
    op = _op.conv_transpose2d if is_transposed else _op.conv2d
    dz = _before_act(dy, act, lambda: op(x, w, bias, strategy, _abi.QN_ACT_NONE, *g))
    groups, dx, db = held(w).conv_groups, None, None
    if ctx.needs_input_grad[2]:
        db = dz.transpose(0, 1).flatten(1).sum(1).to(bias.dtype)
    if ctx.needs_input_grad[0]:
        kernel = _kernel_of(dz, w, is_transposed)
        is_flat = x.dim() == 3
        x4, dz4 = (x.unsqueeze(2), dz.unsqueeze(2)) if is_flat else (x, dz)
        stride, dilation, (top, left, bottom, right) = g[:2], g[6:8], g[2:6]
        if is_transposed:
            # The transposed convolution is the gradient of a convolution; so this is the other.
            full = torch.nn.functional.pad(dz4, (left, right, top, bottom))
            dx = torch.nn.functional.conv2d(full, kernel, None, stride, 0, dilation, groups)
            dx = dx[:, :, :x4.shape[2], :x4.shape[3]]
        else:
            shape = [x4.shape[0], x4.shape[1], x4.shape[2] + top + bottom,
                     x4.shape[3] + left + right]
            dx = torch.nn.grad.conv2d_input(shape, kernel, dz4, stride, 0, dilation, groups)
            dx = dx[:, :, top:top + x4.shape[2], left:left + x4.shape[3]]
        dx = dx.squeeze(2) if is_flat else dx
    return (dx, None, db, None, None) + (None,) * len(g)


torch.library.register_autograd("quern::conv2d", lambda ctx, dy: _conv_backward(ctx, dy, False),
                                setup_context=_keep)
torch.library.register_autograd("quern::conv_transpose2d",
                                lambda ctx, dy: _conv_backward(ctx, dy, True), setup_context=_keep)


@torch.library.custom_op("quern::grouped_backward", mutates_args=())
def _grouped_backward_op(dz: torch.Tensor, x: torch.Tensor, w: int,
                         offsets: Optional[torch.Tensor], ids: Optional[torch.Tensor],
                         x_rows: Optional[torch.Tensor]) -> torch.Tensor:
    """The gradient of x: expert by expert, since how many rows each has is data."""
    weights, dx = held(w), torch.zeros_like(x)
    for e, packed in enumerate(weights.weights):
        if ids is not None:
            rows = (ids == e).nonzero()[:, 0]
        else:
            assert offsets is not None
            rows = torch.arange(int(offsets[e]), int(offsets[e + 1]), device=dz.device)
        if rows.numel() == 0:
            continue
        dense = torch.from_numpy(packed.unpack().dequantize()).to(dz)
        to = rows if x_rows is None else x_rows[rows].long()
        dx.index_add_(0, to, dz[rows] @ dense)
    return dx


@_grouped_backward_op.register_fake
def _(dz: Any, x: Any, w: int, offsets: Any, ids: Any, x_rows: Any) -> Any:
    return torch.empty_like(x)


def _grouped_backward(ctx: Any, dy: Any) -> Any:
    x, w, offsets, ids, x_rows, bias, strategy, act = _kept(ctx)
    if ctx.needs_input_grad[5]:
        raise errors.UnsupportedError("quern::grouped has no gradient of bias: detach it")
    dz = _before_act(dy, act, lambda: _op.grouped(x, w, offsets, ids, x_rows, bias, strategy,
                                                  _abi.QN_ACT_NONE))
    dx = None
    if ctx.needs_input_grad[0]:
        dx = _op.grouped_backward(dz.contiguous(), x, w, offsets, ids, x_rows)
    return dx, None, None, None, None, None, None, None


torch.library.register_autograd("quern::grouped", _grouped_backward, setup_context=_keep)
