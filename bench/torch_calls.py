#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of an operator of torch costs, beside the C call alone and torch's own, in turn.

    QUERN_LIBRARY=build/release/libquern.so PYTHONPATH=python python3 bench/torch_calls.py
"""
import time

import torch

import quern
import quern.torch
from quern import _ops

ROUNDS, CALLS = 150, 200


def the_c_call(packed, x):
    """The library's function through ctypes, with all its arguments prepared."""
    quern.matmul(x, packed)
    call = next(iter(packed._ready.values())).pop()
    out = torch.empty(1, packed.shape[0])
    call.x.data, call.y.data = x.data_ptr(), out.data_ptr()
    scratch = packed.ctx._take(call.scratch_bytes)

    def run():
        _ops._matmul_run(call.plan_ptr, call.ref, scratch.address, scratch.bytes)
        return out, scratch

    return run


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ctx = quern.Context(threads=1)
    packed = quern.quantize(torch.randn(16, 32), "int4:g32", ctx=ctx).pack()
    layer, linear, x = quern.torch.Linear(packed), torch.nn.Linear(32, 16), torch.randn(1, 32)
    number = layer.held.number
    plain = torch.ops.quern.matmul_inference.default
    differentiable = torch.ops.quern.matmul.default
    calls = {
        "the C call, through ctypes": the_c_call(packed, x),
        "ctypes, a call that does nothing":
            lambda: _ops.lib.qn_plan_scratch_bytes(None),
        "torch.ops.quern.matmul_inference": lambda: plain(x, number, None, 0, 0),
        "torch.ops.quern.matmul": lambda: differentiable(x, number, None, 0, 0),
        "quern.torch.Linear": lambda: layer(x),
        "quern.matmul": lambda: quern.matmul(x, packed),
        "torch.empty": lambda: torch.empty((1, 16)),
        "torch.ops.aten.clone": lambda: torch.ops.aten.clone.default(x),
        "torch.nn.Linear": lambda: linear(x),
    }
    best = dict.fromkeys(calls, 1e9)
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, call in calls.items():
                begin = time.perf_counter()
                for _ in range(CALLS):
                    call()
                best[name] = min(best[name], (time.perf_counter() - begin) / CALLS * 1e6)
    print(f"torch {torch.__version__}, operators from {quern.torch.registered_from}")
    for name, us in best.items():
        print(f"{name:34} {us:6.2f} us")


if __name__ == "__main__":
    main()
