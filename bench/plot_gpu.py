# SPDX-License-Identifier: Apache-2.0
"""The GPU's part of bench/plot.py: tables and pictures out of the lines of bench/gpu.py. Everything
is of one run, whose first line says of what."""
import math

from svg import COLORS, svg, text, us

PEERS = ("cublas fp16", "cublas fp8", "cublas int8", "torch int4 g128")
# Peers whose results are those of float activations: the others multiply other numbers.
FLOAT_PEERS = ("cublas fp16", "torch int4 g128")
TABLE_ROWS = (1, 16, 64, 256, 1024, 4096)


class Record:
    def __init__(self, lines):
        self.about = next((r for r in lines if r["op"] == "about"), {})
        self.fits = [r for r in lines if r["op"] == "fit"]
        self.cases = [r for r in lines if r["op"] == "matmul"]
        self.shapes = []
        for r in self.cases:
            if (r["n"], r["k"]) not in self.shapes:
                self.shapes.append((r["n"], r["k"]))
        self.by_key = {(r["set"], r["kernel"] if r["set"] == "peer" else "", r["n"], r["k"],
                        r["m"]): r for r in self.cases}

    def ours(self, name, shape, m):
        return self.by_key.get((name, "", *shape, m))

    def peer(self, name, shape, m):
        return self.by_key.get(("peer", name, *shape, m))

    def best_peer(self, names, shape, m):
        found = [r for r in (self.peer(name, shape, m) for name in names) if r]
        return min(found, key=lambda r: r["us_median"], default=None)

    def rows(self, shape, name):
        return sorted(r["m"] for r in self.cases
                      if r["set"] == name and (r["n"], r["k"]) == shape)

    def full_shapes(self):
        """Those measured at the rows of the tables."""
        return [s for s in self.shapes if self.ours("float", s, 256)]


def time_of(r):
    return "" if r is None else us(r["us_median"])


def ratio(ours, theirs):
    return "" if ours is None or theirs is None else "%.2f" % (
        ours["us_median"] / theirs["us_median"])


def best(a, b):
    """The faster of two cases, either of which may be missing."""
    found = [r for r in (a, b) if r is not None]
    return min(found, key=lambda r: r["us_median"], default=None)


# --------------------------------------------------------------------------------------- tables


def provenance(record):
    ours = [r for r in record.cases if r["set"] != "peer"]
    a = record.about
    words = [", ".join(sorted({r["machine"] for r in ours})) or a.get("gpu", "a GPU")]
    if "driver" in a:
        words.append("driver " + a["driver"])
    if "torch" in a:
        words.append("torch %s (CUDA %s)" % (a["torch"], a["cuda"]))
    words.append("commit " + ", ".join(sorted({r["commit"] for r in ours})))
    wrong = sum(not r["verified"] for r in ours)
    words.append("%d results of quern checked against sums in double, %d wrong" % (len(ours),
                                                                                   wrong))
    return ["`%s`: %s." % (a.get("command", "bench/gpu.py"), "; ".join(words))]


def matmul_table(record):
    lines = ["| n x k | m | quern | with pdl | dense | of the limit | " + " | ".join(PEERS) +
             " | quern / best float peer |",
             "|---|--:|--:|--:|--:|--:|" + "--:|" * len(PEERS) + "--:|"]
    for shape in record.shapes:
        for m in record.rows(shape, "float"):
            r, pdl = record.ours("float", shape, m), record.ours("float-pdl", shape, m)
            dense = record.ours("dense", shape, m)
            peers = [record.peer(name, shape, m) for name in PEERS]
            lines.append("| %d x %d | %d | %s | %s | %s | %.0f %% | %s | %s |" % (
                *shape, m, time_of(r), time_of(pdl), time_of(dense),
                100 * best(best(r, pdl), dense)["fraction"],
                " | ".join(time_of(p) for p in peers),
                ratio(best(r, dense), record.best_peer(FLOAT_PEERS, shape, m))))
    return lines


