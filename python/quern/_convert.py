# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other programs to quern files, and to other programs' formats: the command's work,
called from Python."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from typing import Any, Callable, Optional, Sequence, Union

from . import errors
from ._interrupt import teller
from ._library import native

_STEP = re.compile(r"\[(\d+)/(\d+)\] ")


def convert(source: Any, destination: Any, *, to: str = "quern", include: Sequence[str] = (),
            exclude: Sequence[str] = (), exact: bool = False, requantize: Optional[str] = None,
            group: Optional[int] = None, config: Any = None, gptq_zeros: str = "found",
            overwrite: bool = False, resume: bool = False,
            progress: Union[Callable[[int, int], Any], Any, None] = None) -> dict[str, Any]:
    """Write a checkpoint (a file or folder as load() reads it) for quern or for another program.

    to: "quern" (default: the same codes and scales as a quern file), "gptq", "gptq_v2", "gptq_p",
    "awq", "ct", "bnb", "gguf", or one kind alone as "gguf:q4_0". What the format does not hold
    exactly is refused by name, unless requantize="int4:g64:zp" says how it is to be quantized anew.
    include, exclude: patterns of module names. config: the folder that config.json and the
    tokenizer come from. exact: refuse what would be rounded. group: columns of a group.

    progress: called with modules written and modules in all, or a bar that has update() as tqdm's.
    What it raises, and ^C, end the conversion after the module at hand: nothing gets the name, and
    what is done waits beside it (NAME.part) for resume=True, which goes on from there, or for the
    next conversion to that name, which begins anew. It is the work of the command `quern convert`,
    in a process of its own. Returns what the command says in JSON.

    >>> import numpy as np, os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> path = os.path.join(folder, "model.safetensors")
    >>> save(path, {"q": quantize(np.eye(4, 32, dtype=np.float32), "int4:g32")})
    >>> done = convert(path, os.path.join(folder, "again.safetensors"))
    >>> load(os.path.join(folder, "again.safetensors"))["q"].format
    'int4:g32'
    >>> convert("/nonexistent", path)
    Traceback (most recent call last):
        ...
    quern.errors.QuernError: ...
    """
    program = native("quern")
    if program is None:
        raise errors.UnsupportedError("this library came without the command quern, which converts "
                                      "(it was built with QN_CLI=OFF)")
    words = [program, "convert", "--json", "--color", "never", "-o", os.fspath(destination)]
    if to != "quern":
        words += ["--to", to]
    for option, patterns in (("--include", include), ("--exclude", exclude)):
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            words += [option, pattern]
    words += ["--exact"] * exact + ["--force"] * overwrite + ["--resume"] * resume
    words += ["--quiet"] * (progress is None)
    if requantize is not None:
        words += ["--requantize", "--format", requantize]
    if group is not None:
        words += ["--group", str(group)]
    if config is not None:
        words += ["--config", os.fspath(config)]
    if gptq_zeros != "found":
        words += ["--gptq-zeros", gptq_zeros]
    status, printed, said = _run([*words, "--", os.fspath(source)], teller(progress))
    if status != 0:
        text = said.strip().removeprefix("quern: ").removeprefix("quern convert: ")
        raise errors.QuernError(text or f"the command ended with status {status}")
    made: dict[str, Any] = json.loads(printed) if printed.strip() else {}
    return made


def _run(words: list[str], tell: Optional[Callable[[int, int], Any]]) -> tuple[int, str, str]:
    """Status, what was printed, and what was said beside steps, which `tell` gets."""
    said = []
    # In a session of its own the command is stopped by what is sent to it here, once: two signals,
    # of which a terminal's ^C would be the first, kill it in the middle of a file.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=printed,
                              stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
                              start_new_session=True) as child:
            try:
                assert child.stderr is not None
                for line in child.stderr:
                    step = _STEP.match(line)
                    if step is None:
                        said.append(line)
                    elif tell is not None:
                        tell(int(step[1]), int(step[2]))
                status = child.wait()
            except BaseException:
                _stop(child)
                raise
        printed.seek(0)
        return status, printed.read(), "".join(said)


def _stop(child: subprocess.Popen[str]) -> None:
    """The command ends what it has begun; a second ^C here kills it."""
    child.send_signal(signal.SIGINT)
    try:
        child.communicate()
    except BaseException:
        child.kill()
        raise
