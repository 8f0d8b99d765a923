#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Matrix products and convolutions of `quern run` against PyTorch, on a GPU or on the CPU.

    against_torch.py --quern build/release/quern [--device cuda]

Weights are multiples of a power of two whose largest code is in every group, so that quantizing
them loses nothing and torch can multiply with the same numbers, in double. x is f16 or bf16 in
value. What remains is the rounding of f32 sums and of y, and for dynamic int8 strategies one of 127
steps of x, which is what the tolerances say.
"""
import argparse
import itertools
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

# weights, largest code, group (0: a row)
FORMATS = (("int4:g128", 7, 128), ("int4:g32", 7, 32), ("int4:pc", 7, 0), ("int8:pc", 127, 0),
           ("int8:g64", 127, 64))
MATMULS = ((1, 64, 256), (3, 100, 384), (17, 130, 1000), (64, 256, 512), (200, 48, 130),
           (256, 512, 1024))
# batch, ci, co, side, kernel, stride, padding, groups
CONVS = ((1, 64, 64, 14, 3, 1, 1, 1), (2, 3, 16, 33, 7, 2, 3, 1), (1, 128, 96, 9, 1, 1, 0, 1),
         (2, 32, 32, 12, 3, 2, 1, 4), (1, 48, 48, 15, 3, 1, 1, 48), (1, 40, 24, 10, 5, 1, 2, 1))


def weights_of(rng, n, k, most, group):
    codes = rng.integers(-most, most + 1, (n, k))
    group = group or k
    codes[:, 0::group] = most
    return (codes * 2.0 ** rng.integers(-9, -4, (n, 1))).astype(np.float32)


class Runner:
    def __init__(self, args):
        self.quern, self.device, self.failed, self.done = args.quern, args.device, 0, 0
        self.folder = tempfile.TemporaryDirectory()

    def run(self, what, x, w, weights, strategy, options):
        folder = self.folder.name
        np.save(folder + "/x.npy", x)
        np.save(folder + "/w.npy", w)
        command = [self.quern, "run", "--device", self.device, "-w", folder + "/w.npy", "--format",
                   weights, "-x", folder + "/x.npy", "-o", folder + "/y.npy", "--force",
                   "--strategy", strategy] + options
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0:
            self.failed += 1
            print("FAILED %s: %s" % (what, done.stderr.strip()))
            return None, ""
        return np.load(folder + "/y.npy"), done.stdout

    def compare(self, what, y, exact, step, said):
        """step: the error of one product of x, relative to the largest of the row."""
        self.done += 1
        error = np.sqrt(np.mean((y - exact) ** 2)) / np.sqrt(np.mean(exact ** 2))
        if y.shape != exact.shape or not error <= step:
            self.failed += 1
            print("FAILED %s: error %g, allowed %g\n  %s" % (what, error, step, said.strip()))


def tolerance(strategy, x):
    # f32 sums give 1e-6 or so, and y is f32; int8 gives half a step of the largest |x|, against
    # the mean |x| of the row, with a uniform distribution inside the step.
    if strategy == "float":
        return 1e-5
    return 3 * np.abs(x).max() / 127 / np.sqrt(12) / np.sqrt(np.mean(x ** 2))


def matmuls(runner, rng):
    for (weights, most, group), (m, n, k) in itertools.product(FORMATS, MATMULS):
        w = weights_of(rng, n, k, most, group)
        x = rng.standard_normal((m, k)).astype(np.float16)
        exact = (torch.from_numpy(x).double() @ torch.from_numpy(w).double().T).numpy()
        for strategy in ("float", "int8-row", "int8-block"):
            what = "matmul %dx%dx%d %s %s" % (m, n, k, weights, strategy)
            y, said = runner.run(what, x, w, weights, strategy, [])
            if y is not None:
                runner.compare(what, y, exact, tolerance(strategy, x.astype(np.float64)), said)


def convolutions(runner, rng):
    for (weights, most, _), shape in itertools.product(FORMATS[2:4], CONVS):
        batch, ci, co, side, kernel, stride, pad, groups = shape
        k = ci // groups * kernel * kernel
        w = weights_of(rng, co, k, most, 0)
        w4 = w.reshape(co, ci // groups, kernel, kernel)
        x = rng.standard_normal((batch, ci, side, side)).astype(np.float16)
        exact = F.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w4).double(), None, stride,
                         pad, 1, groups).numpy()
        options = ["--op", "conv2d", "--stride", str(stride), "--pad", str(pad)]
        for strategy in ("float", "int8-row"):
            what = "conv %s %s %s" % (shape, weights, strategy)
            y, said = runner.run(what, x, w4, weights, strategy, options)
            if y is not None:
                runner.compare(what, y, exact, tolerance(strategy, x.astype(np.float64)), said)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default="build/release/quern")
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    runner, rng = Runner(args), np.random.default_rng(7)
    matmuls(runner, rng)
    convolutions(runner, rng)
    print("%d compared with torch %s on %s, %d failed" % (runner.done, torch.__version__,
                                                         args.device, runner.failed))
    sys.exit(1 if runner.failed or not runner.done else 0)


if __name__ == "__main__":
    main()
