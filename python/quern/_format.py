# SPDX-License-Identifier: Apache-2.0
"""The small language of weight formats, and words for the library's numbers."""
from __future__ import annotations

import ctypes
from typing import Any, Mapping

from . import _abi, errors
from ._library import check, lib, new_error, text_of

STRATEGIES = {"float": _abi.QN_STRATEGY_FLOAT, "int8-row": _abi.QN_STRATEGY_INT8_ROW,
              "int8-block": _abi.QN_STRATEGY_INT8_BLOCK,
              "int8-static": _abi.QN_STRATEGY_INT8_STATIC, "dense": _abi.QN_STRATEGY_DENSE,
              "fp8-row": _abi.QN_STRATEGY_FP8_ROW, "fp8-block": _abi.QN_STRATEGY_FP8_BLOCK,
              "fp8-static": _abi.QN_STRATEGY_FP8_STATIC}
ACTS = {None: _abi.QN_ACT_NONE, "relu": _abi.QN_ACT_RELU, "relu6": _abi.QN_ACT_RELU6,
        "gelu": _abi.QN_ACT_GELU, "gelu_tanh": _abi.QN_ACT_GELU_TANH, "silu": _abi.QN_ACT_SILU,
        "sigmoid": _abi.QN_ACT_SIGMOID, "tanh": _abi.QN_ACT_TANH,
        "hardswish": _abi.QN_ACT_HARDSWISH, "hardsigmoid": _abi.QN_ACT_HARDSIGMOID,
        "leaky_relu": _abi.QN_ACT_LEAKY_RELU}
METHODS = {"rtn": _abi.QN_METHOD_RTN, "search": _abi.QN_METHOD_SEARCH,
           "gptq": _abi.QN_METHOD_GPTQ}
RANGES = {"narrow": _abi.QN_RANGE_NARROW, "half": _abi.QN_RANGE_HALF, "full": _abi.QN_RANGE_FULL}
GATES = {None: _abi.QN_GATE_NONE, "halves": _abi.QN_GATE_HALVES, "pairs": _abi.QN_GATE_PAIRS}
IMAGES = {"nchw": _abi.QN_NCHW, "nhwc": _abi.QN_NHWC}


def number_of(words: Mapping[Any, int], word: Any, name: str) -> int:
    try:
        return words[word]
    except (KeyError, TypeError):
        known = ", ".join(repr(known) for known in words)
        raise errors.ArgumentError(f"{name} is {word!r}: one of {known}") from None


def parse(text: str) -> _abi.qn_format:
    if not isinstance(text, str):
        raise errors.FormatError(f"the format is a {type(text).__name__}: a word as "
                                 "\"int4:g128\" is wanted")
    made, error = _abi.qn_format(), new_error()
    check(lib.qn_format_parse(text.encode(), ctypes.byref(made), ctypes.byref(error)), error)
    return made


def spelt(format: _abi.qn_format) -> str:
    return text_of(lib.qn_format_print, ctypes.byref(format))


def formats() -> tuple[str, ...]:
    """The formats that have a name of their own; int4:g128 and its like are spelt out.

    >>> "q4_k" in formats()
    True
    """
    return _until_null(lib.qn_format_name)


def layouts() -> tuple[str, ...]:
    """The layouts that packed weights can have."""
    return _until_null(lib.qn_layout_name)


def _until_null(name_at: Any) -> tuple[str, ...]:
    found: list[str] = []
    while (name := name_at(len(found))) is not None:
        found.append(name.decode())
    return tuple(found)
