#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern on a GPU beside what PyTorch brings: cuBLAS in fp16, int8 and fp8, and torch's int4 kernel.

    bench/gpu.py [--quern build/release/quern] [--quick] [--shapes 4096x4096,...] [--m 1,16,...]
                 [--sets decode,int8-row,...] [--device 0] [--no-peers] [--convs] [--experts]
                 [--out FILE | --into FILE]

The same shapes in one run: for every shape first the peers, then `quern bench --device cuda`, which
checks each result against sums in double before it measures. All times are microseconds of a call
inside a CUDA graph; the calls of a graph read weights of their own, which together exceed the
second level cache several times. For m = 1 and 16 fixed cost and slope are fitted apart, over the
shapes: t = t0 + bytes / bandwidth.

A table goes to standard output as it comes. --out gets one JSON object a line: first what was run
on what, then every case; the file is FILE.part until all is done, and replaces what was there.
bench/plot.py makes pictures and tables of it. Exit status 1: a case failed or was wrong.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import time

ROTATE = 400 << 20  # eight times the second level cache of an H100
REPLAYS = 15
LONG_US = 6000      # calls of a graph take about so long together

SHAPES = "4096x4096,14336x4096,8192x8192,28672x8192"
ROWS = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096"
# What is measured of quern: name, weights, strategy, programmatic dependent launch, rows (None: all
# of --m).
SETS = [
    ("float", "int4:g128:f16", "float", False, None),
    ("float-pdl", "int4:g128:f16", "float", True, (1, 2, 4, 8, 16)),
    ("dense", "int4:g128:f16", "dense", False, (64, 128, 256, 512, 1024, 2048, 4096)),
    ("float-g32", "int4:g32:f16", "float", False, (1, 16, 256, 1024, 4096)),
    ("dense-g32", "int4:g32:f16", "dense", False, (64, 256, 1024, 4096)),
    ("w8a16", "int8:pc", "float", False, (1, 16, 256, 1024, 4096)),
    ("int8-block", "int4:g128:f16", "int8-block", False, (1, 16, 64, 256, 1024, 4096)),
    ("int8-row", "int8:pc", "int8-row", False, (1, 16, 64, 256, 1024, 4096)),
    ("q4_0", "q4_0", "int8-block", False, (1, 16, 64, 256, 1024, 4096)),
    ("fp8-row", "fp8:pc", "fp8-row", False, (1, 16, 64, 256, 1024, 4096)),
    ("fp8-block", "fp8:g128", "fp8-block", False, (1, 16, 64, 256, 1024, 4096)),
    ("w8a16-fp8", "fp8:pc", "float", False, (1, 4, 16)),
    ("int8-pdl", "int4:g128:f16", "int8-block", True, (1, 16)),
    ("zp", "int4:g128:zp", "float", False, (1, 4, 16, 64, 1024)),
    ("nf4", "nf4:g64", "float", False, (1, 4, 16, 32, 64, 1024)),
    ("mxfp4", "mxfp4", "float", False, (1, 4, 16, 32, 64, 1024)),
    ("nvfp4", "nvfp4", "float", False, (1, 4, 16, 32)),
    ("q4_k", "q4_k", "float", False, (1, 4, 16, 32, 64, 1024)),
    ("q6_k", "q6_k", "float", False, (1, 4, 16, 32)),
    ("mxfp4-pdl", "mxfp4", "float", True, (1, 4, 16)),
    ("nf4-pdl", "nf4:g64", "float", True, (1, 4, 16)),
]
# Convolutions beside cuDNN's in f16, channels innermost: images, input channels, side of the image,
# outputs, side of the kernel, stride. Padding is (kernel - 1) / 2.
CONVS = [(batch, *layer) for batch in (1, 32) for layer in [
    (64, 56, 64, 3, 1), (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (256, 56, 512, 1, 2),
    (128, 28, 128, 3, 1), (256, 28, 256, 3, 2), (256, 14, 256, 3, 1), (1024, 14, 256, 1, 1),
    (512, 14, 512, 3, 2), (512, 7, 512, 3, 1)]] + [
    (2, 320, 64, 320, 3, 1), (2, 640, 32, 640, 3, 1), (2, 1280, 16, 1280, 3, 1),
    (2, 320, 64, 320, 3, 2), (2, 960, 64, 320, 3, 1)]
# Of quern: name, weights, strategy, type of x, type of y.
CONV_SETS = [
    ("conv-int4", "int4:g64:f16", "float", "f16", "f16"),
    ("conv-int8", "int8:pc", "float", "f16", "f16"),
    ("conv-static", "int8:pc", "int8-static", "i8", "f16"),
]
# Products of experts: experts, those of a token, outputs, positions; and how many tokens.
EXPERTS, TOKENS = [(8, 2, 14336, 4096), (64, 8, 2048, 7168)], "8,32,64,256,2048"
EXPERT_SETS = [
    ("experts-int4", "int4:g128:f16", "float"),
    ("experts-int8", "int4:g128:f16", "int8-block"),
    ("experts-fp8", "fp8:g128", "fp8-block"),
    ("experts-mxfp4", "mxfp4", "float"),
]
# Shapes and rows that no table was made for.
ODD_SHAPES, ODD_ROWS = "13824x5120,3584x18944", "1,3,16,24,200,3000"
QUICK_ROWS, QUICK_SETS = "1,16,256,4096", "float,float-pdl,int8-row"


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default="build/release/quern")
    p.add_argument("--quick", action="store_true", help="fewer rows, sets and shapes")
    p.add_argument("--shapes", default=None, help="n x k, as in 4096x4096,8192x8192")
    p.add_argument("--m", default=None, help="numbers of rows")
    p.add_argument("--sets", default=None, help=", ".join(s[0] for s in SETS))
    p.add_argument("--x", default="f16", choices=("f16", "bf16", "f32"))
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--convs", action="store_true", help="convolutions, and nothing else")
    p.add_argument("--experts", action="store_true", help="products of experts, nothing else")
    p.add_argument("--no-peers", action="store_true", help="quern alone; needs no torch")
    p.add_argument("--out", default=None, help="a file of JSON lines; replaced when all is done")
    p.add_argument("--into", default=None,
                   help="the same, but lines of that file that are not measured now are kept")
    args = p.parse_args()
    if args.out and args.into:
        p.error("--out and --into: one of the two")
    known = [s[0] for s in SETS]
    args.odd = not (args.quick or args.shapes or args.m or args.sets)
    args.shapes = numbers(p, args.shapes or SHAPES)
    args.m = [m for (m,) in numbers(p, args.m or (QUICK_ROWS if args.quick else ROWS), 1)]
    args.sets = (args.sets or (QUICK_SETS if args.quick else ",".join(known))).split(",")
    for name in args.sets:
        if name not in known:
            p.error("--sets: '%s' is none of %s" % (name, ", ".join(known)))
    return args


