#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pictures and tables of docs/performance.md out of bench/results/*.jsonl.

    bench/plot.py            writes docs/performance-*.svg and the tables between the markers
                             <!-- table NAME --> and <!-- end --> of docs/performance.md, README.md
    bench/plot.py --check    says what would change
    --results FOLDER --to FOLDER: other lines than those, and copies of the pages elsewhere

Pictures need nothing but Python: SVG written as text, with the reader's colours in the dark.
"""
import argparse
import json
import math
import os
import re
import sys

import plot_gpu
from svg import COLORS, svg, text, us

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def results(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ------------------------------------------------------------------------------- time against m


def fit(lines):
    """The model max(bytes / bandwidth, ops / rate), with the best of both rates that any m of these
    lines reaches."""
    bandwidth = max(r["bytes"] / r["us_median"] for r in lines)
    rate = max(r["ops"] / r["us_median"] for r in lines)
    return [max(r["bytes"] / bandwidth, r["ops"] / rate) for r in lines]


LIMITS = (("limit_gb_per_s", "bytes"), ("limit_gop_per_s", "ops"))


def least(rows):
    """Of several rounds the line with the least median, beside the least of each peer's way and
    the best that any round measured of the limits."""
    found, peers, limits = {}, {}, {}
    for r in rows:
        key = (r["weights"], r["strategy"], r.get("x"), r["m"], r.get("layer"))
        if key not in found or r["us_median"] < found[key]["us_median"]:
            found[key] = r
        best = limits.setdefault(key, {})
        for name, _ in LIMITS:
            best[name] = max(r[name], best.get(name, 0))
        ways = peers.setdefault(key, {})
        for p in good_peers(r):
            way = (p["peer"], p["way"])
            if way not in ways or p["us_median"] < ways[way]["us_median"]:
                ways[way] = p
    lines = [dict(r, **limits[key], peers=list(peers[key].values())) for key, r in found.items()]
    for r in lines:
        r["bound_us"] = max(r[what] / r[name] / 1e3 for name, what in LIMITS)
        r["fraction"] = r["bound_us"] / r["us_median"]
    return lines


def time_over_m(rows):
    groups = {}
    for r in rows:
        groups.setdefault("%s, %s" % (r["weights"], r["strategy"]), []).append(r)
    if not groups:
        return None
    width, height, left, right, top, bottom = 760, 430, 62, 20, 30, 40
    most_m = max(r["m"] for r in rows)
    values = [r["us_median"] for r in rows] + [r["bound_us"] for r in rows]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    def place(m, t):
        x = left + math.log2(m) / math.log2(most_m) * (width - left - right)
        y = top + (high - math.log10(t)) / (high - low) * (height - top - bottom)
        return x, y
    parts = [text(left, 18, "Time against m, n = k = 4096: measured (dots), fit (line), "
                            "limit of the machine (dashes)")]
    m = 1
    while m <= most_m:
        x = place(m, 10 ** low)[0]
        parts.append('<path class="grid" d="M%.1f %dV%d"/>' % (x, top, height - bottom))
        parts.append(text(x, height - bottom + 16, str(m), "middle"))
        m *= 2
    parts.append(text(width / 2, height - 6, "m", "middle"))
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        for digit in (1, 2, 5):
            t = digit * 10 ** exponent
            if low <= math.log10(t) <= high:
                y = place(1, t)[1]
                parts.append('<path class="grid" d="M%d %.1fH%d"/>' % (left, y, width - right))
                parts.append(text(left - 6, y + 4, "%g us" % t if t < 1000 else "%g ms"
                                  % (t / 1000), "end"))
    for i, (name, lines) in enumerate(groups.items()):
        color = COLORS[i % len(COLORS)]
        lines.sort(key=lambda r: r["m"])
        for values, dash in ((fit(lines), ""), ([r["bound_us"] for r in lines], "3 3")):
            points = " ".join("%.1f,%.1f" % place(r["m"], t) for r, t in zip(lines, values))
            parts.append('<polyline fill="none" stroke="%s" stroke-dasharray="%s" points="%s"/>'
                         % (color, dash, points))
        for r in lines:
            parts.append('<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>'
                         % (place(r["m"], r["us_median"]) + (color,)))
        parts.append(text(left + 14, top + 18 + 16 * i, name, color=color))
    return svg(width, height, parts)


def fit_table(rows):
    groups = {}
    for r in rows:
        groups.setdefault((r["weights"], r["strategy"]), []).append(r)
    lines = ["| weights | strategy | m = 1 | of bandwidth | m = 512 | Top/s | worst to the fit |",
             "|---|---|--:|--:|--:|--:|---|"]
    for (weights, strategy), group in groups.items():
        group.sort(key=lambda r: r["m"])
        model = fit(group)
        worst, at = max((r["us_median"] / t, r["m"]) for r, t in zip(group, model))
        first, last = group[0], group[-1]
        lines.append("| %s | %s | %s us | %.0f %% | %s us | %.2f | %.2f x at m = %d |" % (
            weights, strategy, us(first["us_median"]),
            100 * first["gb_per_s"] / first["limit_gb_per_s"], us(last["us_median"]),
            last["gop_per_s"] / 1000, worst, at))
    return lines


def experts_table(rows):
    """Times, and in brackets how much of what memory or instructions allow that is."""
    tokens = sorted({r["m"] for r in rows})
    each = rows[0]["top_k"] / rows[0]["experts"]
    lines = ["| weights | strategy | " + " | ".join(
        "%g rows (%d tokens)" % (m * each, m) for m in tokens) + " |",
             "|---|---|" + "--:|" * len(tokens)]
    for key in dict.fromkeys((r["weights"], r["strategy"]) for r in rows):
        found = {r["m"]: r for r in rows if (r["weights"], r["strategy"]) == key}
        cells = ["" if m not in found else "%s us (%.0f %% of %s)" % (
            us(found[m]["us_median"]), 100 * found[m]["fraction"], found[m]["bound_by"])
                 for m in tokens]
        lines.append("| %s | %s | %s |" % (key + (" | ".join(cells),)))
    return lines


def how(r):
    return r["weights"], r["strategy"], r["x"]


def strategies_table(rows):
    """Times, and in brackets how much of what memory or instructions allow that is."""
    every_m = sorted({r["m"] for r in rows})
    lines = ["| weights | strategy | x | " + " | ".join("m = %d" % m for m in every_m) + " |",
             "|---|---|---|" + "--:|" * len(every_m)]
    for key in dict.fromkeys(how(r) for r in rows):
        found = {r["m"]: r for r in rows if how(r) == key}
        lines.append("| %s |" % " | ".join(key + tuple("%s us (%.0f %%)" % (
            us(found[m]["us_median"]), 100 * found[m]["fraction"]) for m in every_m)))
    return lines


# -------------------------------------------------------------------------------- against peers


def good_peers(r):
    return [p for p in r.get("peers", []) if p["verified"]]


def best_peer(r):
    return min(good_peers(r), key=lambda p: p["us_median"], default=None)


def label(r):
    if r["op"] == "conv2d":
        return "%s, batch %d" % (r["layer"].split(" ")[-1], r["batch"])
    return "%s, %s, m = %d" % (r["weights"], r["strategy"], r["m"])


def ratio_bars(rows, title, peer_of):
    """How many times as fast as the peer: the time of the peer over ours, on a logarithm."""
    found = [(r, peer_of(r)) for r in rows]
    found = [(r, p) for r, p in found if p is not None]
    if not found:
        return None
    left, right, step, top = 300, 180, 18, 44
    width, height = 760, top + step * len(found) + 12
    ratios = [p["us_median"] / r["us_median"] for r, p in found]
    low, high = min(0.5, min(ratios)), max(2.0, max(ratios))
    span = math.log(high / low)
    def x_of(value):
        return left + math.log(value / low) / span * (width - left - right)
    parts = [text(8, 18, title)]
    for value in (0.25, 0.5, 1, 2, 4, 8, 16, 32):
        if low <= value <= high:
            parts.append('<path class="%s" d="M%.1f %dV%d"/>' % (
                "axis" if value == 1 else "grid", x_of(value), top - 6, height - 8))
            parts.append(text(x_of(value), top - 10, "%g x" % value, "middle"))
    for i, ((r, p), ratio) in enumerate(zip(found, ratios)):
        y = top + step * i
        a, b = sorted((x_of(1), x_of(ratio)))
        parts.append(text(left - 8, y + 12, label(r), "end"))
        parts.append('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>' % (
            a, y + 2, max(b - a, 1), step - 5, COLORS[2] if ratio >= 1 else COLORS[1]))
        parts.append(text(max(b, x_of(1)) + 6, y + 12, "%.2f  %s" % (ratio, short(p))))
    return svg(width, height, parts)


def short(p):
    way = p["way"].replace(" per channel", "").replace(" (dynamic)", "")
    if p["peer"] == "torch" and way.startswith("oneDNN 3"):
        return "torch: " + way
    return "%s: %s" % (p["peer"], way)


def onednn(r):
    return min((p for p in good_peers(r) if p["way"].endswith("int8 per channel")),
               key=lambda p: p["us_median"], default=None)


def best_of_bits(r):
    """The fastest peer whose weights have 4 bits, where ours have."""
    if not r["weights"].startswith("int4"):
        return None
    peers = [p for p in good_peers(r) if "int4" in p["way"] or "Q4" in p["way"]]
    return min(peers, key=lambda p: p["us_median"], default=None)


def matmul_table(rows):
    lines = ["| weights | strategy | m | quern | best peer | its time | ours / theirs "
             "| best with 4 bits | ours / theirs |", "|---|---|--:|--:|---|--:|--:|---|--:|"]
    order = []
    for r in rows:
        key = (r["weights"], r["strategy"])
        if key not in order:
            order.append(key)
    for r in sorted(rows, key=lambda r: (order.index((r["weights"], r["strategy"])), r["m"])):
        p, q = best_peer(r), best_of_bits(r)
        if p is None:
            continue
        same = " | " if q is None else "%s, %s us | %.2f" % (
            short(q), us(q["us_median"]), r["us_median"] / q["us_median"])
        lines.append("| %s | %s | %d | %s us | %s | %s us | %.2f | %s |" % (
            r["weights"], r["strategy"], r["m"], us(r["us_median"]), short(p),
            us(p["us_median"]), r["us_median"] / p["us_median"], same))
    return lines


def conv_table(rows):
    by_layer = {}
    for r in rows:
        by_layer.setdefault(r["layer"].split(" ")[-1], {})[r["batch"]] = r
    lines = ["| layer | quern, batch 1 | oneDNN int8 | ours / theirs | quern, batch 8 | oneDNN "
             "int8 | ours / theirs |", "|---|--:|--:|--:|--:|--:|--:|"]
    for layer, found in by_layer.items():
        cells = []
        for batch in (1, 8):
            r = found.get(batch)
            p = onednn(r) if r else None
            cells += ["", "", ""] if p is None else [
                us(r["us_median"]) + " us", us(p["us_median"]) + " us",
                "%.2f" % (r["us_median"] / p["us_median"])]
        lines.append("| %s | %s |" % (layer, " | ".join(cells)))
    return lines


DENSE = ("bf16", "f32", "sgemm", "sgemv")


def dense_peer(r):
    return min((p for p in good_peers(r) if p["way"] in DENSE), key=lambda p: p["us_median"],
               default=None)


def formats_table(rows):
    """Our time / that of the fastest dense product of the same shape."""
    every_m = sorted({r["m"] for r in rows})
    ways = list(dict.fromkeys(r["strategy"] for r in rows))
    lines = ["| weights | " + " | ".join(
        "%s, m = %d" % (way, m) for way in ways for m in every_m) + " |",
             "|---|" + "--:|" * (len(ways) * len(every_m))]
    for weights in dict.fromkeys(r["weights"] for r in rows):
        found = {(r["strategy"], r["m"]): r for r in rows if r["weights"] == weights}
        cells = []
        for way in ways:
            for m in every_m:
                r = found.get((way, m))
                p = dense_peer(r) if r else None
                cells.append("" if p is None else "%.2f" % (r["us_median"] / p["us_median"]))
        lines.append("| %s | %s |" % (weights, " | ".join(cells)))
    return lines


def same_peer(r):
    """oneDNN's convolution of the same kind: of int8, or of f32."""
    if r["strategy"] == "int8-static":
        return onednn(r)
    return next((p for p in good_peers(r) if p["way"] == "f32"), None)


