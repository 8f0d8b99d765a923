#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Modules of ONNX models against what ONNX Runtime computes with them.

    test_onnx_models.py [--seed N] [--cases N]     QUERN_LIBRARY names the shared library

Models are made with the onnx package, with their data inline or beside them. MatMulNBits multiplies
the identity, so that y is the weight itself: equal bit for bit, but for float zero points, which
quern rounds once (2^-22 of the larger term). Weights of DequantizeLinear are what a session gives
that has this node alone; integer operators multiply the identity of integers.
Exit status 77 when numpy, onnx or onnxruntime is missing.
"""
import argparse
import copy
import os
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto as T, helper as h, numpy_helper
except ImportError as missing:
    print(f"skipped: {missing} (build/venv/bin/pip install -r test/oracle/requirements.txt)")
    sys.exit(77)
from quern_checkpoint import Checkpoint, same_bits


class Model:
    def __init__(self):
        self.nodes, self.tensors, self.counter = [], [], 0

    def constant(self, name, values, kind=None):
        """kind: of int4, whose values are plain integers; else the array's type."""
        if kind is None:
            self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        else:
            self.tensors.append(h.make_tensor(name, kind, values.shape, values.ravel().tolist()))
        return name

    def node(self, op, inputs, domain="", **attributes):
        self.counter += 1
        out = f"v{self.counter}"
        self.nodes.append(h.make_node(op, inputs, [out], name=f"n{self.counter}", domain=domain,
                                      **attributes))
        return out

    def build(self, inputs, outputs):
        graph = h.make_graph(self.nodes, "g", inputs,
                             [h.make_empty_tensor_value_info(o) for o in outputs], self.tensors)
        return h.make_model(graph, ir_version=10, opset_imports=[
            h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)])


def session(model, feeds, output):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                       providers=["CPUExecutionProvider"])
    return run.run([output], feeds)[0]


def opened(model, folder, rng):
    """Written inline or with external data, and opened by quern."""
    path, is_apart = os.path.join(folder, "model.onnx"), bool(rng.integers(2))
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    onnx.save(copy.deepcopy(model), path, save_as_external_data=is_apart,
              location="model.data", size_threshold=0, all_tensors_to_one_file=True)
    return Checkpoint(path)