def numbers(parser, text, count=2):
    try:
        found = [tuple(int(v) for v in one.split("x")) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or any(len(one) != count or min(one) < 1 for one in found):
        parser.error("'%s' is no list of %s" % (text, "sizes like 4096x4096" if count == 2
                                                else "numbers of rows"))
    return found


# --------------------------------------------------------------------------------------- peers


class Peers:
    """Ways of PyTorch to multiply; each gives (bytes of one copy of the weights, make, call)."""

    def __init__(self, index):
        import torch
        self.torch = torch
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.set_grad_enabled(False)
        self.name = torch.cuda.get_device_name(index)
        self.copies = {}

    def fp16(self, n, k, m):
        t = self.torch
        x = t.randn(m, k, device=self.device, dtype=t.float16)
        y = t.empty(m, n, device=self.device, dtype=t.float16)
        return (n * k * 2, 2, lambda: t.randn(n, k, device=self.device, dtype=t.float16) / 64,
                lambda w: t.mm(x, w.t(), out=y))

    def int8(self, n, k, m):
        t = self.torch
        if m <= 16:
            return None  # the operator wants more rows
        x = t.randint(-127, 128, (m, k), device=self.device, dtype=t.int8)
        return (n * k, 1, lambda: t.randint(-127, 128, (n, k), device=self.device, dtype=t.int8),
                lambda w: t._int_mm(x, w.t()))

    def fp8(self, n, k, m):
        t = self.torch
        if m % 16 != 0:
            return None
        e4m3 = t.float8_e4m3fn
        x = t.randn(m, k, device=self.device, dtype=t.float16).to(e4m3)
        one = t.ones((), device=self.device)

        def make():
            return t.randn(n, k, device=self.device, dtype=t.float16).to(e4m3)
        return (n * k, 1, make,
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
        return (n * k // 2 + n * k // 32, 2, make,
                lambda w: t.ops.aten._weight_int4pack_mm(x, w, 128, facts))

    def conv(self, batch, ci, side, co, kernel, stride):
        """cuDNN's choice of its own, after it measured."""
        t = self.torch
        t.backends.cudnn.benchmark = True
        last = {"device": self.device, "dtype": t.float16}
        x = t.randn(batch, ci, side, side, **last).to(memory_format=t.channels_last)
        pad = (kernel - 1) // 2
        size = co * ci * kernel * kernel * 2
        copies = [(t.randn(co, ci, kernel, kernel, **last) / 64).to(memory_format=t.channels_last)
                  for _ in range(min(max(2, -(-ROTATE // size)), 24))]
        us = self.time(copies, lambda w: t.nn.functional.conv2d(x, w, None, stride, pad))
        return us, size

    def ways(self):
        return {"cublas fp16": self.fp16, "cublas int8": self.int8, "cublas fp8": self.fp8,
                "torch int4 g128": self.int4}

    def weights(self, name, n, k, size, make):
        """Copies of one shape serve all numbers of rows."""
        if (name, n, k) not in self.copies:
            self.copies = {key: c for key, c in self.copies.items() if key[1:] == (n, k)}
            self.torch.cuda.empty_cache()
            count = min(max(2, -(-ROTATE // size)), 64)
            self.copies[name, n, k] = [make() for _ in range(count)]
        return self.copies[name, n, k]

    def replay(self, graph, stream):
        """Milliseconds of one replay."""
        t = self.torch
        begin, end = (t.cuda.Event(enable_timing=True) for _ in range(2))
        with t.cuda.stream(stream):
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
        return begin.elapsed_time(end)

    def capture(self, copies, call, calls, stream):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(copies[i % len(copies)])
        return graph

    def time(self, copies, call):
        """Microseconds of a call: (median, p10, p90)."""
        t = self.torch
        stream = t.cuda.Stream()
        with t.cuda.stream(stream):
            for w in copies[:2]:
                call(w)
        stream.synchronize()
        once = self.capture(copies, call, 2, stream)
        self.replay(once, stream)
        guess = self.replay(once, stream) * 1e3 / 2
        # All copies have a turn, unless a call is so long that it clears the cache by itself.
        calls = len(copies) * max(1, 24 // len(copies))
        if guess > 100:
            calls = max(4, min(calls, int(LONG_US / guess)))
        graph = self.capture(copies, call, calls, stream)
        us = sorted([self.replay(graph, stream) * 1e3 / calls for _ in range(REPLAYS + 1)][1:])
        return statistics.median(us), us[len(us) // 10], us[-1 - len(us) // 10]

    def records(self, n, k, m):
        for name, way in self.ways().items():
            made = way(n, k, m)
            if made is None:
                continue
            size, x_bytes, make, call = made
            try:
                us = self.time(self.weights(name, n, k, size, make), call)
            except RuntimeError as error:
                complain("%s, n=%d k=%d m=%d: %s" % (name, n, k, m, str(error).split("\n")[0]))
                continue
            y_bytes = 4 if name == "cublas int8" else 2
            yield {"op": "matmul", "set": "peer", "n": n, "k": k, "m": m, "weights": name,
                   "strategy": "peer", "machine": self.name, "kernel": name, "us_median": us[0],
                   "us_p10": us[1], "us_p90": us[2],
                   "bytes": size + m * k * x_bytes + m * n * y_bytes, "ops": 2 * m * n * k}


# ---------------------------------------------------------------------------------------- quern


def environment(quern):
    """quern's own library lies beside it; where pip put cuBLAS beside torch, quern finds it."""
    folders = [os.path.dirname(os.path.abspath(quern))]
    folders += [f for base in sys.path for name in ("cublas/lib", "cu1[23]/lib")
               for f in glob.glob(os.path.join(base, "nvidia", name)) if os.path.isdir(f)]
    old = os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([old] * (old != "") + folders)}


def asked(args, command):
    """The records of a command of quern."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, env=environment(args.quern))
    if done.returncode != 0:
        complain("%s: exit status %d: %s" % (" ".join(command), done.returncode,
                                             done.stderr.strip().split("\n")[-1]))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ours(args, one, n, k, rows):
    name, weights, strategy, pdl, _ = one
    command = [args.quern, "bench", "--device", "cuda:%d" % args.device, "--n", str(n), "--k",
               str(k), "--m", ",".join(str(m) for m in rows), "--weights", weights, "--strategy",
               strategy, "--x", args.x, "--y", args.x, "--min-time", "0.03", "--json"]
    command += ["--pdl"] if pdl else []
    return [{**r, "set": name} for r in asked(args, command)]


def our_convs(args, one, shape):
    name, weights, strategy, x, y = one
    batch, ci, side, co, kernel, stride = shape
    command = [args.quern, "bench", "--device", "cuda:%d" % args.device, "--op", "conv2d",
               "--image", "nhwc", "--m", str(batch), "--ci", str(ci), "--n", str(co), "--size",
               "%dx%d" % (side, side), "--kernel-size", "%dx%d" % (kernel, kernel), "--stride",
               "%dx%d" % (stride, stride), "--pad", str((kernel - 1) // 2), "--weights", weights,
               "--strategy", strategy, "--x", x, "--y", y, "--min-time", "0.01", "--json"]
    return [{**r, "set": name} for r in asked(args, command)]


def run_convs(args, peers, out):
    """One shape a line: cuDNN and the sets side by side."""
    for shape in CONVS:
        batch, ci, side, co, kernel, stride = shape
        pixels = batch * (-(-side // stride)) ** 2
        k = ci * kernel * kernel
        line = "%3d x %4d x %2d^2 -> %4d, %dx%d/%d" % (batch, ci, side, co, kernel, kernel, stride)
        if peers:
            us, size = peers.conv(*shape)
            out.add({"op": "conv2d", "set": "peer", "conv": list(shape), "n": co, "k": k,
                     "m": pixels, "weights": "cudnn fp16", "strategy": "peer",
                     "machine": peers.name, "kernel": "cudnn fp16", "us_median": us[0],
                     "us_p10": us[1], "us_p90": us[2], "ops": 2 * pixels * co * k,
                     "bytes": size + 2 * batch * ci * side * side + 2 * pixels * co})
            line += "  cudnn %7.2f" % us[0]
        for one in CONV_SETS:
            for r in our_convs(args, one, shape):
                out.add({**r, "conv": list(shape)})
                out.cases += 1
                line += "  %s %7.2f%s %s" % (one[0], r["us_median"],
                                             "" if r.get("verified", True) else " WRONG",
                                             "i" if "_image" in r["kernel"] else "-")
        print(line, flush=True)


def run_experts(args, out):
    """Both shapes with every set; nothing beside them: PyTorch has no such product."""
    for experts, top, n, k in EXPERTS:
        for name, weights, strategy in EXPERT_SETS:
            command = [args.quern, "bench", "--device", "cuda:%d" % args.device, "--op", "grouped",
                       "--experts", str(experts), "--top-k", str(top), "--n", str(n), "--k", str(k),
                       "--m", TOKENS, "--weights", weights, "--strategy", strategy, "--x", args.x,
                       "--y", args.x, "--min-time", "0.02", "--json"]
            for r in asked(args, command):
                out.case({**r, "set": name})


# ---------------------------------------------------------------------------------------- output

failures = []


def complain(words):
    failures.append(words)
    print("gpu.py: " + words, file=sys.stderr, flush=True)


def label(r):
    if r["strategy"] == "peer":
        return r["kernel"]
    return "quern %s %s%s" % (r["weights"], r["strategy"], ", pdl" if r.get("pdl") else "")


def key(r):
    """What a line is about."""
    what = "kernel" if r["op"] == "fit" else "weights"
    return (str(r.get("conv")), str(r.get("experts"))) + tuple(
        r.get(name) for name in ("op", "set", "n", "k", "m", what, "strategy", "x"))


class Output:
    """The table, and the file: FILE.part until the end. Lines of `kept` that come again are
    replaced."""

    def __init__(self, path, kept=None):
        self.path, self.file, self.begun = path, None, time.monotonic()
        self.kept = kept
        self.fixed, self.cases = {}, 0
        if path:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self.file = open(path + ".part", "w", encoding="utf-8")
        print("%5s  %-13s %5s  %-36s %9s %8s %8s %9s" % (
            "s", "n x k", "m", "", "us", "GB/s", "Top/s", "of limit"), flush=True)

    def add(self, record):
        if self.file:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()

    def case(self, r):
        us = r["us_median"]
        print("%5.0f  %-13s %5d  %-36s %9.2f %8.0f %8.1f %9s%s" % (
            time.monotonic() - self.begun, "%dx%d" % (r["n"], r["k"]), r["m"], label(r), us,
            r["bytes"] / us * 1e-3, r["ops"] / us * 1e-6,
            "%.0f %%" % (100 * r["fraction"]) if "fraction" in r else "",
            "" if r.get("verified", True) else "  WRONG"), flush=True)
        self.cases += 1
        if r["m"] in (1, 16):
            self.fixed.setdefault((r["m"], label(r)), []).append((r["bytes"], us))
        self.add(r)

    def end(self):
        for (m, name), points in sorted(self.fixed.items()):
            t = fit(points)
            if t is not None:
                print("m = %-2d %-42s t0 %6.2f us, then %5.2f TB/s" % (m, name, *t))
                self.add({"op": "fit", "m": m, "kernel": name, "t0_us": t[0], "tb_s": t[1],
                          "shapes": len(points)})
        if self.file:
            self.file.close()
            if self.kept is not None:
                self.merge()
            if self.cases:
                os.replace(self.path + ".part", self.path)
            else:
                os.remove(self.path + ".part")


    def merge(self):
        with open(self.path + ".part", encoding="utf-8") as f:
            new = {key(r): r for r in map(json.loads, f) if r["op"] != "about"}
        records = [new.pop(key(r), r) for r in self.kept] + list(new.values())
        with open(self.path + ".part", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in records)


def fit(points):
    """Least squares of us = t0 + bytes / rate, relative to us; None with fewer than three
    sizes."""
    if len({b for b, _ in points}) < 3:
        return None
    weights = [1 / (t * t) for _, t in points]
    total = sum(weights)
    mean_b = sum(w * b for w, (b, _) in zip(weights, points)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points)) / total
    slope = (sum(w * (b - mean_b) * (t - mean_t) for w, (b, t) in zip(weights, points)) /
             sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, points)))
    if slope <= 0:
        return None
    return mean_t - slope * mean_b, 1 / (slope * 1e6)  # us; TB/s


def about(args, peers):
    """What was run, on what."""
    words, given = ["bench/gpu.py"], sys.argv[1:]
    for i, word in enumerate(given):  # places on this machine are nobody's matter
        if not word.startswith(("--quern", "--out")) and given[i - 1:i] not in (["--quern"],
                                                                              ["--out"]):
            words.append(word)
    record = {"op": "about", "command": " ".join(words), "date": time.strftime("%Y-%m-%d")}
    try:
        asked = subprocess.run(["nvidia-smi", "-i", str(args.device), "--format=csv,noheader",
                                "--query-gpu=name,driver_version,clocks.max.sm,power.limit"],
                               stdout=subprocess.PIPE, text=True, check=True).stdout
        names = ("gpu", "driver", "clock_limit", "power_limit")
        record.update(zip(names, (word.strip() for word in asked.strip().split(","))))
    except (OSError, subprocess.CalledProcessError):
        pass
    if peers:
        record.update(gpu=peers.name, torch=peers.torch.__version__,
                      cuda=str(peers.torch.version.cuda))
    return record


def run_shape(args, peers, out, n, k, rows, sets):
    for m in rows if peers else ():
        for record in peers.records(n, k, m):
            out.case(record)
    for one in sets:
        wanted = [m for m in rows if one[4] is None or m in one[4]]
        for record in ours(args, one, n, k, wanted) if wanted else ():
            out.case(record)


def main():
    args = parse()
    peers = None if args.no_peers else Peers(args.device)
    sets = [s for s in SETS if s[0] in args.sets]
    kept = None
    if args.into:
        with open(args.into, encoding="utf-8") as f:
            kept = [json.loads(line) for line in f]
    out = Output(args.out or args.into, kept)
    out.add(about(args, peers))
    if args.convs:
        run_convs(args, peers, out)
    if args.experts:
        run_experts(args, out)
    alone = args.convs or args.experts
    for n, k in () if alone else args.shapes:
        run_shape(args, peers, out, n, k, args.m, sets)
    if args.odd and not alone:
        rows = [int(m) for m in ODD_ROWS.split(",")]
        for n, k in (tuple(int(v) for v in s.split("x")) for s in ODD_SHAPES.split(",")):
            run_shape(args, peers, out, n, k, rows, [s for s in sets if s[0] == "float"])
    out.end()
    print("%.0f s, %d failed" % (time.monotonic() - out.begun, len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
