# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models, and the two answers to each: ONNX Runtime's own and quern's."""
import os
import unittest
import zlib

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np

try:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    import quern.ort
    MISSING = None
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        MISSING = f"ONNX Runtime {onnxruntime.__version__} loads no execution providers"
except ImportError as why:
    MISSING = f"no ONNX Runtime here: {why}"

TYPES = {"f32": 1, "u8": 2, "i8": 3, "i32": 6, "i64": 7, "f16": 10}
KINDS = {np.dtype("float32"): "f32", np.dtype("uint8"): "u8", np.dtype("int8"): "i8",
         np.dtype("float16"): "f16"}


def node(op, inputs, outputs, domain="", **attributes):
    """One node; operands by name, separated by blanks ("-" is an absent one)."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain=domain, **attributes)


def model(nodes, feeds, outputs, constants, opset=21, shapes=None):
    """Inputs have the types of `feeds` and the ranks, or what `shapes` says of them."""
    shapes = shapes or {}
    inputs = [helper.make_tensor_value_info(
        name, TYPES[KINDS[value.dtype]],
        shapes.get(name, [f"{name}{i}" for i in range(value.ndim)]))
        for name, value in feeds.items()]
    wanted = [helper.make_tensor_value_info(name, TYPES[kind], None)
              for name, kind in (one.split(":") for one in outputs.split())]
    made = [value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
            for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, wanted, made)
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])


def plain_options(threads=2):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Else ONNX Runtime quantizes x of products whose weights are dequantized.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def peer(made):
    """The answer of ONNX Runtime's own provider."""
    return onnxruntime.InferenceSession(made.SerializeToString(), plain_options(),
                                        providers=["CPUExecutionProvider"])


def ours(made, **options):
    return onnxruntime.InferenceSession(
        made.SerializeToString(), quern.ort.session_options(plain_options(), **options))


def claims(session):
    """[[operators of a claim]], or None where this runtime does not tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    return [sorted(one.op_type for one in part.get_nodes())
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name == quern.ort.NAME]


@unittest.skipIf(MISSING is not None, MISSING)
class Case(unittest.TestCase):
    """Tests that compare."""

    def setUp(self):
        self.rng = np.random.default_rng(zlib.crc32(type(self).__name__.encode()))

    def codes(self, *shape, kind="u8"):
        """Signed ones, which are weights mostly, are within 64: beyond it ONNX Runtime's own
        products saturate on CPUs without VNNI, and are no judge."""
        low, high = (0, 256) if kind == "u8" else (-64, 65)
        return self.rng.integers(low, high, shape).astype(np.uint8 if kind == "u8" else np.int8)

    def floats(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def agree(self, made, feeds, claimed=None, bound=0.0, **options):
        """Both answers; equal, or within `bound` of the largest number. claimed: operators of
        each claim, for example ["Add Cast ConvInteger Mul"]."""
        wanted = peer(made).run(None, feeds)
        session = ours(made, **options)
        self.same(session.run(None, feeds), wanted, bound)
        found = claims(session)
        if claimed is not None and found is not None:
            self.assertEqual(sorted(" ".join(one) for one in found), sorted(claimed))
        return session

    def same(self, found, wanted, bound=0.0):
        for a, b in zip(found, wanted):
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
            if bound == 0.0:
                np.testing.assert_array_equal(a, b)
            elif b.size:
                worst = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
                self.assertLessEqual(worst, bound * np.abs(b.astype(np.float64)).max() + 1e-30)
