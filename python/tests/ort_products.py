# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions whose scales are in the model, against ONNX Runtime's own provider:
QLinear operators, DynamicQuantizeMatMul, MatMulNBits, DequantizeLinear around float operators, and
float weights quantized on load."""
import itertools

import numpy as np

from ort_models import Case, claims, model, node, ours, peer

try:
    from onnx import TensorProto, helper
except ImportError: # All is skipped then.
    pass

# f32 sums of a few hundred products in another order, as a part of the largest result.
FLOATS = 2e-6


def scale(value):
    return np.array(value, np.float32)


class QLinear(Case):
    def close(self, made, feeds, claimed):
        """Codes: equal. ONNX Runtime rounds the same product of the same numbers."""
        return self.agree(made, feeds, [claimed])

    def test_matmul(self):
        # ONNX Runtime has no product of signed x and unsigned weights.
        for of_x, of_w, of_y in (("u8", "u8", "u8"), ("u8", "i8", "u8"), ("i8", "i8", "i8")):
            for each in (False, True):
                n = 19
                constants = {
                    "xs": scale(.02), "xz": self.codes(1, kind=of_x)[0].reshape(()),
                    "w": self.codes(33, n, kind=of_w),
                    "ws": np.abs(self.floats(n)) / 9 + scale(.01) if each else scale(.03),
                    "wz": (np.full(n, 3) if each else np.array(3)).astype(
                        np.uint8 if of_w == "u8" else np.int8),
                    "ys": scale(.9), "yz": np.array(5, np.uint8 if of_y == "u8" else np.int8)}
                made = model([node("QLinearMatMul", "x xs xz w ws wz ys yz", "y")],
                             {"x": self.codes(2, 7, 33, kind=of_x)}, f"y:{of_y}", constants)
                self.close(made, {"x": self.codes(2, 7, 33, kind=of_x)}, "QLinearMatMul")

    def test_conv(self):
        for of_x, of_w in (("u8", "u8"), ("u8", "i8"), ("i8", "i8")):
            for each, bias, facts in itertools.product((False, True), (False, True), (
                    {"pads": [1, 1, 1, 1]}, {"strides": [2, 1], "group": 2},
                    {"dilations": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]})):
                co, ci = 8, 6
                kind = np.uint8 if of_w == "u8" else np.int8
                constants = {
                    "xs": scale(.02), "xz": np.array(100 if of_x == "u8" else -7, np.uint8
                                                     if of_x == "u8" else np.int8),
                    "w": self.codes(co, ci // facts.get("group", 1), 3, 3, kind=of_w),
                    "ws": np.abs(self.floats(co)) / 9 + scale(.01) if each else scale(.03),
                    "wz": np.array(0 if of_w == "i8" else 120, kind), "ys": scale(.7),
                    "yz": np.array(9, np.uint8 if of_x == "u8" else np.int8),
                    "b": self.rng.integers(-9999, 9999, co).astype(np.int32)}
                if each and of_w == "u8":
                    constants["wz"] = np.full(co, 120, kind)
                elif each:
                    constants["wz"] = np.zeros(co, kind)
                x = self.codes(2, ci, 9, 11, kind=of_x)
                made = model([node("QLinearConv", "x xs xz w ws wz ys yz" + " b" * bias, "y",
                                   **facts)], {"x": x}, f"y:{of_x}", constants)
                with self.subTest(of_x=of_x, of_w=of_w, each=each, bias=bias, **facts):
                    self.close(made, {"x": x}, "QLinearConv")

    def test_zero_points_of_weights_are_taken_away_exactly(self):
        """Sums of which f32 holds the parts no more: 8192 products by large codes that stand for
        small numbers."""
        x = self.codes(16, 8192)
        constants = {"xs": scale(1), "xz": np.array(0, np.uint8),
                     "w": self.rng.integers(245, 256, (8192, 64)).astype(np.uint8),
                     "ws": scale(1), "wz": np.array(250, np.uint8), "ys": scale(400),
                     "yz": np.array(128, np.uint8)}
        made = model([node("QLinearMatMul", "x xs xz w ws wz ys yz", "y")], {"x": x}, "y:u8",
                     constants)
        self.close(made, {"x": x}, "QLinearMatMul")

    def test_conv_of_one_axis_and_depthwise(self):
        for shape, of_w, groups in (((2, 8, 31), (8, 1, 5), 8), ((2, 8, 31), (4, 8, 3), 1),
                                    ((1, 16, 9, 9), (16, 1, 3, 3), 16)):
            x = self.codes(*shape)
            made = model([node("QLinearConv", "x xs xz w ws wz ys yz", "y", group=groups)],
                         {"x": x}, "y:u8",
                         {"xs": scale(.02), "xz": np.array(3, np.uint8),
                          "w": self.codes(*of_w, kind="i8"), "ws": scale(.03),
                          "wz": np.array(0, np.int8), "ys": scale(.4),
                          "yz": np.array(100, np.uint8)})
            self.close(made, {"x": x}, "QLinearConv")


class Dynamic(Case):
    def test_dynamic_quantize_matmul(self):
        for of_w, each, zero, bias in itertools.product(("u8", "i8"), *[(False, True)] * 3):
            n, kind = 21, np.uint8 if of_w == "u8" else np.int8
            constants = {"w": self.codes(40, n, kind=of_w),
                         "ws": np.abs(self.floats(n)) + scale(.1) if each else scale(.03),
                         "wz": np.full(n, 4, kind) if each else np.array(4, kind),
                         "b": self.floats(n)}
            names = "x w ws" + (" wz" if zero else " -" if bias else "") + " b" * bias
            x = self.floats(3, 5, 40)
            made = model([node("DynamicQuantizeMatMul", names, "y", "com.microsoft")], {"x": x},
                         "y:f32", constants)
            self.agree(made, {"x": x}, ["DynamicQuantizeMatMul"], FLOATS)

    def test_matmul_integer_to_float(self):
        x = self.codes(6, 40)
        made = model([node("MatMulIntegerToFloat", "x w xs ws xz wz b", "y", "com.microsoft")],
                     {"x": x, "xs": scale(.04)}, "y:f32",
                     {"w": self.codes(40, 12), "ws": scale(.2), "xz": np.array(7, np.uint8),
                      "wz": np.array(3, np.uint8), "b": self.floats(12)},
                     shapes={"xs": []})
        self.agree(made, {"x": x, "xs": scale(.04)}, ["MatMulIntegerToFloat"], FLOATS)


class NBits(Case):
    def layer(self, bits, n, k, block, zeros=None, bias=False, **attributes):
        blocks = -(-k // block)
        constants = {
            "w": self.rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
            "s": np.abs(self.floats(n * blocks)).astype(np.float32) + scale(.1)}
        if zeros == "packed":
            constants["z"] = self.rng.integers(
                0, 256, n * (-(-blocks * bits // 8))).astype(np.uint8)
        elif zeros == "floats":
            constants["z"] = (self.floats(n * blocks) + 2 ** (bits - 1)).astype(np.float32)
        if bias:
            constants["b"] = self.floats(n)
        names = "x w s" + (" z" if zeros else " -" if bias else "") + (" - b" if bias else "")
        x = self.floats(2, 3, k)
        made = model([node("MatMulNBits", names, "y", "com.microsoft", K=k, N=n, bits=bits,
                           block_size=block, **attributes)], {"x": x}, "y:f32", constants)
        return made, {"x": x}

    def test_forms(self):
        for bits, zeros, block in itertools.product((4, 8), (None, "packed"), (16, 32, 128)):
            for n, k in ((32, 256), (17, 96), (8, 300)):
                with self.subTest(bits=bits, zeros=zeros, block=block, n=n, k=k):
                    made, feeds = self.layer(bits, n, k, block, zeros)
                    self.agree(made, feeds, ["MatMulNBits"], 1e-5)
        made, feeds = self.layer(4, 24, 128, 32, "floats")
        self.agree(made, feeds, ["MatMulNBits"], 1e-5)
        made, feeds = self.layer(4, 24, 128, 32, "packed", bias=True)
        self.agree(made, feeds, ["MatMulNBits"], 1e-5)

    def test_two_bits(self):
        """ONNX Runtime's own kernels of 2 bits are for some machines only: numpy judges."""
        made, feeds = self.layer(2, 12, 64, 32)
        codes = np.frombuffer(made.graph.initializer[0].raw_data, np.uint8).reshape(12, -1)
        scales = np.frombuffer(made.graph.initializer[1].raw_data, np.float32).reshape(12, 2)
        w = np.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)], -1).reshape(12, 64) - 2.0
        w *= np.repeat(scales, 32, 1)
        self.same(ours(made).run(None, feeds), [(feeds["x"] @ w.T).astype(np.float32)], 1e-5)

    def test_accuracy_level_4_quantizes_x(self):
        made, feeds = self.layer(4, 64, 512, 32, "packed", accuracy_level=4)
        self.agree(made, feeds, ["MatMulNBits"], 0.03)
        exact, by_block = (ours(made, strategy=name).run(None, feeds)[0]
                           for name in ("float", "int8-block"))
        self.assertGreater(np.abs(exact - by_block).max(), 0)
        np.testing.assert_array_equal(by_block, ours(made).run(None, feeds)[0])

    def test_an_order_of_columns_is_left(self):
        made, feeds = self.layer(4, 16, 64, 32, "packed")
        made.graph.node[0].input.append("g")
        made.graph.initializer.append(helper.make_tensor(
            "g", TensorProto.INT32, [64], np.repeat(np.arange(2), 32)))
        self.agree(made, feeds, [])