def layers_table(rows):
    """Layers of one model and strategy: time, and ours / oneDNN's."""
    lines = ["| layer | strategy | batch 1 | ours / theirs | batch 8 | ours / theirs |",
             "|---|---|--:|--:|--:|--:|"]
    for key in dict.fromkeys((r["layer"], r["strategy"]) for r in rows):
        cells = []
        for batch in (1, 8):
            r = next((r for r in rows if (r["layer"], r["strategy"], r["batch"]) == key + (batch,)),
                     None)
            p = same_peer(r) if r else None
            cells += ["" if r is None else us(r["us_median"]) + " us",
                      "" if p is None else "%.2f" % (r["us_median"] / p["us_median"])]
        lines.append("| %s | %s | %s |" % (key[0], key[1], " | ".join(cells)))
    return lines


WANTED = (("int4:g128", "int8-block"), ("int4:g32", "int8-block"), ("int8:pc", "int8-row"))


def readme_row(p, ours, theirs):
    return ["%s us" % us(ours), "%s, %s us" % (short(p), us(theirs)), "%.2f" % (ours / theirs)]


def same_layers(conv_of):
    """Of each machine's convolutions the layers that all machines with convolutions have."""
    layers = [{r["layer"] for r in conv} for conv in conv_of.values() if conv]
    common = set.intersection(*layers) if layers else set()
    return {name: [r for r in conv if r["layer"] in common] for name, conv in conv_of.items()}