def nbits(rng, folder):
    bits = int(rng.choice([2, 4, 8]))
    block = int(rng.choice([16, 32, 64, 128]))
    n, k = int(rng.integers(1, 20)), int(rng.integers(1, 200))
    blocks, m = -(-k // block), Model()
    half = bool(rng.integers(2))
    scales = (rng.random((n, blocks)) + 0.01).astype("f4")
    if half:
        scales = scales.astype("f2").astype("f4")
    inputs = ["x", m.constant("w.weight_Q4", rng.integers(0, 256, (n, blocks, block * bits // 8),
                                                          dtype="u1")),
              m.constant("s", scales)]
    form = rng.choice(["none", "packed"] + ["float"] * (bits == 4)) # the CPU has no others
    if form == "packed":
        row = -(-blocks * bits // 8)
        inputs.append(m.constant("z", rng.integers(0, 256, (n, row), dtype="u1")))
    elif form == "float":
        inputs.append(m.constant("z", (15 * rng.random((n, blocks))).astype("f4")))
    y = m.node("MatMulNBits", inputs, "com.microsoft", K=k, N=n, bits=bits, block_size=block,
               accuracy_level=1)
    model = m.build([h.make_tensor_value_info("x", T.FLOAT, [k, k])], [y])
    theirs = session(model, {"x": np.eye(k, dtype="f4")}, y).T
    with opened(model, folder, rng) as c:
        ours, rounded = c.values("w.weight")
    if form == "float":
        bound = 2.0 ** -22 * scales.max() * (1 << bits)
        assert np.abs(ours - theirs).max() <= bound, (bits, block, np.abs(ours - theirs).max())
    else:
        assert rounded == 0
        same_bits(ours, theirs, f"MatMulNBits bits={bits} block={block} n={n} k={k} {form}")


KINDS = {"i8": (T.INT8, -128, 128), "u8": (T.UINT8, 0, 256), "i4": (T.INT4, -8, 8),
         "u4": (T.UINT4, 0, 16)}


def dequantized(rng, m, shape, axes):
    """A weight and its DequantizeLinear, scales per tensor, along one of the axes, or in blocks
    along axes[1]. The name of what comes out."""
    kind, low, high = KINDS[str(rng.choice(list(KINDS)))]
    form = rng.choice(["tensor", "axis"] + (["block"] if axes[1] is not None else []))
    attributes, scale_shape = {}, ()
    if form == "axis":
        attributes, scale_shape = {"axis": axes[0]}, (shape[axes[0]],)
    elif form == "block":
        block = int(rng.choice([2, 16, 32])) if len(shape) == 2 else shape[axes[1]]
        attributes = {"axis": axes[1], "block_size": block}
        scale_shape = tuple(-(-d // block) if i == axes[1] else d for i, d in enumerate(shape))
    scale = (rng.random(scale_shape) + 0.01).astype("f4")
    inputs = [m.constant("w", rng.integers(low, high, shape), kind), m.constant("s", scale)]
    if rng.integers(2):
        inputs.append(m.constant("z", rng.integers(low, high, scale_shape), kind))
    return m.node("DequantizeLinear", inputs, **attributes)


def activated(rng, m):
    if rng.integers(2):
        return "x", None
    s, z = np.float32(rng.random() + 0.01), int(rng.integers(0, 256))
    names = [m.constant("xs", np.array(s)), m.constant("xz", np.array(z, "u1"))]
    q = m.node("QuantizeLinear", ["x"] + names)
    return m.node("DequantizeLinear", [q] + names), (s, z - 128)


def check(rng, folder, m, value, y, order, activation, bias=None):
    model = m.build([h.make_tensor_value_info("x", T.FLOAT, None)], [y, value])
    alone = m.build([], [value])
    keep = [n for n in alone.graph.node if n.output[0] == value]
    del alone.graph.node[:]
    alone.graph.node.extend(keep)
    theirs = order(session(alone, {}, value))
    with opened(model, folder, rng) as c:
        ours, rounded = c.values("w")
        facts = c.module("w")
        assert rounded == 0
        assert facts.bias == (None if bias is None else bias.encode()), facts.bias
        if activation is None:
            assert facts.activation == 0
        else:
            assert facts.activation == 2 and np.float32(facts.input_scale) == activation[0]
            assert facts.input_zero == activation[1]
    same_bits(ours, theirs, str(m.nodes[-1].op_type))


def qdq_matmul(rng, folder):
    k, n, m = int(rng.integers(1, 70)), int(rng.integers(1, 40)), Model()
    way = rng.choice(["matmul", "gemm", "gemm_b", "turned"])
    rows = way in ("gemm_b", "turned")
    value = dequantized(rng, m, (n, k) if rows else (k, n), (0, 1) if rows else (1, 0))
    x, activation = activated(rng, m)
    bias = m.constant("b", rng.random(n, dtype="f4")) if rng.integers(2) else None
    if way in ("matmul", "turned"):
        w = m.node("Transpose", [value], perm=[1, 0]) if way == "turned" else value
        y = m.node("MatMul", [x, w])
        y = m.node("Add", [y, bias] if rng.integers(2) else [bias, y]) if bias else y
    else:
        y = m.node("Gemm", [x, value] + ([bias] if bias else []), transB=int(rows))
    check(rng, folder, m, value, y, (lambda v: v if rows else v.T), activation, bias)


def qdq_conv(rng, folder):
    groups, co, ci = (int(v) for v in rng.integers(1, 4, 3))
    flat = bool(rng.integers(2))
    taps, m = tuple(int(v) for v in rng.integers(1, 4, 1 if flat else 2)), Model()
    value = dequantized(rng, m, (groups * co, ci) + taps, (0, 1))
    x, activation = activated(rng, m)
    y = m.node("Conv", [x, value], group=groups)
    check(rng, folder, m, value, y, lambda v: v.reshape(groups * co, ci, -1).transpose(0, 2, 1)
          .reshape(groups * co, -1), activation)


def qdq_transposed(rng, folder):
    groups, co, ci = (int(v) for v in rng.integers(1, 4, 3))
    taps, m = tuple(int(v) for v in rng.integers(1, 4, 2)), Model()
    value = dequantized(rng, m, (groups * ci, co) + taps, (1, None))
    x, activation = activated(rng, m)
    y = m.node("ConvTranspose", [x, value], group=groups)
    check(rng, folder, m, value, y, lambda v: v.reshape(groups, ci, co, -1).transpose(0, 2, 3, 1)
          .reshape(groups * co, -1), activation)


def integers(rng, folder):
    """MatMulInteger as quantize_dynamic makes it, a scale and a bias after it."""
    k, n, m = int(rng.integers(1, 50)), int(rng.integers(1, 30)), Model()
    per = bool(rng.integers(2))
    scale = (rng.random(n if per else ()) + 0.01).astype("f4")
    w = rng.integers(-64, 64, (k, n)).astype("i1")
    names = [m.constant("w_quantized", w), m.constant("w_scale", np.array(scale, "f4"))]
    m.nodes.append(h.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]))
    total = m.node("MatMulInteger", ["xq", names[0], "xz"])
    total = m.node("Cast", [total], to=T.FLOAT)
    factor = m.node("Mul", ["xs", names[1]])
    y = m.node("Mul", [total, factor])
    y = m.node("Add", [y, m.constant("w.bias", rng.random(n, dtype="f4"))])
    model = m.build([h.make_tensor_value_info("x", T.FLOAT, None)], [y])
    with opened(model, folder, rng) as c:
        ours, _ = c.values("w")
        facts = c.module("w")
        assert facts.bias == b"w.bias" and facts.activation == 3
    same_bits(ours, w.T.astype("f4") * np.broadcast_to(scale, (n,))[:, None], "MatMulInteger")
    x = rng.standard_normal((3, k)).astype("f4")
    theirs = session(model, {"x": x}, y)
    bound = (np.abs(ours).sum(1) * (np.ptp(np.append(x, 0)) / 255 * 0.51)) + 1e-3
    bias = numpy_helper.to_array(model.graph.initializer[2])
    assert (np.abs(x @ ours.T + bias - theirs) <= bound).all()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=40)
    options = parser.parse_args()
    kinds = [nbits, qdq_matmul, qdq_conv, qdq_transposed, integers]
    with tempfile.TemporaryDirectory() as folder:
        for case in range(options.cases * len(kinds)):
            rng = np.random.default_rng([options.seed, case])
            try:
                kinds[case % len(kinds)](rng, folder)
            except Exception:
                print(f"case {case} of seed {options.seed}, {kinds[case % len(kinds)].__name__}")
                raise
    print(f"{options.cases * len(kinds)} models agree with ONNX Runtime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
