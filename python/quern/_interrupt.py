# SPDX-License-Identifier: Apache-2.0
"""Progress of long calls, and ^C in them.

Python runs signal handlers between its own instructions, of which a call into C has none but those
of the progress callback; and what a handler raises as a callback begins is lost by ctypes. So for
the time of the call SIGINT only sets a flag, which the callback looks at; the handler that was
there is called when the library has returned. Signals concern the main thread alone, and only there
is anything changed.
"""
from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Optional

from . import _abi


class Interruptible:
    """with Interruptible(progress) as work: pass work.callback, set work.status. On leaving,
    what stopped the work is raised."""

    def __init__(self, progress: Any) -> None:
        self.status = 0
        self._raised: Optional[BaseException] = None
        self._signal: Optional[tuple[int, Optional[FrameType]]] = None
        self._previous: Any = None
        self._is_main = threading.current_thread() is threading.main_thread()
        self._tell = teller(progress)
        self.callback = _abi.qn_progress_fn(self._called)

    def _called(self, _: Any, done: int, total: int) -> bool:
        if self._signal is not None:
            return False
        try:
            if self._tell is not None:
                self._tell(done, total)
            return True
        except BaseException as why:  # it goes through C and is raised behind it
            self._raised = why
            return False

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self._signal = (number, frame)

    def __enter__(self) -> Interruptible:
        # A handler that is None was not made in Python, and cannot be given back.
        if self._is_main and callable(signal.getsignal(signal.SIGINT)):
            try:
                self._previous = signal.signal(signal.SIGINT, self._on_signal)
            except ValueError:  # the main thread of another interpreter
                self._previous = None
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self._signal is not None:
            self._previous(*self._signal)
        if self._raised is not None:
            raise self._raised


def teller(progress: Any) -> Any:
    """What is called with steps done and in all: `progress` itself, or what moves its bar."""
    if progress is None or not hasattr(progress, "update"):
        return progress
    reached = 0

    def tell(done: int, total: int) -> None:
        """tqdm counts steps, and learns the total when it is known."""
        nonlocal reached
        if getattr(progress, "total", None) != total:
            progress.total = total
        progress.update(done - reached)
        reached = done

    return tell
