#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX models that `quern quantize` and `quern convert` rewrite within their graph, run by ONNX
Runtime.

    test_onnx_graphs.py       QUERN_LIBRARY names the shared library, beside which quern lies

A model of every operator that takes weights - MatMul, Gemm in four forms, Conv and ConvTranspose of
one and two dimensions and of groups, a weight behind Transpose, one that two nodes share, one that
the body of an If uses, too - is quantized to each form and in each version of the operator set.
onnx checks each result. y is that of the same model whose weights are the quantized values as
floats: bit for bit where DequantizeLinear makes them, within 2^-20 of the sum of its terms' sizes
behind MatMulNBits. All that is not a weight is compared byte by byte.
Exit status 77 when numpy, onnx or onnxruntime is missing.
"""
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
from quern_checkpoint import Checkpoint, needs_program, quern

needs_program()


class Graph:
    """Nodes with float weights, and what turns each weight to rows of the library and back."""

    def __init__(self, rng, dtype):
        self.rng, self.dtype = rng, dtype
        self.nodes, self.tensors, self.weights, self.outputs, self.inputs = [], [], {}, [], []

    def constant(self, name, values):
        self.tensors.append(numpy_helper.from_array(
            np.ascontiguousarray(np.asarray(values).astype(self.dtype)), name))
        return name

    def weight(self, name, shape, rows):
        """rows(values): as the library has them, [n, k]; unrows is found from it."""
        self.weights[name] = (shape, rows)
        return self.constant(name, self.rng.standard_normal(shape))

    def input(self, name, shape):
        kind = T.FLOAT if self.dtype == "f4" else T.FLOAT16
        self.inputs.append((h.make_tensor_value_info(name, kind, list(shape)), shape))
        return name

    def node(self, op, inputs, out, rank=2, **attributes):
        self.nodes.append(h.make_node(op, inputs, [out], name=out + "_node",
                                      doc_string="kept " + out, **attributes))
        self.outputs.append((out, rank))

    def model(self, opset, ir):
        inputs = [i for i, _ in self.inputs]
        if ir < 4:
            inputs += [h.make_tensor_value_info(t.name, t.data_type, list(t.dims))
                       for t in self.tensors]
        kind = T.FLOAT if self.dtype == "f4" else T.FLOAT16
        graph = h.make_graph(self.nodes, "graph", inputs,
                             [h.make_tensor_value_info(o, kind, [None] * rank)
                              for o, rank in self.outputs],
                             self.tensors, doc_string="a graph")
        model = h.make_model(graph, ir_version=ir, opset_imports=[h.make_opsetid("", opset)])
        h.set_model_props(model, {"author": "somebody", "key": "v\u00e4lue"})
        return model


def conv_rows(groups):
    del groups
    return lambda w: w.reshape(w.shape[0], w.shape[1], -1).transpose(0, 2, 1).reshape(
        w.shape[0], -1)


def transposed_rows(groups):
    def rows(w):
        ci, co = w.shape[0] // groups, w.shape[1]
        return w.reshape(groups, ci, co, -1).transpose(0, 2, 3, 1).reshape(groups * co, -1)
    return rows


def build(rng, dtype):
    g = Graph(rng, dtype)
    plain, turned = (lambda w: w), (lambda w: w.T)
    x, n, k = g.input("x", (3, 64)), 48, 64
    g.node("MatMul", [x, g.weight("a.weight", (k, n), turned)], "y0")
    g.node("MatMul", [g.input("x3", (2, 3, k)), "a.weight"], "y1", 3)
    bias = g.constant("bias", rng.standard_normal(n))
    g.node("Gemm", [x, g.weight("gemm", (n, k), plain), bias], "y2", transB=1)
    g.node("Gemm", [x, g.weight("gemm_io", (k, n), turned)], "y3")
    g.node("Gemm", [x, g.weight("gemm_half", (n, k), plain), bias], "y4", transB=1, alpha=0.5,
           beta=2.0)
    g.nodes.append(h.make_node("Transpose", [g.weight("tied", (n, k), plain)], ["tied_t"],
                               perm=[1, 0]))
    g.node("MatMul", [x, "tied_t"], "y5")
    g.node("Gather", ["both", "rows"], "y6")
    g.tensors.append(numpy_helper.from_array(np.array([1, 0, 5], "i8"), "rows"))
    g.node("MatMul", [x, g.weight("both", (k, n), turned)], "y7")
    image = g.input("image", (1, 32, 9, 8))
    g.node("Conv", [image, g.weight("conv", (24, 32, 3, 3), conv_rows(1)),
                    g.constant("cb", rng.standard_normal(24))], "y8", 4, pads=[1, 1, 1, 1])
    g.node("Conv", [image, g.weight("conv_g", (64, 16, 3, 2), conv_rows(2))], "y9", 4, group=2)
    g.node("Conv", [image, g.weight("conv_1", (40, 32, 1, 1), conv_rows(1))], "y10", 4)
    g.node("ConvTranspose", [image, g.weight("up", (32, 8, 3, 3), transposed_rows(1))], "y11", 4)
    g.node("ConvTranspose", [image, g.weight("up_g", (32, 8, 2, 3), transposed_rows(2))], "y12", 4,
           group=2, strides=[2, 2])
    line = g.input("line", (1, 32, 11))
    g.node("Conv", [line, g.weight("conv_w", (20, 32, 5), conv_rows(1))], "y13", 3)
    g.node("ConvTranspose", [line, g.weight("up_w", (32, 12, 4), transposed_rows(1))], "y14", 3)
    kind = T.FLOAT if dtype == "f4" else T.FLOAT16
    body = h.make_graph([h.make_node("MatMul", [x, "a.weight"], ["inner"])], "body", [],
                        [h.make_tensor_value_info("inner", kind, [3, n])])
    other = h.make_graph([h.make_node("Identity", ["y0"], ["inner2"])], "other", [],
                         [h.make_tensor_value_info("inner2", kind, [3, n])])
    g.tensors.append(numpy_helper.from_array(np.array(True), "yes"))
    g.nodes.append(h.make_node("If", ["yes"], ["y15"], then_branch=body, else_branch=other))
    g.outputs.append(("y15", 2))
    small = g.constant("small", rng.standard_normal((k, 2))) # tiny: stays as it is
    g.node("MatMul", [x, small], "y16")
    return g


def session(model, feeds, optimised=False):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    data = model if isinstance(model, str) else model.SerializeToString()
    run = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return run.run(None, feeds)


def unrows(values, shape, rows):
    """The inverse of rows, by numbering the elements."""
    order = rows(np.arange(int(np.prod(shape))).reshape(shape)).ravel()
    out = np.empty(order.size, values.dtype)
    out[order] = values.ravel()
    return out.reshape(shape)


def quantized_values(path, graph):
    """Each weight's values, as the library reads them back from the result."""
    found = {}
    with Checkpoint(path) as c:
        names = c.names()
        for name, (shape, rows) in graph.weights.items():
            # Where the floats stay for another user, the weight is called as its codes.
            made = [name + end for end in ("_Q2", "_Q4", "_Q8", "_quantized", "")
                    if name + end in names and c.module(name + end).importer]
            assert made, (name, names)
            values, rounded = c.values(made[0])
            assert rounded == 0
            factor = 2 if name == "gemm_half" else 1 # the reader multiplies alpha into scales
            found[name] = unrows(values * factor, shape, rows)
    return found


