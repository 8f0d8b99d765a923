# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other programs to quern files, and to other programs' formats: the command's work,
called from Python."""
from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Optional, Sequence

from . import errors
from ._library import native


def convert(source: Any, destination: Any, *, to: str = "quern", include: Sequence[str] = (),
            exclude: Sequence[str] = (), exact: bool = False, requantize: Optional[str] = None,
            group: Optional[int] = None, config: Any = None, gptq_zeros: str = "found",
            overwrite: bool = False) -> dict[str, Any]:
    """Write a checkpoint (a file or folder as load() reads it) for quern or for another program.

    to: "quern" (default: the same codes and scales as a quern file), "gptq", "gptq_v2", "gptq_p",
    "awq", "ct", "bnb", "gguf", or one kind alone as "gguf:q4_0". What the format does not hold
    exactly is refused by name, unless requantize="int4:g64:zp" says how it is to be quantized anew.
    include, exclude: patterns of module names. config: the folder that config.json and the
    tokenizer come from. exact: refuse what would be rounded. group: columns of a group. It is the
    work of the command `quern convert`, in a process of its own: ^C ends it, and nothing half
    written stays under the name. Returns what the command says in JSON.

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
    words = [program, "convert", "--quiet", "--json", "--color", "never", "-o",
             os.fspath(destination)]
    if to != "quern":
        words += ["--to", to]
    for option, patterns in (("--include", include), ("--exclude", exclude)):
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            words += [option, pattern]
    words += ["--exact"] * exact + ["--force"] * overwrite
    if requantize is not None:
        words += ["--requantize", "--format", requantize]
    if group is not None:
        words += ["--group", str(group)]
    if config is not None:
        words += ["--config", os.fspath(config)]
    if gptq_zeros != "found":
        words += ["--gptq-zeros", gptq_zeros]
    done = subprocess.run([*words, "--", os.fspath(source)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("quern: ").removeprefix("quern convert: ")
        raise errors.QuernError(said or f"the command ended with status {done.returncode}")
    made: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    return made
