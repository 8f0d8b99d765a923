# SPDX-License-Identifier: Apache-2.0
"""The operators of torch: values, gradients, what torch's own checks say, compiled and exported
graphs, other processes and threads, and torch without the C interface."""
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

import numpy as np

import quern

try:
    import torch

    import quern.torch as qt
    from quern.torch._operators import Held, _op
except ImportError:
    torch = None

FLOAT, ROW, BLOCK = 0, 1, 2


def run_python(code, **environment):
    """A process of its own: what it prints."""
    env = dict(os.environ, **environment)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


@unittest.skipIf(torch is None, "no torch here")
class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        cls.weight = quern.quantize(torch.randn(24, 96), "int4:g32")
        cls.dense = torch.from_numpy(cls.weight.dequantize())
        cls.held = Held([cls.weight.pack()])
        cls.w = cls.held.number

    def cases(self):
        """(operator, arguments with a gradient, its like without one)."""
        bias = torch.randn(24)
        kernel = torch.randn(8, 4, 3, 3)
        conv = Held([quern.quantize(kernel, "int8:pc", conv_groups=2).pack()])
        up = Held([quern.quantize(torch.randn(8, 4, 3, 3), "int8:pc", order="iohw",
                                  conv_groups=2).pack()])
        line = Held([quern.quantize(torch.randn(8, 4, 3), "int8:pc").pack()])
        two = Held([self.held.weights[0], quern.quantize(torch.randn(24, 96), "int4:g32").pack()])
        self.alive = conv, up, line, two
        ids = torch.tensor([1, 0, -1, 1, 0], dtype=torch.int32)
        offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
        x_rows = torch.tensor([0, 0, 1, 4, 2], dtype=torch.int32)
        yield "matmul", (torch.randn(2, 3, 96), self.w, bias, FLOAT, 0)
        yield "matmul", (torch.randn(96), self.w, None, FLOAT, 3)
        yield "matmul", (torch.randn(0, 96), self.w, None, FLOAT, 0)
        yield "grouped", (torch.randn(5, 96), two.number, None, ids, None, None, FLOAT, 0)
        yield "grouped", (torch.randn(5, 96), two.number, offsets, None, x_rows, None, FLOAT, 5)
        for act in range(6):
            yield "matmul", (torch.randn(4, 96), self.w, bias, FLOAT, act)
        yield "conv2d", (torch.randn(2, 8, 7, 6), conv.number, torch.randn(8), FLOAT, 0,
                         2, 1, 1, 2, 0, 1, 1, 2)
        yield "conv2d", (torch.randn(2, 4, 9), line.number, None, FLOAT, 5, 1, 2, 0, 1, 0, 1, 1, 1)
        yield "conv_transpose2d", (torch.randn(2, 8, 5, 4), up.number, torch.randn(8), FLOAT, 0,
                                   2, 2, 1, 1, 1, 1, 1, 1, 1, 0)

    def test_opcheck(self):
        for i, (name, (x, *rest)) in enumerate(self.cases()):
            with self.subTest(name, i=i):
                torch.library.opcheck(getattr(_op, name).default,
                                      (x.clone().requires_grad_(), *rest))
                torch.library.opcheck(getattr(_op, f"{name}_inference").default, (x, *rest))
        ids = torch.randint(0, 24, (2, 3))
        torch.library.opcheck(_op.embedding.default, (ids, self.w, 1))
        torch.library.opcheck(_op.dense.default, (torch.randn(1), self.w))

    def test_gradients(self):
        """Of x and bias, by differences along a direction: products are linear, so a large step is
        exact; smooth activations take a small one."""
        for i, (name, (x, w, bias, *rest)) in enumerate(self.cases()):
            op = getattr(_op, name)
            is_grouped = name == "grouped"
            x = x.clone().requires_grad_()
            if bias is not None and not is_grouped:
                bias = bias.clone().requires_grad_()
            y = op(x, w, bias, *rest)
            dy = torch.randn_like(y)
            (y * dy).sum().backward()
            act = rest[-1] if name in ("grouped", "matmul") else rest[1]
            if act in (1, 2):  # these bend
                continue
            step = 1.0 if act == 0 else 1e-2
            with torch.no_grad(), self.subTest(name, i=i):
                v = torch.randn_like(x)

                def along(value, d, at):
                    return ((op(*at(value + step * d)) - op(*at(value - step * d))).double()
                            * dy).sum() / (2 * step)

                want = along(x, v, lambda x: (x, w, bias, *rest))
                torch.testing.assert_close((x.grad.double() * v).sum(), want, rtol=2e-2, atol=0.15)
                if bias is not None and not is_grouped:
                    v = torch.randn_like(bias)
                    want = along(bias, v, lambda b: (x, w, b, *rest))
                    torch.testing.assert_close((bias.grad.double() * v).sum(), want, rtol=2e-2,
                                               atol=0.15)

    def test_gradients_of_activations(self):
        f = torch.nn.functional
        acts = (lambda v: v, f.relu, f.relu6, f.gelu, lambda v: f.gelu(v, approximate="tanh"),
                f.silu)
        for act, function in enumerate(acts):
            a = torch.randn(4, 96).requires_grad_()
            b = a.detach().clone().requires_grad_()
            y, want = _op.matmul(a, self.w, None, FLOAT, act), function(b @ self.dense.T)
            torch.testing.assert_close(y, want, atol=1e-4, rtol=1e-4)
            dy = torch.randn_like(y)
            y.backward(dy)
            want.backward(dy)
            torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-3)

    def test_the_same_bits_as_the_package(self):
        (packed,) = self.held.weights
        x = torch.randn(5, 96)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for strategy, word in ((FLOAT, "float"), (ROW, "int8-row"), (BLOCK, "int8-block")):
                a = _op.matmul_inference(x.to(dtype), self.w, None, strategy, 0)
                b = quern.matmul(x.to(dtype), packed, strategy=word)
                self.assertTrue(torch.equal(a, b) and a.dtype == dtype)
        rows = _op.embedding(torch.tensor([[3, 5]], dtype=torch.int32), self.w, 2)
        self.assertTrue(torch.equal(rows, self.dense[torch.tensor([[3, 5]])].bfloat16()))
        self.assertTrue(torch.equal(_op.dense(x, self.w), self.dense))

    def test_any_strides(self):
        """Operators copy what quern does not read as it lies."""
        whole = torch.randn(6, 4, 200)
        for x in (whole[:, :, :96], whole[::2, :, 1:97], whole[:, :, ::2][:, :, :96],
                  torch.randn(96, 6).T, torch.randn(4, 6, 96).transpose(0, 1),
                  torch.randn(1, 96).expand(5, 96), whole[:0, :, :96], torch._neg_view(
                      torch.randn(3, 96))):
            y = _op.matmul_inference(x, self.w, None, FLOAT, 0)
            self.assertEqual(y.shape, x.shape[:-1] + (24,))
            torch.testing.assert_close(y, x @ self.dense.T, atol=1e-4, rtol=1e-4)
            self.assertTrue(y.is_contiguous())

    def test_bad(self):
        x, call = torch.randn(3, 96), _op.matmul_inference
        gone = Held([self.weight.pack()])
        number = gone.number
        del gone
        wrong = ((r"x.*95.*96|x.*1024|96", lambda: call(x[:, :95], self.w, None, FLOAT, 0)),
                 ("weights are gone", lambda: call(x, number, None, FLOAT, 0)),
                 ("weights are gone", lambda: call(x, -1, None, FLOAT, 0)),
                 ("no dimension|shape", lambda: call(x[0, 0], self.w, None, FLOAT, 0)),
                 ("type", lambda: call(x.double(), self.w, None, FLOAT, 0)),
                 ("type", lambda: call(x + 0j, self.w, None, FLOAT, 0)),
                 ("strategy", lambda: call(x, self.w, None, 77, 0)),
                 ("act", lambda: call(x, self.w, None, FLOAT, 77)),
                 ("bias", lambda: call(x, self.w, torch.randn(23), FLOAT, 0)),
                 ("Sparse", lambda: call(x.to_sparse(), self.w, None, FLOAT, 0)),
                 ("ids|row", lambda: _op.embedding(torch.tensor([24]), self.w, 0)),
                 ("dtype", lambda: _op.embedding(torch.tensor([1]), self.w, 9)))
        for i, (words, bad) in enumerate(wrong):
            with self.subTest(words, i=i):
                self.assertRaisesRegex(Exception, words, bad)
        y = call(x, self.w, None, FLOAT, 0)  # and nothing is left behind
        torch.testing.assert_close(y, x @ self.dense.T, atol=1e-4, rtol=1e-4)

    def test_threads(self):
        x = torch.randn(7, 96)
        want, found = _op.matmul_inference(x, self.w, None, BLOCK, 0), []

        def work():
            for _ in range(200):
                found.append(torch.equal(want, _op.matmul_inference(x, self.w, None, BLOCK, 0)))
                Held(self.held.weights)  # numbers come and go

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(found), all(found)), (800, True))

    def test_fork(self):
        """A child computes, whatever threads of the parent were doing."""
        x = torch.randn(7, 96)
        want, stop = _op.matmul_inference(x, self.w, None, FLOAT, 0), threading.Event()

        def work():
            while not stop.is_set():
                _op.matmul_inference(x, self.w, None, FLOAT, 0)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    same = torch.equal(want, _op.matmul_inference(x, self.w, None, FLOAT, 0))
                    number = Held(self.held.weights).number
                    os._exit(0 if same and number > 0 else 1)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            stop.set()
            thread.join()

    def test_compiled_by_inductor(self):
        model = torch.nn.Sequential(qt.Linear(self.weight, torch.randn(24)), torch.nn.GELU())
        compiled = torch.compile(model, fullgraph=True)
        for rows in (2, 5):
            x = torch.randn(rows, 96)
            try:
                y = compiled(x)
            except Exception as why:
                if "compiler" in str(why).lower():
                    self.skipTest("inductor finds no C++ compiler")
                raise
            torch.testing.assert_close(y, model(x), atol=1e-5, rtol=1e-5)

    def test_a_program_in_another_process(self):
        model = torch.nn.Sequential(qt.Linear(self.weight), torch.nn.ReLU())
        x = torch.randn(4, 96)
        program = torch.export.export(model, (x,))
        self.assertTrue(torch.equal(program.module()(x), model(x)))
        with tempfile.TemporaryDirectory() as folder:
            qt.save_program(program, f"{folder}/model.pt2")
            np.save(f"{folder}/x.npy", x.numpy())
            run_python(f"import torch, numpy, quern.torch as qt\n"
                       f"model = qt.load_program('{folder}/model.pt2').module()\n"
                       f"y = model(torch.from_numpy(numpy.load('{folder}/x.npy')))\n"
                       f"numpy.save('{folder}/y.npy', y.numpy())")
            np.testing.assert_array_equal(np.load(f"{folder}/y.npy"), model(x).numpy())
            torch.export.save(program, f"{folder}/bare.pt2")
            self.assertRaisesRegex(quern.errors.NotFoundError, "save_program", qt.load_program,
                                   f"{folder}/bare.pt2")

    def test_without_the_c_interface(self):
        """The same operators registered from Python: the same bits, and the reason is told."""
        with tempfile.TemporaryDirectory() as folder:
            self.weight.save(f"{folder}/w.safetensors", "w")
            x = torch.randn(4, 96)
            np.save(f"{folder}/x.npy", x.numpy())
            out = run_python(
                "import os, warnings; warnings.simplefilter('ignore')\n"
                "there = os.path.exists\n"
                "os.path.exists = lambda path: 'quern_torch' not in str(path) and there(path)\n"
                "import numpy as np, torch, quern, quern.torch as qt\n"
                "print(qt.registered_from, '|', qt.why_not_from_c)\n"
                f"layer = qt.Linear(quern.load('{folder}/w.safetensors')['w'])\n"
                f"x = torch.from_numpy(np.load('{folder}/x.npy'))\n"
                f"np.save('{folder}/y.npy', layer(x).numpy())\n"
                "x.requires_grad_(); layer(x).sum().backward()\n"
                f"np.save('{folder}/dx.npy', x.grad.numpy())\n"
                "torch.library.opcheck(torch.ops.quern.matmul.default,\n"
                "                      (x, layer.held.number, None, 0, 0))\n"
                "number = layer.held.number; del layer\n"
                "try:\n"
                "    torch.ops.quern.matmul(x, number, None, 0, 0)\n"
                "except quern.errors.NotFoundError as why:\n"
                "    print(why)\n")
            self.assertIn("Python | libquern_torch.so is not in the package", out)
            self.assertIn("weights are gone", out)
            layer, x = qt.Linear(self.weight), x.requires_grad_()
            np.testing.assert_array_equal(np.load(f"{folder}/y.npy"), layer(x).detach().numpy())
            layer(x).sum().backward()
            np.testing.assert_array_equal(np.load(f"{folder}/dx.npy"), x.grad.numpy())


class Unregistered(unittest.TestCase):
    def test_a_process_without_torch(self):
        """The C side says which function of torch it misses, and registers nothing."""
        from quern._library import native
        named = os.environ.get("QUERN_LIBRARY")
        path = os.path.join(os.path.dirname(named), "libquern_torch.so") if named else \
            native("libquern_torch.so")
        if path is None or not os.path.exists(path):
            self.skipTest("libquern_torch.so was not built")
        out = run_python(
            "import ctypes, quern\n"
            f"library = ctypes.CDLL({path!r})\n"
            "text = ctypes.create_string_buffer(200)\n"
            "print(library.qn_torch_register(b'quern', None, 0, text, ctypes.c_size_t(200)),\n"
            "      text.value.decode())\n")
        self.assertEqual(out.strip(), "1 this torch lacks aoti_torch_library_init_fragment")


if __name__ == "__main__":
    unittest.main()
