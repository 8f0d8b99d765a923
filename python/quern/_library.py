# SPDX-License-Identifier: Apache-2.0
"""The shared library: found, opened, its functions declared, its failures raised.

The library lies in the package (quern/_native). QUERN_LIBRARY names another build of the same
version instead, for example one with CUDA. Nothing here changes after the import, so threads share
it without a lock; ctypes gives up the GIL for the time of every call.
"""
from __future__ import annotations

import ctypes
import os
from typing import Any, NoReturn, Optional

from . import _abi, errors

SONAME = f"libquern.so.{_abi.VERSION[0]}"


def native(name: str) -> Optional[str]:
    """A file that came with the library, or None. An editable install has several places."""
    import quern

    named = os.environ.get("QUERN_LIBRARY")
    folders = [os.path.join(folder, "_native") for folder in quern.__path__]
    for folder in [os.path.dirname(named)] if named else folders:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    return None


def _open() -> ctypes.CDLL:
    path = os.environ.get("QUERN_LIBRARY") or native(SONAME)
    if path is None:
        raise ImportError(
            f"quern: {SONAME} is not in the package; install the wheel (pip install . from a "
            "clone builds one), or name a built library in QUERN_LIBRARY")
    try:
        found = ctypes.CDLL(path)
    except OSError as why:
        raise ImportError(f"quern: {path} cannot be loaded: {why}") from None
    version = _version_of(found, path)
    if version[:2] != _abi.VERSION[:2]:
        raise ImportError(f"quern: {path} is version {'.'.join(map(str, version))}, this package "
                          f"is for {'.'.join(map(str, _abi.VERSION))}")
    missing = []
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(found, name)
        except AttributeError:
            missing.append(name)
            continue
        function.restype, function.argtypes = result, arguments
    if missing:
        raise ImportError(f"quern: {path} lacks {', '.join(missing[:3])}: it was built from other "
                          "sources than this package")
    return found


def _version_of(found: ctypes.CDLL, path: str) -> tuple[int, ...]:
    try:
        found.qn_version.restype = ctypes.c_char_p
        return tuple(int(part) for part in found.qn_version().decode().split("."))
    except (AttributeError, ValueError):
        raise ImportError(f"quern: {path} is not quern's library") from None


lib: Any = _open()


def new_error() -> _abi.qn_error:
    """What a call may write its sentence to."""
    error = _abi.qn_error()
    error.offset = -1
    return error


def fail(status: int, text: str = "", offset: int = -1) -> NoReturn:
    """Raise the exception of a status, with the library's sentence or that of status.inc."""
    kind = errors.BY_STATUS.get(status, errors.QuernError)
    words = text or f"{lib.qn_status_name(status).decode()}: {lib.qn_status_text(status).decode()}"
    raise kind(words, offset if offset >= 0 else None)


def check(status: int, error: Optional[_abi.qn_error] = None) -> None:
    """Raise if a call has failed."""
    if status == 0:
        return
    if error is None:
        fail(status)
    fail(status, error.text.decode("utf-8", "replace"), error.offset)


def sized(kind: type) -> Any:
    """A fresh argument struct with the library's defaults."""
    made = kind()
    check(getattr(lib, f"{kind.__name__}_init_sized")(ctypes.byref(made), ctypes.sizeof(made)))
    return made


def with_error(args: Any) -> _abi.qn_error:
    """Where the calls that take this struct put the sentence of a failure."""
    error = new_error()
    args.error = ctypes.pointer(error)
    return error


def text_of(function: Any, *arguments: Any) -> str:
    """What a function of the library prints into a buffer whose size it tells."""
    length = function(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(length + 1)
    function(*arguments, buffer, length + 1)
    return buffer.value.decode("utf-8", "replace")
