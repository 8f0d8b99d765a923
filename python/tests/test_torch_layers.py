# SPDX-License-Identifier: Apache-2.0
"""Layers of torch with quantized weights against torch's own with the dequantized ones; whole
models quantized, calibrated, loaded and kept."""
import copy
import doctest
import io
import os
import pickle
import tempfile
import unittest
import warnings

import quern
from quern import errors

try:
    import torch

    import quern.torch as qt
    nn = torch.nn
except ImportError:
    torch = None


def dense_like(layer, quantized):
    """torch's layer with the values that the quantized one has."""
    made = copy.deepcopy(layer)
    values = quantized.dequantize()
    w = layer.weight
    with torch.no_grad():
        if isinstance(layer, nn.ConvTranspose2d):
            groups, (ci, per, kh, kw) = layer.groups, w.shape
            values = values.view(groups, per, kh, kw, ci // groups).permute(0, 4, 1, 2, 3)
            made.weight.copy_(values.reshape(w.shape))
        elif w.dim() == 4:
            co, ci, kh, kw = w.shape
            made.weight.copy_(values.view(co, kh, kw, ci).permute(0, 3, 1, 2))
        elif w.dim() == 3:
            co, ci, kw = w.shape
            made.weight.copy_(values.view(co, kw, ci).permute(0, 2, 1))
        else:
            made.weight.copy_(values)
    return made


@unittest.skipIf(torch is None, "no torch here")
class Layers(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        torch.manual_seed(11)

    def layers(self):
        yield nn.Linear(96, 40), torch.randn(2, 3, 96), "int4:g32"
        yield nn.Linear(96, 40, bias=False), torch.randn(96), "nf4:g32"
        yield nn.Conv2d(8, 12, 3, padding=1, stride=2), torch.randn(2, 8, 9, 7), "int8:pc"
        yield nn.Conv2d(8, 12, (1, 3), padding=(0, 2), dilation=2, groups=4), \
            torch.randn(8, 9, 9), "int8:pc"
        yield nn.Conv2d(8, 12, 3, padding="same"), torch.randn(2, 8, 9, 7), "int8:pc"
        yield nn.Conv2d(8, 12, 4, padding=2, padding_mode="reflect"), torch.randn(2, 8, 9, 7), \
            "int8:pc"
        yield nn.Conv1d(8, 12, 5, padding=2, stride=3), torch.randn(2, 8, 31), "int8:pc"
        yield nn.Conv1d(8, 12, 4, padding="same", padding_mode="circular"), \
            torch.randn(2, 8, 31), "int8:pc"
        yield nn.Conv1d(8, 8, 5, groups=8, bias=False), torch.randn(8, 31), "int8:pc"
        yield nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1), \
            torch.randn(2, 8, 5, 6), "int8:pc"
        yield nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4), torch.randn(8, 5, 6), "int8:pc"
        yield nn.Embedding(50, 96, padding_idx=0), torch.randint(0, 50, (2, 5)), "int4:g32"

    def test_values_gradients_and_graphs(self):
        for layer, x, format in self.layers():
            model = nn.Sequential(copy.deepcopy(layer))
            qt.quantize_(model, format, filter=lambda name, layer: True)
            ours, theirs = model[0], dense_like(layer, model[0])
            torch._dynamo.reset()  # which counts how often a class is compiled
            with self.subTest(str(layer)):
                self.assertIn(format, str(model))
                torch.testing.assert_close(ours(x), theirs(x), atol=2e-4, rtol=2e-4)
                compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
                self.assertTrue(torch.equal(compiled(x), ours(x)))
                program = torch.export.export(model, (x,))
                self.assertTrue(torch.equal(program.module()(x), ours(x)))
                if not x.is_floating_point():
                    continue
                a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
                dy = torch.randn_like(ours(x))
                ours(a).backward(dy)
                theirs(b).backward(dy)
                torch.testing.assert_close(a.grad, b.grad, atol=2e-4, rtol=2e-4)
                a.grad = None
                compiled(a).backward(dy)
                torch.testing.assert_close(a.grad, b.grad, atol=2e-4, rtol=2e-4)

    def test_kept_and_copied(self):
        for layer, x, format in self.layers():
            model = nn.Sequential(copy.deepcopy(layer))
            other = nn.Sequential(type(layer)(*self.made(layer)))
            other[0].load_state_dict({name: torch.randn_like(value) for name, value
                                      in layer.state_dict().items()})
            for one in (model, other):
                qt.quantize_(one, format, filter=lambda name, layer: True)
            y = model(x)
            with self.subTest(str(layer)):
                self.assertFalse(torch.equal(other(x), y))
                file = io.BytesIO()
                torch.save(model.state_dict(), file)
                file.seek(0)
                state = torch.load(file, weights_only=True)
                self.assertTrue(all(isinstance(value, torch.Tensor) for value in state.values()))
                self.assertEqual(str(other.load_state_dict(state)),
                                 "<All keys matched successfully>")
                copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
                self.assertIs(copied[0].held, model[0].held)
                for one in (other, copied, unpickled):
                    self.assertTrue(torch.equal(one(x), y))

    def test_two_levels_are_kept(self):
        """A state_dict of K-quants has both levels of the scales, and gives them back."""
        for format in ("q4_k", "q6_k"):
            weight = quern.quantize(torch.randn(16, 256), format)
            layer, other = qt.Linear(weight), qt.Linear(quern.quantize(torch.ones(16, 256), format))
            state = layer.state_dict()
            self.assertNotIn("weight.scale", state)
            other.load_state_dict(state)
            for part in ("codes", "scale", "offset", "super_scale", "super_min", "sub_scale",
                         "sub_min"):
                a, b = getattr(weight, part), getattr(other.packed.unpack(), part)
                self.assertEqual(a is None, b is None, part)
                if a is not None:
                    self.assertTrue((a == b).all(), part)

    @staticmethod
    def made(layer):
        if isinstance(layer, nn.Linear):
            return layer.in_features, layer.out_features, layer.bias is not None
        if isinstance(layer, nn.Embedding):
            return layer.num_embeddings, layer.embedding_dim
        rest = (layer.output_padding, layer.groups, layer.bias is not None, layer.dilation) \
            if isinstance(layer, nn.ConvTranspose2d) else \
            (layer.dilation, layer.groups, layer.bias is not None, layer.padding_mode)
        return (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride,
                layer.padding, *rest)

    def test_experts(self):
        weights = [quern.quantize(torch.randn(16, 64), "int4:g32") for _ in range(3)]
        bias = torch.randn(3, 16)
        layer = qt.GroupedLinear(weights, bias)
        x, ids = torch.randn(6, 64), torch.tensor([2, 0, -1, 1, 2, 0], dtype=torch.int32)
        y = layer(x, ids)
        for i, e in enumerate(ids.tolist()):
            want = torch.zeros(16) if e < 0 else \
                x[i] @ torch.from_numpy(weights[e].dequantize()).T + bias[e]
            torch.testing.assert_close(y[i], want, atol=1e-4, rtol=1e-4)
        ordered = layer(x, offsets=torch.tensor([0, 1, 1, 6], dtype=torch.int32))
        torch.testing.assert_close(ordered[3], x[3] @ torch.from_numpy(
            weights[2].dequantize()).T + bias[2], atol=1e-4, rtol=1e-4)
        other = qt.GroupedLinear(weights[::-1], bias)
        other.load_state_dict(layer.state_dict())
        self.assertTrue(torch.equal(other(x, ids), y))
        a = x.clone().requires_grad_()
        layer(a, ids).sum().backward()
        for i, e in enumerate(ids.tolist()):
            want = torch.zeros(64) if e < 0 else torch.from_numpy(weights[e].dequantize()).sum(0)
            torch.testing.assert_close(a.grad[i], want, atol=1e-4, rtol=1e-4)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        self.assertTrue(torch.equal(compiled(x, ids), y))
        self.assertRaisesRegex(errors.ArgumentError, "either ids or offsets", layer, x)
        self.assertRaisesRegex(errors.ArgumentError, "empty", qt.GroupedLinear, [])

    def test_half_and_other_places(self):
        model = nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 16))
        qt.quantize_(model, "int4:g32", filter=lambda name, layer: True)
        ids = torch.tensor([1, 2])
        for dtype in (torch.bfloat16, torch.float16):
            y = model.to(dtype)(ids)
            self.assertEqual((y.dtype, model[1].bias.dtype), (dtype, dtype))
        with torch.device("meta"):
            self.assertRaisesRegex(errors.FormatError, "meta", qt.quantize_,
                                   nn.Sequential(nn.Linear(64, 16)), "int4:g32")
        self.assertEqual(model.share_memory()(ids).shape, (2, 16))


