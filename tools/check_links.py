#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Relative links of the Markdown files: the file is there, and so is the heading they name; and
what a page includes from a source is still in it. check_links.py [--root ROOT]"""
import argparse
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INCLUDE = re.compile(r"```\{literalinclude\} (\S+)\n((?::[^\n]*\n)*)")
MARK = re.compile(r':(?:start-after|end-before): "(.*)"')


def anchor(heading):
    """As renderers make it: lower case, punctuation dropped, blanks to dashes."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    return {anchor(h) for h in re.findall(r"^#+ (.*)$", text, flags=re.M)}


def check(path):
    text = path.read_text(encoding="utf-8")
    for name, options in INCLUDE.findall(text):
        source = path.parent / name
        if not source.is_file():
            yield f"includes {name}, which is not there"
            continue
        for mark in MARK.findall(options):
            if mark not in source.read_text(encoding="utf-8"):
                yield f"{name} has no line with '{mark}'"
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        there = (path.parent / name).resolve() if name else path.resolve()
        if not there.exists():
            yield f"links to {target}, which is not there"
        elif fragment and there.suffix == ".md" and fragment not in anchors(there):
            yield f"links to {target}: no such heading"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    root = pathlib.Path(parser.parse_args().root)
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard",
                             "*.md"], capture_output=True, text=True, check=False)
    names = listed.stdout.split() or [str(p.relative_to(root)) for p in root.rglob("*.md")]
    faults = [f"{n}: {what}" for n in sorted(names) if (root / n).is_file()
              for what in check(root / n)]
    print("\n".join(faults) if faults else f"{len(names)} pages, every link leads somewhere")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
