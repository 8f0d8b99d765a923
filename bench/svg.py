# SPDX-License-Identifier: Apache-2.0
"""Pictures as text: SVG with the reader's colours in the dark, and numbers as tables have them."""

COLORS = ["#1f6feb", "#d1600a", "#1a7f4b", "#a33ea1", "#7a6a00", "#c4314b"]
STYLE = """<style>
text{font:12px sans-serif;fill:#24292f}.axis{stroke:#8c959f;fill:none}.grid{stroke:#d0d7de}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.axis{stroke:#6e7681}.grid{stroke:#30363d}}
</style>"""


def us(value):
    return "%.0f" % value if value >= 100 else "%.1f" % value


def svg(width, height, parts):
    return ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d">\n' % (width, height)
            + STYLE + "\n" + "\n".join(parts) + "\n</svg>\n")


def text(x, y, words, anchor="start", color=None):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    fill = ' style="fill:%s"' % color if color else ""
    return '<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>' % (x, y, anchor, fill, words)
