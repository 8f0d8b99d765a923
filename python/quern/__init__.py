# SPDX-License-Identifier: Apache-2.0
"""Matrix products and convolutions with block-quantized weights, for numpy and torch.

>>> import numpy as np, quern
>>> w = np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)
>>> packed = quern.quantize(w, "int4:g128").pack()
>>> x = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
>>> y = quern.matmul(x, packed, strategy="int8-block", act="silu")
>>> y.shape, y.dtype.name
((3, 256), 'float32')

docs/python.md has more; the numbers are defined in docs/numerics.md.
"""
from __future__ import annotations

try:
    import numpy as _numpy  # noqa: F401
except ImportError as _why:
    raise ImportError(f"quern needs numpy, which cannot be imported ({_why}): pip install numpy"
                      ) from None

from . import errors
from ._compare import Comparison, compare
from ._context import Context, default_context
from ._convert import convert
from ._files import Checkpoint, load, save
from ._format import formats, layouts
from ._library import lib as _lib
from ._ops import (Plan, Prepared, RowCodes, combine_rows, conv2d, conv_transpose2d, explain,
                   grouped, matmul, plan, prepare, quantize_rows)
from ._weight import Packed, Weight, awq_scales, quantize, smooth_scales
from .errors import QuernError

__version__: str = _lib.qn_version().decode()
__commit__: str = _lib.qn_commit().decode()

__all__ = ["Checkpoint", "Comparison", "Context", "Packed", "Plan", "Prepared", "QuernError",
           "RowCodes", "Weight", "awq_scales", "combine_rows", "compare", "conv2d",
           "conv_transpose2d", "convert",
           "default_context", "errors", "explain", "formats", "grouped", "layouts", "load",
           "matmul", "plan", "prepare", "quantize", "quantize_rows", "save", "smooth_scales"]
