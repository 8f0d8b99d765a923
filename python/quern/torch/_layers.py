# SPDX-License-Identifier: Apache-2.0
"""Layers with quantized weights, that stand where torch.nn has theirs.

Weights are packed and do not change. In a state_dict they are tensors of the canonical form
(weight.codes, weight.scale, ...), so that files of them need no quern to be looked at.
"""
from __future__ import annotations

import json
import threading
from typing import Any, Iterator, Optional, Sequence, Union

import numpy as np
import torch

from .. import _abi, errors
from .._context import Context, default_context
from .._format import ACTS, STRATEGIES, number_of
from .._weight import Packed, Weight
from ._operators import DTYPES, Held, _op

_matmul, _matmul_inference = _op.matmul.default, _op.matmul_inference.default
_conv2d, _conv2d_inference = _op.conv2d.default, _op.conv2d_inference.default
_up, _up_inference = _op.conv_transpose2d.default, _op.conv_transpose2d_inference.default
_grouped, _grouped_inference = _op.grouped.default, _op.grouped_inference.default
_embedding = _op.embedding.default
_is_grad_enabled = torch.is_grad_enabled

_contexts: dict[str, Context] = {}
_lock = threading.Lock()


def context_of(device: Any) -> Context:
    """The context of a device of torch's: quern's default one, or one for each GPU."""
    found = torch.device(device)
    if found.type == "cpu":
        return default_context()
    if found.type != "cuda":
        raise errors.DeviceError(f"the device is {found}: quern computes on cpu and cuda")
    index = found.index if found.index is not None else torch.cuda.current_device()
    with _lock:
        name = f"cuda:{index}"
        if name not in _contexts:
            _contexts[name] = Context(name)
        return _contexts[name]


# ------------------------------------------------------------------------------ weights as tensors

_LEVELS = ("super_scale", "super_min", "sub_scale", "sub_min")
_PARTS = ("scale", "zero", "offset", "perm", "prescale", "table", *_LEVELS)


def _tensors_of(weight: Weight, x_block: int, has_sums: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """What a state_dict has of a weight; codes of 4 bits and less two in a byte, low half first."""
    codes, bits = np.array(weight.codes), weight._parts.format.bits
    n, k = weight.shape
    if bits <= 4:
        codes = np.pad(codes, ((0, 0), (0, k % 2)))
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    yield "codes", torch.from_numpy(np.ascontiguousarray(codes))
    for part in _PARTS:
        if part in ("scale", "offset") and weight.super_scale is not None:
            continue  # products of the levels
        values = getattr(weight, part)
        if values is not None and (part != "table" or
                                   weight._parts.format.code == _abi.QN_CODE_TABLE):
            yield part, torch.from_numpy(np.array(values))
    facts = {"format": weight.format, "n": n, "k": k, "kernel_size": weight.kernel_size,
             "conv_groups": weight.conv_groups, "x_block": x_block, "sums": has_sums}
    yield "facts", torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)