def names_of(node):
    return [node.op_type, node.name, node.doc_string, list(node.output)]


def same_rest(before, after, replaced, external):
    """All but the weights and the nodes that take them is what it was."""
    assert before.ir_version == after.ir_version
    assert before.producer_name == after.producer_name
    assert [(p.key, p.value) for p in before.metadata_props] == \
        [(p.key, p.value) for p in after.metadata_props]
    assert before.graph.doc_string == after.graph.doc_string
    kept = {n.name: n for n in after.graph.node}
    for node in before.graph.node:
        if not set(node.input) & replaced and node.op_type != "Transpose":
            assert node.SerializeToString() == kept[node.name].SerializeToString(), node.name
        elif node.name in kept:
            assert kept[node.name].doc_string == node.doc_string
    new = {t.name: t for t in after.graph.initializer}
    for t in before.graph.initializer:
        if t.name in new:
            ours, theirs = (numpy_helper.to_array(v) for v in (t, new[t.name]))
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert ours.tobytes() == theirs.tobytes(), t.name
            assert external or t.SerializeToString() == new[t.name].SerializeToString(), t.name
    assert list(before.graph.output) == list(after.graph.output)


def compare(graph, before, path, feeds, forms, external):
    onnx.checker.check_model(path)
    after = onnx.load(path)
    values = quantized_values(path, graph)
    same_rest(before, after, set(values) | {"tied_t"}, external)
    # A name of the graph's that two uses have keeps its floats for the others: MatMul's alone are
    # changed. Then a copy under another name stands for the quantized values.
    floats = copy.deepcopy(before)
    graph_nodes = list(floats.graph.node)
    for name, w in values.items():
        t = numpy_helper.from_array(w.astype(graph.dtype), name + "@q")
        floats.graph.initializer.append(t)
        if floats.ir_version < 4:
            floats.graph.input.append(h.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    for node in graph_nodes:
        if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose", "Transpose"):
            for i, name in enumerate(node.input):
                if name in values:
                    node.input[i] = name + "@q"
    ours, theirs = session(path, feeds), session(floats, feeds)
    session(path, feeds, optimised=True)
    sizes = session(absolute(floats), {k: np.abs(v) for k, v in feeds.items()})
    by_output = {n.output[0]: n.op_type for n in after.graph.node}
    made = {o for n in after.graph.node for o in n.output if n.op_type == "MatMulNBits"}
    exact = 0
    for (name, _), a, b, size in zip(graph.outputs, ours, theirs, sizes):
        node = next(n for n in after.graph.node if name in n.output)
        is_product = by_output[name] == "MatMulNBits" or set(node.input) & made
        step = 2.0 ** (-20 if graph.dtype == "f4" else -9)
        if is_product or (graph.dtype == "f2" and node.op_type != "Gather"):
            bound = step * np.abs(size.astype("f8")) + 1e-6
            assert (np.abs(a.astype("f8") - b.astype("f8")) <= bound).all(), \
                (name, node.op_type, np.abs(a - b).max())
        else:
            assert a.tobytes() == b.tobytes(), (name, node.op_type, np.abs(a - b).max())
            exact += 1
    counts = {op: sum(n.op_type == op for n in after.graph.node) for op in forms}
    assert counts == forms, counts
    assert exact > 0
    return after


def absolute(model):
    """The same with the size of every weight, for the sums of the sizes of terms."""
    model = copy.deepcopy(model)
    for t in model.graph.initializer:
        if t.data_type in (T.FLOAT, T.FLOAT16):
            t.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(t)), t.name))
    return model