def readme_cells(matmul, conv):
    """What README shows of one machine: {(what, m or batch): cells}."""
    found = {}
    for weights, strategy in WANTED:
        for r in matmul:
            p = best_peer(r)
            is_wanted = (r["weights"], r["strategy"]) == (weights, strategy)
            if is_wanted and r["m"] in (1, 32, 512) and p:
                found["4096 x 4096, %s, %s" % (weights, strategy), r["m"]] = readme_row(
                    p, r["us_median"], p["us_median"])
    for batch in (1, 8):
        pairs = [(r, onednn(r)) for r in conv if r["batch"] == batch]
        pairs = [(r, p) for r, p in pairs if p]
        if pairs:
            ours, theirs = (sum(each["us_median"] for each in side) for side in zip(*pairs))
            found["ResNet-50, %d layers, int8 convolution" % len(pairs), "batch %d" % batch] = \
                readme_row(pairs[0][1], ours, theirs)
    return found


def readme_table(cells_of):
    """The machines side by side; cells_of: what readme_cells() found, by machine."""
    lines = ["| what | m |" + "".join(" %s | best peer beside it | ours / theirs |" % name
                                      for name in cells_of),
             "|---|--:|" + "--:|---|--:|" * len(cells_of)]
    keys = list(dict.fromkeys(key for cells in cells_of.values() for key in cells))
    for what, m in keys:
        cells = sum((found.get((what, m), [""] * 3) for found in cells_of.values()), [])
        lines.append("| %s | %s | %s |" % (what, m, " | ".join(cells)))
    return lines if keys else []


