# SPDX-License-Identifier: Apache-2.0
"""The context: which device, which instructions, how many threads; and scratch for its calls."""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable, Optional, Union

from . import _abi, errors
from ._library import check, fail, lib, new_error, sized

Log = Callable[[int, str], None]


class Keeper:
    """The library's context, freed when the Context and all that was made with it are gone.

    Holding the Context is not enough: of objects that only hold each other the collector calls
    every __del__, in any order. Tokens in a list count them; taking from a list is atomic.
    """

    __slots__ = ("ptr", "_tokens", "_alive")

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr
        self._tokens: list[None] = [None]
        self._alive: list[None] = [None]

    def hold(self) -> Keeper:
        self._tokens.append(None)
        return self

    def drop(self, _lib: Any = lib) -> None:
        self._tokens.pop()
        if self._tokens:
            return
        try:
            self._alive.pop()
        except IndexError:
            return
        _lib.qn_ctx_destroy(self.ptr)


class _Scratch:
    """Memory for one call at a time."""

    __slots__ = ("address", "bytes", "_keeper")

    def __init__(self, ctx: Context, wanted: int) -> None:
        self.address: Optional[int] = None
        self.bytes = 0
        self._keeper: Optional[Keeper] = None
        if ctx._device[0] == _abi.QN_CPU:
            self.address = lib.qn_memory_alloc(None, wanted, 64)
            if self.address is None:
                fail(-9, f"out of memory: {wanted} bytes of scratch")
        else:
            found, error = ctypes.c_void_p(), new_error()
            check(lib.qn_cuda_alloc(ctx._ptr, wanted, ctypes.byref(found), ctypes.byref(error)),
                  error)
            self.address, self._keeper = found.value, ctx._keeper.hold()
        self.bytes = wanted

    def __del__(self, _lib: Any = lib) -> None:
        if self.address is None:
            return
        if self._keeper is None:
            _lib.qn_memory_free(None, self.address, self.bytes)
        else:
            _lib.qn_cuda_free(self._keeper.ptr, self.address)
            self._keeper.drop()


class Context:
    """A device, the instructions that may be used on it, and the threads that work.

    device: "cpu", "cuda" or "cuda:1". threads: 0 takes as many as affinity and cgroup quota allow;
    1 makes no thread. isa: "all", "portable", "avx2", "-amx_int8,-amx_bf16", ... log: called with
    a severity (0 debug, 1 information, 2 warning) and a sentence.

    Any number of threads may use one context at once: each call has scratch of its own. In a child
    of fork() a context of the CPU goes on, on the calling thread alone; make another one there
    for more threads. It is freed when nobody holds it or anything made with it.

    >>> ctx = Context(threads=1)
    >>> ctx.threads, ctx.device
    (1, 'cpu')
    >>> Context(isa="mmx")
    Traceback (most recent call last):
        ...
    quern.errors.ArgumentError: 'mmx' is no instruction set: ...
    """

    def __init__(self, device: str = "cpu", *, threads: int = 0, isa: Union[str, int] = "all",
                 log: Optional[Log] = None) -> None:
        self._device = _device_of(device)
        self._scratch: list[_Scratch] = []
        options = sized(_abi.qn_ctx_options)
        options.device.kind, options.device.index = self._device
        options.isa_mask = isa if isinstance(isa, int) else _isa_of(isa)
        if not 0 <= threads < 1 << 31:
            raise errors.ArgumentError(f"threads is {threads}: 0 for all, or how many")
        options.n_threads = threads
        if log is not None:
            tell = log

            def on_log(_: Any, severity: int, text: bytes) -> None:
                tell(severity, text.decode("utf-8", "replace"))

            self._log = _abi.qn_log_fn(on_log)
            options.log = self._log
        made, error = ctypes.c_void_p(), new_error()
        check(lib.qn_ctx_create(ctypes.byref(options), ctypes.byref(made), ctypes.byref(error)),
              error)
        assert made.value is not None
        self._ptr: int = made.value
        self._keeper = Keeper(self._ptr)
        info = sized(_abi.qn_ctx_info)
        check(lib.qn_ctx_query(self._ptr, ctypes.byref(info)))
        self.threads: int = info.n_threads
        self.isa: tuple[str, ...] = isa_names(info.isa)
        self.cache_bytes: tuple[int, ...] = tuple(info.cache_bytes)

    def __del__(self) -> None:
        if hasattr(self, "_keeper"):
            self._keeper.drop()

    def __repr__(self) -> str:
        return (f"quern.Context({self.device!r}, threads={self.threads}, "
                f"isa={','.join(self.isa) or 'portable'!r})")

    @property
    def device(self) -> str:
        kind, index = self._device
        return "cpu" if kind == _abi.QN_CPU else f"cuda:{index}"

    def synchronize(self) -> None:
        """Wait for the GPU's work of this context; on the CPU nothing is ever left to do."""
        if self._device[0] == _abi.QN_CUDA:
            error = new_error()
            check(lib.qn_cuda_synchronize(self._ptr, ctypes.byref(error)), error)

    def set_stream(self, stream: Any) -> None:
        """Work joins this CUDA stream from now on: an address, or torch.cuda.Stream."""
        address = getattr(stream, "cuda_stream", stream)
        check(lib.qn_cuda_set_stream(self._ptr, address))

    # ---- for the operations of this package

    def _take(self, wanted: int) -> _Scratch:
        """Scratch for one call, to be given back. Lists are safe to share between threads."""
        try:
            found = self._scratch.pop()
        except IndexError:
            return _Scratch(self, max(wanted, 4096))
        if found.bytes >= wanted:
            return found
        return _Scratch(self, wanted + wanted // 4)


def _device_of(device: str) -> tuple[int, int]:
    kind, _, index = str(device).partition(":")
    if kind == "cpu" and index in ("", "0"):
        return _abi.QN_CPU, 0
    if kind == "cuda" and (index == "" or index.isdecimal()):
        return _abi.QN_CUDA, int(index or 0)
    raise errors.DeviceError(f"device is {device!r}: \"cpu\", \"cuda\" or \"cuda:1\"")


def _isa_of(text: str) -> int:
    mask, error = ctypes.c_uint64(), new_error()
    check(lib.qn_isa_parse(str(text).encode(), ctypes.byref(mask), ctypes.byref(error)), error)
    return mask.value


def isa_names(mask: int) -> tuple[str, ...]:
    """The names of the features in a mask."""
    names = (lib.qn_isa_name(1 << bit) for bit in range(64) if mask >> bit & 1)
    return tuple(name.decode() for name in names if name is not None)


# The context of those who ask for none. The lock is anew in a child of fork(): another thread of
# the parent may have held it.
_default: Optional[Context] = None
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def default_context() -> Context:
    """The context that functions use which are given none: the CPU with all its threads.

    >>> default_context() is default_context()
    True
    """
    global _default
    found = _default
    if found is None:
        with _lock:
            if _default is None:
                _default = Context()
            found = _default
    return found