def _weight_of(tensors: dict[str, torch.Tensor]) -> tuple[Weight, dict[str, Any]]:
    facts = json.loads(bytes(tensors["facts"].cpu().numpy()).decode())
    codes = tensors["codes"].cpu().numpy()
    n, k = int(facts["n"]), int(facts["k"])
    parts = {part: tensors[part].cpu().numpy() for part in _PARTS if part in tensors}
    if codes.shape != (n, k):
        if codes.shape != (n, (k + 1) // 2):
            raise errors.ShapeError(f"codes has the shape {codes.shape}, the weight is {n} x {k}")
        both = np.empty((n, 2 * codes.shape[1]), np.uint8)
        both[:, 0::2], both[:, 1::2] = codes & 15, codes >> 4
        codes = both[:, :k]
    scale = None if "super_scale" in parts else parts.pop("scale")
    return Weight.from_parts(codes, scale, facts["format"], ctx=default_context(),
                             kernel_size=tuple(facts["kernel_size"]),
                             conv_groups=facts["conv_groups"], **parts), facts


# ------------------------------------------------------------------------------------------ layers


class Layer(torch.nn.Module):
    """What all layers of this package share: packed weights, a bias, a strategy."""

    held: Held
    bias: Optional[torch.Tensor]

    def __init__(self, weights: Sequence[Union[Weight, Packed]], bias: Any, strategy: str,
                 act: Optional[str]) -> None:
        super().__init__()
        packed = [w.pack() if isinstance(w, Weight) else w for w in weights]
        for w in packed:
            if not isinstance(w, Packed):
                raise errors.ArgumentError(f"the weight is a {type(w).__name__}: a quern.Weight or "
                                           "quern.Packed is wanted, quern.quantize(w, format)")
        self.held = Held(packed)
        self.strategy, self.act = strategy, act
        self._strategy, self._act = (number_of(STRATEGIES, strategy, "strategy"),
                                     number_of(ACTS, act, "act"))
        if bias is not None:
            tensor = bias.detach() if isinstance(bias, torch.Tensor) else torch.as_tensor(bias)
            self.bias = torch.nn.Parameter(tensor.clone(), requires_grad=False)
        else:
            self.register_parameter("bias", None)

    # ---- facts

    @property
    def packed(self) -> Packed:
        """The weights as kernels read them."""
        return self.held.weights[0]

    @property
    def format(self) -> str:
        return self.packed.format

    @property
    def device(self) -> torch.device:
        return torch.device(self.packed.device)

    def dequantize(self) -> torch.Tensor:
        """The values of the weights, [n, k] in f32 on the CPU."""
        return torch.from_numpy(self.packed.unpack().dequantize())

    def extra_repr(self) -> str:
        n, k = self.packed.shape
        return (f"{k} -> {n}, {self.format}, strategy={self.strategy!r}, "
                f"bias={self.bias is not None}")

    def _wants_grad(self, x: torch.Tensor) -> bool:
        return _is_grad_enabled() and (x.requires_grad or (self.bias is not None
                                                           and self.bias.requires_grad))

    # ---- devices, files

    def _move(self, device: torch.device) -> None:
        if device.type == "meta" or str(device) == self.packed.device:
            return
        ctx = context_of(device)
        if ctx.device == self.packed.device:
            return
        self.held = Held([w.unpack().pack(ctx, x_block=w.x_block, sums=w.has_sums)
                          for w in self.held.weights])

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._move(fn(torch.empty(0, device=self.packed.device)).device)
        return self

    def _name(self, i: int) -> str:
        return "weight." if len(self.held.weights) == 1 else f"weight.{i}."

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for i, packed in enumerate(self.held.weights):
            for part, tensor in _tensors_of(packed.unpack(), packed.x_block, packed.has_sums):
                destination[prefix + self._name(i) + part] = tensor

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
                              missing_keys: list[str], unexpected_keys: list[str],
                              error_msgs: list[str]) -> None:
        made, seen = [], {}
        for i, old in enumerate(self.held.weights):
            start = prefix + self._name(i)
            tensors = {key[len(start):]: value for key, value in state_dict.items()
                       if key.startswith(start)}
            if not tensors:
                missing_keys.append(start + "codes")
                if prefix + "weight" in state_dict:
                    error_msgs.append(f"{prefix}weight is dense, the layer is quantized: load it "
                                      "before quern.torch.quantize_()")
                continue
            try:
                weight, facts = _weight_of(tensors)
                if weight.shape != old.shape:
                    raise errors.ShapeError(f"its shape is {weight.shape}, the layer's {old.shape}")
                made.append(weight.pack(old.ctx, x_block=facts["x_block"], sums=facts["sums"]))
            except (errors.QuernError, KeyError, ValueError) as why:
                error_msgs.append(f"{start[:-1]}: {why}")
            seen.update({start + part: state_dict.pop(start + part) for part in tensors})
        try:
            super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys,
                                          unexpected_keys, error_msgs)
        finally:
            state_dict.update(seen)
        if len(made) == len(self.held.weights):
            self.held = Held(made)


