#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models that `quern convert --to onnx` writes, run by ONNX Runtime.

    test_onnx_written.py       QUERN_LIBRARY names the shared library, beside which quern lies

Random weights of every kind that ONNX holds - 2, 4 and 8 bits, zero points, groups and whole rows,
as MatMulNBits and as DequantizeLinear before Gemm, with the data inside and beside the model - are
written as a quern file and converted. onnx checks each model. MatMulNBits multiplies the identity,
which gives the weights themselves; y of random x is within 2^-21 of the sum of its terms' sizes.
Exit status 77 when numpy, onnx or onnxruntime is missing.
"""
import os
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as missing:
    print(f"skipped: {missing} (build/venv/bin/pip install -r test/oracle/requirements.txt)")
    sys.exit(77)
from quern_checkpoint import Checkpoint, needs_program, quern, same_bits

needs_program()
CASES = [(form, target, extra)
         for form in ("int4:g32", "int4:g32:zp", "int2:g16:zp", "int8:pc", "int3:g64:zp", "int8:pt",
                      "int6:g128", "int4:pc:zp")
         for target, extra in (("onnx", []), ("onnx", ["--external-data"]), ("onnx:qdq", []))
         if target == "onnx" or ":p" in form]


def session(path, x, name):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return run.run([f"y.{name}"], {f"x.{name}": x})[0]


def close(ours, theirs, x, w):
    bound = 2.0 ** -21 * (np.abs(x) @ np.abs(w).T) + 1e-30
    wrong = np.abs(ours - theirs) > bound
    if wrong.any():
        sys.exit(f"{wrong.sum()} of {wrong.size} values differ by up to "
                 f"{np.abs(ours - theirs).max()}")


def case(rng, folder, form, target, extra):
    n, k = int(rng.integers(1, 50)), int(rng.integers(20, 300))
    paths = {key: os.path.join(folder, key) for key in ("w.npy", "w.st", "w.onnx")}
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    np.save(paths["w.npy"], rng.standard_normal((n, k)).astype("f4"))
    quern("quantize", paths["w.npy"], "-o", paths["w.st"], "-f", form, "-q")
    with Checkpoint(paths["w.st"]) as c:
        name = c.names()[0]
        wanted, _ = c.values(name)
    quern("convert", paths["w.st"], "-o", paths["w.onnx"], "--to", target, "-q", *extra)
    assert os.path.exists(paths["w.onnx"] + ".data") == bool(extra)
    onnx.checker.check_model(paths["w.onnx"])
    with Checkpoint(paths["w.onnx"]) as c:
        same_bits(c.values(name)[0], wanted, f"{form} as {target}, read back")
    x = rng.standard_normal((5, k)).astype("f4")
    close(x.astype("f8") @ wanted.T.astype("f8"), session(paths["w.onnx"], x, name), x, wanted)
    if target == "onnx":
        eye = session(paths["w.onnx"], np.eye(k, dtype="f4"), name).T
        same_bits(eye, wanted, f"{form} as {target}")


def convolution(rng, folder, form):
    co, ci, kh, kw = (int(v) for v in rng.integers(2, 6, 4))
    paths = {key: os.path.join(folder, "conv." + key) for key in ("npy", "st", "onnx")}
    np.save(paths["npy"], rng.standard_normal((co, ci, kh, kw)).astype("f4"))
    quern("quantize", paths["npy"], "-o", paths["st"], "-f", form, "-q", "--force")
    quern("convert", paths["st"], "-o", paths["onnx"], "--to", "onnx", "-q", "--force")
    onnx.checker.check_model(paths["onnx"])
    with Checkpoint(paths["st"]) as c:
        name = c.names()[0]
        wanted = c.values(name)[0].reshape(co, kh, kw, ci).transpose(0, 3, 1, 2).astype("f8")
    x = rng.standard_normal((1, ci, kh, kw)).astype("f4")  # one place, so that a sum is the answer
    y = session(paths["onnx"], x, name).reshape(1, co)
    close((x.astype("f8") * wanted).sum((1, 2, 3))[None], y, x.reshape(1, -1),
          wanted.reshape(co, -1))


def main():
    with tempfile.TemporaryDirectory() as folder:
        for seed, one in enumerate(CASES):
            case(np.random.default_rng(seed), folder, *one)
        for seed, form in enumerate(("int8:pc", "int4:pc:zp", "int8:pt", "int5:pc")):
            convolution(np.random.default_rng(seed), folder, form)
    print(f"{len(CASES) + 4} models agree with ONNX Runtime {onnxruntime.__version__}")


if __name__ == "__main__":
    main()
