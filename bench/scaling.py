#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables and pictures of docs/parallel.md: a model of products over processes, calibrated and
checked by bench/results/cpu-parallel.jsonl (bench/parallel_measure.sh), and what it says of large
models on many machines.

    bench/scaling.py [--check]     --cores N, --gb-per-s X: what a machine is

A block's time is that of its products, bytes / bandwidth or operations / rate, whichever is longer;
of its exchanges, each a latency; of their bytes; and of each sum of a row product, which is copied,
added and finished by one core.
"""
import argparse
import json
import math
import os
import sys

from svg import COLORS, svg, text

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = "docs/parallel.md"
BYTES = {"int4:g32": 0.5 + 4 / 32, "int8:pc": 1.0}  # of a weight; scales of f32
CACHE = 32 << 20  # of the machine that was measured: smaller weights stay in it
CALIBRATES = ((4096, 1536), (8192, 2048), (14336, 4096))  # (hidden, width); the others check
BUSY = 1.25
CHUNK = 1 << 20  # bytes of sums that are exchanged at once
NODES = (1, 2, 4, 8, 16, 32, 64)
# Bytes a microsecond to each machine. Latency: of which exchange that was measured.
LINKS = {"10 Gb/s": (1250, "tcp"), "25 Gb/s": (3125, "tcp"), "100 Gb/s": (12500, "tcp"),
         "NVLink": (450000, "memory")}
MODELS = {
    "llama": dict(name="Llama-3-70B", layers=80, width=8192, heads=64, kv=8, head=128, hidden=28672,
                  experts=1, top=1, vocabulary=128256),
    "mixtral": dict(name="Mixtral 8x7B", layers=32, width=4096, heads=32, kv=8, head=128,
                    hidden=14336, experts=8, top=2, vocabulary=32000),
}


def quiet(path):
    """Lines during which the host did little else: neither the product of one process nor that of
    two took more than BUSY times what it took on the other network. And how many there are."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    found = []
    for r in lines:
        same = [o for o in lines if all(o[key] == r[key] for key in ("weights", "n", "k", "m"))]
        if all(r[time] <= BUSY * min(o[time] for o in same)
               for time in ("us_one_rank", "us_product")):
            found.append(r)
    return found, len(lines)


# ---- the model ---------------------------------------------------------------------------------


