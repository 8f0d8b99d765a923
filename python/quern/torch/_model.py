# SPDX-License-Identifier: Apache-2.0
"""Whole models: their dense layers become quantized ones, from their own weights (quantize_) or
from a checkpoint (load_). Nothing is changed in a model unless all of it can be."""
from __future__ import annotations

from typing import Any, Callable, Iterable, NamedTuple, Optional, Union

import numpy as np
import torch

from .. import errors
from .._context import default_context
from .._files import Checkpoint, load
from .._format import STRATEGIES, number_of, parse
from .._weight import Weight, awq_scales, quantize, smooth_scales
from ._layers import Conv1d, Conv2d, ConvTranspose2d, Embedding, Layer, Linear

nn = torch.nn
_METHODS = ("rtn", "search", "gptq", "awq", "smooth")
_SAMPLES = 512  # rows of x that AWQ looks at


class Quantized(NamedTuple):
    """What became of a layer."""

    name: str
    format: str
    method: str
    sqnr_db: float


# -------------------------------------------------------------------------------------- one layer


def _order(layer: nn.Module) -> str:
    return "iohw" if isinstance(layer, nn.ConvTranspose2d) else "oihw"


def is_known(layer: nn.Module) -> bool:
    """A layer of torch's that has one of this package's beside it."""
    return type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding) or \
        type(layer) is nn.modules.linear.NonDynamicallyQuantizableLinear


def replacement(layer: nn.Module, weight: Any, strategy: str) -> Layer:
    """A layer of this package that does what `layer` does, with these weights."""
    made: Layer
    if isinstance(layer, nn.Embedding):
        if layer.max_norm is not None:
            raise errors.UnsupportedError("an embedding with max_norm changes its weights when it "
                                          "is used, which quantized ones cannot")
        dtype = layer.weight.dtype
        made = Embedding(weight, dtype=dtype, padding_idx=layer.padding_idx)
    elif isinstance(layer, nn.Linear):
        made = Linear(weight, layer.bias, strategy=strategy)
    elif isinstance(layer, nn.ConvTranspose2d):
        made = ConvTranspose2d(weight, layer.bias, stride=layer.stride, padding=layer.padding,
                               output_padding=layer.output_padding, dilation=layer.dilation,
                               strategy=strategy)
    elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        kind = Conv2d if isinstance(layer, nn.Conv2d) else Conv1d
        made = kind(weight, layer.bias, stride=layer.stride, padding=layer.padding,
                    dilation=layer.dilation, padding_mode=layer.padding_mode, strategy=strategy)
    else:
        raise errors.UnsupportedError(f"a {type(layer).__name__} has no like in quern.torch")
    return made.train(layer.training)


# ------------------------------------------------------------------------------------ calibration


