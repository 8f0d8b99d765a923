#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the quern command share: running it, files to give it, and a temporary folder.

The command is the first argument of the program; only the standard library is needed.
"""
import fcntl
import json
import math
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

QUERN = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "quern"
COMMANDS = ["info", "demo", "quantize", "pack", "convert", "inspect", "compare", "run", "bench",
            "explain", "tune"]
# One line, "quern: what: why; what to do".
COMPLAINT = re.compile(r"^quern: .+: .+; .+$")
CODES = {"F32": "f", "F16": "e", "I32": "i", "I64": "q", "U8": "B", "I8": "b"}


def is_sanitized():
    with open(QUERN, "rb") as file:
        return re.search(rb"__[atm]san_init", file.read()) is not None


def quern(*words, status=0, **more):
    """Run it; the exit status must be the one expected. Standard output, and error as .err."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **more.pop("env", {})}
    done = subprocess.run([QUERN, *map(str, words)], capture_output=True, text=True, timeout=280,
                          env=environment, **more)
    if done.returncode != status:
        raise AssertionError(f"quern {' '.join(map(str, words))}: status {done.returncode}, "
                             f"expected {status}\n{done.stdout[-800:]}\n{done.stderr[-800:]}")
    return Output(done.stdout, done.stderr)


def quern_on_a_leash(*words):
    """Start it. Standard error is a pipe for one line, so that it stays at most two tensors ahead
    of who reads the lines, however long that takes."""
    near, far = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)  # a write is a packet
    fcntl.fcntl(far, getattr(fcntl, "F_SETPIPE_SZ", 1031), resource.getpagesize())
    process = subprocess.Popen([QUERN, *words], stderr=far, text=True)
    os.close(far)
    process.stderr = os.fdopen(near, encoding="utf-8")
    return process


def seconds_of_children():
    """Of the processor, not of the clock: others may be using it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Output(str):
    def __new__(cls, text, err):
        self = super().__new__(cls, text)
        self.err = err
        return self


def safetensors(path, tensors, metadata=None):
    """tensors: {name: (dtype, shape, values)}; BF16 values are given as floats."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        if dtype == "BF16":
            raw = b"".join(struct.pack("<f", v)[2:] for v in values)
        else:
            raw = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def npy_write(path, shape, values, code="f4", fortran=False):
    header = f"{{'descr': '<{code}', 'fortran_order': {fortran}, 'shape': {tuple(shape)!r}, }}"
    if len(shape) == 1:
        header = header.replace(repr(tuple(shape)), f"({shape[0]},)")
    header += " " * (-(len(header) + 11) % 64) + "\n"
    kind = {"f4": "f", "i1": "b", "i4": "i"}[code]
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                   struct.pack(f"<{len(values)}{kind}", *values))


def npy_read(path):
    with open(path, "rb") as file:
        raw = file.read()
    length = struct.unpack("<H", raw[8:10])[0]
    header = raw[10:10 + length].decode()
    shape = [int(n) for n in re.search(r"'shape': \(([^)]*)\)", header)[1].split(",") if n.strip()]
    kind = {"<f4": "f", "<f2": "e", "<i4": "i", "|i1": "b", "|u1": "B"}[
        re.search(r"'descr': '([^']*)'", header)[1]]
    count = math.prod(shape)
    return shape, list(struct.unpack(f"<{count}{kind}", raw[10 + length:][:count *
                                                            struct.calcsize(kind)]))


def normal(count, seed=1, size=0.02):
    source = random.Random(seed)
    return [struct.unpack("<e", struct.pack("<e", source.gauss(0, size)))[0] for _ in range(count)]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.old = os.getcwd()
        os.chdir(self.folder)

    def tearDown(self):
        os.chdir(self.old)
        subprocess.run(["chmod", "-R", "u+w", self.folder], check=False)
        shutil.rmtree(self.folder)

    def complains(self, *words, status, says=(), **more):
        out = quern(*words, status=status, **more)
        lines = out.err.strip().split("\n")
        self.assertRegex(lines[-1], COMPLAINT)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, lines[-1])
        return lines[-1]

    def many(self, path):
        """A model of 16 tensors that are quantized."""
        values = normal(256 * 512)
        safetensors(path, {str(i): ("F16", [256, 512], values) for i in range(16)})

    def model(self, path="model.safetensors"):
        safetensors(path, {
            "embed.weight": ("F16", [40, 64], normal(2560, 2)),
            "layers.0.up.weight": ("F16", [48, 160], normal(7680, 3)),
            "layers.0.down.weight": ("BF16", [64, 96], [
                struct.unpack("<f", b"\0\0" + struct.pack("<f", v)[2:])[0]
                for v in normal(6144, 4)]),
            "layers.0.conv.weight": ("F32", [16, 8, 3, 3], normal(1152, 5)),
            "layers.0.depthwise.weight": ("F32", [8, 1, 3, 3], normal(72, 6)),
            "layers.0.norm.weight": ("F32", [64], normal(64, 7, 1)),
            "steps": ("I64", [2, 2], [1, 2, 3, 4]),
        }, {"format": "pt"})
        return path
