# SPDX-License-Identifier: Apache-2.0
"""MatMulInteger, ConvInteger, DynamicQuantizeLinear and what is fused around them, against ONNX
Runtime's own provider."""
import itertools

import numpy as np

from ort_models import Case, model, node, ours

# One rounding of a product and one of a sum, in another order.
FLOATS = 4 * 2.0 ** -24


class MatMulInteger(Case):
    def product(self, x, w, x_zero=None, w_zero=None, claimed=("MatMulInteger",), shapes=None):
        feeds, constants = {"x": x}, {"w": w}
        names = "x w"
        if x_zero is not None or w_zero is not None:
            names += " xz" if x_zero is not None else " -"
        if x_zero is not None:
            feeds["xz"] = x_zero
        if w_zero is not None:
            names += " wz"
            constants["wz"] = w_zero
        made = model([node("MatMulInteger", names, "y")], feeds, "y:i32", constants, shapes=shapes)
        return self.agree(made, feeds, list(claimed))

    def test_types_and_zero_points(self):
        for of_x, of_w in itertools.product(("u8", "i8"), repeat=2):
            x, w = self.codes(5, 33, kind=of_x), self.codes(33, 17, kind=of_w)
            x_zero, w_zero = self.codes(1, kind=of_x)[0], self.codes(1, kind=of_w)[0]
            self.product(x, w)
            self.product(x, w, np.array(x_zero))
            self.product(x, w, np.array([x_zero]), shapes={"xz": [1]})
            self.product(x, w, np.array(x_zero), np.array(w_zero))
            self.product(x, w, None, np.array(w_zero))
            self.product(x, w, np.array(x_zero), self.codes(17, kind=of_w))

    def test_shapes(self):
        for m, k, n in ((1, 1, 1), (1, 7, 3), (3, 64, 16), (17, 31, 65), (2, 257, 33), (0, 8, 4)):
            self.product(self.codes(m, k), self.codes(k, n, kind="i8"), np.array(3, np.uint8))
        for batch in ((2,), (2, 3), (0, 3), (2, 1, 3)):
            self.product(self.codes(*batch, 5, 19), self.codes(19, 11, kind="i8"))

    def test_one_session_and_many_shapes(self):
        w = self.codes(24, 40, kind="i8")
        made = model([node("MatMulInteger", "x w", "y")], {"x": self.codes(2, 3, 24)}, "y:i32",
                     {"w": w})
        session = self.agree(made, {"x": self.codes(2, 3, 24)})
        for shape in ((1, 1, 24), (4, 9, 24), (0, 2, 24), (3, 2, 24)):
            x = self.codes(*shape)
            self.same(session.run(None, {"x": x}), [x.astype(np.int32) @ w.astype(np.int32)])

    def test_all_codes_are_exact(self):
        """On any CPU, whatever the other provider does with the largest of them."""
        x, w = self.codes(9, 200), self.rng.integers(-128, 128, (200, 31)).astype(np.int8)
        w[:, 0], x[0] = 127, 255
        w[:, 1] = -128
        made = model([node("MatMulInteger", "x w", "y")], {"x": x}, "y:i32", {"w": w})
        self.same(ours(made).run(None, {"x": x}), [x.astype(np.int32) @ w.astype(np.int32)])

    def test_what_is_left_to_onnx_runtime(self):
        x, w = self.codes(3, 8), self.codes(8, 4)
        made = model([node("MatMulInteger", "x w", "y")], {"x": x, "w": w}, "y:i32", {})
        self.agree(made, {"x": x, "w": w}, [])
        batched = self.codes(2, 8, 4)
        made = model([node("MatMulInteger", "x w", "y")], {"x": x}, "y:i32", {"w": batched})
        self.agree(made, {"x": x}, [])

    def test_a_wrong_shape_is_a_sentence(self):
        made = model([node("MatMulInteger", "x w", "y")], {"x": self.codes(2, 8)}, "y:i32",
                     {"w": self.codes(8, 4)})
        session = self.agree(made, {"x": self.codes(2, 8)})
        with self.assertRaisesRegex(Exception, "quern: x has rows of 9, its weights have 8"):
            session.run(None, {"x": self.codes(2, 9)})


