# SPDX-License-Identifier: Apache-2.0
"""Models of transformers from checkpoints whose weights are quantized, with quern's layers.

    model = quern.transformers.from_pretrained("folder-or-file.gguf", strategy="int8-block")
    model.generate(**tokenizer("Once", return_tensors="pt"))

or by transformers itself, whose quantizer "quern" this module registers:

    AutoModelForCausalLM.from_pretrained(folder, quantization_config=QuernConfig())

Every checkpoint is read that quern reads (docs/checkpoints.md), whatever made it: the packages that
its maker needs are not. docs/transformers.md is the manual.
"""
from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from typing import Any, Iterator, Optional, Sequence

try:
    import transformers as _hf
    from transformers.quantizers import auto as _auto
    from transformers.quantizers.base import HfQuantizer, get_keys_to_not_convert
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as _why:
    raise ImportError(f"quern.transformers needs transformers, which cannot be imported ({_why})"
                      ) from None
import torch
from safetensors import safe_open

from . import errors
from ._files import load, save
from ._format import STRATEGIES, number_of, parse
from ._weight import Packed, Weight
from .torch._layers import Embedding, Layer
from .torch._model import Source, fill, put, quantize_

__all__ = ["QuernConfig", "from_pretrained", "save_pretrained"]


# ------------------------------------------------------------------------- names of a checkpoint


class _FolderSource(Source):
    """A folder's names are the model's, with or without the prefix of the model's base; a head that
    is tied to the embedding has none of its own."""

    def __init__(self, checkpoint: Any, model: Any) -> None:
        super().__init__(checkpoint)
        prefix = getattr(model, "base_model_prefix", "")
        self._prefix = f"{prefix}." if prefix else ""
        self._packed: dict[str, Packed] = {}
        self._tied: dict[str, str] = {}
        places = {id(m): name for name, m in model.named_modules()}
        into, out = model.get_input_embeddings(), model.get_output_embeddings()
        if out is not None and getattr(model.config.get_text_config(), "tie_word_embeddings",
                                       False):
            self._tied[f"{places[id(out)]}.weight"] = f"{places[id(into)]}.weight"

    def name(self, name: str) -> Optional[str]:
        """What the checkpoint calls it."""
        tries = [name, self._prefix + name]
        if self._prefix and name.startswith(self._prefix):
            tries.append(name[len(self._prefix):])
        return next((found for found in tries if found in self.checkpoint), None)

    def _found(self, name: str) -> Optional[str]:
        found = self.name(name)
        return self.name(self._tied[name]) if found is None and name in self._tied else found

    def kind(self, name: str) -> Optional[str]:
        found = self._found(name)
        return None if found is None else self.checkpoint.kind_of(found)

    def weight(self, name: str) -> Any:
        found = self._found(name)
        assert found is not None
        if found not in self._packed:
            made = self.read(found)
            if name not in self._tied and name not in self._tied.values():
                return made
            self._packed[found] = made.pack() if isinstance(made, Weight) else made
        return self._packed[found]  # an embedding and its head share one

    def read(self, found: str) -> Any:
        return self.checkpoint.pack(found)

    def tensor(self, name: str) -> torch.Tensor:
        found = self._found(name)
        assert found is not None
        return super().tensor(found)


