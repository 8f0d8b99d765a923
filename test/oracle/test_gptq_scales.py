#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""QN_METHOD_GPTQ against the recursion as its authors wrote it, in numpy and in double.

    test_gptq_scales.py                        QUERN_LIBRARY names the shared library

Both ways of scaling a group are computed: from the columns that earlier errors have already moved
(the usual way), and from the original weights. quern's error on inputs that it has not seen must be
at most 2 % above the better of the two, and most codes those of the second, which is its own way.
Inputs have a spectrum that decays, and a few channels far out, as those of a trained layer.
Exit status 77 when numpy is missing.
"""
import ctypes
import os
import sys

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing} (build/venv/bin/pip install -r test/oracle/requirements.txt)")
    sys.exit(77)

GPTQ, SYMMETRIC, ZERO = 2, 0, 1

# k, decay of the spectrum, bits, group, shift, act_order, search of scales
CASES = [
    (512, 1.5, 4, 128, SYMMETRIC, 0, 0),
    (512, 1.5, 3, 128, SYMMETRIC, 0, 0),
    (512, 1.5, 2, 64, SYMMETRIC, 0, 0),
    (512, 1.0, 4, 32, ZERO, 0, 0),
    (512, 1.5, 3, 128, ZERO, 0, 0),
    (512, 1.5, 3, 64, SYMMETRIC, 1, 0),
    (1024, 1.0, 3, 128, SYMMETRIC, 0, 0),
    (512, 1.5, 3, 128, SYMMETRIC, 0, 1),
    (512, 1.5, 2, 64, SYMMETRIC, 0, 1),
    (512, 1.5, 2, 64, ZERO, 0, 1),
]
ROWS, SAMPLES, HELD_OUT, DAMPING = 64, 2048, 1024, 0.01


# ---- the library, by its exported symbols --------------------------------------------------------

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("device", ctypes.c_int32 * 2), ("shape", ctypes.c_int64 * 6),
                ("stride", ctypes.c_int64 * 6)]


class Format(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("bits", ctypes.c_int32), ("group", ctypes.c_int64),
                ("blocks", ctypes.c_int32), ("shift", ctypes.c_int32),
                ("scale_dtype", ctypes.c_int32), ("superblock", ctypes.c_int32),
                ("superbits", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("format", Format), ("method", ctypes.c_int32),
                ("range", ctypes.c_int32), ("kh", ctypes.c_int32), ("kw", ctypes.c_int32),
                ("conv_groups", ctypes.c_int32), ("act_order", ctypes.c_int32),
                ("importance", ctypes.c_void_p), ("hessian", ctypes.c_void_p),
                ("samples", ctypes.c_void_p), ("damping", ctypes.c_double),
                ("prescale", ctypes.c_void_p), ("progress", ctypes.c_void_p),
                ("progress_arg", ctypes.c_void_p), ("search_scales", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("qn_tensor_2d",):
            getattr(self.lib, name).restype = Tensor
        self.ctx = ctypes.c_void_p()
        self.check(self.lib.qn_ctx_create(None, ctypes.byref(self.ctx), None))

    @staticmethod
    def check(status, err=None):
        if status != 0:
            raise RuntimeError(f"status {status}: {err.raw[16:].split(bytes(1))[0] if err else ''}")

    def tensor(self, array):
        dtype = {np.dtype("f4"): 1, np.dtype("f8"): 8}[array.dtype]
        return self.lib.qn_tensor_2d(array.ctypes.data_as(ctypes.c_void_p), dtype,
                                     ctypes.c_int64(array.shape[0]),
                                     ctypes.c_int64(array.shape[1]))

    def quantize(self, weights, hessian, case):
        """What the quantized weights are worth, in f32."""
        _, _, bits, group, shift, act_order, search = case
        spec = f"int{bits}:g{group}" + (":zp" if shift == ZERO else "")
        err = ctypes.create_string_buffer(512)
        options, weight = Options(), ctypes.c_void_p()
        self.check(self.lib.qn_quantize_options_init_sized(
            ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options))))
        self.check(self.lib.qn_format_parse(spec.encode(), ctypes.byref(options.format), err), err)
        dense, square = self.tensor(weights), self.tensor(hessian)
        options.method, options.act_order, options.damping = GPTQ, act_order, DAMPING
        options.hessian = ctypes.cast(ctypes.pointer(square), ctypes.c_void_p)
        options.search_scales = search
        self.check(self.lib.qn_quantize(self.ctx, ctypes.byref(dense), ctypes.byref(options),
                                        ctypes.byref(weight), err), err)
        out = np.zeros_like(weights)
        values = self.tensor(out)
        self.check(self.lib.qn_weight_dequantize(self.ctx, weight, ctypes.c_bool(False),
                                                 ctypes.byref(values)))
        self.lib.qn_weight_destroy(weight)
        return out


# ---- the usual recursion -------------------------------------------------------------------------

def fit(x, bits, shift):
    """Scale and zero point of each row by its range."""
    if shift == SYMMETRIC:
        scale = np.abs(x).max(1) / (2 ** (bits - 1) - 1)
        return scale, np.zeros_like(scale)
    lo, hi = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
    scale = (hi - lo) / (2 ** bits - 1)
    return scale, np.rint(-lo / scale) - 2 ** (bits - 1)


def gptq(weights, hessian, case, from_original):
    _, _, bits, group, shift, act_order, _ = case
    k = weights.shape[1]
    order = np.argsort(-np.diag(hessian), kind="stable") if act_order else np.arange(k)
    h = hessian[np.ix_(order, order)].copy()
    h[np.diag_indices(k)] += DAMPING * np.diag(hessian).mean()
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    original = weights[:, order].astype(float)
    moved, out = original.copy(), np.zeros_like(original)
    least, most = -2.0 ** (bits - 1), 2.0 ** (bits - 1) - 1
    for i in range(k):
        if i % group == 0:
            source = original if from_original else moved
            scale, zero = fit(source[:, i:i + group], bits, shift)
        code = np.clip(np.rint(moved[:, i] / scale) + zero, least, most)
        out[:, i] = scale * (code - zero)
        error = (moved[:, i] - out[:, i]) / upper[i, i]
        moved[:, i:] -= error[:, None] * upper[i, i:]
    back = np.empty_like(out)
    back[:, order] = out
    return back


# ---- both ----------------------------------------------------------------------------------------

def inputs(rng, k, decay, basis, channels):
    def draw(count):
        spectrum = np.arange(1, k + 1) ** (-decay / 2)
        return (rng.standard_normal((count, k)) * spectrum) @ basis * channels
    return draw(SAMPLES), draw(HELD_OUT)


def compare(library, case, seed):
    rng = np.random.default_rng(seed)
    k, decay = case[:2]
    basis = np.linalg.qr(rng.standard_normal((k, k)))[0]
    channels = np.where(rng.random(k) < 0.01, 10.0, 1.0)
    seen, held_out = inputs(rng, k, decay, basis, channels)
    weights = (0.02 * rng.standard_normal((ROWS, k))).astype("f4")
    hessian = seen.T @ seen
    wanted = held_out @ weights.T.astype(float)

    def error(values):
        return np.linalg.norm(held_out @ values.T - wanted) / np.linalg.norm(wanted)
    ours = library.quantize(weights, hessian, case)
    usual, original = (gptq(weights, hessian, case, way) for way in (False, True))
    same = np.isclose(ours, original, rtol=1e-5, atol=1e-9).mean()
    return error(ours), error(usual), error(original), same


def main():
    library = Library(os.environ["QUERN_LIBRARY"])
    failed = 0
    print("    k decay bits group                  quern   moved  original  same codes")
    for i, case in enumerate(CASES):
        ours, usual, original, same = compare(library, case, 100 + i)
        k, decay, bits, group, shift, act_order, search = case
        bad = ours > 1.02 * min(usual, original) or (not search and same < 0.9)
        failed += bad
        words = " ".join(word for word, there in (("zp", shift == ZERO), ("act", act_order),
                                                  ("search", search)) if there)
        print(f"{k:5} {decay:5} {bits:4} {group:5} {words:14} {ours:9.4f} {usual:7.4f} "
              f"{original:9.4f} {100 * same:9.1f} %{'  <-- worse' if bad else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
