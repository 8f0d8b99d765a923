#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern on a GPU beside what PyTorch brings: cuBLAS in fp16, int8 and fp8, and torch's int4 kernel.

    bench/gpu.py [--quern build/release/quern] [--shapes 4096x4096,...] [--m 1,16,256,...]
                 [--weights int4:g128,...] [--x f16] [--device 0] [--out bench/results/gpu.jsonl]

Same shapes, same run, one after another: for every shape and m first the peers, then `quern bench
--device cuda`, which checks its result before it measures. All times are microseconds of a call
inside a CUDA graph; every call reads weights of its own, and all copies together exceed the second
level cache several times. One JSON object a line goes to --out; a table goes to standard output.
For m = 1 the fixed cost and the slope of each kind are fitted apart: t = t0 + bytes / bandwidth.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROTATE = 400 << 20  # eight times the second level cache of an H100
REPLAYS = 15


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default="build/release/quern")
    p.add_argument("--shapes", default="4096x4096,14336x4096,8192x8192,28672x8192")
    p.add_argument("--m", default="1,16,64,256,1024,4096")
    p.add_argument("--weights", default="int4:g128")
    p.add_argument("--strategy", default="float")
    p.add_argument("--x", default="f16", choices=("f16", "bf16", "f32"))
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("--out", default=None, help="a file of JSON lines; added to")
    return p.parse_args()


class Peers:
    """Ways of PyTorch to multiply; each gives (bytes of one copy of the weights, make, call)."""

    def __init__(self, index):
        import torch
        self.torch = torch
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.set_grad_enabled(False)
        self.name = torch.cuda.get_device_name(index)

    def fp16(self, n, k, m):
        t = self.torch
        x = t.randn(m, k, device=self.device, dtype=t.float16)
        y = t.empty(m, n, device=self.device, dtype=t.float16)
        return (n * k * 2, lambda: t.randn(n, k, device=self.device, dtype=t.float16),
                lambda w: t.mm(x, w.t(), out=y))

    def int8(self, n, k, m):
        t = self.torch
        if m <= 16:
            return None  # the operator wants more rows
        x = t.randint(-127, 128, (m, k), device=self.device, dtype=t.int8)
        return (n * k, lambda: t.randint(-127, 128, (n, k), device=self.device, dtype=t.int8),
                lambda w: t._int_mm(x, w.t()))

    def fp8(self, n, k, m):
        t = self.torch
        if m % 16 != 0:
            return None
        e4m3 = t.float8_e4m3fn
        x = t.randn(m, k, device=self.device).to(e4m3)
        one = t.ones((), device=self.device)
        return (n * k, lambda: t.randn(n, k, device=self.device).to(e4m3),
                lambda w: t._scaled_mm(x, w.t(), one, one, out_dtype=t.bfloat16))

    def int4(self, n, k, m):
        t = self.torch
        if m > 256:
            return None  # slower than any other way; it would only cost time
        x = t.randn(m, k, device=self.device, dtype=t.bfloat16)
        facts = t.ones(k // 128, n, 2, device=self.device, dtype=t.bfloat16)

        def make():
            codes = t.randint(0, 256, (n, k // 2), device=self.device, dtype=t.uint8)
            return t.ops.aten._convert_weight_to_int4pack(codes, 8)
        return (n * k // 2, make, lambda w: t.ops.aten._weight_int4pack_mm(x, w, 128, facts))

    def ways(self):
        return {"cublas fp16": self.fp16, "cublas int8": self.int8, "cublas fp8": self.fp8,
                "torch int4 g128": self.int4}

    def time(self, way):
        """Microseconds of a call: [median, p10, p90]."""
        t = self.torch
        size, make, call = way
        copies = [make() for _ in range(max(2, -(-ROTATE // size)))]
        calls = len(copies) * max(1, 24 // len(copies))
        stream = t.cuda.Stream()
        with t.cuda.stream(stream):
            for w in copies[:2]:
                call(w)
        stream.synchronize()
        graph = t.cuda.CUDAGraph()
        with t.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(copies[i % len(copies)])
        begin, end = (t.cuda.Event(enable_timing=True) for _ in range(2))
        us = []
        with t.cuda.stream(stream):
            for _ in range(REPLAYS + 1):
                begin.record(stream)
                graph.replay()
                end.record(stream)
                end.synchronize()
                us.append(begin.elapsed_time(end) * 1e3 / calls)
        us = sorted(us[1:])
        return [statistics.median(us), us[len(us) // 10], us[-1 - len(us) // 10]]


def peer_record(peers, name, n, k, m, us, size):
    return {"op": "matmul", "n": n, "k": k, "m": m, "weights": name, "strategy": "peer",
            "device": peers.name, "kernel": name, "us_median": us[0], "us_p10": us[1],
            "us_p90": us[2], "bytes": size, "ops": 2 * m * n * k}


def ours(args, n, k, m):
    command = [args.quern, "bench", "--device", "cuda:%d" % args.device, "--n", str(n), "--k",
               str(k), "--m", str(m), "--weights", args.weights, "--strategy", args.strategy, "--x",
               args.x, "--y", args.x, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit("gpu.py: %s: exit status %d" % (" ".join(command), done.returncode))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def fit(points):
    """Least squares of us = t0 + bytes / rate; None with fewer than two sizes."""
    if len({b for b, _ in points}) < 2:
        return None
    mean_b = statistics.fmean(b for b, _ in points)
    mean_t = statistics.fmean(t for _, t in points)
    slope = (sum((b - mean_b) * (t - mean_t) for b, t in points) /
             sum((b - mean_b) ** 2 for b, _ in points))
    return mean_t - slope * mean_b, 1 / (slope * 1e6)  # us; TB/s


def save(path, records):
    """All lines so far and the new ones, under a name of its own until they are complete."""
    old = b""
    if os.path.exists(path):
        with open(path, "rb") as f:
            old = f.read()
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as f:
        f.write(old)
        for r in records:
            f.write((json.dumps(r) + "\n").encode())
    os.replace(f.name, path)


def main():
    args = parse()
    peers = None if args.no_peers else Peers(args.device)
    shapes = [tuple(int(v) for v in s.split("x")) for s in args.shapes.split(",")]
    records, at_one = [], {}
    print("%-13s %5s  %-34s %9s %9s %9s" % ("n x k", "m", "", "us", "GB/s", "Top/s"))
    for n, k in shapes:
        for m in (int(v) for v in args.m.split(",")):
            found = []
            for name, way in (peers.ways() if peers else {}).items():
                made = way(n, k, m)
                if made is not None:
                    found.append(peer_record(peers, name, n, k, m, peers.time(made), made[0]))
                peers.torch.cuda.empty_cache()
            found += ours(args, n, k, m)
            for r in found:
                us = r["us_median"]
                name = r["kernel"] if r["strategy"] == "peer" else "quern %s %s" % (
                    r["weights"], r["strategy"])
                print("%-13s %5d  %-34s %9.2f %9.0f %9.1f" % (
                    "%dx%d" % (n, k), m, name, us, r["bytes"] / us * 1e-3, r["ops"] / us * 1e-6),
                    flush=True)
                if m == 1:
                    at_one.setdefault(name, []).append((r["bytes"], us))
            records += found
    for name, points in at_one.items():
        t = fit(points)
        if t is not None:
            print("m = 1: %-34s t0 %6.2f us, then %5.2f TB/s" % (name, *t))
            records.append({"op": "fit", "m": 1, "kernel": name, "t0_us": t[0], "tb_s": t[1]})
    if args.out:
        save(args.out, records)


if __name__ == "__main__":
    main()