def sets_table(record):
    names = []
    for r in record.cases:
        if r["set"] not in ("peer", "float", "float-pdl") and r["set"] not in names:
            names.append(r["set"])
    lines = ["| n x k | weights | strategy | " + " | ".join("m = %d" % m for m in TABLE_ROWS) +
             " |", "|---|---|---|" + "--:|" * len(TABLE_ROWS)]
    for shape in record.full_shapes():
        for name in names:
            found = [record.ours(name, shape, m) for m in TABLE_ROWS]
            some = next((r for r in found if r), None)
            if some is None:
                continue
            cells = ["%s (%.0f %%)" % (time_of(r), 100 * r["fraction"]) if r else ""
                     for r in found]
            lines.append("| %d x %d | %s | %s%s | %s |" % (
                *shape, some["weights"], some["strategy"], ", pdl" if some.get("pdl") else "",
                " | ".join(cells)))
    return lines


def fit_table(record):
    lines = ["| | m | fixed cost | then |", "|---|--:|--:|--:|"]
    order = sorted(record.fits, key=lambda r: (r["m"], not r["kernel"].startswith("quern")))
    for r in order:
        lines.append("| %s | %d | %.1f us | %.2f TB/s |" % (r["kernel"], r["m"], r["t0_us"],
                                                          r["tb_s"]))
    return lines


def readme_table(record):
    rows = [m for m in TABLE_ROWS if any(record.ours("float", s, m) for s in record.shapes)]
    lines = ["| n x k | " + " | ".join("m = %d" % m for m in rows) + " |",
             "|---|" + "--:|" * len(rows)]
    for shape in record.full_shapes():
        cells = []
        for m in rows:
            r = best(record.ours("float", shape, m), record.ours("float-pdl", shape, m))
            dense = record.ours("dense", shape, m)
            p = record.best_peer(FLOAT_PEERS, shape, m)
            cell = time_of(r)
            if dense is not None and best(r, dense) is dense:
                cell += ", dense %s" % time_of(dense)
            cells.append(cell if p is None else "%s (%s)" % (cell, time_of(p)))
        lines.append("| %d x %d | %s |" % (*shape, " | ".join(cells)))
    return lines


# ------------------------------------------------------------------------------------- pictures


class Panel:
    """Axes of one shape: m on a logarithm, and a value on a logarithm or from 0 to 1."""

    def __init__(self, left, top, width, height, most_m, low, high, is_log):
        self.box = left, top, width, height
        self.most_m, self.low, self.high, self.is_log = most_m, low, high, is_log
        self.parts = []

    def place(self, m, value):
        left, top, width, height = self.box
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (left + math.log(m) / math.log(self.most_m) * width,
                top + height - (value - low) / (high - low) * height)

    def axes(self, title, ticks):
        left, top, width, height = self.box
        self.parts.append(text(left, top - 8, title))
        m = 1
        while m <= self.most_m:
            x = self.place(m, self.low)[0]
            self.parts.append('<path class="grid" d="M%.1f %dv%d"/>' % (x, top, height))
            self.parts.append(text(x, top + height + 15, str(m), "middle"))
            m *= 4
        for value, words in ticks:
            if self.low <= value <= self.high:
                y = self.place(1, value)[1]
                self.parts.append('<path class="grid" d="M%d %.1fh%d"/>' % (left, y, width))
                self.parts.append(text(left - 5, y + 4, words, "end"))

    def line(self, points, color, dash="", dots=True):
        placed = [self.place(m, value) for m, value in points]
        if len(placed) > 1:
            self.parts.append(
                '<polyline fill="none" stroke="%s" stroke-dasharray="%s" points="%s"/>' % (
                    color, dash, " ".join("%.1f,%.1f" % p for p in placed)))
        for x, y in placed if dots else ():
            self.parts.append('<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>' % (x, y, color))


def legend(entries, left, y):
    parts = []
    for name, color, dash in entries:
        parts.append('<path fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s" '
                     'd="M%d %dh18"/>' % (color, dash, left, y - 4))
        parts.append(text(left + 23, y, name))
        left += 40 + int(6.6 * len(name))
    return parts


def points_of(record, name, shape, value, peer=None):
    rows = sorted({r["m"] for r in record.cases if (r["n"], r["k"]) == shape})
    found = [(m, record.peer(peer, shape, m) if peer else record.ours(name, shape, m))
             for m in rows]
    return [(m, value(r)) for m, r in found if r is not None]


