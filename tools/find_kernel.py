#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From a kernel's name to everything about it: its row, its source, the contract it is written
against, the page of its layout, its test suite and its benchmark.

    find_kernel.py NAME
    find_kernel.py --check [--tests QUERN-CHECK] [--command QUERN]

--check finds all of that for every row of the CPU; with --tests also that the suite has cases of
every kernel that runs here, and with --command, too, that the benchmark is one of it. Exit status 1
and one line per kernel that cannot be found.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys

import check_names
import ctext

# The contract that an algorithm's function is written against.
CONTRACTS = {"matmul": "src/cpu/matmul/kernel.h", "conv": "src/cpu/conv/direct_kernel.h",
             "groups": "src/cpu/conv/groups_kernel.h",
             "depthwise": "src/cpu/conv/depthwise_kernel.h"}
FORMATS = {"q4n16": "int4", "t4n16": "iq4nl", "q8n16": "int8", "t8n16": "fp8", "rows": "int8"}
FLOATS = {"h16n16": "f16", "b16n16": "bf16", "f32n16": "f32"}
STATIC = "--strategy int8-static --y i8"
IMAGE = "--op conv2d --image nhwc --size 28x28 --kernel-size 3x3 --pad 1"


def rows(root):
    """[(path, line, {column: value}, {part of the name: value})] of the kernels of the CPU."""
    grammar = check_names.Grammar(root)
    found = []
    for path in ctext.files(root, "src/cpu", endings=("kernels.inc",)):
        for line, macro, values in check_names.rows(ctext.read(root, path)):
            facts = dict(zip(check_names.columns_of(root, path, macro), values))
            found.append((path, line, facts, {"name": values[0], **grammar.parse(values[0])}))
    return found


def source(root, folder, parts):
    """(path, line) where the kernel is defined, which a macro may do."""
    for path in ctext.files(root, folder, endings=(".c",)):
        isa = ctext.is_isa_file(path)
        if (isa[1] if isa else "scalar") != parts["isa"]:
            continue
        text = ctext.code(ctext.read(root, path))
        pasted = rf"\bqni_{parts['op']}_##\w+##_{parts['variant']}_{parts['isa']}\b"
        match = re.search(rf"\b{parts['name']}\b|{pasted}", text)
        if match and "select" not in path and not path.endswith("depthwise_image.c"):
            return path, ctext.line_of(text, match.start())
    return None


def matmul_options(facts, parts):
    group = ":pc" if parts["reads"] == "q8" else ":g128"
    layout = parts["layout"]
    weights = FLOATS.get(layout) or FORMATS[layout] + group
    strategy = {"f32": "float", "bf16": "float", "q8": "int8-row", "q8b": "int8-block"}
    is_dense = "dense" in parts["variant"]
    rows_of_x = max(int(facts["mr"]), int(facts["m_min"]))
    x = " --x bf16" if parts["reads"] == "bf16" else ""
    return (f"--n 1024 --k 1024 --m {rows_of_x} --weights {weights} --strategy "
            f"{'dense' if is_dense else strategy[parts['reads']]}{x}")


def conv_options(facts, parts):
    weights = FORMATS[parts["layout"]] + ":pc"
    strategy = {"FLOAT": "--strategy float", "INT8_STATIC": STATIC,
                "INT8_ROW": "--strategy int8-row", "INT8_BLOCK": "--strategy int8-block"}
    tail = f"--weights {weights} {strategy[facts['strategy']]}"
    if parts["op"] == "depthwise":
        image = IMAGE.replace("nhwc", "nchw") if facts["algorithm"] == "RING" else IMAGE
        return f"{image} --n 96 --ci 96 --groups 96 {tail}"
    if parts["op"] == "groups":
        return f"{IMAGE} --n 128 --ci 128 --groups 16 {tail}"
    if facts["algorithm"] == "TOOM":
        first = IMAGE.replace("28x28", "64x64").replace("3x3 --pad 1", "7x7 --pad 3 --stride 2x2")
        return f"{first} --n 64 --ci 3 {tail}"
    return f"{IMAGE} --n 128 --ci 128 {tail}"


def benchmark(facts, parts):
    options = matmul_options if parts["op"] == "matmul" else conv_options
    return f"bench {options(facts, parts)} --kernel {parts['name']}"


def recorded(root, name):
    """The files of recorded results that have lines of the kernel."""
    found = []
    folder = os.path.join(root, "bench/results")
    for file in sorted(os.listdir(folder)):
        text = ctext.read(root, f"bench/results/{file}")
        if f'"kernel":"{name}"' in text:
            found.append(f"bench/results/{file}")
    return found


def places(root, row):
    """[(what, where)], where is None if it cannot be found."""
    path, line, facts, parts = row
    name, op = parts["name"], parts["op"]
    defined = source(root, os.path.dirname(path), parts)
    suite = f'"rows.{op}"' in ctext.read(root, "test/kernel/suites.inc")
    layout = parts["layout"].upper()
    drawn = layout == "ROWS" or layout[1:] in ("4N16", "8N16", "16N16", "32N16")
    page = "docs/layouts.md" if drawn else None
    results = recorded(root, name)
    return [("row", f"{path}:{line}"),
            ("source", f"{defined[0]}:{defined[1]}" if defined else None),
            ("contract", CONTRACTS.get(op)),
            ("layout", page),
            ("tests", f"quern-check --filter 'rows.{op}/{name}/*'" if suite else None),
            ("benchmark", f"quern {benchmark(facts, parts)}"),
            ("recorded", ", ".join(results) or "not on a machine that has results here")]


def refusal(command, facts, parts):
    """Why the benchmark is not one of this kernel; None if it is."""
    words = shlex.split(benchmark(facts, parts))[1:]
    done = subprocess.run([command, "explain", "--json", "--threads", "1", *words],
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        planned = json.loads(done.stdout.splitlines()[0])
        return None if planned.get("kernel") == parts["name"] else "another kernel is planned"
    said = done.stdout + done.stderr
    return " ".join(said.split())[:200]


def check(root, tests, command):
    problems = []
    listed = ""
    if tests:
        listed = subprocess.run([tests, "--list"], capture_output=True, text=True,
                                check=True).stdout
    isas = set(re.findall(r"^rows\.\w+/qni_\w+_([a-z0-9]+)/", listed, re.M))
    for row in rows(root):
        path, line, facts, parts = row
        name = parts["name"]
        problems += [f"{path}:{line}: {name}: no {what} is found by its name"
                     for what, where in places(root, row) if where is None]
        if parts["isa"] in isas and f"rows.{parts['op']}/{name}/" not in listed:
            problems.append(f"{path}:{line}: {name}: rows.{parts['op']} has no case of it")
        why = refusal(command, facts, parts) if command and parts["isa"] in isas else None
        if why:
            problems.append(f"{path}:{line}: {name}: quern {benchmark(facts, parts)}: {why}")
    return ctext.report("find_kernel", problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tests", help="quern-check: has the suite cases of each kernel?")
    parser.add_argument("--command", help="quern: does the benchmark run each kernel?")
    options = parser.parse_args()
    if options.check:
        return check(options.root, options.tests, options.command)
    for row in rows(options.root):
        if options.name in (row[3]["name"], row[3]["name"][len("qni_"):]):
            print(row[3]["name"])
            for what, where in places(options.root, row):
                print(f"  {what:10} {where or 'none'}")
            return 0
    print(f"find_kernel: no row of the CPU is called {options.name}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
