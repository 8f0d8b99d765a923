# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: each has its exception and a sentence that says what to do."""
import os
import subprocess
import sys
import textwrap
import unittest

import numpy as np

import quern
from quern import errors

W = quern.quantize(np.ones((16, 64), np.float32), "int4:g32")
P = W.pack()
X = np.ones((3, 64), np.float32)
CONV = quern.quantize(np.ones((4, 8, 3, 3), np.float32), "int8:pc").pack()


class Bad(unittest.TestCase):
    def refused(self, kind, words, call, *arguments, **how):
        with self.assertRaises(kind) as caught:
            call(*arguments, **how)
        self.assertIsInstance(caught.exception, quern.QuernError)
        self.assertRegex(str(caught.exception), words)
        return caught.exception

    def test_shapes(self):
        for kind, words, call, arguments, how in (
                (errors.ShapeError, r"x has the shape \(3, 63\), w is 16 x 64", quern.matmul,
                 (X[:, :63], P), {}),
                (errors.ShapeError, "x has no dimension", quern.matmul, (np.float32(1), P), {}),
                (errors.ShapeError, "at most 6", quern.matmul,
                 (np.ones((1,) * 6 + (64,), "f4"), P), {}),
                (errors.ShapeError, r"out has the shape \(3, 15\): \(3, 16\)", quern.matmul,
                 (X, P, np.empty((3, 15), np.float32)), {}),
                (errors.ShapeError, r"residual has the shape", quern.matmul, (X, P),
                 {"residual": X}),
                (errors.ShapeError, "bias", quern.matmul, (X, P), {"bias": np.ones(15, "f4")}),
                (errors.ShapeError, r"\[n, k\]", quern.quantize, (np.ones(4, "f4"),), {}),
                (errors.ShapeError, r"importance has the shape \(3,\)", quern.quantize,
                 (X, "int4:g32"), {"importance": [1, 2, 3]}),
                (errors.ShapeError, r"\[n, c, h, w\]", quern.conv2d, (X, CONV), {}),
                (errors.ShapeError, "x has 7 channels", quern.conv2d,
                 (np.ones((1, 7, 8, 8), "f4"), CONV), {}),
                (errors.ShapeError, "no output along h", quern.conv2d,
                 (np.ones((1, 8, 2, 2), "f4"), CONV), {}),
                (errors.ShapeError, r"scale has the shape \(1, 1\): \(2, 2\)",
                 quern.Weight.from_parts, (np.ones((2, 64), np.uint8), [[1.0]], "int4:g32"), {}),
                (errors.ShapeError, r"original has the shape", quern.compare, (X, P), {}),
        ):
            with self.subTest(words):
                why = self.refused(kind, words, call, *arguments, **how)
                self.assertIsInstance(why, ValueError)

    def test_types(self):
        for kind, words, call, arguments, how in (
                (errors.DtypeError, "x.* f64", quern.matmul, (X.astype(np.float64), P), {}),
                (errors.DtypeError, "bytes are swapped", quern.matmul, (X.astype(">f4"), P), {}),
                (errors.DtypeError, "no array of numbers", quern.matmul, ([["a"] * 64], P), {}),
                (errors.DtypeError, "complex64", quern.matmul, (X.astype(np.complex64), P), {}),
                (errors.DtypeError, "names no type", quern.matmul, (X, P), {"dtype": "f33"}),
                (errors.DtypeError, "ids is of type f32", quern.grouped, (X, [P]),
                 {"ids": X[:, 0]}),
                (errors.DtypeError, "no matrix of uint8", quern.Weight.from_parts,
                 (X, X, "int4:g32"), {}),
                (errors.DtypeError, "f32 is wanted", W.dequantize, (np.empty((16, 64), "i4"),),
                 {}),
        ):
            with self.subTest(words):
                why = self.refused(kind, words, call, *arguments, **how)
                self.assertIsInstance(why, TypeError)

    def test_strides(self):
        wide = np.ones((6, 128), np.float32)
        for words, call in (
                (r"backwards; pass a copy, numpy.ascontiguousarray\(x\)",
                 lambda: quern.matmul(X[::-1], P)),
                ("backwards", lambda: quern.matmul(wide[:, 63::-1], P)),
                ("must follow each other", lambda: quern.matmul(wide[:, ::2], P)),
                ("must follow each other", lambda: quern.matmul(np.asfortranarray(X), P)),
                ("rows at one distance", lambda: quern.matmul(
                    np.ones((4, 6, 64), np.float32)[:, :5], P)),
                ("no multiples of its 4-byte elements", lambda: quern.matmul(np.ndarray(
                    (3, 64), np.float32, np.zeros(1024, np.uint8), strides=(257, 4)), P)),
                ("must follow each other", lambda: quern.quantize(wide[:, ::2], "int4:g32")),
                ("must follow each other", lambda: quern.matmul(X, P, np.empty((16, 3), "f4").T)),
                ("must be contiguous", lambda: W.rows(np.arange(8)[::2])),
        ):
            with self.subTest(words):
                self.refused(errors.StrideError, words, call)
        # One row, or none, has no stride that matters.
        self.assertEqual(quern.matmul(X[:1][::-1], P).shape, (1, 16))
        self.assertEqual(quern.matmul(X[:0][::-1], P).shape, (0, 16))

    def test_values(self):
        broken = X.copy()
        broken[1, 5] = np.nan
        why = self.refused(errors.BadValueError, r"row 1.*column 5|\[1, 5\]", quern.quantize,
                           broken, "int4:g32")
        self.assertEqual((why.status, why.name), (-7, "E_VALUE"))
        self.refused(errors.FormatError, "x128", quern.quantize, X, "int4:x128")
        self.refused(errors.FormatError, "a word as", quern.quantize, X, 4)
        self.refused(errors.BadValueError, "expert|id", quern.grouped, X, [P], ids=[0, 1, 0])
        self.refused(errors.ArgumentError, "'float', 'int8-row'", quern.matmul, X, P,
                     strategy="int9")
        self.refused(errors.ArgumentError, "'relu'", quern.matmul, X, P, act="swish")
        self.refused(errors.ArgumentError, "padding is", quern.conv2d,
                     np.ones((1, 8, 8, 8), "f4"), CONV, padding=(1, 2, 3))
        self.refused(errors.ArgumentError, "'nchw', 'nhwc'", quern.conv2d,
                     np.ones((1, 8, 8, 8), "f4"), CONV, image="chwn")
        self.refused(errors.ArgumentError, "'rtn', 'search', 'gptq'", quern.quantize, X,
                     "int4:g32", method="best")
        self.refused(errors.ArgumentError, "step 2", W.slice, slice(0, 8, 2))
        self.refused(errors.ArgumentError, "no weight", quern.Weight.concat, [])
        self.refused(errors.ArgumentError, "experts is empty", quern.grouped, X, [])
        self.refused(errors.ArgumentError, "block is -1", quern.quantize_rows, X, -1)
        with self.assertRaises(TypeError):
            quern.conv2d(np.ones((1, 8, 8, 8), "f4"), CONV, padding_mode="zeros")

    def test_objects(self):
        self.refused(errors.ArgumentError, r"a quern.Weight: kernels read packed ones, w.pack\(\)",
                     quern.matmul, X, W)
        self.refused(errors.ArgumentError, "a ndarray: a quern.Packed", quern.matmul, X, X)
        self.refused(errors.ArgumentError, "results are written", quern.matmul, X, P, [[0.0] * 16])
        read_only = np.empty((3, 16), np.float32)
        read_only.flags.writeable = False
        self.refused(errors.ArgumentError, "out is read-only", quern.matmul, X, P, read_only)
        square = quern.quantize(np.ones((64, 64), np.float32), "int4:g32").pack()
        self.refused(errors.OverlapError, "overlap", quern.matmul, X, square, X)
        self.refused(errors.UnsupportedError, "no_such_kernel|named|name", quern.matmul, X, P,
                     kernel="no_such_kernel")

        class Elsewhere:
            def __dlpack__(self, **_):
                raise RuntimeError("it is on the moon")

        self.refused(errors.ArgumentError, "it is on the moon", quern.matmul, Elsewhere(), P)

    def test_devices(self):
        self.refused(errors.DeviceError, r'device is \'tpu\': "cpu", "cuda"', quern.Context, "tpu")
        self.refused(errors.ArgumentError, "threads is -1", quern.Context, threads=-1)
        self.refused(errors.ArgumentError, "mmx", quern.Context, isa="mmx")
        if "no GPU" in os.environ.get("QUERN_TESTED", "no GPU"):
            self.refused(errors.DeviceError, ".", quern.Context, "cuda:77")

    def test_a_failed_call_leaves_out_alone(self):
        out = np.full((3, 16), 7, np.float32)
        for how in ({"bias": np.ones(3, "f4")}, {"strategy": "int8-static"}):
            with self.assertRaises(quern.QuernError):
                quern.matmul(X, P, out, **how)
        self.assertTrue((out == 7).all())


class Surroundings(unittest.TestCase):
    """What is around the package is wrong: found by another process."""

    def python(self, text, **environment):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env={**os.environ, **environment}, timeout=300)
        return done.returncode, done.stdout

    def test_no_numpy(self):
        status, text = self.python("import sys; sys.modules['numpy'] = None; import quern")
        self.assertEqual(status, 1)
        self.assertIn("ImportError: quern needs numpy", text)
        self.assertIn("pip install numpy", text)

    def test_no_library(self):
        for library, words in (("/nonexistent/libquern.so.0", "cannot be loaded"),
                               (__file__, "cannot be loaded"),
                               ("libm.so.6", "is not quern's library")):
            status, text = self.python("import quern", QUERN_LIBRARY=library)
            self.assertEqual(status, 1)
            self.assertRegex(text, f"ImportError: quern: .*{words}")


if __name__ == "__main__":
    unittest.main()
