#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast checkpoints become canonical weights and packed weights, as a share of this machine's
memory bandwidth, in turn in one process: bytes of the file over time, against the bytes that two
threads read of a large array meanwhile.

    QUERN_LIBRARY=build/ci/libquern.so python3 bench/imports.py [N K]

Where the `gguf` package is installed, its dequantize() of the same bytes to f32 stands beside (one
thread of numpy). Seconds of the processor are told as well: they depend less on who else is there.
"""
import ctypes
import os
import sys
import tempfile
import threading
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "oracle"))
from packers import awq_gemm, gptq, save # noqa: E402
from quern_checkpoint import Checkpoint, Error, context, lib, must # noqa: E402

N, K = (int(v) for v in sys.argv[1:3]) if len(sys.argv) > 2 else (4096, 14336)
GROUP, ROUNDS = 128, 5
WAYS = {"canonical": "to canonical", "packed": "to packed by way of it",
        "straight": "straight to packed"}


def models(root):
    draw = np.random.default_rng(1)
    u = draw.integers(0, 16, (K, N), dtype="u1")
    z = np.full((K // GROUP, N), 8, "u1")
    s = draw.uniform(.01, .02, (K // GROUP, N)).astype("f2")
    awq = {"qweight": awq_gemm(u), "qzeros": awq_gemm(z), "scales": s}
    for name, tensors in (("awq", awq), ("gptq", gptq(u, z, s, 4, v1=False))):
        save(os.path.join(root, name), {f"m.{k}": v for k, v in tensors.items()}, {
            "quantization_config": {"quant_method": name, "bits": 4, "group_size": GROUP,
                                    "sym": True}})
        yield name, os.path.join(root, name), "m.weight", None
    try:
        import gguf
    except ImportError:
        return
    raw = draw.integers(0, 256, (N, K // 256, 144), dtype=np.uint8)
    raw[..., :4] = np.array([0.01, 0.02], "f2").view("u1")
    path = os.path.join(root, "m.gguf")
    writer = gguf.GGUFWriter(path, "test")
    writer.add_tensor("m.weight", raw.reshape(N, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    blocks = raw.reshape(N, -1)
    yield "gguf Q4_K", path, "m.weight", lambda: gguf.quants.dequantize(
        blocks, gguf.GGMLQuantizationType.Q4_K)


def reading(array):
    """Seconds that two threads take to read it."""
    halves = np.array_split(array, 2)
    threads = [threading.Thread(target=part.max) for part in halves]
    begin = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - begin


def load(c, name, how):
    """Seconds of making a canonical weight, packed weights by way of it, or straight."""
    weight, packed, error = ctypes.c_void_p(), ctypes.c_void_p(), Error()
    part = (ctypes.c_int64 * 3)(c.index(name), 0, -1)
    begin = time.perf_counter()
    if how == "straight":
        must(lib.qn_checkpoint_pack(context, c.handle, 1, part, None, ctypes.byref(packed), None,
                                    ctypes.byref(error)), error)
    else:
        must(lib.qn_checkpoint_load(context, c.handle, ctypes.c_int64(c.index(name)),
                                    ctypes.c_int64(0), ctypes.c_int64(-1), ctypes.byref(weight),
                                    None, ctypes.byref(error)), error)
    if how == "packed":
        must(lib.qn_pack(context, weight, None, ctypes.byref(packed), ctypes.byref(error)), error)
    took = time.perf_counter() - begin
    lib.qn_weight_destroy(weight)
    lib.qn_packed_destroy(packed)
    return took


def main():
    lib.qn_packed_destroy.argtypes = [ctypes.c_void_p]
    large = np.ones(1 << 26, "f4") # 256 MB
    with tempfile.TemporaryDirectory() as root:
        for what, path, name, other in models(root):
            with Checkpoint(path) as c:
                size = c.module(name).bytes
                shares, used = {how: [] for how in WAYS}, {how: [] for how in WAYS}
                for _ in range(ROUNDS + 1):
                    rate = large.nbytes / reading(large)
                    for how in WAYS:
                        begin = time.process_time()
                        shares[how].append(size / load(c, name, how) / rate)
                        used[how].append(time.process_time() - begin)
                    if other is not None:
                        begin = time.perf_counter()
                        other()
                        took = time.perf_counter() - begin
                        shares.setdefault("package", []).append(size / took / rate)
                shares = {k: sorted(v[1:]) for k, v in shares.items()} # the first is a warm-up
                used = {k: sorted(v[1:])[ROUNDS // 2] for k, v in used.items()}
                print(f"{what} {N} x {K}, {size / 1e6:.0f} MB; the memory {rate / 1e9:.0f} GB/s:",
                      ", ".join(f"{WAYS.get(how, 'the package')} {v[ROUNDS // 2]:.3f} "
                                f"({v[0]:.3f} to {v[-1]:.3f}"
                                + (f", {used[how] / size * 1e9:.2f} s/GB)" if how in used else ")")
                                for how, v in shares.items()), flush=True)


if __name__ == "__main__":
    main()
