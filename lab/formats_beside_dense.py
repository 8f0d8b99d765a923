#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every weight format of a float product, or of the dense strategy, beside the dense product of the
same shape.

    lab/formats_beside_dense.py [--quern build/quern] [--peer-folder build/peers] [--isa LIST]
                                [--x bf16,f32] [--m 16,64,512] [--w FORMAT,...] [--wrap CMD]
                                [--strategy float|dense]

A row of the table is a format: our time / that of the fastest dense peer (bf16 or f32), which
`quern bench --peers` times in turn with ours; from 1 on (marked *) dense weights would be faster.
With --isa the peers are told to do without the same instructions. --wrap goes before each command
(a lock, taskset); a command takes about 3 s for each m. Put the programs of dense peers alone into
a folder (onednn, openblas): others take time and do not count."""
import argparse
import json
import os
import shlex
import subprocess

INTEGERS = [f"int{bits}:{group}{shift}" for bits in (4, 8)
            for group in ("g16", "g32", "g64", "g128", "pc") for shift in ("", ":zp")]
NAMED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4", "nvfp4"]
OTHERS = ["int2:g64", "int3:g32", "int6:g16:off", "iq4nl:pc", "e2m1:g128", "nf4:g16", "nf4:g64",
          "nf4:pc", "fp8:g16", "fp8:g32", "fp8:g128", "fp8:pc"]
# What the peers have to be told for a mask of ours.
PEERS = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell"},
         "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OPENBLAS_CORETYPE": "SkylakeX"}}


def measure(args, weights, x):
    """{m: (ratio, our us, kernel, way)}"""
    command = [args.quern, "bench", "-n", str(args.n), "-k", str(args.k), "-m", args.m,
               "-w", weights, "-s", args.strategy, "-x", x, "--min-time", str(args.min_time),
               "--peers", "--peer-folder", args.peer_folder, "--json"]
    env = dict(os.environ)
    if args.isa:
        command += ["--isa", args.isa]
        env.update(PEERS[args.isa.split(",")[0]])
    out = subprocess.run(shlex.split(args.wrap) + command, check=False, capture_output=True,
                         text=True, env=env).stdout
    points = {}
    for d in map(json.loads, out.splitlines()):
        dense = [p for p in d["peers"] if p["way"] in ("bf16", "f32", "sgemm", "sgemv")]
        if dense:
            best = min(dense, key=lambda p: p["us_median"])
            points[d["m"]] = (d["us_median"] / best["us_median"], d["us_median"], d["kernel"],
                              f"{best['peer']} {best['way']}")
    return points


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--quern", default="build/quern")
    p.add_argument("--peer-folder", default="build/peers")
    p.add_argument("--isa", choices=["avx2", "avx512"])
    p.add_argument("--x", default="bf16,f32")
    p.add_argument("--strategy", default="float", choices=["float", "dense"])
    p.add_argument("--m", default="16,64,512")
    p.add_argument("--w", default=",".join(INTEGERS + NAMED + OTHERS))
    p.add_argument("--n", type=int, default=4096)
    p.add_argument("--k", type=int, default=4096)
    p.add_argument("--min-time", type=float, default=0.1)
    p.add_argument("--wrap", default="")
    args = p.parse_args()
    for x in args.x.split(","):
        for weights in args.w.split(","):
            cells = []
            for m, (ratio, us, kernel, way) in sorted(measure(args, weights, x).items()):
                name = kernel.replace("qni_matmul_", "")
                cells.append(f"m={m} {ratio:.2f}{'*' if ratio > 1 else ' '} {us:.0f} us "
                             f"{name} / {way}")
            print(f"{x:5}{weights:13}" + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