class Network:
    def __init__(self, latency, bytes_per_us):
        self.latency, self.bytes_per_us = latency, bytes_per_us

    def row_product(self, m, n, ranks, weights, asks=0):
        """The exchanges of sums [m, n]: their us."""
        if ranks == 1:
            return 0.0
        exact = weights == "int8:pc"  # the largest |x| first, then int32 sums
        chunks = math.ceil(m / max(1, CHUNK // (4 * n)))
        exchanges = asks + (1 + chunks if exact else chunks * (2 if ranks > 2 else 1))
        moved = 2 * (ranks - 1) / ranks * 4 * m * n
        return exchanges * math.ceil(math.log2(ranks)) * self.latency + moved / self.bytes_per_us


class Core:
    """What one core does with weights of a format: bytes and operations a us, us of a sum."""

    def __init__(self, lines, weights, networks):
        ours = [r for r in lines if (r["n"], r["k"]) in CALIBRATES]
        many = [r for r in ours if r["m"] == 128 and r["weights"] == weights]
        self.weights = weights
        self.rate = max(2 * r["m"] * self.own(r) / r["us_product"] for r in many)
        self.bandwidth = max(self.own(r) * BYTES[r["weights"]] / r["us_product"]
                             for r in ours if r["m"] == 1 and is_large(r))
        sums = sorted((r["us_median"] - r["us_product"] - exchanges_of(r, networks))
                      / (r["m"] * r["k"]) for r in many)
        self.us_a_sum = max(0.0, sums[len(sums) // 2])

    @staticmethod
    def own(r):
        """Weights of a process: half of two matrices."""
        return r["n"] * r["k"]

    def products(self, r):
        return max(self.own(r) * BYTES[self.weights] / self.bandwidth,
                   2 * r["m"] * self.own(r) / self.rate)

    def block(self, r, networks):
        return self.products(r) + exchanges_of(r, networks) + self.us_a_sum * r["m"] * r["k"]


def is_large(r):
    return 2 * r["n"] * r["k"] * BYTES[r["weights"]] > 1.5 * CACHE


def exchanges_of(r, networks):
    return networks[r["net"]].row_product(r["m"], r["k"], 2, r["weights"], asks=1)


def share(units, ranks):
    return math.ceil(units / ranks)


def seconds(model, core, machine, network, ranks, m):
    """Of m tokens of one text: products, exchanges, the sums' own work."""
    width, layers = model["width"], model["layers"]
    heads = share(model["heads"], ranks) + 2 * share(model["kv"], ranks)
    hidden = 32 * share(model["hidden"] // 32, ranks)
    vocabulary = share(model["vocabulary"], ranks)
    attention = model["head"] * (heads + share(model["heads"], ranks)) * width
    expert = 3 * hidden * width
    used = min(model["experts"], m * model["top"])

    def product(read, computed):
        return max(read * BYTES[core.weights] / machine.bandwidth, 2 * computed / machine.rate)

    products = layers * (product(attention, m * attention) +
                         product(used * expert, m * model["top"] * expert))
    products += product(vocabulary * width, vocabulary * width)
    exchange = sums = 0.0
    if ranks > 1:
        rows = m * model["top"]
        exchange = layers * (network.row_product(m, width, ranks, core.weights) +
                             network.row_product(rows, width, ranks, core.weights))
        exchange += (math.ceil(math.log2(ranks)) * network.latency +
                     4 * (model["vocabulary"] - vocabulary) / network.bytes_per_us)
        sums = layers * (m + rows) * width * core.us_a_sum
    return products / 1e6, exchange / 1e6, sums / 1e6


class Machine:
    def __init__(self, core, cores, bytes_per_us):
        self.bandwidth = min(cores * core.bandwidth, bytes_per_us)
        self.rate = cores * core.rate


# ---- the page ----------------------------------------------------------------------------------


def calibration_table(cores, networks):
    lines = ["| what | measured |", "|---|--:|"]
    for net, of in networks.items():
        where = "shared memory" if net == "memory" else "TCP of one machine"
        lines.append("| a short exchange of 2 processes over %s | %.2f us |" % (where, of.latency))
        lines.append("| bytes that a process receives over %s | %.2f GB/s |"
                     % (where, of.bytes_per_us / 1e3))
    lines.append("| weights that a core reads from memory, m = 1, both at work | %.1f GB/s |"
                 % (cores[0].bandwidth / 1e3))
    for core in cores:
        lines.append("| %s: operations of a core, m = 128 | %.0f Gop/s |"
                     % (core.weights, core.rate / 1e3))
        lines.append("| %s: each sum of a row product | %.1f ns |"
                     % (core.weights, core.us_a_sum * 1e3))
    return lines


def check_table(lines, cores, networks):
    rows = ["| block | weights | m | over | one process | 2 processes | the model | off by |",
            "|---|---|--:|---|--:|--:|--:|--:|"]
    for core in cores:
        for r in lines:
            if (r["weights"] != core.weights or (r["n"], r["k"]) in CALIBRATES
                    or not (r["m"] >= 64 or (r["m"] == 1 and is_large(r)))):
                continue
            if r["us_one_rank"] > 1.5 * 2 * core.products(r):
                continue  # one process alone, which the check is not about, was disturbed
            said = core.block(r, networks)
            rows.append("| %d x %d | %s | %d | %s | %.2f ms | %.2f ms | %.2f ms | %+.0f %% |" % (
                r["n"], r["k"], r["weights"], r["m"],
                "TCP" if r["net"] == "tcp" else "shared memory", r["us_one_rank"] / 1e3,
                r["us_median"] / 1e3, said / 1e3, 100 * (said / r["us_median"] - 1)))
    return rows


def curves(model, core, machine, networks, m):
    return {link: [seconds(model, core, machine,
                           Network(networks[net].latency, speed), n, m) for n in NODES]
            for link, (speed, net) in LINKS.items()}


def curve_table(found, m):
    lines = ["| machines | " + " | ".join(LINKS) + " |", "|--:|" + "--:|" * len(LINKS)]
    for i, n in enumerate(NODES):
        cells = []
        for link in LINKS:
            parts = found[link][i]
            cells.append("%.3g (%.0f %%)" % (m / sum(parts), 100 * parts[0] / sum(parts)))
        lines.append("| %d | %s |" % (n, " | ".join(cells)))
    return lines


def picture(title, panels):
    """panels: (words, tokens, curves of a link)."""
    parts = [text(10, 18, title)]
    for p, (words, m, found) in enumerate(panels):
        left, top, wide, high = 55 + 400 * p, 50, 270, 220
        values = [m / sum(parts_) for line in found.values() for parts_ in line]
        lo, hi = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))

        def at(i, value, left=left, lo=lo, hi=hi):
            return (left + wide * i / (len(NODES) - 1),
                    top + high * (1 - (math.log2(value) - lo) / (hi - lo)))
        parts.append(text(left, top - 10, words))
        for e in range(lo, hi + 1):
            y = at(0, 2.0 ** e)[1]
            parts.append('<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>'
                         % (left, y, left + wide, y))
            parts.append(text(left - 6, y + 4, "%g" % 2.0 ** e, "end"))
        for i, n in enumerate(NODES):
            parts.append(text(at(i, 2.0 ** lo)[0], top + high + 18, str(n), "middle"))
        last = -100.0
        for link in sorted(found, key=lambda name, of=found: sum(of[name][-1])):
            color = COLORS[list(LINKS).index(link)]
            points = [at(i, m / sum(t)) for i, t in enumerate(found[link])]
            parts.append('<polyline fill="none" stroke-width="2" stroke="%s" points="%s"/>'
                         % (color, " ".join("%.1f,%.1f" % q for q in points)))
            last = max(points[-1][1] + 4, last + 14)
            parts.append(text(points[-1][0] + 6, last, link, color=color))
    return svg(800, 310, parts)


def put(page, tables):
    for name, lines in tables.items():
        begin, end = "<!-- table %s -->\n" % name, "<!-- end -->"
        head, rest = page.split(begin)
        page = head + begin + "\n".join(lines) + "\n" + rest[rest.index(end):]
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="say what would change")
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--gb-per-s", type=float, default=300.0)
    options = parser.parse_args()
    lines, n_lines = quiet(os.path.join(ROOT, "bench", "results", "cpu-parallel.jsonl"))
    networks = {net: Network(min(r["latency_us"] for r in lines if r["net"] == net),
                             max(r["bytes_per_s"] for r in lines if r["net"] == net) / 1e6)
                for net in ("memory", "tcp")}
    cores = [Core(lines, weights, networks) for weights in BYTES]
    print("%d of %d lines are of a quiet host" % (len(lines), n_lines))
    tables = {"calibration": calibration_table(cores, networks),
              "check": check_table(lines, cores, networks)}
    files = {}
    core = cores[0]
    machine = Machine(core, options.cores, options.gb_per_s * 1e3)
    for key, model in MODELS.items():
        panels = []
        for m in (1, 128):
            found = curves(model, core, machine, networks, m)
            tables["%s-%d" % (key, m)] = curve_table(found, m)
            panels.append(("tokens a second, m = %d, by machines" % m, m, found))
        files["docs/parallel-%s.svg" % key] = picture(
            "%s, %s, by the model of docs/parallel.md" % (model["name"], core.weights), panels)
    with open(os.path.join(ROOT, PAGE), encoding="utf-8") as file:
        files[PAGE] = put(file.read(), tables)
    stale = 0
    for path, words in files.items():
        full = os.path.join(ROOT, path)
        old = open(full, encoding="utf-8").read() if os.path.exists(full) else ""
        if words == old:
            continue
        stale = 1
        if options.check:
            print("scaling.py: %s is out of date; run bench/scaling.py" % path)
        else:
            with open(full, "w", encoding="utf-8") as file:
                file.write(words)
    return stale if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