def provenance(rows):
    """Machine and commit of the lines, and who was beside us."""
    if not rows:
        return []
    ran = {}  # what each machine did with so many threads
    for r in rows:
        ran.setdefault((r["machine"], r["isa"]), {}).setdefault(r["threads"], set()).add(r["op"])
    machines = ["%s; %s, %s" % (machine, " and ".join(
        "%d thread%s" % (n, "" if n == 1 else "s") +
        (" (%s)" % ", ".join(sorted(ran[machine, isa][n])) if len(ran[machine, isa]) > 1 else "")
        for n in sorted(ran[machine, isa])), isa) for machine, isa in sorted(ran)]
    commits = sorted({r["commit"] for r in rows})
    peers = sorted({"%s %s" % (p["peer"], p["version"].split(" ")[0])
                    for r in rows for p in r.get("peers", [])})
    words = "; ".join(machines) + "; commit " + ", ".join(commits)
    return [words + ("; beside " + ", ".join(peers) if peers else "") + "."]


# ------------------------------------------------------------------------------------- the files


def put_tables(path, tables):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        old = file.read()

    def replace(match):
        lines = tables.get(match.group(1))
        if not lines:
            return match.group(0)
        return "<!-- table %s -->\n%s\n<!-- end -->" % (match.group(1), "\n".join(lines))
    return old, re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", replace, old, flags=re.S)