def packed(values, name, kind):
    """A tensor of 4-bit codes."""
    return helper.make_tensor(name, TensorProto.UINT4 if kind == "u4" else TensorProto.INT4,
                              values.shape, values.flatten().astype(int).tolist())


class Dequantized(Case):
    """Weights behind a DequantizeLinear, x of floats."""

    def weights(self, kind, shape):
        low, high = {"u8": (0, 256), "i8": (-128, 128), "u4": (0, 16), "i4": (-8, 8)}[kind]
        values = self.rng.integers(low, high, shape)
        if kind in ("u4", "i4"):
            return packed(values, "w", kind)
        return values.astype(np.uint8 if kind == "u8" else np.int8)

    def zeros(self, kind, shape):
        values = self.rng.integers(1, 7, shape)
        if kind in ("u4", "i4"):
            return packed(np.asarray(values), "z", kind)
        return np.asarray(values, np.uint8 if kind == "u8" else np.int8)

    def layer(self, op, kind, of_x, of_w, of_scale, facts, zero=True, bias=None, swap=False,
              **attributes):
        names = "w s z" if zero else "w s"
        constants = {"w": self.weights(kind, of_w),
                     "s": np.abs(self.floats(*of_scale)) + scale(.1)}
        if zero:
            constants["z"] = self.zeros(kind, of_scale)
        if bias is not None:
            constants["b"] = self.floats(*bias)
        nodes = [node("DequantizeLinear", names, "d", **facts)]
        if swap:
            nodes.append(node("Transpose", "d", "t", perm=[1, 0]))
        nodes.append(node(op, f"x {'t' if swap else 'd'}" + (" b" if bias is not None else ""), "y",
                          **attributes))
        x = self.floats(*of_x)
        made = model(nodes, {"x": x}, "y:f32", constants)
        with self.subTest(op=op, kind=kind, of_w=of_w, of_scale=of_scale, zero=zero, **facts):
            # ONNX Runtime transposes some constants itself.
            claimed = None if swap else [" ".join(sorted(one.op_type for one in nodes))]
            session = self.agree(made, {"x": x}, claimed, 1e-5)
            self.assertEqual(len(claims(session) or [0]), 1)

    def test_matmul(self):
        for kind, zero in itertools.product(("u8", "i8", "u4", "i4"), (False, True)):
            for of_scale, facts in (((), {}), ((24,), {"axis": 1}), ((24,), {"axis": -1}),
                                    ((4, 24), {"axis": 0, "block_size": 32})):
                self.layer("MatMul", kind, (2, 5, 128), (128, 24), of_scale, facts, zero)

    def test_transposed_weights(self):
        for of_scale, facts in (((24,), {"axis": 0}), ((24, 4), {"axis": 1, "block_size": 32})):
            self.layer("MatMul", "i8", (5, 128), (24, 128), of_scale, facts, swap=True)
            self.layer("MatMul", "u4", (5, 128), (24, 128), of_scale, facts, swap=True)
            self.layer("Gemm", "i4", (5, 128), (24, 128), of_scale, facts, transB=1, bias=(24,))

    def test_gemm(self):
        for bias in (None, (24,), (1, 24), (1,)):
            self.layer("Gemm", "i8", (5, 128), (128, 24), (24,), {"axis": 1}, bias=bias)

    def test_conv(self):
        for kind in ("u8", "i8", "i4"):
            for facts in ({}, {"group": 2}, {"strides": [2, 2], "pads": [1, 1, 1, 1]},
                          {"dilations": [2, 1]}, {"auto_pad": "SAME_UPPER"}):
                self.layer("Conv", kind, (2, 16, 9, 8), (12, 16 // facts.get("group", 1), 3, 3),
                           (12,), {"axis": 0}, bias=(12,), **facts)
            self.layer("Conv", kind, (2, 16, 30), (12, 16, 5), (), {}, pads=[2, 2])
            self.layer("Conv", kind, (2, 64, 9, 8), (12, 64, 3, 3), (12, 2, 3, 3),
                       {"axis": 1, "block_size": 32})
        self.layer("Conv", "i8", (2, 16, 9, 8), (16, 1, 3, 3), (16,), {"axis": 0}, group=16)

    def test_conv_transpose(self):
        for kind in ("u8", "i8", "i4"):
            for facts in ({}, {"strides": [2, 2]}, {"strides": [2, 2], "output_padding": [1, 0]},
                          {"pads": [1, 0, 1, 2], "dilations": [2, 2]}, {"group": 2}):
                outputs = 8 // facts.get("group", 1)
                self.layer("ConvTranspose", kind, (2, 8, 7, 5), (8, outputs, 3, 3), (outputs,),
                           {"axis": 1}, bias=(8,), **facts)
            self.layer("ConvTranspose", kind, (2, 8, 15), (8, 6, 4), (), {}, strides=[2])

    def test_an_activation_and_a_residual(self):
        x, r = self.floats(5, 64), self.floats(5, 32)
        nodes = [node("DequantizeLinear", "w s", "d", axis=1), node("MatMul", "x d", "m"),
                 node("Add", "m b", "a"), node("Gelu", "a", "g"), node("Add", "g r", "y")]
        made = model(nodes, {"x": x, "r": r}, "y:f32",
                     {"w": self.codes(64, 32, kind="i8"), "s": np.abs(self.floats(32)) / 50,
                      "b": self.floats(32)}, shapes={"x": [5, 64], "r": [5, 32]})
        self.agree(made, {"x": x, "r": r}, ["Add DequantizeLinear Gelu Gemm"], 1e-5)

    def test_strategies(self):
        x = self.floats(9, 256)
        made = model([node("DequantizeLinear", "w s", "d", axis=1), node("MatMul", "x d", "y")],
                     {"x": x}, "y:f32", {"w": self.codes(256, 32, kind="i8"),
                                         "s": np.abs(self.floats(32))})
        for name in ("float", "int8-row", "int8-block", "dense"):
            self.agree(made, {"x": x}, None, 1e-5 if name in ("float", "dense") else .02,
                       strategy=name)

    def test_what_is_left(self):
        x = self.floats(5, 8)
        made = model([node("DequantizeLinear", "w s", "d", axis=0), node("MatMul", "x d", "y")],
                     {"x": x}, "y:f32", {"w": self.codes(8, 6, kind="i8"),
                                         "s": np.abs(self.floats(8))})
        self.agree(made, {"x": x}, [], 1e-5)


class AllCodes(Case):
    """x, weights and y quantized: DequantizeLinear, the operator, QuantizeLinear."""

    def layer(self, op, of_x, of_w, tail="", of_scale=(), axis=0, bias=0, bound=0.0, **facts):
        constants = {"xs": scale(.02), "xz": np.array(110, np.uint8),
                     "w": self.codes(*of_w, kind="i8"),
                     "ws": np.abs(self.floats(*of_scale)) / 50 + scale(.01),
                     "wz": np.zeros(of_scale, np.int8), "ys": scale(.11),
                     "yz": np.array(60, np.uint8), "lo": scale(-1), "hi": scale(3)}
        nodes = [node("DequantizeLinear", "x xs xz", "xf"),
                 node("DequantizeLinear", "w ws wz", "wf", axis=axis)]
        if bias:
            constants["b"] = self.rng.integers(-999, 999, bias).astype(np.int32)
            constants["bs"] = np.broadcast_to(constants["ws"] * constants["xs"],
                                              (bias,)).astype(np.float32)
            nodes.append(node("DequantizeLinear", "b bs", "bf", axis=0))
        nodes.append(node(op, "xf wf" + " bf" * (bias > 0), "f", **facts))
        last = "f"
        for one in tail.split():
            nodes.append(node(one, last + (" lo hi" if one == "Clip" else ""), last + "f"))
            last += "f"
        nodes.append(node("QuantizeLinear", f"{last} ys yz", "y"))
        x = self.codes(*of_x)
        made = model(nodes, {"x": x}, "y:u8", constants)
        session = ours(made)
        found, wanted = session.run(None, {"x": x})[0], peer(made).run(None, {"x": x})[0]
        of_claims = claims(session)
        if of_claims is not None:
            self.assertEqual(len(of_claims), 1, of_claims)
        apart = np.abs(found.astype(int) - wanted)
        self.assertLessEqual(apart.max(), 1 if bound else 0)
        self.assertLessEqual((apart > 0).mean(), bound)
        self.assertGreater(np.unique(found).size, 20)

    def test_conv(self):
        for facts in ({}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, {"group": 4}):
            of_w = (16, 8 // facts.get("group", 1), 3, 3)
            self.layer("Conv", (2, 8, 12, 12), of_w, **facts)
            self.layer("Conv", (2, 8, 12, 12), of_w, of_scale=(16,), **facts)
            self.layer("Conv", (2, 8, 12, 12), of_w, of_scale=(16,), bias=16, **facts)

    def test_matmul(self):
        self.layer("MatMul", (2, 9, 40), (40, 24))
        self.layer("MatMul", (2, 9, 40), (40, 24), of_scale=(24,), axis=1)

    def test_gemm(self):
        # ONNX Runtime has QGemm, which rounds once more.
        self.layer("Gemm", (9, 40), (40, 24), bound=.01)
        self.layer("Gemm", (9, 40), (24, 40), of_scale=(24,), bias=24, transB=1, bound=.01)

    def test_activations(self):
        for tail in ("Relu", "Clip", "Gelu"):
            # ONNX Runtime computes these in floats.
            self.layer("Conv", (2, 8, 12, 12), (16, 8, 3, 3), tail, of_scale=(16,), bias=16,
                       bound=.01)

    def test_a_transposed_convolution(self):
        self.layer("ConvTranspose", (2, 8, 6, 6), (8, 10, 3, 3), strides=[2, 2], bound=.01)

    def test_a_chain(self):
        """Codes from layer to layer, and a sum of two branches that stays with ONNX Runtime."""
        nodes, constants = [], {"z": np.array(128, np.uint8), "wz": np.array(0, np.int8)}

        def conv(name, source, to):
            constants[f"w{name}"] = self.codes(8, 8, 3, 3, kind="i8")
            constants[f"s{name}"], constants[f"q{name}"] = scale(.004), scale(.2 + .01 * len(name))
            nodes.extend([
                node("DequantizeLinear", f"{source} s0 z", f"{to}_x"),
                node("DequantizeLinear", f"w{name} s{name} wz", f"{to}_w"),
                node("Conv", f"{to}_x {to}_w", f"{to}_f", pads=[1, 1, 1, 1]),
                node("QuantizeLinear", f"{to}_f s0 z", to)])
        constants["s0"] = scale(.05)
        conv("a", "x", "a")
        conv("b", "a", "b")
        conv("c", "a", "c")
        nodes.extend([node("DequantizeLinear", "b s0 z", "bf"),
                      node("DequantizeLinear", "c s0 z", "cf"), node("Add", "bf cf", "y")])
        x = self.codes(1, 8, 10, 10)
        self.agree(model(nodes, {"x": x}, "y:f32", constants), {"x": x}, [
            "Conv DequantizeLinear DequantizeLinear QuantizeLinear"] * 3)


class Images(Case):
    """Convolutions with a pool between them: channels last from the first to the last."""

    def network(self, kind, codes=True, bias=False, **pool):
        zero = np.array(130 if kind == "u8" else 3, np.uint8 if kind == "u8" else np.int8)
        constants = {"s": scale(.05), "z": zero, "zw": np.zeros(16, np.int8),
                     "zb": np.zeros(16, np.int32)}
        nodes, last = [node("DequantizeLinear", "x s z", "x_f")], "x_f"
        for name, ci in (("a", 8), ("b", 16)):
            constants[f"w{name}"] = self.codes(16, ci, 3, 3, kind="i8")
            constants[f"c{name}"] = (np.abs(self.floats(16)) / 400 + scale(.001))
            constants[f"b{name}"] = self.rng.integers(-3000, 3000, 16).astype(np.int32)
            constants[f"d{name}"] = constants[f"c{name}"] * constants["s"]
            nodes += [node("DequantizeLinear", f"w{name} c{name} zw", f"{name}_w", axis=0)]
            if bias:
                nodes += [node("DequantizeLinear", f"b{name} d{name} zb", f"{name}_b", axis=0)]
            nodes += [node("Conv", f"{last} {name}_w" + f" {name}_b" * bias, f"{name}_f",
                           pads=[1, 1, 1, 1]),
                      node("Relu", f"{name}_f", f"{name}_r")]
            last = f"{name}_r"
            if codes or name == "b":
                nodes += [node("QuantizeLinear", f"{last} s z", f"{name}_q"),
                          node("DequantizeLinear", f"{name}_q s z", f"{name}_x")]
                last = f"{name}_x"
            if name == "a":
                nodes += [node("MaxPool", last, "p", **pool)]
                last = "p"
                nodes += [node("QuantizeLinear", "p s z", "p_q"),
                          node("DequantizeLinear", "p_q s z", "p_x")]
                last = "p_x"
        nodes += [node("Identity", last, "y")]
        x = self.codes(2, 8, 13, 11, kind=kind)
        return model(nodes, {"x": x}, "y:f32", constants), {"x": x}

    POOLS = ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
             {"kernel_shape": [2, 2], "strides": [2, 2]},
             {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER", "strides": [2, 1]},
             {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [1, 2]})

    def test_pools(self):
        for kind, codes, pool in itertools.product(("u8", "i8"), (True, False), self.POOLS):
            with self.subTest(kind=kind, codes=codes, **pool):
                made, feeds = self.network(kind, codes, **pool)
                # Without codes before the pool, ONNX Runtime convolves floats: sums near a tie
                # may round to the neighbour, which moves a code of the answer by at most one.
                bound = 0.0 if codes else .02
                for layout in ("nhwc", "nchw"):
                    session = self.agree(made, feeds, bound=bound, layout=layout)
                    found = claims(session)
                    if found is not None and layout == "nhwc":
                        self.assertEqual(sum("MaxPool" in one for one in found), 1, found)
                        self.assertEqual(sum("Conv" in one for one in found), 2, found)

    def test_a_bias_with_zero_points_of_zero(self):
        made, feeds = self.network("u8", True, True, **self.POOLS[0])
        found = claims(self.agree(made, feeds))
        if found is not None:
            self.assertEqual(sum("Conv" in one for one in found), 2, found)

    def test_a_pool_alone_is_left(self):
        x = self.floats(1, 4, 9, 9)
        made = model([node("MaxPool", "x", "y", kernel_shape=[3, 3])], {"x": x}, "y:f32", {})
        self.assertIn(claims(self.agree(made, {"x": x})), (None, []))

    def test_a_pool_that_is_not_served(self):
        for more in ({"dilations": [2, 2]}, {"ceil_mode": 1, "strides": [2, 2]}):
            made, feeds = self.network("u8", kernel_shape=[2, 2], **more)
            self.agree(made, feeds)


class OnLoad(Case):
    """Float weights, quantized when the session is made."""

    def test_formats(self):
        for how, bound in (("int8:pc", .02), ("int4:g32", .2), ("int8:g64:zp", .02)):
            x = self.floats(2, 7, 128)
            made = model([node("MatMul", "x w", "m"), node("Add", "m b", "y")], {"x": x}, "y:f32",
                         {"w": self.floats(128, 48), "b": self.floats(48)})
            self.agree(made, {"x": x}, ["Add MatMul"], bound, quantize=how)
            self.agree(made, {"x": x}, ["Add MatMul"], bound, quantize=how, strategy="int8-block")
            x = self.floats(2, 32, 9, 9)
            made = model([node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "y")],
                         {"x": x}, "y:f32", {"w": self.floats(24, 32, 3, 3), "b": self.floats(24)})
            self.agree(made, {"x": x}, ["Conv Relu"], bound, quantize=how)

    def test_the_same_as_the_library(self):
        import quern
        x, w = self.floats(7, 128), self.floats(128, 48)
        made = model([node("MatMul", "x w", "y")], {"x": x}, "y:f32", {"w": w})
        packed_w = quern.quantize(np.ascontiguousarray(w.T), "int4:g32").pack()
        np.testing.assert_array_equal(ours(made, quantize="int4:g32").run(None, {"x": x})[0],
                                      quern.matmul(x, packed_w))

    def test_not_without_the_option(self):
        x = self.floats(7, 128)
        made = model([node("MatMul", "x w", "y")], {"x": x}, "y:f32", {"w": self.floats(128, 48)})
        self.agree(made, {"x": x}, [])
