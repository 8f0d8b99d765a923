#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each family of the library costs: bytes of code and data by folder and instruction set.

    library_size.py OBJECTS [ARCHIVE]

OBJECTS is the folder in which CMake leaves the library's object files, for example
build/release/CMakeFiles/quern_objects.dir. With ARCHIVE, its size without debug information and
the limit that tools/check_sizes.py holds it to follow. Exit status 1 if there are no objects.
"""
import collections
import os
import re
import subprocess
import sys

import check_sizes


def sections(objects):
    """Bytes of code and data of each source that was compiled."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(objects) for name in names
             if name.endswith(".o")]
    if not paths:
        return {}
    lines = subprocess.run(("size", *paths), check=True, capture_output=True, text=True).stdout
    found = {}
    for line in lines.splitlines()[1:]:
        text, data, bss, _, _, path = line.split(None, 5)
        source = os.path.relpath(path, objects)
        found[source.removeprefix("src/")] = int(text) + int(data) + int(bss)
    return found


def isa_of(source):
    """The instruction set that a kernel's file is named after; empty for portable C."""
    found = re.search(r"(?:^|_)(?:x86|arm)_([a-z0-9]+)", os.path.basename(source).split(".")[0])
    return found.group(1) if found else ""


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    by_source = sections(sys.argv[1])
    if not by_source:
        print(f"library_size: {sys.argv[1]}: no object files; 'make' builds them", file=sys.stderr)
        return 1
    families = collections.Counter()
    for source, size in by_source.items():
        families[os.path.dirname(source)] += size
    cells = collections.Counter()
    for source, size in by_source.items():
        cells[os.path.dirname(source), isa_of(source)] += size
    isas = sorted({isa for _, isa in cells}, key=lambda isa: (isa != "", isa))
    print(f"{'KB':<20}{'all':>8}" + "".join(f"{isa or 'C':>9}" for isa in isas))
    for family, size in families.most_common():
        row = "".join(f"{cells[family, isa] / 1000:>9.0f}" if (family, isa) in cells else f"{'':>9}"
                      for isa in isas)
        print(f"{family:<20}{size / 1000:>8.0f}{row}")
    sums = "".join(f"{sum(n for (_, of), n in cells.items() if of == isa) / 1000:>9.0f}"
                   for isa in isas)
    print(f"{'all':<20}{sum(families.values()) / 1000:>8.0f}{sums}")
    if len(sys.argv) == 3:
        return 1 if check_sizes.check_archive(sys.argv[2]) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
