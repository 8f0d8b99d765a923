#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/gpu.py and bench/plot.py on made-up lines: what a run on a GPU would record becomes tables
and pictures, twice the same, and figures appear where they belong."""
import json
import os
import subprocess
import sys
import tempfile
import xml.dom.minidom

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu  # noqa: E402

BANDWIDTH, PEAK = 3352.0, 989.0  # GB/s, Top/s


def case(name, n, k, m, us, **more):
    size = n * k // 2 + m * (n + k) * 2
    bound = max(size / BANDWIDTH * 1e-3, 2 * n * k * m / PEAK * 1e-6)
    record = {"op": "matmul", "set": name, "n": n, "k": k, "m": m, "us_median": us, "bytes": size,
              "ops": 2 * n * k * m, "kernel": name, "strategy": "peer", "machine": "a GPU"}
    if name != "peer":
        record.update(weights="int4:g128", strategy="float", fraction=bound / us, bound_us=bound,
                      commit="c0ffee", verified=True, pdl=name.endswith("pdl"))
    return {**record, **more}


def cpu(isa, m, us, **more):
    return {"op": "matmul", "n": 4096, "k": 4096, "m": m, "weights": "int4:g128",
            "strategy": "int8-block", "isa": isa, "threads": 2, "machine": "a CPU with " + isa,
            "commit": "decaf", "us_median": us, "bound_us": us / 2, "bytes": 8e6,
            "gb_per_s": 8e3 / us, "limit_gb_per_s": 25.0, "ops": 2 ** 25 * m,
            "limit_gop_per_s": 1e6,
            "gop_per_s": 2 ** 25 * m / us / 1e3,
            "peers": [{"peer": "beside", "version": "7", "way": "int8 per channel",
                       "verified": True, "us_median": 2 * us}], **more}


def cpu_sets(isa, times):
    """What bench/record.sh writes on one machine: {set: lines}."""
    sets = {"matmul": [cpu(isa, m, us) for m, us in times]}
    sets["sweep"] = sets["matmul"] + [cpu(isa, 1, 100.0), cpu(isa, 1, 900.0)]  # three rounds
    sets["conv"] = [cpu(isa, batch, 64.0, op="conv2d", batch=batch, layer="resnet50 " + layer)
                    for batch in (1, 8) for layer in ("a", "b", "c")]
    if isa != "avx2":  # a machine with fewer layers, which are what README may compare
        sets["conv"] = [r for r in sets["conv"] if not r["layer"].endswith("c")]
    slower = cpu(isa, 1, 80.0, op="conv2d", batch=1, layer="resnet50 a")  # the second round
    slower["peers"][0]["us_median"] = 96.0
    sets["conv"] = [dict(r, threads=1 if isa == "avx2" else 2) for r in sets["conv"] + [slower]]
    sets["experts"] = [cpu(isa, m, 300.0, op="grouped", experts=64, top_k=2,
                           bound_by="memory") for m in (32, 128)]
    sets["strategies"] = [cpu(isa, m, us, x="bf16") for m, us in times]
    # A slower round that found more bandwidth.
    sets["strategies"] += [dict(r, us_median=2 * r["us_median"], limit_gb_per_s=40.0)
                           for r in sets["strategies"]]
    dense = {"peer": "onednn", "version": "2", "way": "f32", "verified": True}
    sets["formats"] = [cpu(isa, m, us, weights="q4_k", strategy=how, x="f32",
                           peers=[{**dense, "us_median": 4 * us}])
                       for m, us in times for how in ("float", "dense")]
    ways = [{**dense, "us_median": us, "way": way}
            for way, us in (("f32", 50.0), ("int8 per channel", 80.0), ("bf16", 5.0))]
    sets["layers"] = [cpu(isa, 9 * batch, us, op="conv2d", batch=batch, layer="net a.dw",
                          strategy=how, x=x, peers=ways)
                      for batch in (1, 8) for how, x, us in (("float", "f32", 64.0),
                                                             ("int8-static", "i8", 40.0))]
    return sets


def lines():
    found = [{"op": "about", "command": "bench/gpu.py", "driver": "1.2.3", "torch": "9",
              "cuda": "8"}]
    for n, k in ((4096, 4096), (8192, 8192), (28672, 8192)):
        for m in (1, 16, 256, 4096):
            us = 3.125 + n * k * m ** 0.5 / 1e7
            found.append(case("float", n, k, m, us))
            found.append(case("peer", n, k, m, 2 * us, kernel="cublas fp16"))
            found.append(case("dense", n, k, m, 1.5 * us))
            if m <= 16:
                found.append(case("float-pdl", n, k, m, us - 1.5))
    found.append({"op": "fit", "m": 1, "kernel": "quern int4:g128 float", "t0_us": 3.125,
                  "tb_s": 2.875, "shapes": 3})
    return found


def plot(*words):
    return subprocess.run([sys.executable, os.path.join(ROOT, "bench", "plot.py"), *words],
                          stdout=subprocess.PIPE, text=True, check=False)


def main():
    points = [(size, 4.0 + size / 2e6) for size in (8e6, 33e6, 117e6)]
    t0, rate = gpu.fit(points)
    assert abs(t0 - 4) < 1e-6 and abs(rate - 2) < 1e-6, (t0, rate)
    assert gpu.fit(points[:2]) is None
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "gpu.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in lines())
        for name, isa in (("amx", "amx_bf16"), ("avx2", "avx2")):
            times = ((1, 300.0), (32, 500.0), (512, 5000.0 if name == "amx" else 60000.0))
            for what, found in cpu_sets(isa, times).items():
                path = os.path.join(folder, "cpu-%s-%s.jsonl" % (name, what))
                with open(path, "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(r) + "\n" for r in found)
        out = os.path.join(folder, "out")
        done = plot("--results", folder, "--to", out)
        assert done.returncode == 0, done.stdout
        for name, dots in (("gpu", 30), ("gpu-limit", 30), ("amx-sweep", 3), ("avx2-sweep", 3),
                           ("amx-matmul", 0), ("avx2-conv", 0)):
            picture = xml.dom.minidom.parse(os.path.join(out, "docs", "performance-%s.svg" % name))
            assert len(picture.getElementsByTagName("circle")) >= dots, name
        with open(os.path.join(out, "docs", "performance.md"), encoding="utf-8") as file:
            page = file.read()
        for words in ("| 8192 x 8192 | 1 | 9.8 | 8.3 |", "driver 1.2.3", "commit c0ffee", "0 wrong",
                      "| quern int4:g128 float | 1 | 3.1 us | 2.88 TB/s |", "| 0.50 |",
                      "(performance-gpu.svg)",
                      "| int4:g128 | int8-block | 512 | 60000 us | beside",
                      "| int4:g128 | int8-block | 100 us | 320 % | 60000 us |",
                      "| weights | strategy | 1 rows (32 tokens) | 4 rows (128 tokens) |",
                      "| int4:g128 | int8-block | 300 us (107 % of memory) | 300 us (107 % of",
                      "| a | 64.0 us | 96.0 us | 0.67 | 64.0 us | 128 us | 0.50 |",
                      "| int4:g128 | int8-block | bf16 | 300 us (67 %) | 500 us (40 %) |",
                      "| weights | float, m = 1 | float, m = 32 | float, m = 512 | dense, m = 1 |",
                      "| q4_k | 0.25 | 0.25 | 0.25 | 0.25 |",
                      "| net a.dw | float | 64.0 us | 1.28 | 64.0 us | 1.28 |",
                      "| net a.dw | int8-static | 40.0 us | 0.50 |",
                      "| 4096 x 4096 | int4:g128 | float | 7.2 ("):
            assert words in page, words
        with open(os.path.join(out, "README.md"), encoding="utf-8") as file:
            page = file.read()
        for words in ("| 8192 x 8192 | 8.3 (19.7) |", "| what | m | AMX | best peer beside it",
                      "| 512 | 5000 us | beside: int8, 10000 us | 0.50 | 60000 us | beside: int8",
                      "| ResNet-50, 2 layers, int8 convolution | batch 8 | 128 us | beside: int8, "
                      "256 us | 0.50 | 128 us | beside",
                      "a CPU with amx_bf16; 2 threads, amx_bf16",
                      "a CPU with avx2; 1 thread (conv2d) and 2 threads (matmul), avx2"):
            assert words in page, words
        check = plot("--results", folder, "--check")
        assert check.returncode == 1 and "performance-gpu.svg" in check.stdout, check.stdout


if __name__ == "__main__":
    main()
