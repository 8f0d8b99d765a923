#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time over the number of rows, and whether it has cliffs.

    tools/curve.py --quern build/quern --out curve.jsonl [--n 4096] [--k 4096] [--rounds 5]
                   [--isa NAMES] [--most 600] [--case int4:g128,int8-block,f32] ...

Runs `quern bench` for every m from 1 to 64 and some up to 600, all of them in each round, so that a
minute in which the machine has something else to do is no cliff: keeps the fastest run of each m as
one JSON object a line, and prints for each case

    drops    m whose rows per second are less than 97 % of those of m - 1 rows (m <= 64)
    fit      the largest ratio of time to max(bytes / B, ops / P), where B and P
             are what this case itself reaches at best; and its m
"""
import argparse
import json
import subprocess

CASES = ["int4:g128,int8-block,f32", "int4:g128:off,float,bf16"]
MORE = [72, 80, 96, 112, 127, 128, 129, 160, 192, 224, 255, 256, 257, 320, 384, 448, 512, 513, 600]


def measure(args, case):
    weights, strategy, x = case.split(",")
    rows = [str(m) for m in list(range(1, 65)) + MORE if m <= args.most]
    best = {}
    for _ in range(args.rounds):
        command = [args.quern, "bench", "--n", str(args.n), "--k", str(args.k),
                   "-m", ",".join(rows), "-w", weights, "-s", strategy, "-x", x,
                   "--min-time", str(args.min_time), "--json"]
        if args.isa:
            command.append("--isa=" + args.isa)
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            d = json.loads(line)
            if d["m"] not in best or d["us_median"] < best[d["m"]]["us_median"]:
                best[d["m"]] = d
    return [best[m] for m in sorted(best)]


def judge(points):
    time = {d["m"]: d["us_median"] for d in points}
    drops = [m for m in time if 1 < m <= 64 and m / time[m] < 0.97 * (m - 1) / time[m - 1]]
    bandwidth = max(d["bytes"] / d["us_median"] for d in points)
    peak = max(d["ops"] / d["us_median"] for d in points)
    ratio, at = max((d["us_median"] / max(d["bytes"] / bandwidth, d["ops"] / peak), d["m"])
                    for d in points)
    return drops, ratio, at


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default="build/quern")
    p.add_argument("--out", required=True)
    p.add_argument("--n", type=int, default=4096)
    p.add_argument("--k", type=int, default=4096)
    p.add_argument("--min-time", type=float, default=0.01)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--isa", default="")
    p.add_argument("--most", type=int, default=600)
    p.add_argument("--case", action="append")
    args = p.parse_args()
    with open(args.out, "w", encoding="utf-8") as out:
        for case in args.case or CASES:
            points = measure(args, case)
            for d in points:
                out.write(json.dumps(d) + "\n")
            drops, ratio, at = judge(points)
            print(f"{case}: drops at {drops or 'no m'}; fit within {ratio:.2f} x (m = {at})")


if __name__ == "__main__":
    main()
