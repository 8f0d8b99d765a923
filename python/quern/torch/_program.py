# SPDX-License-Identifier: Apache-2.0
"""Exported programs in files. A graph names its weights by numbers of this process; the file has
the weights beside it, and when it is read they get numbers of the process that reads."""
from __future__ import annotations

import base64
import os
import tempfile
from typing import Any

import torch

from .. import errors
from .._files import load, save
from ._operators import Held, held

_FILE = "quern_weights"


def _calls(program: Any) -> Any:
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and str(node.target).startswith("quern."):
                yield node


def save_program(program: Any, path: Any) -> None:
    """Write a torch.export.ExportedProgram whose layers are of this package, weights and all.
    torch.export.save() would write numbers of weights that only this process knows."""
    values: dict[str, Any] = {}
    for node in _calls(program):
        number = node.args[1]
        for i, packed in enumerate(held(number).weights):
            values[f"{number}.{i}"] = packed.unpack()
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "weights.safetensors")
        save(name, values)
        with open(name, "rb") as file:
            weights = base64.b64encode(file.read()).decode()  # torch takes text alone
    torch.export.save(program, path, extra_files={_FILE: weights})


def load_program(path: Any) -> Any:
    """Read what save_program() has written. The weights live as long as the program."""
    extra: dict[str, Any] = {_FILE: ""}
    program = torch.export.load(path, extra_files=extra)
    found = extra[_FILE]
    if not found:
        raise errors.NotFoundError(f"{path} has no weights of quern: it was not written by "
                                   "quern.torch.save_program()")
    numbers: dict[int, Held] = {}
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "weights.safetensors")
        with open(name, "wb") as file:
            file.write(base64.b64decode(found))
        checkpoint = load(name)
        parts: dict[int, list[Any]] = {}
        for key in sorted(checkpoint, key=lambda key: [int(v) for v in key.split(".")]):
            parts.setdefault(int(key.split(".")[0]), []).append(checkpoint[key].pack())
        numbers = {number: Held(packed) for number, packed in parts.items()}
        del checkpoint
    for node in _calls(program):
        arguments = list(node.args)
        old = arguments[1]
        arguments[1] = numbers[old].number
        node.args = tuple(arguments)
        node.meta["quern_weights"] = numbers[old]  # copies of the graph keep them, too
    program.graph_module.recompile()
    return program
