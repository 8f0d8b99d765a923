# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.svg: a box for each room, an arrow to each room that it may include.

The rooms and arrows are those that check_layers.py holds the sources to, the folders are those of
the tree, the words come from the table of rooms in docs/architecture.md. gen_docs.py writes it.
"""
import html
import os
import re
import textwrap

import check_layers
import ctext

WIDTH, MARGIN, GAP = 960, 20, 20
LINE, PAD, BETWEEN = 15, 12, 46
LETTER = 6.1  # of the small font, in pixels

STYLE = (".b{fill:#eef3fb;stroke:#4a6fa5}.p{fill:#fdf3d8;stroke:#b08a2e;stroke-width:2}"
         ".d{fill:#f6f6f6;stroke:#999;stroke-dasharray:5 4}"
         ".t{font-size:15px;font-weight:600;fill:#222}.s{font-size:12px;fill:#444}"
         ".f{font-size:12px;fill:#4a6fa5}.a{stroke:#666;stroke-width:1.5}svg{background:#fff}")
MARKER = ('<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
          'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#666"/></marker></defs>')

OF_CPU = "a kernel is one file and one row of a table"


def words_of(root):
    """{area: what lives there}, of the table in docs/architecture.md."""
    page = ctext.read(root, "docs/architecture.md")
    words = {area: re.sub(r"`", "", words).strip()
             for area, words in re.findall(r"^\| `([\w/]+)` \| ([^|]*)\|", page, re.M)}
    return {"include": words.get("include/quern", ""), "src/cpu": OF_CPU, **words}


def areas(root):
    return [area for area in check_layers.DOWN if os.path.isdir(os.path.join(root, area))]


def levels(there):
    """The rooms from top to bottom: users, the headers, then src by what lies below."""
    def depth(area):
        below = [d for d in check_layers.DOWN[area] if d in there and d.startswith("src/")]
        return 1 + max(map(depth, below), default=0)
    rooms = [area for area in there if area.startswith("src/")]
    users = [area for area in there if area not in rooms and area != "include"]
    rows = [users, ["include"]]
    for at in sorted({depth(area) for area in rooms}, reverse=True):
        rows.append([area for area in rooms if depth(area) == at])
    return rows


def arrows(there):
    """What a room may include and does not already reach through another."""
    def below(area):
        direct = [d for d in check_layers.DOWN[area] if d in there and d != "include"]
        return set(direct).union(*map(below, direct)) if direct else set()
    found = []
    for area in there:
        if not area.startswith("src/"):
            found += [(area, "include")] if area != "include" else []
            continue
        direct = [d for d in check_layers.DOWN[area] if d in there and d != "include"]
        through = set().union(*map(below, direct)) if direct else set()
        found += [(area, d) for d in sorted(direct) if d not in through]
    return found + [("include", "src/api")]


class Box:
    def __init__(self, root, area, words, width):
        self.area, self.width = area, width
        self.kind = "p" if area == "include" else "d" if area == "src/ref" else "b"
        self.lines = textwrap.wrap(words, int((width - 2 * PAD) / LETTER))
        parts = sorted({os.path.dirname(path)[len(area) + 1:].split("/")[0]
                        for path in ctext.files(root, area)} - {""})
        parts = parts if area.startswith("src/") else []
        self.folders = textwrap.wrap(", ".join(parts), int((width - 2 * PAD) / LETTER))
        self.height = 2 * PAD + LINE * (1 + len(self.lines) + len(self.folders))
        self.x = self.y = 0

    def draw(self):
        middle = self.x + self.width / 2
        yield (f'<rect class="{self.kind}" x="{self.x:.0f}" y="{self.y:.0f}" '
               f'width="{self.width:.0f}" height="{self.height:.0f}" rx="6"/>')
        styles = ["t"] + ["s"] * len(self.lines) + ["f"] * len(self.folders)
        for i, line in enumerate([self.area] + self.lines + self.folders):
            y = self.y + PAD + 12 + LINE * i
            yield (f'<text class="{styles[i]}" x="{middle:.0f}" y="{y:.0f}" '
                   f'text-anchor="middle">{html.escape(line)}</text>')


def place(root):
    """({area: box}, height of the picture)"""
    there, words = areas(root), words_of(root)
    boxes, y = {}, MARGIN
    for row in levels(there):
        width = min(420, (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row))
        made = [Box(root, area, words.get(area, "over the public headers"), width)
                for area in row]
        tallest = max(box.height for box in made)
        x = (WIDTH - width * len(row) - GAP * (len(row) - 1)) / 2
        for box in made:
            box.x, box.y, box.height = x, y, tallest
            boxes[box.area] = box
            x += width + GAP
        y += tallest + BETWEEN
    return boxes, y - BETWEEN + MARGIN


def draw(root):
    boxes, height = place(root)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
             'font-family="system-ui, sans-serif" role="img" '
             'aria-label="The rooms of quern and who includes whom">',
             f"<style>{STYLE}</style>", MARKER]
    for box in boxes.values():
        parts += box.draw()
    for source, target in arrows(areas(root)):
        a, b = boxes[source], boxes[target]
        ax, bx = a.x + a.width / 2, b.x + b.width / 2
        # Arrows end on the nearest third of a wide box, so that several do not meet in one point.
        bx += max(-b.width / 3, min(b.width / 3, (ax - bx) / 3))
        parts.append(f'<line class="a" x1="{ax:.0f}" y1="{a.y + a.height:.0f}" x2="{bx:.0f}" '
                     f'y2="{b.y - 2:.0f}" marker-end="url(#h)"/>')
    return "\n".join(parts + ["</svg>"]) + "\n"