class ConvInteger(Case):
    def convolve(self, x, w, x_zero=None, w_zero=None, claimed=("ConvInteger",), **attributes):
        feeds, constants = {"x": x}, {"w": w}
        names = "x w"
        if x_zero is not None:
            feeds["xz"] = np.array(x_zero, x.dtype)
            names += " xz"
        if w_zero is not None:
            names += (" -" if x_zero is None else "") + " wz"
            constants["wz"] = np.array(w_zero, w.dtype)
        made = model([node("ConvInteger", names, "y", **attributes)], feeds, "y:i32", constants)
        self.agree(made, feeds, list(claimed))

    def test_types_and_zero_points(self):
        for of_w in ("u8", "i8"):
            x, w = self.codes(2, 5, 9, 7), self.codes(6, 5, 3, 3, kind=of_w)
            self.convolve(x, w)
            self.convolve(x, w, 77, pads=[1, 1, 1, 1])
            self.convolve(x, w, 200, 19, pads=[0, 1, 2, 0])
            self.convolve(x, w, None, 3)

    def test_attributes_by_chance(self):
        for i in range(60):
            rng, axes = self.rng, int(self.rng.integers(1, 3))
            groups = int(rng.choice([1, 1, 2, 3, 8]))
            ci, co = int(rng.integers(1, 5)), int(rng.integers(1, 6))
            kernel = [int(rng.integers(1, 4)) for _ in range(axes)]
            facts = {"group": groups, "strides": [int(rng.integers(1, 4)) for _ in range(axes)],
                     "dilations": [int(rng.integers(1, 3)) for _ in range(axes)]}
            how = i % 4
            if how == 1:
                facts["auto_pad"] = "VALID"
            elif how == 2 and facts["dilations"] == [1] * axes:
                facts["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
            else:
                facts["pads"] = [int(rng.integers(0, 3)) for _ in range(2 * axes)]
            size = [int(rng.integers(7, 20)) for _ in range(axes)]
            with self.subTest(**facts, ci=ci, co=co, size=size):
                self.convolve(self.codes(int(rng.integers(1, 3)), ci * groups, *size),
                              self.codes(co * groups, ci, *kernel, kind="i8"),
                              int(rng.integers(0, 256)), **facts)

    def test_an_empty_batch(self):
        self.convolve(self.codes(0, 3, 8, 8), self.codes(4, 3, 3, 3, kind="i8"), 5)

    def test_what_is_left_to_onnx_runtime(self):
        made = model([node("ConvInteger", "x w", "y")],
                     {"x": self.codes(1, 2, 5, 5), "w": self.codes(3, 2, 3, 3)}, "y:i32", {})
        self.agree(made, {"x": self.codes(1, 2, 5, 5), "w": self.codes(3, 2, 3, 3)}, [])


class DynamicQuantizeLinear(Case):
    def quantize(self, x):
        made = model([node("DynamicQuantizeLinear", "x", "q s z")], {"x": x}, "q:u8 s:f32 z:u8", {})
        self.agree(made, {"x": x}, ["DynamicQuantizeLinear"])

    def test_values(self):
        for x in (self.floats(1), self.floats(3, 5), self.floats(70000), self.floats(2, 3, 4, 5),
                  np.zeros((4, 4), np.float32), np.full(7, 3.5, np.float32),
                  -np.abs(self.floats(100)), np.abs(self.floats(100)) + 3,
                  np.array([1e-30, -2e-30], np.float32), np.array([1e30, -2e30], np.float32),
                  np.array(2.5, np.float32)):
            self.quantize(x)

    def test_values_half_way_between_codes(self):
        x = np.arange(-256, 257, dtype=np.float32) / 2
        x = np.concatenate([x, np.float32([-127.5, 127.5])])
        self.quantize(np.clip(x, -127.5, 127.5))
        self.quantize(np.arange(0, 511, dtype=np.float32) / 2)

    def test_large(self):
        for count in (16383, 16384, 16385, 1 << 20, (1 << 20) + 77):
            self.quantize(self.floats(count) * 3)


class Fusion(Case):
    """x is quantized, multiplied, scaled, biased, activated: one claim behind the quantizer."""

    def layer(self, x, w, tail, constants, claimed, convolution=None):
        names = "q w z"
        nodes = [node("DynamicQuantizeLinear", "x", "q s z"),
                 node("ConvInteger", names, "i", **convolution) if convolution is not None
                 else node("MatMulInteger", names, "i"),
                 node("Mul", "s ws", "sw"), *tail]
        made = model(nodes, {"x": x}, "y:f32", {"w": w, **constants})
        self.agree(made, {"x": x}, ["DynamicQuantizeLinear", claimed], FLOATS)

    def test_a_linear_layer(self):
        scale, bias = np.array(0.02, np.float32), self.floats(24)
        cast = node("Cast", "i", "f", to=1)
        for x in (self.floats(7, 40), self.floats(2, 3, 40), self.floats(0, 40)):
            for tail, claimed in (
                    ([cast, node("Mul", "f sw", "y")], "Cast MatMulInteger Mul"),
                    ([cast, node("Mul", "sw f", "m"), node("Add", "b m", "y")],
                     "Add Cast MatMulInteger Mul"),
                    ([cast, node("Mul", "f sw", "m"), node("Add", "m b", "a"),
                      node("Relu", "a", "y")], "Add Cast MatMulInteger Mul Relu"),
                    ([cast, node("Mul", "f sw", "m"), node("Clip", "m lo hi", "y")],
                     "Cast Clip MatMulInteger Mul")):
                self.layer(x, self.codes(40, 24, kind="i8"), tail,
                           {"ws": scale, "b": bias, "lo": np.array(-0.5, np.float32),
                            "hi": np.array(2.0, np.float32)}, claimed)

    def test_scales_of_each_output(self):
        scale = np.abs(self.floats(24))
        self.layer(self.floats(7, 40), self.codes(40, 24, kind="i8"),
                   [node("Cast", "i", "f", to=1), node("Mul", "f sw", "y")], {"ws": scale},
                   "Cast MatMulInteger Mul")

    def test_convolutions(self):
        cast, scale = node("Cast", "i", "f", to=1), np.array(0.02, np.float32)
        for x, w, ones in ((self.floats(2, 6, 21), self.codes(8, 6, 3, kind="i8"), (1,)),
                           (self.floats(2, 6, 9, 5), self.codes(8, 6, 3, 3, kind="i8"), (1, 1))):
            for channel in ((1, 8, *ones), (8, *ones), (1, *ones)):
                self.layer(x, w, [cast, node("Mul", "f sw", "m"), node("Add", "m b", "y")],
                           {"ws": scale, "b": self.floats(*channel)},
                           "Add Cast ConvInteger Mul", {"pads": [1] * 2 * len(ones)})

    def test_a_bias_of_integers(self):
        self.layer(self.floats(5, 40), self.codes(40, 24, kind="i8"),
                   [node("Add", "i ib", "ii"), node("Cast", "ii", "f", to=1),
                    node("Mul", "f sw", "y")],
                   {"ws": np.array(0.1, np.float32),
                    "ib": self.rng.integers(-999, 999, 24).astype(np.int32)},
                   "Add Cast MatMulInteger Mul")

    def test_what_is_added(self):
        """A tensor of y's own shape, before or after the activation."""
        x = self.floats(6, 40)
        cast, w = node("Cast", "i", "f", to=1), self.codes(40, 24, kind="i8")
        start = [node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", "q w z", "i"),
                 cast, node("Mul", "f c", "m")]
        for tail in ([node("Add", "m r", "a"), node("Relu", "a", "y")],
                     [node("Relu", "m", "a"), node("Add", "r a", "y")]):
            feeds = {"x": x, "r": self.floats(6, 24)}
            made = model(start + tail, feeds, "y:f32", {"w": w, "c": np.array(.01, np.float32)},
                         shapes={"x": [6, 40], "r": [6, 24]})
            self.agree(made, feeds, ["DynamicQuantizeLinear", "Add Cast MatMulInteger Mul Relu"],
                       FLOATS)

    def test_values_that_others_read_are_not_fused_away(self):
        x, w = self.codes(4, 16), self.codes(16, 8)
        nodes = [node("MatMulInteger", "x w", "i"), node("Cast", "i", "f", to=1),
                 node("Mul", "f c", "m"), node("Add", "m b", "y"), node("Neg", "m", "z")]
        constants = {"w": w, "c": np.array(.5, np.float32), "b": self.floats(8)}
        self.agree(model(nodes, {"x": x}, "y:f32 z:f32", constants), {"x": x},
                   ["Cast MatMulInteger Mul"], FLOATS)
        self.agree(model(nodes[:4], {"x": x}, "y:f32 f:f32", constants), {"x": x},
                   ["Cast MatMulInteger"], FLOATS)
        nodes = [node("MatMulInteger", "x w", "i"), node("Cast", "i", "f", to=1),
                 node("Mul", "f f", "y")]
        self.agree(model(nodes, {"x": x}, "y:f32", constants), {"x": x}, ["Cast MatMulInteger"],
                   FLOATS)

    def test_scales_that_are_no_scales(self):
        x, w = self.codes(4, 16), self.codes(16, 8)
        for scale in (0.0, -2.0, np.inf, np.nan):
            made = model([node("MatMulInteger", "x w", "i"), node("Cast", "i", "f", to=1),
                          node("Mul", "f c", "y")], {"x": x}, "y:f32",
                         {"w": w, "c": np.array(scale, np.float32)})
            self.agree(made, {"x": x}, ["Cast MatMulInteger Mul"])