# The name in bench/results and in the markers, and what the reader calls it.
MACHINES = {"amx": "AMX", "avx2": "AVX2"}


SETS = {"matmul": matmul_table, "strategies": strategies_table, "formats": formats_table,
        "sweep": fit_table, "experts": experts_table, "conv": conv_table, "layers": layers_table}


def add_machine(tables, pictures, name, sets):
    for what, table in SETS.items():
        if sets[what]:
            tables["%s-%s" % (name, what)] = table(sets[what])
            tables["%s-%s-from" % (name, what)] = provenance(sets[what])
    where = "docs/performance-%s-%%s.svg" % name
    pictures[where % "sweep"] = time_over_m(sets["sweep"])
    pictures[where % "matmul"] = ratio_bars(
        sets["matmul"], "Times as fast as the fastest peer (right of the line: quern is faster), "
        "n = k = 4096", best_peer)
    pictures[where % "conv"] = ratio_bars(
        sets["conv"], "Times as fast as oneDNN's int8 convolution, ResNet-50", onednn)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", default=os.path.join(ROOT, "bench", "results"))
    parser.add_argument("--to", default=ROOT, help="where changed files are written")
    options = parser.parse_args()
    tables, pictures, cells = {}, {}, {}
    sets_of = {name: {what: least(results(options.results, "cpu-%s-%s.jsonl" % (name, what)))
                      for what in SETS} for name in MACHINES}
    conv_of = same_layers({name: sets["conv"] for name, sets in sets_of.items()})
    for name, instructions in MACHINES.items():
        sets = sets_of[name]
        add_machine(tables, pictures, name, sets)
        cells[instructions] = readme_cells(sets["matmul"], conv_of[name])
        tables["readme-%s-from" % name] = provenance(sets["matmul"] + sets["conv"])
    tables["readme"] = readme_table({name: found for name, found in cells.items() if found})
    gpu_tables, gpu_pictures = plot_gpu.tables_and_pictures(results(options.results, "gpu.jsonl"))
    tables.update(gpu_tables)
    pictures.update(gpu_pictures)
    changes = []
    for path, words in pictures.items():
        full = os.path.join(ROOT, path)
        old = open(full, encoding="utf-8").read() if os.path.exists(full) else ""
        if words is not None and words != old:
            changes.append((path, words))
    for path in ("docs/performance.md", "README.md"):
        old, new = put_tables(path, tables)
        if old != new:
            changes.append((path, new))
    for path, words in changes:
        if options.check:
            print("plot.py: %s is out of date; run bench/plot.py" % path)
        else:
            os.makedirs(os.path.dirname(os.path.join(options.to, path)), exist_ok=True)
            with open(os.path.join(options.to, path), "w", encoding="utf-8") as file:
                file.write(words)
    return 1 if options.check and changes else 0


if __name__ == "__main__":
    sys.exit(main())
