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
from ._library import check, lib, new_error
from ._weight import Packed, Weight

PACKED = ".packed"
# Tensors that a weight is kept in; the weight stands for them.
_PARTS = (".codes", ".scale", ".unit", ".zero", ".offset", ".perm", ".prescale", ".table")


def _path(path: Any) -> bytes:
    return os.fsencode(os.path.abspath(os.fspath(path)))


class Checkpoint(Mapping[str, Any]):
    """An open file as a mapping: names to quern.Weight, quern.Packed or arrays.

    Arrays are views of the mapped file, read-only; weights are loaded when they are asked for,
    packed ones used where they lie. The file stays mapped as long as anything of it is held. It
    must not be changed in that time. read() copies and converts.
    """

    def __init__(self, path: Any, ctx: Optional[Context] = None) -> None:
        self.path, self.ctx = os.fspath(path), ctx or default_context()
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_file_open(self.ctx._ptr, _path(path), ctypes.byref(made),
                               ctypes.byref(error)), error)
        self._ptr = made.value
        self._keeper = self.ctx._keeper.hold()
        self.kind = "npy" if lib.qn_file_get_kind(self._ptr) == _abi.QN_FILE_NPY else "safetensors"
        self._weights = {lib.qn_file_weight_name(self._ptr, i).decode(): None
                         for i in range(lib.qn_file_weight_count(self._ptr))}
        self.metadata: dict[str, str] = dict(self._metadata())
        self._kinds = self._names()

    def __del__(self, _lib: Any = lib) -> None:
        if hasattr(self, "_keeper"):
            _lib.qn_file_close(self._ptr)
            self._keeper.drop()

    def _metadata(self) -> Iterator[tuple[str, str]]:
        key, value, i = ctypes.c_char_p(), ctypes.c_char_p(), 0
        while lib.qn_file_metadata(self._ptr, i, ctypes.byref(key), ctypes.byref(value)) == 0:
            yield (key.value or b"").decode(), (value.value or b"").decode()
            i += 1

    def _names(self) -> dict[str, str]:
        """{name: what it is}, weights first. Their parts are not tensors of their own."""
        kinds = {name: "weight" for name in self._weights}
        hidden = {name + part for name in self._weights for part in _PARTS}
        entry = _abi.qn_entry()
        for i in range(lib.qn_file_count(self._ptr)):
            check(lib.qn_file_entry(self._ptr, i, ctypes.byref(entry)))
            name = entry.name.decode()
            base = name[:-len(PACKED)]
            if name.endswith(PACKED) and f"quern.packed.{base}" in self.metadata:
                kinds[base] = "packed"
            elif name not in hidden:
                kinds[name] = "tensor"
        return kinds

    def __repr__(self) -> str:
        return f"quern.Checkpoint({self.path!r}, {len(self)} names)"

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def kind_of(self, name: str) -> str:
        """"weight", "packed" or "tensor"."""
        try:
            return self._kinds[name]
        except KeyError:
            raise errors.NotFoundError(
                f"{self.path} has nothing of the name {name!r}; it has "
                f"{', '.join(map(repr, list(self._kinds)[:5])) or 'no tensor'}"
                f"{', ...' if len(self._kinds) > 5 else ''}") from None

    def __getitem__(self, name: str) -> Any:
        kind = self.kind_of(name)
        if kind == "tensor":
            return self._tensor(name)
        load = lib.qn_file_load_weight if kind == "weight" else lib.qn_packed_load
        made, error = ctypes.c_void_p(), new_error()
        check(load(self.ctx._ptr, self._ptr, name.encode(), ctypes.byref(made),
                   ctypes.byref(error)), error)
        assert made.value is not None
        if kind == "weight":
            return Weight(made.value, self.ctx)
        return Packed(made.value, self.ctx, self)

    def _entry(self, name: str) -> _abi.qn_entry:
        if self.kind_of(name) != "tensor":
            raise errors.ArgumentError(f"{name!r} is quantized: take it by its name, and "
                                       "dequantize() it")
        entry = _abi.qn_entry()
        check(lib.qn_file_find(self._ptr, name.encode(), ctypes.byref(entry)))
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


def load(path: Any, *, ctx: Optional[Context] = None) -> Checkpoint:
    """Open a quern, safetensors or npy file (found from its content; an npy file's only name is
    ""). All of its header is checked; nothing in it is trusted.

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
    return Checkpoint(path, ctx)


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