def saved(model, path, external):
    onnx.save(copy.deepcopy(model), path, save_as_external_data=external,
              location=os.path.basename(path) + ".weights", size_threshold=16,
              all_tensors_to_one_file=True)


CASES = [ # form, target, opset, IR version, type, external
    (None, "onnx", 21, 10, "f4", False), ("int4:g32:zp", "onnx", 21, 10, "f4", True),
    ("int4:g16", "onnx:qdq", 21, 10, "f4", False), ("int8:pc", "onnx:qdq", 13, 8, "f4", True),
    ("int8:g32", "onnx", 13, 8, "f4", False), ("int4:g32:zp", "onnx:qdq", 15, 8, "f4", False),
    ("int8:pc:zp", "onnx", 17, 9, "f4", True), ("int2:g16:zp", "onnx", 21, 10, "f4", False),
    ("int4:g64", "onnx", 21, 10, "f2", False), ("int8:g16:zp", "onnx:qdq", 21, 10, "f2", True),
    ("int3:g16", "onnx:qdq", 13, 3, "f4", False), (None, "onnx", 13, 3, "f4", False),
]


def case(seed, folder, form, target, opset, ir, dtype, external):
    rng = np.random.default_rng(seed)
    graph = build(rng, dtype)
    before = graph.model(opset, ir)
    onnx.checker.check_model(before)
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    path, out = os.path.join(folder, "m.onnx"), os.path.join(folder, "q.onnx")
    saved(before, path, external)
    feeds = {i.name: rng.standard_normal(shape).astype(dtype) for i, shape in graph.inputs}
    quern("quantize", path, "-o", out, "--to", target, "-q", *(["-f", form] if form else []))
    assert sorted(os.listdir(folder)) == sorted(
        ["m.onnx", "q.onnx"] + (["m.onnx.weights", "q.onnx.data"] if external else []))
    qdq = target.endswith("qdq")
    nbits = 0 if qdq else 6
    pairs = 13 if qdq else 8
    after = compare(graph, before, out, feeds, {"MatMulNBits": nbits, "DequantizeLinear": pairs},
                    external)
    names = {t.name for t in after.graph.initializer}
    assert "a.weight" in names and "both" in names and "gemm" not in names and "small" in names
    assert "bias" in names
    lacks_blocks = opset < 21 and not qdq and (form is None or ":g32" in form)
    back(folder, out, graph, feeds, qdq, lacks_blocks)


def back(folder, out, graph, feeds, qdq, lacks_blocks):
    """And each form to the other."""
    other = os.path.join(folder, "other.onnx")
    if lacks_blocks:
        why = quern("convert", out, "-o", other, "--to", "onnx:qdq", "-q", status=3)
        assert "its groups need the blocks of DequantizeLinear, which operator set 21 has" in why
        assert not os.path.exists(other)
        return
    quern("convert", out, "-o", other, "--to", "onnx" if qdq else "onnx:qdq", "-q")
    first, second = quantized_values(out, graph), quantized_values(other, graph)
    assert set(first) == set(second)
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name
    onnx.checker.check_model(other)
    for a, b in zip(session(out, feeds), session(other, feeds)):
        assert np.allclose(a.astype("f4"), b.astype("f4"), rtol=0,
                           atol=(1e-4 if graph.dtype == "f4" else 0.3)), np.abs(a - b).max()


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder) # ONNX Runtime looks for external data of a folded If there
        for seed, one in enumerate(CASES):
            try:
                case(seed, folder, *one)
            except Exception:
                print("case", seed, one)
                raise
    print(f"{len(CASES)} models agree with ONNX Runtime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
