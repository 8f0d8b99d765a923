# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, where torch is: in and out without a copy, bf16 and f16 as they are."""
import unittest

import numpy as np

import quern
from quern import errors

try:
    import torch
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "no torch here")
class Torch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        cls.weight = quern.quantize(torch.randn(32, 128), "int4:g32")
        cls.w, cls.dense = cls.weight.pack(), torch.from_numpy(cls.weight.dequantize())

    def test_values_and_types(self):
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.float16, 5e-2),
                                 (torch.bfloat16, 3e-1)):
            for shape in ((128,), (3, 128), (2, 3, 128)):
                x = torch.randn(shape).to(dtype)
                for _ in range(3):
                    y = quern.matmul(x, self.w)
                    self.assertEqual((y.dtype, tuple(y.shape)), (dtype, shape[:-1] + (32,)))
                    torch.testing.assert_close(y.float(), x.float() @ self.dense.T,
                                               atol=tolerance, rtol=2e-2)

    def test_the_memory_is_theirs(self):
        x = torch.randn(3, 128)
        out = torch.zeros(3, 64, dtype=torch.bfloat16)
        quern.matmul(x, self.w, out[:, 32:])
        self.assertFalse(out[:, :32].any())
        torch.testing.assert_close(out[:, 32:].float(), x @ self.dense.T, atol=0.2, rtol=2e-2)
        bias = torch.randn(32, dtype=torch.bfloat16)
        y = quern.matmul(x, self.w, bias=bias)
        torch.testing.assert_close(y, x @ self.dense.T + bias.float(), atol=1e-3, rtol=1e-3)

    def test_the_same_bits_as_numpy(self):
        x = torch.randn(4, 128)
        for how in ({}, {"strategy": "int8-block"}, {"act": "gelu", "dtype": "f16"}):
            a = quern.matmul(x, self.w, **how)
            b = quern.matmul(x.numpy(), self.w, **how)
            self.assertEqual(a.numpy().tobytes(), b.tobytes())

    def test_half_weights_are_quantized_as_they_are(self):
        w = torch.randn(8, 64).bfloat16()
        a = quern.quantize(w, "int8:pc")
        b = quern.quantize(w.float().numpy(), "int8:pc")
        np.testing.assert_array_equal(a.codes, b.codes)

    def test_convolutions(self):
        conv = torch.nn.Conv2d(6, 8, 3, padding=1, stride=2, groups=2)
        up = torch.nn.ConvTranspose2d(6, 8, 2, stride=2, groups=2)
        x = torch.randn(2, 6, 9, 9)
        with torch.no_grad():
            for layer, call, how in (
                    (conv, quern.conv2d, {"padding": 1, "stride": 2}),
                    (up, quern.conv_transpose2d, {"stride": 2})):
                order = "oihw" if layer is conv else "iohw"
                w = quern.quantize(layer.weight, "int8:pc", order=order, conv_groups=2)
                y = call(x, w.pack(), bias=layer.bias, **how)
                torch.testing.assert_close(y, layer(x), atol=0.05, rtol=0.05)

    def test_grouped_and_rows(self):
        x = torch.randn(4, 128)
        y = quern.grouped(x, [self.w, self.w], ids=torch.tensor([0, 1, -1, 1], dtype=torch.int32))
        torch.testing.assert_close(y[1], x[1] @ self.dense.T, atol=1e-3, rtol=1e-3)
        self.assertFalse(y[2].any())
        rows = self.weight.rows(torch.tensor([3, 5]), dtype=torch.bfloat16)
        torch.testing.assert_close(rows, self.dense[[3, 5]].bfloat16())
        self.assertEqual(quern.quantize_rows(x).codes.dtype, torch.int8)

    def test_bad(self):
        x = torch.randn(3, 128)
        for kind, words, call in (
                (errors.ArgumentError, r"requires grad.*x.detach\(\)",
                 lambda: quern.matmul(x.clone().requires_grad_(), self.w)),
                (errors.DeviceError, "on the device meta",
                 lambda: quern.matmul(torch.empty(3, 128, device="meta"), self.w)),
                (errors.StrideError, r"x.contiguous\(\)",
                 lambda: quern.matmul(torch.randn(128, 3).T, self.w)),
                (errors.StrideError, "sparse", lambda: quern.matmul(x.to_sparse(), self.w)),
                (errors.DtypeError, "complex64", lambda: quern.matmul(x + 0j, self.w)),
                (errors.DtypeError, "f64|x", lambda: quern.matmul(x.double(), self.w)),
                (errors.DtypeError, "complex", lambda: quern.matmul(x, self.w,
                                                                    dtype=torch.complex64))):
            with self.subTest(words):
                for _ in range(2):
                    self.assertRaisesRegex(kind, words, call)
        with torch.no_grad():
            self.assertEqual(quern.matmul(x.clone().requires_grad_(), self.w).shape, (3, 32))


if __name__ == "__main__":
    unittest.main()
