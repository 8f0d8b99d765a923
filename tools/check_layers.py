#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, and what may be named where (docs/architecture.md, "Who may include whom").

    check_layers.py [--root DIR] [--archive libquern.a] [--shared libquern.so]

Reads the sources; with --archive also the objects: no mutable globals, and the ISA files call
nothing but memcpy, memset and what other files of their bundle define; with --shared also what the
library imports. Exit status 1 and one line per finding when a rule is broken.
"""
import argparse
import os
import re
import subprocess
import sys

import ctext

# Area -> areas it may include besides itself. Arrows point down only, siblings never meet.
DOWN = {
    "include": set(),
    "src/base": {"include"},
    "src/quant": {"src/base", "include"},
    "src/ref": {"src/quant", "src/base", "include"},
    "src/cpu": {"src/quant", "src/base", "include"},
    "src/cuda": {"src/quant", "src/base", "include"},
    "src/checkpoint": {"src/quant", "src/base", "include"},
    "src/api": {"src/checkpoint", "src/cpu", "src/cuda", "src/quant", "src/base", "include"},
    # Products over several processes are put together from the operations of one.
    "src/dist": {"src/api", "src/quant", "src/base", "include"},
    "src/torch": {"include"}, # an object of its own, for the Python package
    "cli": {"include", "bench"}, # bench/shapes.inc: facts, no code
    "examples": {"include"},
    "python": {"include"},
    "ort": {"include"},
    "test/api": {"include", "test/harness"},
}
# Inside an area folders have an order, too: each may include what stands before it. What they all
# agree on stands first: headers of the area's own folder and the contracts of kernels.
SHARED = re.compile(
    r"src/cpu/(backend\.h|layouts\.(h|inc)|\w+/((\w+_)?kernel|cut)\.h|\w+/(kernels|isa)\.inc)$|"
    r"src/cuda/([^/]+\.(h|cuh|inc)|matmul/\w+\.inc)$|"
    r"src/checkpoint/([^/]+\.h|import/import(\.h|ers\.inc))$")
INSIDE = {
    "src/cpu": ("shared", "src/cpu/simd", "src/cpu/rows", "src/cpu/matmul", "src/cpu/conv",
                "src/cpu"),
    "src/cuda": ("shared", "src/cuda/rows", "src/cuda/conv", "src/cuda/matmul", "src/cuda"),
    "src/checkpoint": ("shared", "src/checkpoint/import", "src/checkpoint/export",
                       "src/checkpoint"),
}
# Tests and benchmarks look inside; nothing looks inside them.
ANYWHERE = ("test", "bench", "fuzz", "lab")

# cuda.h may name a stream, dlpack.h is about somebody else's struct.
PUBLIC_SYSTEM = {"stddef.h", "stdint.h", "stdbool.h"}
PUBLIC_EXTRA = {"cuda.h": {"cuda_runtime_api.h", "driver_types.h"}, "dlpack.h": {"dlpack/dlpack.h"},
                "mpi.h": {"mpi.h", "stdlib.h", "string.h"},
                "nccl.h": {"cuda_runtime_api.h", "nccl.h", "stdlib.h", "string.h", "time.h"}}

KERNEL_SYSTEM = {"stddef.h", "stdint.h", "stdbool.h", "string.h", "immintrin.h", "arm_neon.h"}
KERNEL_OWN = {"src/base/compiler.h", "src/base/half.h", "src/base/exact.h"}
KERNEL_CALLS = {"memcpy", "memset"}

# Each group is named in one file of the library at most. `calls` are words too common to be
# searched for bare (a field may be called free): they count when called, not through a field.
ONE_FILE = [
    ("CPUID", r"__get_cpuid\w*|__cpuid\w*|__builtin_cpu_\w+|_xgetbv|arch_prctl|SYS_arch_prctl|"
              r"getauxval|AT_HWCAP2?", None),
    ("opening files", r"fopen|fdopen|freopen|openat|creat|mkstemp|mkostemp|O_RDONLY|O_CREAT",
     r"open"),
    ("mapping files", r"mmap|munmap", None),
    ("the C library's memory", r"malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup",
     r"free"),
    ("threads", r"pthread_create|thrd_create", None),
    ("CUDA memory", r"cudaMalloc\w*|cudaFree\w*", None),
]
# A library that does these things is no library.
NEVER = [
    ("reads the environment", r"getenv|secure_getenv|environ|putenv|setenv", None),
    ("prints", r"stdout|stderr", r"printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror"),
    ("ends the process", r"_Exit|quick_exit", r"exit|_exit|abort|raise|assert"),
]
NEVER_IMPORTED = re.compile(
    r"^(getenv|secure_getenv|environ|printf|fprintf|vprintf|vfprintf|__printf_chk|__fprintf_chk|"
    r"puts|putchar|perror|stdout|stderr|abort|exit|_exit|_Exit|__assert_fail|raise|system|popen|"
    r"setlocale|signal|sigaction|strtok|rand|srand)$")

LIBRARY = ("src/base", "src/quant", "src/cpu", "src/cuda", "src/dist", "src/checkpoint", "src/api",
           "src/torch")


def area_of(path):
    parts = path.split("/")
    if parts[0] in ("src", "test") and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def resolve(root, path, name, angled):
    """The file of the tree that an include means, or None for a system header."""
    places = [] if angled else [os.path.dirname(path)]
    places += ["include", "src", "test"]
    for place in places:
        target = os.path.normpath(os.path.join(place, name))
        if os.path.isfile(os.path.join(root, target)):
            return target
    return None


def check_inside(path, target):
    """Why path may not include target of the same area, or None."""
    order = INSIDE.get(area_of(path))
    if order is None or area_of(target) != area_of(path):
        return None
    rooms = ["shared" if SHARED.match(p) else os.path.dirname(p) for p in (path, target)]
    for room in rooms:
        if room not in order:
            return f"{room} has no place in its area (tools/check_layers.py: INSIDE)"
    if order.index(rooms[0]) >= order.index(rooms[1]):
        return None
    return f"{os.path.dirname(target)} stands above it (tools/check_layers.py: INSIDE)"


def check_include(path, name, target):
    """Why path may not include name (target: the file of the tree, or None), or None if it may."""
    area = area_of(path)
    base = os.path.basename(path)
    if target is None:
        if area == "include" and name not in PUBLIC_SYSTEM | PUBLIC_EXTRA.get(base, set()):
            return "a public header includes <stddef.h>, <stdint.h>, <stdbool.h> and its like only"
        if ctext.is_isa_file(path) and area == "src/cpu" and name not in KERNEL_SYSTEM:
            return "a kernel file includes kernel.h, simd/, base/compiler.h, half.h, exact.h only"
        return None
    to = area_of(target)
    if target.endswith(".c") and to not in ANYWHERE:
        return "no file includes a .c file"
    if ctext.is_isa_file(path) and area == "src/cpu":
        fine = target in KERNEL_OWN or target.startswith("src/cpu/simd/") or (
            to == area and target.endswith(("kernel.h", "kernels.inc")))
        return None if fine else (
            "a kernel file includes kernel.h, simd/, base/compiler.h, half.h, exact.h only")
    if path.endswith((".cu", ".cuh")):
        plain_c = os.path.basename(target) in ("kernel.h", "decode_quads.h")
        fine = (to == "src/cuda" and (target.endswith(".cuh") or plain_c) or to == "include" or
                (path.endswith(".cuh") and target in KERNEL_OWN))
        return None if fine else (
            "a CUDA file includes .cuh, kernel.h and CUDA's headers only; a .cuh base/exact.h, too")
    if area in DOWN:
        if to != area and to not in DOWN[area]:
            return f"{area} may not include {to}"
        return check_inside(path, target)
    if area.split("/")[0] in ANYWHERE:
        return None
    return f"{area} has no place in the order of layers (tools/check_layers.py: DOWN)"


def check_sources(root):
    problems = []
    named = {}
    paths = ctext.files(root, "include", "src", "cli", "examples", "ort", "test", "bench", "fuzz")
    for path in paths:
        text = ctext.read(root, path)
        for line, name, angled in ctext.includes(text):
            why = check_include(path, name, resolve(root, path, name, angled))
            if why:
                problems.append(f"{path}:{line}: includes {name}: {why}")
        if not path.startswith(LIBRARY):
            continue
        words = ctext.code(text)
        for what, bare, called in NEVER:
            for line, word in mentions(words, bare, called):
                problems.append(f"{path}:{line}: {word}: the library never {what}")
        for what, bare, called in ONE_FILE:
            for line, word in mentions(words, bare, called):
                named.setdefault(what, {}).setdefault(path, (line, word))
    for what, places in named.items():
        if len(places) > 1:
            for path, (line, word) in sorted(places.items()):
                others = ", ".join(p for p in sorted(places) if p != path)
                problems.append(f"{path}:{line}: {word}: {what}: one file only; also in {others}")
    return problems


def mentions(words, bare, called):
    """[(line, word)] of first mentions; never through a field, and `called` only when called."""
    pattern = rf"(?<![\w.>])(?:({bare})\b" + (rf"|({called})\s*\(" if called else "") + ")"
    found = {}
    for match in re.finditer(pattern, words):
        word = match.group(1) or match.group(2)
        found.setdefault(word, ctext.line_of(words, match.start()))
    return [(line, word) for word, line in found.items()]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_archive(archive):
    """Mutable data and the calls of kernel files, as the linker sees them."""
    problems = []
    member = "?"
    defined, calls = {}, []  # of kernel files: {name: bundle}, [(member, bundle, name)]
    for line in run("objdump", "-t", archive).splitlines():
        header = re.match(r"(\S+):\s+file format", line)
        if header:
            member = header.group(1)
            continue
        # address, seven flag letters, section, size, name
        symbol = re.match(r"[0-9a-f]+ .{7} (\S+)\s+([0-9a-f]+)\s+(?:\.hidden )?(\S+)$", line)
        if symbol is None:
            continue
        section, size, name = symbol.groups()
        if member.endswith(".cu.o") and re.search(r"__device_stub__|__cuda|__nv_|__fat", name):
            continue # what nvcc keeps of each kernel
        is_mutable = re.match(r"(\.data|\.bss|\.tdata|\.tbss|\.ldata|\.lbss)", section) and \
            not section.startswith(".data.rel.ro")
        if section == "*COM*" or (is_mutable and int(size, 16) > 0):
            problems.append(f"{member}: {name} in {section}: no mutable globals, use the context")
        bundle = ctext.is_isa_file(member[:-2] if member.endswith(".o") else member)
        if bundle and section == "*UND*":
            calls.append((member, bundle, name))
        elif bundle:
            defined[name] = bundle
    known = KERNEL_CALLS | {"_GLOBAL_OFFSET_TABLE_"}
    problems += [f"{member}: calls {name}: a kernel calls memcpy, memset and its own bundle only"
                 for member, bundle, name in calls
                 if name not in known and defined.get(name) != bundle]
    return problems


def check_shared(shared):
    problems = []
    # With the CUDA backend CUDA's runtime is linked in, and imports what it likes; our own objects
    # are looked at by their sources.
    has_cuda = b"cudaErrorInsufficientDriver" in open(shared, "rb").read()
    for line in run("nm", "-D", "--undefined-only", shared).splitlines():
        name = line.split()[-1].split("@")[0]
        if NEVER_IMPORTED.match(name) and not has_cuda:
            problems.append(f"{os.path.basename(shared)}: imports {name}: "
                            "the library never prints, exits or reads the environment")
    for line in run("readelf", "-d", shared).splitlines():
        needed = re.search(r"\(NEEDED\).*\[(.*)\]", line)
        fine = r"(libc|libm|libpthread|libdl|librt|ld-linux[-\w]*)\.so"
        if needed and not re.match(fine, needed.group(1)):
            problems.append(f"{os.path.basename(shared)}: needs {needed.group(1)}: "
                            "the core links libc, libm and threads only")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."))
    parser.add_argument("--archive")
    parser.add_argument("--shared")
    options = parser.parse_args()
    problems = check_sources(options.root)
    if options.archive:
        problems += check_archive(options.archive)
    if options.shared:
        problems += check_shared(options.shared)
    return ctext.report("check_layers", problems)


if __name__ == "__main__":
    sys.exit(main())
