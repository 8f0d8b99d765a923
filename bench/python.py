#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs beyond the library's: bench/python.py, with quern installed.

A product so small that hardly anything is computed, one thread; the least of many rounds, since
others use the machine. "ctypes alone" is the library's call through ctypes, all prepared.
"""
import time

import numpy as np

import quern
from quern import _ops


def rounds(calls, n=300):
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(400):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(n):
                call()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / n / 1000)
    return best


def main():
    ctx = quern.Context(threads=1)
    w = quern.quantize(np.ones((16, 32), np.float32), "int4:g32", ctx=ctx).pack()
    x = np.ones((1, 32), np.float32)
    quern.matmul(x, w)
    call = next(iter(w._ready.values()))[0]
    scratch = ctx._take(call.scratch_bytes)
    run, prepared = _ops._matmul_run, (call.plan_ptr, call.ref, scratch.address, scratch.bytes)
    calls = {"numpy": lambda: quern.matmul(x, w), "numpy.empty": lambda: np.empty((1, 16), "f4"),
             "ctypes alone": lambda: run(*prepared)}
    try:
        import torch
    except ImportError:
        print("skipped: no torch here")
    else:
        t = torch.ones(1, 32)
        calls["torch"] = lambda: quern.matmul(t, w)
        calls["torch.empty"] = lambda: torch.empty((1, 16))
    for name, us in rounds(calls).items():
        print(f"{name:12} {us:6.2f} us")


if __name__ == "__main__":
    main()