@unittest.skipIf(torch is None, "no torch here")
class Models(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        torch.manual_seed(12)
        self.model = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
                                   nn.Linear(16 * 36, 64), nn.GELU(), nn.Linear(64, 32))
        mix = torch.randn(6, 6) * torch.tensor([4, 2, 1, 0.5, 0.2, 0.1])
        self.x = torch.randn(544, 4, 6, 6) @ mix * torch.tensor([8, 1, 0.3, 0.1]).view(4, 1, 1)

    def error_of(self, **how):
        model = copy.deepcopy(self.model)
        report = qt.quantize_(model, "int3:g64", **how)
        self.assertEqual([one.name for one in report], ["0", "3", "5"])
        x = self.x[512:]
        with torch.no_grad():
            return float((model(x) - self.model(x)).norm() / self.model(x).norm())

    def test_calibration_helps(self):
        """GPTQ, AWQ, SmoothQuant and the search each from what hooks collect: less error of the
        model's result than rounding, on data that they have not seen."""
        plain = self.error_of()
        data = self.x[:512]
        for method, times in (("gptq", 0.75), ("awq", 0.95), ("search", 0.95)):
            with self.subTest(method):
                error = self.error_of(calibration=[(data[:99],), data[99:]], method=method)
                self.assertLess(error, times * plain)
        self.assertEqual(self.error_of(calibration=data), self.error_of(
            calibration=lambda model: model(data), method="gptq"))
        model = copy.deepcopy(self.model)
        qt.quantize_(model, "int8:pc", strategy="int8-row", method="smooth", calibration=data)
        plain = copy.deepcopy(self.model)
        qt.quantize_(plain, "int8:pc", strategy="int8-row")
        with torch.no_grad():
            want, x = self.model(self.x[512:]), self.x[512:]
            self.assertLess((model(x) - want).norm(), (plain(x) - want).norm())
        self.assertFalse(any(module._forward_pre_hooks for module in model.modules()))

    def test_patches_are_those_of_the_convolution(self):
        """What calibration collects for a convolution are the rows that its product reads."""
        from quern.torch._model import _matrix, _Seen
        for layer, x in ((nn.Conv2d(3, 5, (2, 3), stride=(1, 2), padding=(1, 0), dilation=2),
                          torch.randn(2, 3, 8, 9)),
                         (nn.Conv1d(3, 5, 4, stride=2, padding=1), torch.randn(2, 3, 11))):
            rows = _Seen(layer, "rtn")._rows_of(x)
            y = (rows @ _matrix(layer).T + layer.bias).detach()
            want = layer(x).detach().flatten(2).transpose(1, 2).reshape(-1, 5)
            torch.testing.assert_close(y, want, atol=1e-5, rtol=1e-5)

    def test_choice_and_progress(self):
        calls = []
        model = copy.deepcopy(self.model)
        report = qt.quantize_(model, "int8:pc", filter=lambda name, _: name != "3",
                              progress=lambda done, total: calls.append((done, total)))
        self.assertEqual(([one.name for one in report], calls), (["0", "5"], [(1, 2), (2, 2)]))
        self.assertIs(type(model[3]), nn.Linear)
        for kind in (KeyboardInterrupt, ZeroDivisionError):
            def stop(done, total, kind=kind):
                raise kind

            self.assertRaises(kind, qt.quantize_, self.model, progress=stop)
        self.assertEqual([type(layer) for layer in self.model if hasattr(layer, "weight")],
                         [nn.Conv2d, nn.Linear, nn.Linear])
        shared = nn.Linear(64, 64)
        twice = nn.Sequential(shared, shared)
        self.assertEqual(len(qt.quantize_(twice, "int8:pc")), 1)
        self.assertIs(twice[0], twice[1])

    def test_columns_that_groups_do_not_divide(self):
        """2880 columns are 22 groups of 128 and one of 64."""
        for format in ("int4:g128", "q4_k", "nf4:g64"):
            model = nn.Sequential(nn.Linear(2880, 8))
            qt.quantize_(model, format)
            x = torch.randn(3, 2880)
            torch.testing.assert_close(model(x), x @ model[0].dequantize().T + model[0].bias,
                                       atol=1e-3, rtol=1e-3)

    def test_bad(self):
        model = nn.Sequential(nn.Linear(2880, 8), nn.Linear(8, 2879))
        before = list(model)
        with_nan = nn.Sequential(nn.Linear(256, 8), nn.Linear(2880, 8))
        with torch.no_grad():
            with_nan[1].weight[2, 3] = float("nan")
        for kind, words, call in (
                (errors.FormatError, r"1 of 2 layers.*'q4_k'.*none was: 1: .*row 2.*filter=",
                 lambda: qt.quantize_(with_nan, "q4_k")),
                (errors.ArgumentError, "needs calibration",
                 lambda: qt.quantize_(model, method="awq")),
                (errors.ArgumentError, "never reach 1",
                 lambda: qt.quantize_(model, "int8:pc", calibration=lambda m: m[0](
                     torch.zeros(1, 2880)))),
                (errors.ArgumentError, "no layer", lambda: qt.quantize_(nn.Sequential())),
                (errors.ArgumentError, "single layer", lambda: qt.quantize_(nn.Linear(32, 4))),
                (errors.ArgumentError, "strategy",
                 lambda: qt.quantize_(model, strategy="int9")),
                (errors.ArgumentError, "method", lambda: qt.quantize_(model, method="best")),
                (errors.FormatError, "int4:x", lambda: qt.quantize_(model, "int4:x")),
                (errors.ArgumentError, "quern.Weight", lambda: qt.Linear(torch.zeros(3, 3))),
                (errors.ShapeError, "output_size", lambda: qt.ConvTranspose2d(
                    quern.quantize(torch.zeros(4, 4, 2, 2), "int8:pc", order="iohw"), stride=2)(
                        torch.zeros(1, 4, 3, 3), output_size=(9, 6)))):
            with self.subTest(words):
                self.assertRaisesRegex(kind, words, call)
        self.assertEqual([id(layer) for layer in model], [id(layer) for layer in before])
        self.assertEqual([len(layer._forward_pre_hooks) for layer in model], [0, 0])
        quantized = copy.deepcopy(self.model)
        qt.quantize_(quantized, "int8:pc")
        self.assertRaisesRegex(RuntimeError, "dense.*before quern.torch.quantize_",
                               quantized.load_state_dict, self.model.state_dict())

    def test_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            state = self.model.state_dict()
            values = {name: value for name, value in state.items()}
            values["3.weight"] = quern.quantize(state["3.weight"], "int4:g64")
            values["5.weight"] = quern.quantize(state["5.weight"], "int4:g64").pack()
            quern.save(path, values)
            model = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
                                  nn.Linear(16 * 36, 64), nn.GELU(), nn.Linear(64, 32))
            self.assertEqual(qt.load_(model, path), ["3", "5"])
            want = copy.deepcopy(self.model)
            with torch.no_grad():
                want[3].weight.copy_(torch.from_numpy(values["3.weight"].dequantize()))
                want[5].weight.copy_(torch.from_numpy(values["5.weight"].unpack().dequantize()))
            torch.testing.assert_close(model(self.x), want(self.x), atol=1e-3, rtol=1e-3)
            del values["0.bias"]
            quern.save(path, values, overwrite=True)
            other = copy.deepcopy(self.model)
            self.assertRaisesRegex(errors.NotFoundError, "lacks 1 .*0.bias", qt.load_, other, path)
            self.assertEqual(qt.load_(other, path, strict=False), ["3", "5"])
            other = nn.Sequential(*self.model[:5], nn.Linear(64, 31))
            self.assertRaisesRegex(errors.ShapeError, "5.weight is 32 x 64.*31 x 64", qt.load_,
                                   other, path, strict=False)


def load_tests(loader, tests, pattern):
    if torch is not None:
        for name in ("", "._layers", "._model", "._program"):
            module = __import__(f"quern.torch{name}", fromlist=["x"])
            tests.addTests(doctest.DocTestSuite(module, globs={"torch": torch, "quern": quern,
                                                               **vars(module)},
                                                optionflags=doctest.ELLIPSIS))
    return tests


if __name__ == "__main__":
    unittest.main()