class _Seen:
    """What a layer got while the model ran on calibration data."""

    def __init__(self, layer: nn.Module, method: str) -> None:
        self.layer, self.method, self.rows = layer, method, 0
        self.hessian: Any = None
        self.total: Any = None  # of |x|, or of x^2 for the search
        self.amax: Any = None
        self.samples: list[torch.Tensor] = []

    def _rows_of(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, k] in the order of quern's weights: of a convolution the patches."""
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return x.reshape(-1, x.shape[-1])
        if isinstance(layer, nn.Conv1d):
            x = x.unsqueeze(-2)
        one, two = ((1,), (0,)) if isinstance(layer, nn.Conv1d) else ((), ())
        assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
        pads = layer.padding if not isinstance(layer.padding, str) else (0,) * x[0, 0].dim()
        x = x if x.dim() == 4 else x.unsqueeze(0)
        kernel = one + tuple(layer.kernel_size)
        patches = nn.functional.unfold(
            x, kernel, dilation=one + tuple(layer.dilation),
            padding=two + tuple(pads)[-len(layer.kernel_size):], stride=one + tuple(layer.stride))
        found = patches.transpose(1, 2).reshape(-1, x.shape[1], kernel[0] * kernel[1])
        return found.transpose(1, 2).reshape(found.shape[0], -1)

    def add(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        rows = self._rows_of(x.detach()).float().cpu()
        if rows.shape[0] == 0:
            return
        self.rows += rows.shape[0]
        if self.method == "gptq":
            found = rows.T @ rows
            self.hessian = found if self.hessian is None else self.hessian + found
        total = (rows.square() if self.method == "search" else rows.abs()).sum(0)
        amax = rows.abs().amax(0)
        self.total = total if self.total is None else self.total + total
        self.amax = amax if self.amax is None else torch.maximum(self.amax, amax)
        room = _SAMPLES - sum(part.shape[0] for part in self.samples)
        if self.method == "awq" and room > 0:
            step = max(1, rows.shape[0] // max(1, _SAMPLES // 4))
            self.samples.append(rows[::step][:room].clone())


def _feed(model: nn.Module, calibration: Any) -> None:
    if callable(calibration) and not isinstance(calibration, torch.Tensor):
        calibration(model)
        return
    for batch in [calibration] if isinstance(calibration, torch.Tensor) else calibration:
        if isinstance(batch, dict) or hasattr(batch, "keys"):
            model(**batch)
        elif isinstance(batch, (tuple, list)):
            model(*batch)
        else:
            model(batch)


def _calibrated(model: nn.Module, layers: dict[str, nn.Module], method: str,
                calibration: Any) -> dict[str, _Seen]:
    seen = {name: _Seen(layer, method) for name, layer in layers.items()
            if has_samples(layer)}
    hooks = [one.layer.register_forward_pre_hook(one.add, with_kwargs=True)
             for one in seen.values()]
    was_training = model.training
    try:
        model.eval()
        with torch.no_grad():
            _feed(model, calibration)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    unused = [name for name, one in seen.items() if one.rows == 0]
    if unused:
        raise errors.ArgumentError(
            f"the calibration data never reach {', '.join(unused[:3])}"
            f"{' and others' if len(unused) > 3 else ''}: give data that do, or leave these layers "
            "out by filter=")
    return seen


def has_samples(layer: nn.Module) -> bool:
    """Rows of x can be collected for it: all outputs read the same ones."""
    if isinstance(layer, nn.Linear):
        return True
    return isinstance(layer, (nn.Conv1d, nn.Conv2d)) and layer.groups == 1 and \
        not isinstance(layer.padding, str) and layer.padding_mode == "zeros"


# -------------------------------------------------------------------------------------- quantize_


def _matrix(layer: nn.Module) -> torch.Tensor:
    """The weight as [n, k] of quern's order."""
    w = layer.weight.detach()  # type: ignore[union-attr]
    assert isinstance(w, torch.Tensor)
    if w.dim() == 2:
        return w
    w = w if w.dim() == 4 else w.unsqueeze(2)
    return w.permute(0, 2, 3, 1).reshape(w.shape[0], -1).contiguous()


def _quantized(layer: nn.Module, format: str, method: str, seen: Optional[_Seen],
               alpha: float) -> tuple[Weight, str]:
    w = layer.weight.detach()  # type: ignore[union-attr]
    assert isinstance(w, torch.Tensor)
    if w.is_meta:
        raise errors.ArgumentError("its weight is on the device meta: there is nothing to quantize")
    if w.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        w = w.float()
    w = w.cpu().contiguous()
    how: dict[str, Any] = {"order": _order(layer), "ctx": default_context(),
                           "conv_groups": getattr(layer, "groups", 1)}
    if method == "rtn":
        return quantize(w, format, **how), method
    if seen is None:  # embeddings, grouped and transposed convolutions
        return quantize(w, format, method="search", **how), "search"
    if method == "search":
        return quantize(w, format, method="search",
                        importance=(seen.total / seen.rows).numpy(), **how), method
    if method == "gptq":
        return quantize(w, format, method="gptq", hessian=seen.hessian, **how), method
    dense = _matrix(layer).float().cpu()
    if method == "awq":
        scales = awq_scales(dense, torch.cat(seen.samples), format,
                            x_mean=(seen.total / seen.rows).numpy())
    else:
        scales = smooth_scales(dense, seen.amax.numpy(), alpha)
    return quantize(w, format, prescale=1.0 / np.asarray(scales), **how), method


def _sqnr(layer: nn.Module, weight: Weight) -> float:
    from .._compare import compare
    w = layer.weight.detach().float().cpu()  # type: ignore[union-attr]
    if isinstance(layer, nn.ConvTranspose2d):
        groups = layer.groups
        ci, per, kh, kw = w.shape[0] // groups, *w.shape[1:]
        w = w.reshape(groups, ci, per, kh, kw).permute(0, 2, 3, 4, 1).reshape(groups * per, -1)
    else:
        w = _matrix(layer).float().cpu()
    return float(compare(w.contiguous().numpy(), weight).sqnr_db)


def _chosen(model: nn.Module, filter: Any) -> dict[str, nn.Module]:
    names: dict[int, str] = {}
    found: dict[str, nn.Module] = {}
    for name, layer in model.named_modules():
        if not is_known(layer) or id(layer) in names:
            continue
        if filter is None:
            wanted = not isinstance(layer, nn.Embedding)
        else:
            wanted = bool(filter(name, layer))
        if wanted:
            names[id(layer)], found[name] = name, layer
    return found


def put(model: nn.Module, made: dict[int, Layer]) -> None:
    """Put layers where those whose id() is the key stood, under every name that they have."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and id(child) in made:
                parent._modules[name] = made[id(child)]


def quantize_(model: nn.Module, format: str = "int4:g128", *, strategy: str = "float",
              filter: Optional[Callable[[str, nn.Module], bool]] = None, calibration: Any = None,
              method: Optional[str] = None, alpha: float = 0.5,
              progress: Any = None) -> list[Quantized]:
    """Quantize the layers of a model in place: torch.nn.Linear, Conv1d, Conv2d, ConvTranspose2d,
    and Embedding where the filter asks for it. Says what became of each.

    filter(name, layer): which; by default all but embeddings. calibration: inputs for the model (a
    tensor, or an iterable of tensors, tuples and dicts), or a function that runs it; hooks collect
    what each layer gets. method: "rtn", "search", and with calibration "gptq", "awq", "smooth"
    (SmoothQuant, by alpha); by default "gptq" with calibration, "rtn" without. Layers that cannot
    be calibrated (embeddings, grouped and transposed convolutions) are searched then. strategy: as
    of quern.matmul(). progress: called with layers done and in all, or a bar with update().

    >>> model = torch.nn.Sequential(torch.nn.Linear(32, 8))
    >>> quantize_(model, "int8:pc", strategy="int8-row")[0].method
    'rtn'
    """
    if method is None:
        method = "gptq" if calibration is not None else "rtn"
    number_of({name: 0 for name in _METHODS}, method, "method")
    number_of(STRATEGIES, strategy, "strategy")
    parse(format)
    if calibration is None and method in ("gptq", "awq", "smooth"):
        raise errors.ArgumentError(f"method={method!r} needs calibration= data")
    if is_known(model):
        raise errors.ArgumentError("the model is a single layer, which cannot be exchanged in "
                                   "place: put it into a torch.nn.Sequential")
    layers = _chosen(model, filter)
    if not layers:
        raise errors.ArgumentError("no layer of the model is to be quantized: it has none of the "
                                   "kinds that are, or filter= refuses all")
    seen: dict[str, _Seen] = {}
    if calibration is not None and method != "rtn":
        seen = _calibrated(model, layers, method, calibration)
    made: dict[int, Layer] = {}
    refused: list[str] = []
    report: list[Quantized] = []
    from .._interrupt import teller
    tell = teller(progress)
    for i, (name, layer) in enumerate(layers.items()):
        try:
            weight, how = _quantized(layer, format, method, seen.pop(name, None), alpha)
            device = layer.weight.device
            made[id(layer)] = replacement(layer, weight, strategy).to(device)
            report.append(Quantized(name, weight.format, how, _sqnr(layer, weight)))
        except errors.QuernError as why:
            refused.append(f"{name}: {why}")
        if tell is not None:
            tell(i + 1, len(layers))
    if refused:
        more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
        raise errors.FormatError(
            f"{len(refused)} of {len(layers)} layers cannot be quantized to {format!r}, and none "
            f"was: {'; '.join(refused[:3])}{more}. Leave them out by filter=, or choose another "
            "format")
    put(model, made)
    return report


# ------------------------------------------------------------------------------------------ load_


class Source:
    """Where weights come from, by the model's names; GGUF has names and orders of its own
    (quern.transformers)."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def kind(self, name: str) -> Optional[str]:
        """"weight", "packed", "tensor", or None: there is nothing of that name."""
        return self.checkpoint.kind_of(name) if name in self.checkpoint else None

    def weight(self, name: str) -> Any:
        """Packed, without the canonical weight in between where the checkpoint's rows are ours."""
        return self.checkpoint.pack(name)

    def tensor(self, name: str) -> torch.Tensor:
        entry = self.checkpoint._entry(name)
        shape = tuple(entry.tensor.shape[:entry.tensor.rank])
        from .._arrays import TORCH_NAME
        made = torch.empty(shape, dtype=getattr(torch, TORCH_NAME[entry.tensor.dtype]))
        self.checkpoint.read(name, out=made)
        return made


def _assign(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Write to a parameter or buffer, or put one where it had no memory yet."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    old = getattr(owner, last)
    if tuple(old.shape) != tuple(value.shape):
        raise errors.ShapeError(f"{name} has the shape {tuple(value.shape)} in the checkpoint, "
                                f"{tuple(old.shape)} in the model")
    with torch.no_grad():
        if not old.is_meta:
            old.copy_(value)
        elif isinstance(old, nn.Parameter):
            setattr(owner, last, nn.Parameter(value.to(old.dtype), requires_grad=False))
        else:
            setattr(owner, last, value.to(old.dtype))


def _need(missing: Iterable[str], path: Any) -> None:
    names = sorted(missing)
    if names:
        raise errors.NotFoundError(
            f"{path} lacks {len(names)} of the model's tensors: {', '.join(names[:5])}"
            f"{', ...' if len(names) > 5 else ''}")


def fill(model: nn.Module, source: Source, strategy: str, strict: bool) -> list[str]:
    """Give a model the weights of a source. @return the names of layers that are quantized now."""
    made: dict[int, Layer] = {}
    done: list[str] = []
    inside: set[str] = set()
    for name, layer in model.named_modules():
        kind = source.kind(f"{name}.weight") if name else None
        if kind not in ("weight", "packed") or id(layer) in made:
            continue
        if not is_known(layer):
            raise errors.UnsupportedError(
                f"{name} is quantized in {source.checkpoint.path}, and a {type(layer).__name__}, "
                "which has no like in quern.torch")
        weight = source.weight(f"{name}.weight")
        n, k = _shape_of(layer)
        if weight.shape != (n, k):
            raise errors.ShapeError(f"{name}.weight is {weight.shape[0]} x {weight.shape[1]} in "
                                    f"the checkpoint, {n} x {k} in the model")
        bias = getattr(layer, "bias", None)
        if bias is not None and source.kind(f"{name}.bias") is not None:
            _assign(model, f"{name}.bias", source.tensor(f"{name}.bias"))
        elif bias is not None and strict:
            _need([f"{name}.bias"], source.checkpoint.path)
        made[id(layer)] = replacement(layer, weight, strategy)
        done.append(name)
        inside.update((f"{name}.weight", f"{name}.bias"))
    found, missing = set[int](), dict[str, int]()
    for name, old in model.state_dict(keep_vars=True).items():
        if name in inside:
            continue
        if source.kind(name) is None:
            missing[name] = id(old)
            continue
        value = source.tensor(name) if source.kind(name) == "tensor" else \
            torch.from_numpy(_dense(source.weight(name)))
        _assign(model, name, value)
        found.add(id(old))
    if strict:
        tied = {name for name, one in missing.items() if one in found}
        _need(set(missing) - tied, source.checkpoint.path)
    put(model, made)
    return done


def _dense(weight: Any) -> Any:
    return (weight if isinstance(weight, Weight) else weight.unpack()).dequantize()


def _shape_of(layer: nn.Module) -> tuple[int, int]:
    w = layer.weight
    assert isinstance(w, torch.Tensor)
    if isinstance(layer, nn.ConvTranspose2d):
        return layer.out_channels, w.numel() // (w.shape[0] // layer.groups) // w.shape[1] * (
            w.shape[0] // layer.groups)
    return w.shape[0], w[0].numel()


def load_(model: nn.Module, path: Union[str, Any], *, strategy: str = "float",
          strict: bool = True) -> list[str]:
    """Give a model the weights of a checkpoint (file or folder, docs/checkpoints.md): layers that
    are quantized there become layers of this package, other tensors are copied. The names of the
    former are returned. strict: each tensor of the model must be there.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> quern.save(path, {"0.weight": quern.quantize(torch.eye(4, 32), "int4:g32")})
    >>> load_(torch.nn.Sequential(torch.nn.Linear(32, 4, bias=False)), path)
    ['0']
    """
    number_of(STRATEGIES, strategy, "strategy")
    return fill(model, Source(load(path)), strategy, strict)
