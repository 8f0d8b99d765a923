# SPDX-License-Identifier: Apache-2.0
"""quern for torch: operators, layers, quantization of whole models.

>>> import torch, quern.torch
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
>>> done = quern.torch.quantize_(model, "int4:g32")
>>> [(layer.name, layer.format) for layer in done]
[('0', 'int4:g32'), ('2', 'int4:g32')]
>>> model(torch.zeros(3, 64)).shape
torch.Size([3, 4])

docs/torch.md is the manual. The operators are torch.ops.quern.matmul and its like; registered_from
says whether their kernels are called by C or by Python.
"""
from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as _why:
    raise ImportError(f"quern.torch needs torch, which cannot be imported ({_why})") from None

from ._layers import (Conv1d, Conv2d, ConvTranspose2d, Embedding, GroupedLinear, Layer, Linear,
                      context_of)
from ._model import Quantized, load_, quantize_
from ._operators import REGISTERED_FROM as registered_from
from ._operators import WHY as why_not_from_c
from ._program import load_program, save_program

__all__ = ["Conv1d", "Conv2d", "ConvTranspose2d", "Embedding", "GroupedLinear", "Layer", "Linear",
           "Quantized", "context_of", "load_", "load_program", "quantize_", "registered_from",
           "save_program", "why_not_from_c"]
