#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes that keep code readable, and the size of the library.

    check_sizes.py [--root DIR] [--archive libquern.a]

Functions, files, parameters, columns; with --archive the static library of a build
without CUDA, less its debug information.
Exit status 1 and one line per finding when a limit is passed.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import ctext

FUNCTION_LINES = 120
KERNEL_LINES = 250
FILE_LINES = 1000
PARAMETERS = 8
COLUMNS = 100
# `make size` tells it by family. CPU kernels, mostly: what the forms of a kernel cost should not
# go unnoticed. And 300 KB of many small importers and exporters of other programs' checkpoints,
# with their sentences; 300 KB of what engines would otherwise write themselves: prepared rows,
# epilogues, ranks. And 150 KB of kernels for weights that are not quantized, 50 KB of experts and
# convolutions over ranks, 250 KB of compact layouts: codes of each number of bits for each number
# of rows and each kind of step.
ARCHIVE_BYTES = (18 << 18) + 200 * 1024

# Not lab: experiments, linked by nothing.
FOLDERS = ("include", "src", "cli", "ort", "test", "bench", "fuzz", "examples", "tools", "cmake",
           "python")
ENDINGS = ctext.C_ENDINGS + (".py", ".sh", ".cmake")
# As long as what it lists: gen_docs.py writes it out of the headers, nobody reads it from top to
# bottom.
GENERATED = {"python/quern/_abi.py"}


def check_file(root, path):
    text = ctext.read(root, path)
    lines = text.split("\n")
    problems = []
    if len(lines) - 1 > FILE_LINES and path not in GENERATED:
        problems.append(f"{path}: {len(lines) - 1} lines, the limit is {FILE_LINES}: split it")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            problems.append(f"{path}:{number}: {len(line)} columns, the limit is {COLUMNS}")
        if line != line.rstrip():
            problems.append(f"{path}:{number}: blanks at the end of the line")
        if "\t" in line and not path.endswith("Makefile"):
            problems.append(f"{path}:{number}: a tab")
    if path.endswith(ctext.C_ENDINGS):
        if "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
            problems.append(f"{path}:1: the first line is the licence")
        limit = KERNEL_LINES if ctext.is_isa_file(path) or path.endswith(".cu") else FUNCTION_LINES
        for name, first, last, n_parameters, _ in ctext.functions(text):
            if last - first + 1 > limit:
                problems.append(f"{path}:{first}: {name}: {last - first + 1} lines, "
                                f"the limit is {limit}")
            if n_parameters > PARAMETERS:
                problems.append(f"{path}:{first}: {name}: {n_parameters} parameters, the limit is "
                                f"{PARAMETERS}: pass a struct")
    return problems


def check_archive(archive):
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped.a")
        subprocess.run(("strip", "--strip-debug", "-o", stripped, archive), check=True)
        size = os.path.getsize(stripped)
    print(f"static library: {size} bytes of at most {ARCHIVE_BYTES}")
    if size > ARCHIVE_BYTES:
        return [f"{os.path.basename(archive)}: {size} bytes, the limit is {ARCHIVE_BYTES}"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."))
    parser.add_argument("--archive")
    options = parser.parse_args()
    problems = []
    for path in ctext.files(options.root, *FOLDERS, endings=ENDINGS):
        problems += check_file(options.root, path)
    if options.archive:
        problems += check_archive(options.archive)
    return ctext.report("check_sizes", problems)


if __name__ == "__main__":
    sys.exit(main())
