# SPDX-License-Identifier: Apache-2.0
"""How far quantized weights, or results, are from what they stand for."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _arrays, errors
from ._weight import Packed, Weight


@dataclass(frozen=True)
class Comparison:
    """What compare() finds. A NaN or an infinity on either side makes is_finite False, the
    figures NaN, and every test of them fail."""

    sqnr_db: float
    """10 log10( sum a^2 / sum (a - b)^2 ); infinity where both are equal."""
    relative: float
    """sqrt( sum (a - b)^2 / sum a^2 )."""
    max_abs: float
    cosine: float
    is_finite: bool

    def passes(self, min_sqnr_db: float) -> bool:
        return self.is_finite and self.sqnr_db >= min_sqnr_db


def _dense(values: Any, name: str) -> Any:
    if isinstance(values, Packed):
        values = values.unpack()
    if isinstance(values, Weight):
        return values.dequantize()
    if _arrays.is_torch(values):
        return values.detach().double().cpu().numpy()
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as why:
        raise errors.ArgumentError(f"{name} is no array of numbers: {why}") from None


def compare(original: Any, other: Any) -> Comparison:
    """Compare arrays, or weights: of a quantized one its values count.

    >>> import numpy as np
    >>> w = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    >>> found = compare(w, quantize(w, "int4:g128"))
    >>> found.passes(15), found.passes(60), round(found.cosine, 2)
    (True, False, 0.99)
    """
    a, b = _dense(original, "original"), _dense(other, "other")
    if a.shape != b.shape and isinstance(other, (Weight, Packed)) and a.size == b.size and \
            a.ndim in (3, 4):
        a = np.moveaxis(a, 1, -1).reshape(b.shape)
    if a.shape != b.shape:
        raise errors.ShapeError(f"original has the shape {a.shape}, other {b.shape}")
    signal = noise = product = power = largest = 0.0
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for at in range(0, flat_a.size, 1 << 20):  # doubles of a piece at a time
        x = flat_a[at:at + (1 << 20)].astype(np.float64)
        y = flat_b[at:at + (1 << 20)].astype(np.float64)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return Comparison(math.nan, math.nan, math.nan, math.nan, False)
        error = x - y
        signal, noise = signal + float(x @ x), noise + float(error @ error)
        product, power = product + float(x @ y), power + float(y @ y)
        largest = max(largest, float(np.abs(error).max()))
    ratio = noise / signal if signal > 0 else (0.0 if noise == 0 else math.inf)
    sqnr = math.inf if ratio == 0 else -math.inf if ratio == math.inf else -10 * math.log10(ratio)
    length = math.sqrt(signal) * math.sqrt(power)
    cosine = product / length if length > 0 else float(signal == power)
    return Comparison(sqnr, math.sqrt(ratio), largest, cosine, True)
