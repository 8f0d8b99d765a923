# SPDX-License-Identifier: Apache-2.0
"""Activations between codes, which become tables: ONNX Runtime's own codes for all 256."""
import numpy as np

from ort_models import Case, model, node

HARD_SWISH = [node("Mul", "f g", "a"), node("Add", "a h", "b"), node("Add", "b three", "c"),
              node("Clip", "c zero six", "d"), node("Mul", "b d", "e"), node("Div", "e six", "i"),
              node("Mul", "i g", "j"), node("Add", "j h", "k")]
CLAIM = "Add Add Add Clip DequantizeLinear Div Mul Mul Mul QuantizeLinear"


class Tables(Case):
    def between(self, nodes, last, claimed, bound=0.0, kind="u8", shape=(2, 3, 8, 16), outputs=""):
        x = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
        x = x if kind == "u8" else x.view(np.int8)
        zeros = (np.array(131, np.uint8), np.array(97, np.uint8)) if kind == "u8" else \
            (np.array(3, np.int8), np.array(-31, np.int8))
        constants = {"xs": np.array(0.047, np.float32), "xz": zeros[0],
                     "ys": np.array(0.031, np.float32), "yz": zeros[1],
                     "g": np.array([1.25], np.float32), "h": np.array([-0.3], np.float32),
                     "three": np.array(3, np.float32), "six": np.array(6, np.float32),
                     "zero": np.array(0, np.float32), "wide": self.floats(shape[-1])}
        made = model([node("DequantizeLinear", "x xs xz", "f"), *nodes,
                      node("QuantizeLinear", f"{last} ys yz", "y")], {"x": x},
                     f"y:{kind}{outputs}", constants)
        self.agree(made, {"x": x}, claimed, bound)

    def test_activations(self):
        for kind in ("u8", "i8"):
            for nodes, last in ((HARD_SWISH, "k"), ([], "f"), ([node("Relu", "f", "a")], "a"),
                                ([node("LeakyRelu", "f", "a", alpha=0.1)], "a"),
                                ([node("HardSigmoid", "f", "a")], "a"),
                                ([node("Sub", "three f", "a"), node("Div", "a six", "b")], "b"),
                                ([node("Mul", "f g", "a"), node("Mul", "a a", "b")], "b"),
                                ([node("Clip", "f - six", "a")], "a")):
                with self.subTest(f"{kind} {[one.op_type for one in nodes]}"):
                    claim = " ".join(sorted(["DequantizeLinear", "QuantizeLinear"] +
                                            [one.op_type for one in nodes]))
                    self.between(nodes, last, [claim], kind=kind)
        # Sigmoid is rounded in another way: a code may be one apart.
        self.between([node("Add", "f h", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "c")],
                     "c", ["Add DequantizeLinear Mul QuantizeLinear Sigmoid"], 1 / 127)

    def test_shapes(self):
        for shape in ((0, 4), (1,), (3, 70001), (2, 1, 1, 5, 7)):
            self.between(HARD_SWISH, "k", [CLAIM], shape=shape)

    def test_what_is_no_function_of_a_number(self):
        self.between([node("Mul", "f wide", "a")], "a", [])
        self.between([node("Relu", "f", "a")], "a", [], outputs=" a:f32")
        self.between([node("Relu", "f", "a"), node("ReduceMax", "a", "m", keepdims=1),
                      node("Sub", "a m", "b")], "b", [])
