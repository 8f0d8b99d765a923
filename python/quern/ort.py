# SPDX-License-Identifier: Apache-2.0
"""quern as an execution provider of ONNX Runtime (1.23 and newer, Linux).

    import onnxruntime, quern.ort
    session = onnxruntime.InferenceSession("model.onnx", quern.ort.session_options())

Programs that make their sessions elsewhere get it by two lines before that:

    import quern.ort
    quern.ort.register(every_session=True)

docs/onnxruntime.md tells what is claimed, what is left to ONNX Runtime, and the options.
"""
from __future__ import annotations

import functools
import os
import threading
from typing import Any, Union

from ._format import parse
from ._library import native

NAME = "QuernExecutionProvider"
LIBRARY = "libquern_ort.so"

_lock = threading.Lock()
_STRATEGIES = ("float", "int8-row", "int8-block", "dense")
_OPTIONS = ("threads", "cut", "strategy", "quantize", "layout", "log")


def library() -> str:
    """The file that ONNX Runtime loads: for programs in other languages."""
    path = native(LIBRARY)
    if path is None:
        raise ImportError(f"quern: {LIBRARY} does not lie beside the library; it is built with "
                          "-DQN_ORT=ON, and is in the wheel")
    return os.path.abspath(path)


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as why:
        raise ImportError(f"quern.ort needs onnxruntime, which cannot be imported ({why}): "
                          "pip install onnxruntime") from None
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise ImportError(f"quern.ort needs ONNX Runtime 1.23 or newer, this is "
                          f"{onnxruntime.__version__}: it loads no execution providers")
    return onnxruntime


def is_registered() -> bool:
    """Does this process's ONNX Runtime have the provider?"""
    return any(device.ep_name == NAME for device in _runtime().get_ep_devices())


def register(every_session: bool = False, **options: Union[str, int, bool]) -> str:
    """Load the provider into this process's ONNX Runtime; again is no error. Returns its name.

    every_session: sessions made from now on that ask for no provider but the CPU's have quern in
    front of it, with these options.
    """
    runtime = _runtime()
    checked = _checked(options)
    if checked and not every_session:
        raise TypeError("quern.ort.register takes options for every_session=True only; "
                        "session_options() has those of one session")
    with _lock:
        if not is_registered():
            runtime.register_execution_provider_library(NAME, library())
        if every_session:
            _put_in_front(runtime, checked)
    return NAME


def session_options(given: Any = None, **options: Union[str, int, bool]) -> Any:
    """A SessionOptions (a new one, or `given`) whose sessions have quern in front of the CPU's
    provider. Work is cut for as many threads as intra_op_num_threads says when this is called."""
    checked = _checked(options)
    register()
    runtime = _runtime()
    if given is None:
        given = runtime.SessionOptions()
    if given.intra_op_num_threads > 0:
        checked.setdefault("cut", str(given.intra_op_num_threads))
    devices = [device for device in runtime.get_ep_devices() if device.ep_name == NAME]
    given.add_provider_for_devices(devices, checked)
    return given


def _checked(options: dict[str, Any]) -> dict[str, str]:
    """Older runtimes tell nobody what the provider says of its options, so they are looked at
    here, too."""
    made = {}
    for name, value in options.items():
        if name not in _OPTIONS:
            raise TypeError(f"quern.ort has no option {name!r}: {', '.join(_OPTIONS)} are possible")
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if name in ("threads", "cut") and not (text.isdecimal() and int(text) <= 4096):
            raise ValueError(f"quern: option {name} is '{text}': a number from 0 to 4096 is "
                             "possible")
        if name == "strategy" and text not in _STRATEGIES:
            raise ValueError(f"quern: option strategy is '{text}': {', '.join(_STRATEGIES)} are "
                             "possible")
        if name == "quantize":
            parse(text)
        if name == "layout" and text not in ("nhwc", "nchw"):
            raise ValueError(f"quern: option layout is '{text}': nhwc or nchw is possible")
        if name == "log" and text not in ("0", "1"):
            raise ValueError(f"quern: option log is '{text}': 0 or 1 is possible")
        made[name] = text
    return made


def _put_in_front(runtime: Any, options: dict[str, str]) -> None:
    kind = runtime.InferenceSession
    plain = getattr(kind.__init__, "_quern_plain", kind.__init__)

    @functools.wraps(plain)
    def init(self: Any, path_or_bytes: Any, sess_options: Any = None, providers: Any = None,
             *rest: Any, **words: Any) -> None:
        names = [one[0] if isinstance(one, tuple) else one for one in providers or []]
        has = getattr(sess_options, "has_providers", lambda: False)
        if not set(names) - {"CPUExecutionProvider"} and not has():
            sess_options, providers = session_options(sess_options, **options), None
        plain(self, path_or_bytes, sess_options, providers, *rest, **words)

    init._quern_plain = plain  # type: ignore[attr-defined]
    kind.__init__ = init