class Linear(Layer):
    """y = act(x w^T + bias), as torch.nn.Linear.

    >>> w = quern.quantize(torch.eye(4, 32), "int4:g32")
    >>> Linear(w)(torch.arange(32.0)).round().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """

    def __init__(self, weight: Union[Weight, Packed], bias: Any = None, *, strategy: str = "float",
                 act: Optional[str] = None) -> None:
        super().__init__([weight], bias, strategy, act)
        self.out_features, self.in_features = self.packed.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        op = _matmul if self._wants_grad(x) else _matmul_inference
        made: torch.Tensor = op(x, self.held.number, self.bias, self._strategy, self._act)
        return made


def _two(value: Any, name: str) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    found = tuple(int(v) for v in value)
    if len(found) != 2:
        raise errors.ArgumentError(f"{name} is {value!r}: a number, or two for h and w")
    return found[0], found[1]


class _Conv(Layer):
    """Geometry of convolutions, of one dimension as of two with one row."""

    n_dims = 2

    def __init__(self, weight: Union[Weight, Packed], bias: Any = None, *, stride: Any = 1,
                 padding: Any = 0, dilation: Any = 1, padding_mode: str = "zeros",
                 strategy: str = "float", act: Optional[str] = None) -> None:
        super().__init__([weight], bias, strategy, act)
        number_of({mode: 0 for mode in ("zeros", "reflect", "replicate", "circular")},
                  padding_mode, "padding_mode")
        self.stride, self.dilation = self._both(stride, 1), self._both(dilation, 1)
        self.padding_mode = padding_mode
        kernel = self.packed.kernel_size
        if padding == "same":
            if self.stride != (1, 1):
                raise errors.ArgumentError("padding='same' is for a stride of 1")
            full = [d * (k - 1) for d, k in zip(self.dilation, kernel)]
            self.pads = (full[0] // 2, full[1] // 2, full[0] - full[0] // 2, full[1] - full[1] // 2)
        else:
            h, w = self._both(0 if padding == "valid" else padding, 0)
            self.pads = (h, w, h, w)
        self._geometry = (*self.stride, *(self.pads if padding_mode == "zeros" else (0,) * 4),
                          *self.dilation)

    def _both(self, value: Any, rest: int) -> tuple[int, int]:
        if self.n_dims == 1:
            return rest, int(value if isinstance(value, int) else value[0])
        return _two(value, "a stride, padding or dilation")

    def extra_repr(self) -> str:
        return (f"{super().extra_repr()}, kernel_size={self.packed.kernel_size}, "
                f"stride={self.stride}, padding={self.pads}")

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        if self.padding_mode == "zeros":
            return x
        top, left, bottom, right = self.pads
        pads = (left, right) if self.n_dims == 1 else (left, right, top, bottom)
        return torch.nn.functional.pad(x, pads, mode=self.padding_mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_one = x.dim() == self.n_dims + 1
        op = _conv2d if self._wants_grad(x) else _conv2d_inference
        y: torch.Tensor = op(self._padded(x.unsqueeze(0) if is_one else x), self.held.number,
                             self.bias, self._strategy, self._act, *self._geometry)
        return y.squeeze(0) if is_one else y


class Conv2d(_Conv):
    """As torch.nn.Conv2d; kernel size, channels and groups come from the weight."""


class Conv1d(_Conv):
    """As torch.nn.Conv1d."""

    n_dims = 1


class ConvTranspose2d(Layer):
    """As torch.nn.ConvTranspose2d; quantize its weight with order="iohw"."""

    def __init__(self, weight: Union[Weight, Packed], bias: Any = None, *, stride: Any = 1,
                 padding: Any = 0, output_padding: Any = 0, dilation: Any = 1,
                 strategy: str = "float", act: Optional[str] = None) -> None:
        super().__init__([weight], bias, strategy, act)
        self.stride, self.dilation = _two(stride, "stride"), _two(dilation, "dilation")
        self.padding, self.output_padding = _two(padding, "padding"), _two(output_padding,
                                                                           "output_padding")

    def forward(self, x: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        out = self.output_padding
        if output_size is not None:
            kernel, wanted = self.packed.kernel_size, [int(size) for size in output_size[-2:]]
            plain = [(x.shape[i - 2] - 1) * self.stride[i] - 2 * self.padding[i]
                     + self.dilation[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
            out = wanted[0] - plain[0], wanted[1] - plain[1]
            if any(not 0 <= o < s for o, s in zip(out, self.stride)):
                raise errors.ShapeError(f"output_size is {wanted}: from {plain} on, by less than "
                                        f"the stride {self.stride}")
        is_one = x.dim() == 3
        op = _up if self._wants_grad(x) else _up_inference
        y: torch.Tensor = op(x.unsqueeze(0) if is_one else x, self.held.number, self.bias,
                             self._strategy, self._act, *self.stride, *self.padding,
                             *self.padding, *self.dilation, *out)
        return y.squeeze(0) if is_one else y


class Embedding(Layer):
    """Rows by index, as torch.nn.Embedding; on the CPU."""

    def __init__(self, weight: Union[Weight, Packed], *, dtype: torch.dtype = torch.float32,
                 padding_idx: Optional[int] = None) -> None:
        super().__init__([weight], None, "float", None)
        self.num_embeddings, self.embedding_dim = self.packed.shape
        if dtype not in DTYPES:
            raise errors.DtypeError(f"dtype is {dtype}: float32, float16 or bfloat16")
        self.dtype, self.padding_idx = dtype, padding_idx

    def _move(self, device: torch.device) -> None:
        if device.type == "cuda":
            raise errors.UnsupportedError("an embedding with quantized weights is looked up on the "
                                          "CPU: leave it there, or keep torch.nn.Embedding")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        self.dtype = dtype if dtype in DTYPES else self.dtype
        return self

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = _embedding(ids, self.held.number, DTYPES.index(self.dtype))
        return made


class GroupedLinear(Layer):
    """Rows by the weights of their experts (mixture of experts): x [rows, k], and either ids [rows]
    or offsets [experts + 1], i32. Rows of no expert are 0. bias: [n], or [experts, n].

    >>> one, two = (quern.quantize(torch.eye(4, 32) * s, "int4:g32") for s in (1, 2))
    >>> ids = torch.tensor([1, 0, -1], dtype=torch.int32)
    >>> GroupedLinear([one, two])(torch.ones(3, 32), ids=ids)[:, 0].tolist()
    [2.0, 1.0, 0.0]
    """

    def __init__(self, weights: Sequence[Union[Weight, Packed]], bias: Any = None, *,
                 strategy: str = "float", act: Optional[str] = None) -> None:
        if not weights:
            raise errors.ArgumentError("weights is empty: one expert at least")
        super().__init__(weights, bias, strategy, act)
        self.out_features, self.in_features = self.packed.shape
        self.n_experts = len(self.held.weights)

    def _name(self, i: int) -> str:
        return f"weight.{i}."

    def forward(self, x: torch.Tensor, ids: Optional[torch.Tensor] = None,
                offsets: Optional[torch.Tensor] = None,
                x_rows: Optional[torch.Tensor] = None) -> torch.Tensor:
        if (ids is None) == (offsets is None):
            raise errors.ArgumentError("either ids or offsets tells the expert of each row")
        op = _grouped if self._wants_grad(x) else _grouped_inference
        y: torch.Tensor = op(x, self.held.number, offsets, ids, x_rows, self.bias,
                             self._strategy, self._act)
        return y
