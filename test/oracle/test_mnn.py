#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that MNN's own converter has quantized, against the weights that they were made from.

    test_mnn.py                                QUERN_LIBRARY names the shared library

Convolutions of 1 x 1 and 3 x 3, and depthwise, become MNN files of 8 and 4 bits, with
minima and without, in blocks of channels, of 16-bit and of 32-bit floats, with the weights inside
and in a file beside the model: the same values from both. Codes and scales are right if every
value is within half a step of the original (a wrong order of half bytes, of taps or of blocks is
not), for floats the type is looked at.
Exit status 77 when numpy, onnx or MNN is missing.
"""
import os
import sys
import tempfile

try:
    import numpy as np
    import onnx
    from onnx import helper as h, numpy_helper
    import _tools  # of the package MNN, without its front end, which fetches packages itself
except ImportError as missing:
    print(f"skipped: {missing} (build/venv/bin/pip install -r test/oracle/requirements.txt)")
    sys.exit(77)
from quern_checkpoint import Checkpoint, Refused

SHAPES = {"one": ((8, 64, 1, 1), 1), "three": ((8, 64, 3, 3), 1), "wide": ((6, 5, 1, 3), 1),
          "deep": ((10, 1, 3, 3), 10)}
# What the converter is told; bits, and whether 1 x 1 and 3 x 3 of 64 channels have blocks of 32.
WAYS = [(["--weightQuantBits", "8"], 8, False), (["--weightQuantBits", "4"], 4, False),
        (["--weightQuantBits", "4", "--weightQuantAsymmetric", "0"], 4, False),
        (["--weightQuantBits", "4", "--weightQuantBlock", "32"], 4, True),
        (["--weightQuantBits", "8", "--weightQuantBlock", "32"], 8, True),
        (["--fp16"], 16, False), ([], 32, False)]


def make(path, weights):
    nodes, inputs, outputs, tensors = [], [], [], []
    for name, (shape, groups) in SHAPES.items():
        channels = shape[1] * groups
        inputs.append(h.make_tensor_value_info("x_" + name, 1, [1, channels, 6, 6]))
        outputs.append(h.make_tensor_value_info(name, 1, [1, shape[0], 7 - shape[2], 7 - shape[3]]))
        tensors.append(numpy_helper.from_array(weights[name], "w_" + name))
        tensors.append(numpy_helper.from_array(np.zeros(shape[0], "f4"), "b_" + name))
        nodes.append(h.make_node("Conv", ["x_" + name, "w_" + name, "b_" + name], [name], name=name,
                                 group=groups))
    graph = h.make_graph(nodes, "g", inputs, outputs, tensors)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), path)


def check(name, c, weight, bits, blocks):
    if bits >= 16:
        return  # plain tensors
    shape = weight.shape
    ours, _ = c.values(name + ".weight")
    ours = ours.reshape(shape[0], shape[2], shape[3], shape[1]).transpose(0, 3, 1, 2)
    form = c.format(name + ".weight")
    assert form.startswith(f"int{bits}:"), form
    count = c.arrays["scale"].shape[1]
    if blocks and shape[1] == 64:
        assert count == 2 and (":c32" in form or ":g32" in form), form
    scale = np.repeat(c.arrays["scale"], shape[1] // count, 1)[:, :, None, None]
    wrong = np.abs(ours - weight) > 0.5 * scale * 1.02 + 1e-6
    # Symmetric codes are cut at the largest of one sign.
    assert wrong.mean() < 0.01, f"{name}, {form}: {wrong.mean():.3f} are more than half a step off"


def facts(c, bits):
    names = [name + ".weight" for name in SHAPES]
    if bits < 16:
        return [c.values(name)[0].tobytes() for name in names]
    return [(m.dtype, m.bytes) for m in map(c.module, names)]


def refused(path):
    try:
        with Checkpoint(path):
            pass
    except Refused as why:
        assert "are missing" in str(why), why
    else:
        sys.exit("a model without its weights is opened")


def main():
    rng = np.random.default_rng(1)
    weights = {name: rng.standard_normal(shape).astype("f4")
               for name, (shape, _) in SHAPES.items()}
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        source, path = os.path.join(folder, "m.onnx"), os.path.join(folder, "m.mnn")
        make(source, weights)
        for options, bits, blocks in WAYS:
            inside = None
            for beside in ([], ["--saveExternalData"]):
                _tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", source, "--MNNModel",
                                   path, "--bizCode", "test", *options, *beside])
                assert os.path.exists(path + ".weight") == bool(beside)
                with Checkpoint(path) as c:
                    assert c.count() >= len(SHAPES)
                    for name, weight in weights.items():
                        kind = {16: b"F16", 32: b"F32"}.get(bits, b"IDSTQuan")
                        assert c.module(name + ".weight").dtype == kind
                        check(name, c, weight, bits, blocks)
                        count += 1
                    values = facts(c, bits)
                inside = values if inside is None else inside
                assert values == inside, "weights beside the model are others"
            os.remove(path + ".weight")
            refused(path)
    print(f"{count} weights agree with MNN's converter")


if __name__ == "__main__":
    main()