def panels(record, height, title, draw):
    """One panel a shape, two in a row. draw(shape, left, top, width, height) gives its parts."""
    shapes = record.full_shapes()
    if not shapes:
        return None
    width, step = 900, height + 62
    parts = [text(8, 18, title)]
    for i, shape in enumerate(shapes):
        parts += draw(shape, 62 + 450 * (i % 2), 76 + step * (i // 2), 370, height)
    return width, 76 + step * ((len(shapes) + 1) // 2), parts


MS = ((1, "1 us"), (2, "2"), (5, "5"), (10, "10 us"), (20, "20"), (50, "50"), (100, "100 us"),
      (200, "200"), (500, "500"), (1000, "1 ms"), (2000, "2 ms"), (5000, "5 ms"))
LINES = [("quern", "float", None, COLORS[0], ""), ("quern, pdl", "float-pdl", None, COLORS[3], ""),
         ("cuBLAS fp16", None, "cublas fp16", COLORS[1], ""),
         ("torch int4", None, "torch int4 g128", COLORS[2], ""),
         ("cuBLAS fp8", None, "cublas fp8", COLORS[4], "")]


def time_picture(record):
    def value(r):
        return r["us_median"]

    def draw(shape, left, top, width, height):
        mine = [r for r in record.cases if (r["n"], r["k"]) == shape]
        limits = points_of(record, "float", shape, lambda r: r["bound_us"])
        values = [r["us_median"] for r in mine] + [t for _, t in limits]
        panel = Panel(left, top, width, height, max(r["m"] for r in mine), min(values) / 1.1,
                      max(values) * 1.1, True)
        panel.axes("%d x %d" % shape, MS)
        panel.line(limits, "#8c959f", "4 4", dots=False)
        for _, name, peer, color, dash in LINES:
            panel.line(points_of(record, name, shape, value, peer), color, dash)
        return panel.parts

    found = panels(record, 240, "Time against m, int4 in groups of 128, f16: one call in a graph, "
                                "weights from memory", draw)
    if found is None:
        return None
    width, height, parts = found
    entries = [(name, color, dash) for name, _, _, color, dash in LINES]
    return svg(width, height, parts + legend(entries + [("limit", "#8c959f", "4 4")], 62, 42))


LIMITS = [("int4:g128 float", "float", COLORS[0]), ("with pdl", "float-pdl", COLORS[3]),
          ("int8:pc float", "w8a16", COLORS[1]), ("int4:g128 int8-block", "int8-block", COLORS[2]),
          ("int8:pc int8-row", "int8-row", COLORS[4]), ("dense", "dense", COLORS[5])]


def limit_picture(record):
    def draw(shape, left, top, width, height):
        rows = [r["m"] for r in record.cases if (r["n"], r["k"]) == shape]
        panel = Panel(left, top, width, height, max(rows), 0, 1, False)
        panel.axes("%d x %d" % shape, [(i / 5, "%d %%" % (20 * i)) for i in range(6)])
        for _, name, color in LIMITS:
            panel.line(points_of(record, name, shape, lambda r: min(r["fraction"], 1)), color)
        return panel.parts

    found = panels(record, 180, "Fraction of the limit, max(bytes / rated bandwidth, operations / "
                                "rated peak), against m", draw)
    if found is None:
        return None
    width, height, parts = found
    return svg(width, height, parts + legend([(name, color, "") for name, _, color in LIMITS], 62,
                                             42))


def tables_and_pictures(lines):
    """What bench/plot.py puts where; nothing without a record."""
    record = Record(lines)
    if not record.full_shapes():
        return {}, {}
    tables = {"gpu-from": provenance(record), "gpu-matmul": matmul_table(record),
              "gpu-sets": sets_table(record), "gpu-fit": fit_table(record),
              "gpu-readme": readme_table(record), "gpu-readme-from": provenance(record),
              "gpu-pictures": ["![Time against m on a GPU](performance-gpu.svg)", "",
                               "![Fraction of the limit on a GPU](performance-gpu-limit.svg)"]}
    return tables, {"docs/performance-gpu.svg": time_picture(record),
                    "docs/performance-gpu-limit.svg": limit_picture(record)}
