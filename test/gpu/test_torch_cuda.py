#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern.torch on a GPU: values, streams, CUDA graphs, gradients, compiled graphs, cost of a call.

    QUERN_LIBRARY=build/cuda/libquern.so PYTHONPATH=python python3 test/gpu/test_torch_cuda.py

libquern_torch.so lies beside the library. Needs torch with CUDA; exit status 77 without a GPU.
"""
import copy
import sys
import time
import unittest
import warnings

try:
    import torch
    HAS_GPU = torch.cuda.is_available()
except ImportError:
    HAS_GPU = False
if not HAS_GPU:
    print("skipped: no torch with a GPU")
    sys.exit(77)

import quern
import quern.torch as qt

nn = torch.nn


def relative(y, want):
    return float((y.double() - want.double()).norm() / want.double().norm())


class Cuda(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, operators from "
              f"{qt.registered_from} {qt.why_not_from_c}")
        cls.model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 256))
        cls.ours = copy.deepcopy(cls.model)
        qt.quantize_(cls.ours, "int4:g128")
        cls.dense = copy.deepcopy(cls.model)
        with torch.no_grad():
            for i in (0, 2):
                cls.dense[i].weight.copy_(cls.ours[i].dequantize())
        cls.ours, cls.dense = cls.ours.cuda(), cls.dense.cuda()

    def test_registered_from_c(self):
        self.assertEqual((qt.registered_from, qt.why_not_from_c), ("C", ""))

    def test_values(self):
        for dtype, bound in ((torch.float32, 1e-3), (torch.float16, 5e-3), (torch.bfloat16, 2e-2)):
            ours, dense = copy.deepcopy(self.ours).to(dtype), copy.deepcopy(self.dense)
            for rows in (1, 7, 64, 300):
                x = torch.randn(rows, 512, device="cuda").to(dtype)
                y = ours(x)
                self.assertEqual((y.dtype, y.device.type), (dtype, "cuda"))
                with torch.no_grad():
                    self.assertLess(relative(y, dense(x.float())), bound)

    def test_int8_has_the_bits_of_the_cpu(self):
        w = quern.quantize(torch.randn(256, 512), "int4:g128")
        x = torch.randn(9, 512)
        for strategy in ("int8-row", "int8-block"):
            here = qt.Linear(w, strategy=strategy)
            there = copy.deepcopy(here).cuda()
            self.assertTrue(torch.equal(there(x.cuda()).cpu(), here(x)))

    def test_streams_and_graphs(self):
        x = torch.randn(4, 512, device="cuda").half()
        ours = copy.deepcopy(self.ours).half()
        with torch.no_grad():
            want = ours(x)
            other = torch.cuda.Stream()
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                for _ in range(20):
                    y = ours(x)
            torch.cuda.current_stream().wait_stream(other)
            self.assertTrue(torch.equal(y, want))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                held = ours(x)
            for _ in range(3):
                x.copy_(torch.randn_like(x))
                graph.replay()
                torch.cuda.synchronize()
                self.assertTrue(torch.equal(held, ours(x)))

    def test_compiled_with_cuda_graphs(self):
        ours = copy.deepcopy(self.ours).half()
        x = torch.randn(4, 512, device="cuda").half()
        with torch.no_grad():
            try:
                compiled = torch.compile(ours, fullgraph=True, mode="reduce-overhead")
                for _ in range(4):
                    y = compiled(x).clone()
            except Exception as why:
                if "compiler" in str(why).lower() or "triton" in str(why).lower():
                    self.skipTest(f"inductor cannot compile here: {str(why)[:80]}")
                raise
            self.assertLess(relative(y, ours(x)), 5e-3)

    def test_gradients(self):
        x = torch.randn(5, 512, device="cuda")
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        dy = torch.randn(5, 256, device="cuda")
        self.ours(a).backward(dy)
        self.dense(b).backward(dy)
        self.assertLess(relative(a.grad, b.grad), 1e-3)

    def test_convolutions_and_experts(self):
        for layer, x in ((nn.Conv2d(32, 64, 3, padding=1, stride=2), torch.randn(2, 32, 15, 15)),
                         (nn.Conv1d(32, 64, 5, padding=2), torch.randn(2, 32, 50)),
                         (nn.ConvTranspose2d(32, 16, 2, stride=2), torch.randn(2, 32, 9, 9))):
            model = nn.Sequential(layer)
            qt.quantize_(model, "int8:pc")
            want = model(x)
            self.assertLess(relative(model.cuda()(x.cuda()).cpu(), want), 1e-3)
        experts = [quern.quantize(torch.randn(128, 256), "int4:g128") for _ in range(4)]
        layer, x = qt.GroupedLinear(experts), torch.randn(16, 256)
        ids = torch.randint(0, 4, (16,), dtype=torch.int32)
        want = layer(x, ids)
        self.assertLess(relative(layer.cuda()(x.cuda(), ids.cuda()).cpu(), want), 1e-3)

    def test_refused(self):
        x = torch.randn(4, 512)
        self.assertRaisesRegex(Exception, "device|cuda|GPU", self.ours, x)
        model = nn.Sequential(nn.Embedding(16, 64))
        qt.quantize_(model, "int4:g32", filter=lambda name, layer: True)
        self.assertRaisesRegex(quern.errors.UnsupportedError, "on the CPU", model.cuda)

    def test_back_to_the_cpu(self):
        x = torch.randn(3, 512)
        model = copy.deepcopy(self.ours).cpu()
        self.assertLess(relative(model(x), self.ours(x.cuda()).cpu()), 1e-3)

    def test_what_a_call_costs(self):
        x = torch.randn(1, 512, device="cuda").half()
        layer = copy.deepcopy(self.ours[0]).half()
        linear = copy.deepcopy(self.model[0]).cuda().half()
        layer.bias = None
        linear.bias = None
        with torch.no_grad():
            for name, call in (("quern.torch.Linear", layer), ("torch.nn.Linear", linear)):
                best = 1e9
                for _ in range(20):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    for _ in range(200):
                        call(x)
                    best = min(best, (time.perf_counter() - begin) / 200 * 1e6)
                torch.cuda.synchronize()
                print(f"{name}: {best:.2f} us a call until it is launched")


if __name__ == "__main__":
    unittest.main(verbosity=2)