_GGUF_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm"}
_GGUF_GEMMA = {**_GGUF_LAYER, "post_attention_layernorm": "post_attention_norm",
               "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
# model_type: names within a layer; rows of q and k lie in pairs; norms are kept with 1 added
_GGUF_KINDS = {"llama": (_GGUF_LAYER, True, False), "mistral": (_GGUF_LAYER, True, False),
               "qwen2": (_GGUF_LAYER, False, False), "qwen3": (_GGUF_LAYER, False, False),
               "gemma3_text": (_GGUF_GEMMA, False, True)}


class _GgufSource(_FolderSource):
    """GGUF has names of its own, the rows of Llama's q and k in the order of its rotation, and
    Gemma's norms with 1 added."""

    def __init__(self, checkpoint: Any, model: Any) -> None:
        kind = model.config.model_type
        if kind not in _GGUF_KINDS:
            raise errors.UnsupportedError(
                f"{checkpoint.path} is a GGUF file of a model of the type {kind!r}: from GGUF "
                f"{', '.join(_GGUF_KINDS)} are read")
        self._layer, self._is_paired, self._is_one_more = _GGUF_KINDS[kind]
        self._config = model.config
        super().__init__(checkpoint, model)

    def name(self, name: str) -> Optional[str]:
        path, _, last = name.rpartition(".")
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", path)
        if match and match[2] in self._layer:
            found = f"blk.{match[1]}.{self._layer[match[2]]}.{last}"
        elif path in _GGUF_TOP:
            found = f"{_GGUF_TOP[path]}.{last}"
        else:
            return None
        return found if found in self.checkpoint else None

    def _order(self, found: str, n: int) -> Optional[torch.Tensor]:
        """Which row of the file is row i of the model, where they differ."""
        match = re.search(r"\.attn_([qk])\.", found)
        if match is None or not self._is_paired:
            return None
        heads = self._config.num_attention_heads if match[1] == "q" else \
            self._config.num_key_value_heads
        return torch.arange(n).view(heads, n // heads // 2, 2).transpose(1, 2).reshape(-1)

    def read(self, found: str) -> Any:
        order = self._order(found, self.checkpoint.shape_of(found)[0])
        if order is None:
            return self.checkpoint.pack(found)
        weight = self.checkpoint[found]
        rows = [weight.slice(slice(i, i + 1)) for i in order.tolist()]
        return Weight.concat(rows)

    def tensor(self, name: str) -> torch.Tensor:
        made = super().tensor(name)
        found = self._found(name)
        assert found is not None
        order = self._order(found, made.shape[0])
        if order is not None:
            made = made[order]
        return made - 1 if self._is_one_more and "norm" in found else made


# ----------------------------------------------------------------------------- transformers' hook


class QuernConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """For quantization_config= of transformers' own from_pretrained().

        AutoModelForCausalLM.from_pretrained("Llama-AWQ", quantization_config=QuernConfig())
        AutoModelForCausalLM.from_pretrained("Llama", quantization_config=QuernConfig("int4:g128"))

    Weights of a folder that are quantized, by whatever, get quern's layers; others are quantized to
    `format` when they have been loaded, but for the head and modules_to_not_convert (names, or the
    ends of names). strategy, gptq_zeros: as of from_pretrained(). A folder that quern has written
    needs no such argument once quern.transformers is imported.
    """

    def __init__(self, format: Optional[str] = None, strategy: str = "float",
                 gptq_zeros: str = "found",
                 modules_to_not_convert: Optional[Sequence[str]] = None) -> None:
        number_of(STRATEGIES, strategy, "strategy")
        if format is not None:
            parse(format)
        self.quant_method = "quern"
        self.format, self.strategy, self.gptq_zeros = format, strategy, gptq_zeros
        self.modules_to_not_convert = modules_to_not_convert
        self.written: Optional[dict[str, Any]] = None  # what config.json says

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False,
                  **given: Any) -> Any:
        made = cls(strategy=config_dict.get("strategy", "float")).of(config_dict)
        return (made, given) if return_unused_kwargs else made

    def of(self, written: Any) -> QuernConfig:
        """The same for a checkpoint of which config.json says this."""
        self.written = written if isinstance(written, dict) else written.to_dict()
        return self

    def to_dict(self) -> dict[str, Any]:
        """What config.json says of the model when it is saved."""
        if self.written is not None:
            return dict(self.written)
        return {name: value for name, value in self.__dict__.items()
                if value is not None and name not in ("written", "gptq_zeros")}


class _Waiting(torch.nn.Module):
    """Stands for a layer with quantized weights while transformers loads all others."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = (layer,)  # in a tuple it is no child, and has no names in the state_dict


class QuernHfQuantizer(HfQuantizer):  # type: ignore[misc]
    """Gives models quern's layers as transformers loads them, and the checkpoint's tensors back
    when they are saved."""

    requires_calibration = False

    def __init__(self, quantization_config: Any, source: Optional[_FolderSource] = None,
                 **how: Any) -> None:
        self.quantization_config = quantization_config
        self.pre_quantized, self.source = how.get("pre_quantized", True), source
        self.modules_to_not_convert: list[str] = []
        self.layers: dict[str, Any] = {}
        self.device_map: Any = None
        self.ignored: Any = None  # what the model itself does not mind in a checkpoint

    def _process_model_before_weight_loading(self, model: Any, **how: Any) -> Any:
        """Layers with quantized weights are taken out: transformers knows nothing of their names
        in the checkpoint."""
        config, files = self.quantization_config, how.get("checkpoint_files") or []
        self.device_map = how.get("device_map")
        waiting: dict[str, Any] = {}
        if files and all(name.endswith(".safetensors") for name in files):
            path = files[0] if len(files) == 1 else os.path.dirname(files[0])
            folder = os.path.dirname(files[0])
            if os.path.exists(os.path.join(folder, "config.json")):
                path = folder
            source = _FolderSource(load(path, gptq_zeros=config.gptq_zeros), model)
            waiting = {name: layer for name, layer in model.named_modules() if name
                       and source.kind(f"{name}.weight") in ("weight", "packed")}
        if not waiting and config.format is None:
            raise errors.ArgumentError(
                "no layer's weights are quantized there: QuernConfig(\"int4:g128\") quantizes "
                "them as soon as they are loaded")
        if not waiting:
            return model
        if config.format is not None:
            raise errors.ArgumentError(f"the weights of {path} are quantized already: there "
                                       f"QuernConfig() has no format, and not {config.format!r}")
        self.source, self.pre_quantized = source, True
        put(model, {id(layer): _Waiting(layer) for layer in waiting.values()})
        model.all_tied_weights_keys = {
            one: other for one, other in model.all_tied_weights_keys.items()
            if not {one.rpartition(".")[0], other.rpartition(".")[0]} & set(waiting)}
        self.ignored = model._keys_to_ignore_on_load_unexpected
        model._keys_to_ignore_on_load_unexpected = {".*"}  # fill() tells what is missing
        return model

    def _process_model_after_weight_loading(self, model: Any, **how: Any) -> Any:
        config = self.quantization_config
        if self.source is None:
            kept = config.modules_to_not_convert
            kept = get_keys_to_not_convert(model) if kept is None else kept
            quantize_(model, config.format, strategy=config.strategy,
                      filter=lambda name, layer: not isinstance(layer, torch.nn.Embedding)
                      and not any(f".{name}".endswith(f".{one}") for one in kept))
            return model
        model._keys_to_ignore_on_load_unexpected = self.ignored
        put(model, {id(layer): layer.layer[0] for layer in model.modules()
                    if isinstance(layer, _Waiting)})
        done = fill(model, self.source, config.strategy, strict=True)
        for name in done:
            model.get_submodule(name).to(self._device(name))
        self.layers = {name: model.get_submodule(name).held for name in done}
        return model

    def _device(self, name: str) -> Any:
        """Where the device map puts a layer: by its name, or by the longest part of it."""
        places = self.device_map
        if not isinstance(places, dict):
            return "cpu" if places is None else places
        while name and name not in places:
            name = name.rpartition(".")[0]
        return places.get(name, "cpu")

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return not isinstance(self.source, _GgufSource)

    @property
    def is_trainable(self) -> bool:
        return False

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def unchanged(self, model: Any) -> set[str]:
        """Names of the quantized layers, all of which must be those that were loaded."""
        for name, held in self.layers.items():
            layer = model.get_submodule(name)
            if not isinstance(layer, Layer) or layer.held is not held:
                raise errors.ArgumentError(
                    f"{name} is not the layer any more that was loaded: its tensors in the "
                    "checkpoint are others now; quern.transformers.save_pretrained(..., "
                    "quern_file=True) writes the model as it is")
        return set(self.layers)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
        if self.source is None:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.safetensors")
                _write(model, path)
                with safe_open(path, "pt") as file:
                    return ({name: file.get_tensor(name) for name in file.keys()},
                            dict(file.metadata() or {}))
        state = _raw_tensors(self.source.checkpoint.path)
        layers = self.unchanged(model)
        for name, value in model.state_dict().items():
            if name.rpartition(".weight.")[0] in layers and name.rpartition(".weight.")[0]:
                continue
            found = self.source.name(name)
            if found in state:
                state[found] = value.detach().cpu().to(state[found].dtype)
        return state, {}


def _register() -> None:
    """Once; a second interpreter of torch's would find the first one's. transformers refuses to
    read what one program has quantized with the quantizer of another, which quern's is for."""
    if "quern" in _auto.AUTO_QUANTIZER_MAPPING:
        return
    _auto.AUTO_QUANTIZATION_CONFIG_MAPPING["quern"] = QuernConfig
    _auto.AUTO_QUANTIZER_MAPPING["quern"] = QuernHfQuantizer
    plain = _auto.AutoHfQuantizer.merge_quantization_configs

    def merge(_: Any, found: Any, given: Any) -> Any:
        return given.of(found) if isinstance(given, QuernConfig) else plain(found, given)

    _auto.AutoHfQuantizer.merge_quantization_configs = classmethod(merge)


_register()


def _raw_tensors(path: Any) -> dict[str, torch.Tensor]:
    """All tensors of a folder or file as they are kept."""
    path = os.fspath(path)
    if os.path.isdir(path):
        names = sorted(n for n in os.listdir(path) if n.endswith(".safetensors"))
        files = [os.path.join(path, name) for name in names]
    else:
        files = [path]
    made: dict[str, torch.Tensor] = {}
    for name in files:
        with safe_open(name, "pt") as file:
            made.update({key: file.get_tensor(key) for key in file.keys()})
    return made


# ---------------------------------------------------------------------------------------- loading

_building = threading.Lock()


@contextlib.contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """Modules made here have parameters on the device meta, and buffers as ever."""
    plain = torch.nn.Module.register_parameter

    def register(module: Any, name: str, value: Any) -> None:
        plain(module, name, value)
        if value is not None and not value.is_meta:
            module._parameters[name] = torch.nn.Parameter(value.to("meta"), requires_grad=False)

    with _building:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module.register_parameter = plain  # type: ignore[method-assign]


def _config_of(path: str) -> Any:
    if os.path.isdir(path):
        if not os.path.exists(os.path.join(path, "config.json")):
            raise errors.NotFoundError(f"{path} has no config.json: transformers cannot tell what "
                                       "model it is")
        return _hf.AutoConfig.from_pretrained(path)
    try:
        import gguf  # noqa: F401
    except ImportError as why:
        raise ImportError(f"{path}: transformers reads the configuration of GGUF files by the "
                          f"package gguf, which cannot be imported ({why})") from None
    folder, name = os.path.split(os.path.abspath(path))
    return _hf.AutoConfig.from_pretrained(folder, gguf_file=name)


def from_pretrained(path: Any, *, strategy: str = "float", auto: Any = None,
                    dtype: torch.dtype = torch.float32, gptq_zeros: str = "found",
                    **config: Any) -> Any:
    """The model of a folder or .gguf file, its quantized layers as layers of quern.torch.

    strategy: of these layers, as of quern.matmul(). auto: the class that makes the model,
    transformers.AutoModelForCausalLM by default. dtype: of everything else, and of activations.
    gptq_zeros: as of quern.load(). More are changes of the configuration, as
    attn_implementation="sdpa". Checkpoints whose weights are not quantized are loaded as they are;
    quern.torch.quantize_() follows then.
    """
    number_of(STRATEGIES, strategy, "strategy")
    path = os.fspath(path)
    if not os.path.exists(path):
        raise errors.OpenError(f"{path} does not exist: a folder or a .gguf file on this machine "
                               "is wanted")
    checkpoint = load(path, gptq_zeros=gptq_zeros)
    settings = _config_of(path)
    quantization = getattr(settings, "quantization_config", None)
    if quantization is not None:
        del settings.quantization_config
    is_gguf = checkpoint.kind == "gguf"
    if is_gguf:  # which transformers leaves out for some architectures
        arch = checkpoint.metadata.get("general.architecture", "")
        head = checkpoint.metadata.get(f"{arch}.attention.key_length", "")
        if head.isdecimal():
            settings.head_dim = int(head)
    maker = auto if auto is not None else _hf.AutoModelForCausalLM
    with _parameters_without_memory():
        model = maker.from_config(settings, dtype=dtype, **config)
    source = (_GgufSource if is_gguf else _FolderSource)(checkpoint, model)
    done = fill(model, source, strategy, strict=True)
    if not isinstance(model.get_input_embeddings(), Layer):
        model.tie_weights()
    left = [name for name, value in model.state_dict(keep_vars=True).items() if value.is_meta]
    if left:
        raise errors.NotFoundError(f"{path} lacks {len(left)} of the model's tensors: "
                                   f"{', '.join(left[:5])}{', ...' if len(left) > 5 else ''}")
    for layer in model.modules():
        if isinstance(layer, Embedding):
            layer.dtype = dtype
    if done:
        hook = QuernHfQuantizer(QuernConfig(strategy=strategy), source=source)
        hook.layers = {name: model.get_submodule(name).held for name in done}
        model.hf_quantizer = hook
        if quantization is not None:
            model.config.quantization_config = quantization
    _read_generation(model, path)
    return model.eval()


def _read_generation(model: Any, path: str) -> None:
    name = os.path.join(path, "generation_config.json")
    if os.path.isfile(name) and hasattr(model, "generation_config"):
        model.generation_config = _hf.GenerationConfig.from_pretrained(path)


# ----------------------------------------------------------------------------------------- saving


def save_pretrained(model: Any, folder: Any, *, quern_file: bool = False) -> None:
    """Write a model so that from_pretrained() gives it again.

    What from_pretrained() has read from a folder is written in that checkpoint's own format, its
    quantized tensors bit for bit (so does model.save_pretrained()); what it read from a GGUF file
    is copied. A model that quern.torch.quantize_() has changed, or any with quern_file=True, is
    written as a quern file beside its config.json.
    """
    folder = os.fspath(folder)
    hook = getattr(model, "hf_quantizer", None)
    hook = hook if isinstance(hook, QuernHfQuantizer) else None
    if hook is not None and not quern_file:
        if not isinstance(hook.source, _GgufSource):
            model.save_pretrained(folder)
            return
        _copy_gguf(model, hook, folder)
        return
    os.makedirs(folder, exist_ok=True)
    _write(model, os.path.join(folder, "model.safetensors"))
    settings = model.config.__class__.from_dict(model.config.to_dict())
    settings.quantization_config = {"quant_method": "quern"}
    settings.architectures = [type(model).__name__]
    settings.save_pretrained(folder)
    if hasattr(model, "generation_config"):
        model.generation_config.save_pretrained(folder)


def _write(model: Any, path: str) -> None:
    """A quern file of the model as it is."""
    values: dict[str, Any] = {}
    tied: dict[int, str] = {}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Layer)}
    for name, layer in layers.items():
        if id(layer.packed) not in tied:
            tied[id(layer.packed)] = name
            values[f"{name}.weight"] = layer.packed.unpack()
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        owner = name.rpartition(".weight.")[0]
        if owner in layers or id(value) in seen:
            continue
        seen.add(id(value))
        values[name] = value.detach().cpu().contiguous()
    save(path, values, overwrite=True)


def _copy_gguf(model: Any, hook: QuernHfQuantizer, folder: str) -> None:
    source = hook.source
    assert source is not None
    layers = hook.unchanged(model)
    for name, value in model.state_dict().items():
        if name.rpartition(".weight.")[0] in layers and name.rpartition(".weight.")[0]:
            continue
        if source.kind(name) == "tensor" and not torch.equal(
                source.tensor(name).to(value.dtype), value.cpu()):
            raise errors.UnsupportedError(
                f"{name} is not what {source.checkpoint.path} has: GGUF files are copied, not "
                "written; save_pretrained(..., quern_file=True) writes the model as it is")
    os.makedirs(folder, exist_ok=True)
    shutil.copyfile(source.checkpoint.path,
                    os.path.join(folder, os.path.basename(source.checkpoint.path)))
