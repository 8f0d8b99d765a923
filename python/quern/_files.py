# SPDX-License-Identifier: Apache-2.0
"""Files: quern's own, safetensors and npy; read where they are mapped, written atomically."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Iterator, Mapping, Optional, Union

import numpy as np

from . import _abi, _arrays, errors
from ._arrays import view
from ._context import Context, default_context
from ._format import number_of
from ._library import check, lib, new_error, sized, text_of
from ._weight import Packed, Weight, pack_options

_PACKED_KEY = "quern.packed."
_KINDS = {_abi.QN_FILE_SAFETENSORS: "safetensors", _abi.QN_FILE_NPY: "npy",
          _abi.QN_FILE_GGUF: "gguf"}
_GPTQ_ZEROS = {"found": _abi.QN_GPTQ_ZEROS_FOUND, "v1": _abi.QN_GPTQ_ZEROS_V1,
               "v1-wrap": _abi.QN_GPTQ_ZEROS_V1_WRAP, "v2": _abi.QN_GPTQ_ZEROS_V2}
# Tensors that a weight is kept in; the weight stands for them.
_PARTS = (".codes", ".scale", ".unit", ".zero", ".offset", ".perm", ".prescale", ".table",
          ".super_scale", ".super_min", ".sub_scale", ".sub_min")


def _path(path: Any) -> bytes:
    return os.fsencode(os.path.abspath(os.fspath(path)))


def _metadata(file: int) -> Iterator[tuple[str, str]]:
    key, value, i = ctypes.c_char_p(), ctypes.c_char_p(), 0
    while lib.qn_file_metadata(file, i, ctypes.byref(key), ctypes.byref(value)) == 0:
        yield (key.value or b"").decode(), (value.value or b"").decode("utf-8", "replace")
        i += 1


class Checkpoint(Mapping[str, Any]):
    """A model's weights as a mapping: names to quern.Weight, quern.Packed or arrays.

    Of quern's own files and of the formats of others (docs/checkpoints.md): a quantized module is a
    quern.Weight by the name that it has in a model that is not quantized. Arrays are views of the
    mapped files, read-only; weights are loaded when they are asked for, packed ones used where they
    lie. Files stay mapped as long as anything of them is held, and must not be changed in that
    time. read() copies and converts.
    """

    def __init__(self, path: Any, ctx: Optional[Context] = None, gptq_zeros: str = "found",
                 prefetch: bool = False, lock: bool = False) -> None:
        self.ctx = ctx or default_context()
        options = sized(_abi.qn_checkpoint_options)
        options.gptq_zeros = number_of(_GPTQ_ZEROS, gptq_zeros, "gptq_zeros")
        options.prefetch, options.lock = 1 if prefetch else 0, 1 if lock else 0
        made, error = ctypes.c_void_p(), new_error()
        if isinstance(path, (str, bytes, os.PathLike)):
            self.path = os.fspath(path)
            check(lib.qn_checkpoint_open(self.ctx._ptr, _path(path), ctypes.byref(options),
                                         ctypes.byref(made), ctypes.byref(error)), error)
        else:
            self._open_memory(path, options, made, error)
        self._ptr = made.value
        self._keeper = self.ctx._keeper.hold()
        self._files: list[int] = []
        while (file := lib.qn_checkpoint_file(self._ptr, len(self._files))) is not None:
            self._files.append(file)
        self.kind = _KINDS.get(lib.qn_file_get_kind(self._files[0]), "?") if self._files else "?"
        self.quantization: str = lib.qn_checkpoint_quantization(self._ptr).decode()
        self.metadata: dict[str, str] = {}
        self._places: dict[str, tuple[str, Any]] = {}
        self._find()

    def _open_memory(self, buffer: Any, options: Any, made: Any, error: Any) -> None:
        """A file that lies in a buffer, which is kept as long as anything of it is held."""
        try:
            self._memory = np.frombuffer(buffer, np.uint8)
        except (TypeError, ValueError, BufferError) as why:
            raise errors.ArgumentError(f"path is a {type(buffer).__name__}: a path, or a buffer "
                                       f"with the bytes of a file ({why})") from None
        self.path = f"<{self._memory.size} bytes in memory>"
        asked, file = sized(_abi.qn_file_options), ctypes.c_void_p()
        asked.prefetch, asked.lock = options.prefetch, options.lock
        check(lib.qn_file_open_memory(self.ctx._ptr, self._memory.ctypes.data, self._memory.size,
                                      ctypes.byref(asked), ctypes.byref(file),
                                      ctypes.byref(error)), error)
        check(lib.qn_checkpoint_open_files(self.ctx._ptr, ctypes.byref(file), 1, None, 0,
                                           ctypes.byref(options), ctypes.byref(made),
                                           ctypes.byref(error)), error)

    def __del__(self, _lib: Any = lib) -> None:
        if hasattr(self, "_keeper"):
            _lib.qn_checkpoint_close(self._ptr)
            self._keeper.drop()

    def _find(self) -> None:
        """{name: (what it is, where)}: quern's own weights, then everybody's modules. The tensors
        that a weight is kept in are not there by themselves."""
        hidden: set[str] = set()
        for file in self._files:
            metadata = dict(_metadata(file))
            self.metadata.update(metadata)
            for i in range(lib.qn_file_weight_count(file)):
                name = lib.qn_file_weight_name(file, i).decode()
                self._places[name] = ("weight", file)
                hidden.update(name + part for part in _PARTS)
            for key in metadata:
                if key.startswith(_PACKED_KEY):
                    name = key[len(_PACKED_KEY):]
                    self._places[name] = ("packed", file)
                    hidden.add(name + ".packed")
        module, error = sized(_abi.qn_module), new_error()
        for i in range(lib.qn_checkpoint_count(self._ptr)):
            # A module that cannot be imported has its name, and says why when it is asked for.
            status = lib.qn_checkpoint_module(self._ptr, i, ctypes.byref(module),
                                              ctypes.byref(error))
            name = (module.name or b"").decode()
            if name in hidden or name in self._places:
                continue
            is_plain = status == 0 and module.role == _abi.QN_ROLE_TENSOR
            self._places[name] = ("tensor", None) if is_plain else ("module", i)

    def __repr__(self) -> str:
        return f"quern.Checkpoint({self.path!r}, {len(self)} names)"

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def _place(self, name: str) -> tuple[str, Any]:
        try:
            return self._places[name]
        except KeyError:
            raise errors.NotFoundError(
                f"{self.path} has nothing of the name {name!r}; it has "
                f"{', '.join(map(repr, list(self._places)[:5])) or 'no tensor'}"
                f"{', ...' if len(self._places) > 5 else ''}") from None

    def kind_of(self, name: str) -> str:
        """"weight", "packed" or "tensor"."""
        kind = self._place(name)[0]
        return "weight" if kind == "module" else kind

    def provenance(self, name: str) -> str:
        """Where each fact about a module of somebody else's format comes from, or why it is
        refused; a line each. "" for what is not one."""
        kind, place = self._place(name)
        if kind != "module":
            return ""
        return text_of(lib.qn_checkpoint_provenance, self._ptr, place)

    def __getitem__(self, name: str) -> Any:
        kind, place = self._place(name)
        if kind == "tensor":
            return self._tensor(name)
        made, error = ctypes.c_void_p(), new_error()
        to, text = ctypes.byref(made), name.encode()
        if kind == "module":
            status = lib.qn_checkpoint_load(self.ctx._ptr, self._ptr, place, 0, -1, to, None,
                                            ctypes.byref(error))
        elif kind == "weight":
            status = lib.qn_file_load_weight(self.ctx._ptr, place, text, to, ctypes.byref(error))
        else:
            status = lib.qn_packed_load(self.ctx._ptr, place, text, to, ctypes.byref(error))
        check(status, error)
        assert made.value is not None
        if kind == "packed":
            return Packed(made.value, self.ctx, self)
        return Weight(made.value, self.ctx)

    def shape_of(self, name: str) -> tuple[int, int]:
        """Outputs and inputs of a quantized module of somebody else's format, or of quern's own;
        nothing is loaded."""
        kind, place = self._place(name)
        if kind == "packed":
            found = self[name]
            return int(found.shape[0]), int(found.shape[1])
        if kind == "weight":
            place = lib.qn_checkpoint_find(self._ptr, name.encode())
        module, error = sized(_abi.qn_module), new_error()
        check(lib.qn_checkpoint_module(self._ptr, -1 if place is None else place,
                                       ctypes.byref(module), ctypes.byref(error)), error)
        return int(module.n), int(module.k)

    def pack(self, *names: str, layout: Optional[str] = None, x_block: int = 0,
             sums: bool = True) -> Packed:
        """The weight of that name, packed; of several names, joined along n as Weight.concat()
        joins them. Of modules the canonical weight is never in memory as a whole.

        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": quantize(np.ones((64, 128), np.float32), "int4:g32")})
        >>> load(path).pack("w").shape
        (64, 128)
        """
        if not names:
            raise errors.ArgumentError("pack() wants the name of a weight")
        places = [self._place(name) for name in names]
        if len(places) == 1 and places[0][0] == "packed":
            found: Packed = self[names[0]]
            return found
        for name, (kind, _) in zip(names, places):
            if kind not in ("module", "weight"):
                raise errors.DtypeError(f"{name!r} is {'packed' if kind == 'packed' else 'plain'}, "
                                        "no quantized weight")
        modules = [place if kind == "module" else lib.qn_checkpoint_find(self._ptr, name.encode())
                   for name, (kind, place) in zip(names, places)]
        parts = (_abi.qn_module_part * len(names))(*((at, 0, -1) for at in modules))
        options = pack_options(layout, x_block, sums)
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_checkpoint_pack(self.ctx._ptr, self._ptr, len(names), parts,
                                     ctypes.byref(options), ctypes.byref(made), None,
                                     ctypes.byref(error)), error)
        assert made.value is not None
        for at in modules:
            lib.qn_checkpoint_forget(self._ptr, at)
        return Packed(made.value, self.ctx)

    def _entry(self, name: str) -> _abi.qn_entry:
        if self.kind_of(name) != "tensor":
            raise errors.ArgumentError(f"{name!r} is quantized: take it by its name, and "
                                       "dequantize() it")
        entry = _abi.qn_entry()
        check(lib.qn_checkpoint_tensor(self._ptr, name.encode(), ctypes.byref(entry)))
        if entry.tensor.dtype == _abi.QN_DTYPE_NONE:
            raise errors.DtypeError(f"{self.path}: {name!r} is of type {entry.dtype.decode()}, "
                                    "which quern does not have")
        return entry

    def _tensor(self, name: str) -> Any:
        entry = self._entry(name)
        if not entry.is_aligned:
            return self.read(name)
        tensor = entry.tensor
        return _arrays.borrowed(tensor.data or 0, tuple(tensor.shape[:tensor.rank]), tensor.dtype,
                                self)

    def read(self, name: str, dtype: Any = None, out: Any = None) -> Any:
        """A copy of a tensor, converted between types of floats if asked: into a new numpy array,
        or into out (of torch, if you like)."""
        entry = self._entry(name)
        shape = tuple(entry.tensor.shape[:entry.tensor.rank])
        if out is None:
            code = entry.tensor.dtype if dtype is None else _arrays.code_of(dtype)
            out = np.empty(shape, _arrays.numpy_dtype(code, repr(name)))
        to = view(out, "out", write=True)
        if to.shape != shape:
            raise errors.ShapeError(f"out has the shape {to.shape}, {name!r} {shape}")
        to.need_together()
        tensor = to.tensor()
        status = lib.qn_entry_copy(ctypes.byref(entry), ctypes.byref(tensor))
        if status == errors.DtypeError.status:
            raise errors.DtypeError(f"{name!r} is of type {entry.dtype.decode()}, which is not "
                                    f"converted to {_arrays.NAMES[to.code]}")
        check(status)
        return out


def load(path: Any, *, gptq_zeros: str = "found", prefetch: bool = False, lock: bool = False,
         ctx: Optional[Context] = None) -> Checkpoint:
    """Open a checkpoint: a quern, safetensors, GGUF or npy file (found from its content; an npy
    file's only name is ""), an index of shards, or a folder with its configuration. Headers are
    checked; nothing in them is trusted. gptq_zeros: "v1", "v1-wrap" or "v2" where a GPTQ checkpoint
    leaves it open what its zeros stand for.

    Instead of a path, a buffer with the bytes of a file (a memoryview, an mmap, a bytearray, an
    array of bytes; bytes are taken for a path): it is used where it lies and must not change.
    prefetch: the system reads the pages ahead; lock: they stay in memory, or OutOfMemoryError.

    >>> import numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> save(path, {"q": quantize(np.eye(4, 32, dtype=np.float32)), "b": np.ones(4, np.float32)})
    >>> with_names = load(path)
    >>> sorted(with_names), with_names["b"].tolist(), with_names["q"].format
    (['b', 'q'], [1.0, 1.0, 1.0, 1.0], 'int4:g128')
    >>> with_names["c"]
    Traceback (most recent call last):
        ...
    quern.errors.NotFoundError: ... has nothing of the name 'c'; it has 'q', 'b'
    """
    return Checkpoint(path, ctx, gptq_zeros, prefetch, lock)


class _Writer:
    """A file that is declared, begun and filled; given up on any failure."""

    def __init__(self, path: Any, ctx: Context) -> None:
        self.ctx = ctx
        made, self.error = ctypes.c_void_p(), new_error()
        check(lib.qn_writer_create(ctx._ptr, _path(path), ctypes.byref(made),
                                   ctypes.byref(self.error)), self.error)
        self.ptr: Optional[int] = made.value

    def call(self, function: Any, *arguments: Any) -> None:
        check(function(self.ptr, *arguments, ctypes.byref(self.error)), self.error)

    def add(self, name: str, value: Any) -> Any:
        """Declare one and return what writes it later."""
        index, text = ctypes.c_int64(), name.encode()
        if isinstance(value, Weight):
            self.call(lib.qn_writer_add_weight, text, ctypes.byref(value._parts),
                      ctypes.byref(index))
            return lambda: self.call(lib.qn_writer_put_weight, index.value, value._ptr)
        if isinstance(value, Packed):
            self.call(lib.qn_writer_add_packed, text, value._ptr, ctypes.byref(index))
            return lambda: self.call(lib.qn_writer_put_packed, index.value, value.ctx._ptr,
                                     value._ptr)
        found = view(value, repr(name))
        found.need_together()
        if found.device[0] != _abi.QN_CPU:
            raise errors.DeviceError(f"{name!r} is on a GPU: pass a tensor in host memory")
        shape = (ctypes.c_int64 * max(1, len(found.shape)))(*found.shape)
        self.call(lib.qn_writer_add, text, found.code, len(found.shape), ctypes.addressof(shape),
                  ctypes.byref(index))
        tensor = found.tensor()
        return lambda: self.call(lib.qn_writer_put, index.value, ctypes.byref(tensor))

    def finish(self) -> None:
        ptr, self.ptr = self.ptr, None
        check(lib.qn_writer_finish(ptr, ctypes.byref(self.error)), self.error)

    def abort(self) -> None:
        if self.ptr is not None:
            lib.qn_writer_abort(self.ptr, 0)
            self.ptr = None


def save(path: Any, values: Mapping[str, Union[Weight, Packed, Any]], *,
         metadata: Optional[Mapping[str, str]] = None, overwrite: bool = False,
         ctx: Optional[Context] = None) -> None:
    """Write weights, packed weights and arrays to a quern file, which is a safetensors file.

    Nobody sees half of it: it is written beside its place and renamed. An existing file is an
    ExistsError, unless overwrite. A path that ends in .npy takes one array, and writes npy.
    """
    values = dict(values)
    if os.fspath(path).endswith(".npy"):
        if len(values) != 1:
            raise errors.ArgumentError(f"{path}: an npy file holds one array, not {len(values)}")
        (value,) = values.values()
        found, error = view(value, "the array"), new_error()
        tensor = found.tensor()
        check(lib.qn_npy_write(_path(path), ctypes.byref(tensor), 1 if overwrite else 0,
                               ctypes.byref(error)), error)
        return
    writer = _Writer(path, ctx or default_context())
    try:
        keep = [writer.add(name, value) for name, value in values.items()]
        for key, text in (metadata or {}).items():
            writer.call(lib.qn_writer_metadata, key.encode(), text.encode())
        writer.call(lib.qn_writer_begin, 1 if overwrite else 0, 0)
        for put in keep:
            put()
    except BaseException:
        writer.abort()
        raise
    writer.finish()
