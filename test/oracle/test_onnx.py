#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference (src/ref) against ONNX Runtime, so that it is not only ours.

    test_onnx.py [--seed N] [--cases N]        QUERN_REPLAY names the quern-replay program

MatMulNBits, Conv and ConvTranspose: within the bound of docs/numerics.md for f32 accumulation.
ConvInteger, MatMulInteger: equal, also with zero points of weights. QLinearMatMul, QLinearConv,
DynamicQuantizeLinear: equal, but for values that lie on a rounding boundary as far as f32 can tell;
these are counted and may differ by 1.
Exit status 77 when numpy, onnx or onnxruntime is missing.
"""
import argparse
import functools
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print(f"skipped: {missing} (build/venv/bin/pip install -r test/oracle/requirements.txt)")
    sys.exit(77)

EPS = 2.0 ** -24
NAMES = {"float32": "f32", "int8": "i8", "uint8": "u8", "int32": "i32"}


class Replay:
    """Runs quern-replay on one case."""

    def __init__(self, program, folder):
        self.program = program
        self.folder = folder

    def run(self, facts, arrays):
        lines = [f"{key} {value}" for key, value in facts.items()]
        blob = b""
        for key, array in arrays.items():
            array = np.ascontiguousarray(array)
            dims = " ".join(str(d) for d in array.shape)
            lines.append(f"{key} {NAMES[str(array.dtype)]} {len(blob)} {dims}")
            blob += array.tobytes()
            blob += b"\0" * (-len(blob) % 64)
        paths = [os.path.join(self.folder, name) for name in ("case.txt", "case.bin", "result.bin")]
        with open(paths[0], "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        with open(paths[1], "wb") as file:
            file.write(blob)
        subprocess.run([self.program, *paths], check=True)
        with open(paths[2], "rb") as file:
            return file.read()

    def floats(self, facts, arrays, shape):
        data = np.frombuffer(self.run(facts, arrays), np.float64)
        return data[:data.size // 2].reshape(shape), data[data.size // 2:].reshape(shape)

    def codes(self, facts, arrays, shape, dtype):
        return np.frombuffer(self.run(facts, arrays), dtype).reshape(shape)


def onnx_run(op, attributes, inputs, domain="", opset=21):
    """One node with its inputs as graph inputs (None: absent), constants where ORT wants them."""
    names, graph_inputs, constants, feeds = [], [], [], {}
    for i, value in enumerate(inputs):
        if value is None:
            names.append("")
            continue
        name = f"i{i}"
        names.append(name)
        if i == 0:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph_inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
            feeds[name] = value
        else:
            constants.append(numpy_helper.from_array(value, name))
    while names and names[-1] == "":
        names.pop()
    n_outputs = 3 if op == "DynamicQuantizeLinear" else 1
    results = [f"o{i}" for i in range(n_outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "case", graph_inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


class Tally:
    def __init__(self):
        self.values = 0
        self.ties = 0
        self.failures = []

    def bound(self, what, ours, theirs, error):
        wrong = ~(np.abs(ours - theirs) <= error + np.abs(ours) * EPS)
        self.values += ours.size
        if wrong.any():
            at = np.unravel_index(np.argmax(wrong), wrong.shape)
            self.failures.append(f"{what}: {wrong.sum()} of {wrong.size}, first {at}: "
                                 f"{ours[at]!r}, ONNX Runtime {theirs[at]!r}, "
                                 f"allowed {error[at]!r}")

    def equal(self, what, ours, theirs, exact=None, error=None):
        """exact: the value before rounding to an integer; error: what f32 steps may do to it."""
        ours, theirs = ours.astype(np.int64), theirs.astype(np.int64)
        differ = ours != theirs
        self.values += ours.size
        if exact is not None:
            tie = np.abs(np.abs(exact - np.floor(exact)) - 0.5) <= error
            excused = differ & tie & (np.abs(ours - theirs) == 1)
            self.ties += int(excused.sum())
            differ &= ~excused
        if differ.any():
            at = np.unravel_index(np.argmax(differ), differ.shape)
            self.failures.append(f"{what}: {differ.sum()} of {differ.size}, first {at}: "
                                 f"{ours[at]}, ONNX Runtime {theirs[at]}"
                                 + (f", exact {exact[at]!r}" if exact is not None else ""))


def matmul_nbits(rng, replay, tally):
    bits = int(rng.choice([4, 8]))
    block = int(rng.choice([16, 32, 64, 128]))
    m, n, k = int(rng.integers(1, 9)), int(rng.integers(1, 40)), int(rng.integers(1, 300))
    blocks = -(-k // block)
    levels = 1 << bits
    codes = rng.integers(0, levels, (n, blocks * block))
    zero = rng.integers(0, levels, (n, blocks)) if rng.random() < 0.6 else None
    scale = (0.02 * rng.standard_normal((n, blocks))).astype(np.float32)
    x = rng.standard_normal((m, k)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32) if rng.random() < 0.5 else None
    packed = codes.astype(np.uint8).reshape(n, blocks, block)
    zero_packed = None
    if bits == 4:
        packed = packed[:, :, 0::2] | packed[:, :, 1::2] << 4
    if zero is not None:
        zero_packed = zero.astype(np.uint8)
        if bits == 4:  # each row is padded to whole bytes
            even = np.zeros((n, -(-blocks // 2) * 2), np.uint8)
            even[:, :blocks] = zero_packed
            zero_packed = even[:, 0::2] | even[:, 1::2] << 4
        zero_packed = zero_packed.reshape(-1)
    theirs, = onnx_run("MatMulNBits", {"K": k, "N": n, "bits": bits, "block_size": block,
                                       "accuracy_level": 1},
                       [x, packed, scale.reshape(-1), zero_packed, None, bias], "com.microsoft")
    shift = 1 if zero is not None else 0
    facts = {"op": "matmul", "strategy": "float", "format": f"{bits} {block} {shift}",
             "y": f"f32 {m} {n}"}
    arrays = {"x": x, "codes": codes[:, :k].astype(np.uint8), "scale": scale}
    if zero is not None:  # ours are in the scale of signed codes
        arrays["zero"] = (zero - levels // 2).astype(np.int32)
    if bias is not None:
        arrays["bias"] = bias
    ours, error = replay.floats(facts, arrays, (m, n))
    tally.bound(f"MatMulNBits bits={bits} block={block} m={m} n={n} k={k}", ours,
                theirs.astype(np.float64), error)


def draw_static(rng, k):
    """Types, zero points and scales of a static int8 product: x, w, y."""
    x_type = rng.choice([np.uint8, np.int8])
    low = 0 if x_type == np.uint8 else -128
    return {"x_type": x_type, "x_low": low, "x_zero": int(rng.integers(low, low + 256)),
            "x_scale": np.float32(rng.uniform(0.001, 0.1)),
            "y_scale": np.float32(rng.uniform(0.2, 2.0) * np.sqrt(k)),
            "y_zero": int(rng.integers(low + 60, low + 190))}


@functools.cache
def pairs_saturate():
    """Does ONNX Runtime add pairs of products in 16 bits here, as it does on x86 without VNNI when
    weights are signed? Its manual asks for weights of 7 bits there ("reduce_range")."""
    one, zero = np.array(1, np.float32), np.array(0, np.uint8)
    x, w = np.full((1, 8), 255, np.uint8), np.full((8, 1), 127, np.int8)
    y, = onnx_run("QLinearMatMul", {}, [x, one, zero, w, one, np.array(0, np.int8),
                                        np.array(2000, np.float32), zero])
    return y[0, 0] != round(8 * 255 * 127 / 2000)


def weights_of(rng, n, k, s):
    """Signed weights without, or unsigned ones with zero points [n, 1]; per channel or tensor."""
    unsigned = s["x_type"] == np.uint8 and rng.random() < 0.4
    per_channel = rng.random() < 0.5
    codes = rng.integers(0, 256, (n, k))  # stored: signed + 128
    if not unsigned and pairs_saturate():
        codes = 64 + codes // 2
    count = n if per_channel else 1
    scale = rng.uniform(0.01, 0.2, count).astype(np.float32)
    zeros = rng.integers(0, 256, count) if unsigned else np.full(count, 128)
    raw = codes.astype(np.uint8) if unsigned else (codes - 128).astype(np.int8)
    zero_raw = zeros.astype(np.uint8) if unsigned else np.zeros(count, np.int8)
    scales = np.broadcast_to(scale, (n,)).astype(np.float32)
    zero = np.broadcast_to(zeros, (n,)).reshape(n, 1)
    return codes, scales, scale, zero, raw, zero_raw, unsigned


def static_facts(op, s, n, unsigned, y_name, y_shape):
    dims = " ".join(str(d) for d in y_shape)
    return {"op": op, "strategy": "int8-static", "format": f"8 -1 {1 if unsigned else 0}",
            "x_quant": f"{float(s['x_scale']).hex()} {s['x_zero']}",
            "y_quant": f"{float(s['y_scale']).hex()} {s['y_zero']}", "y": f"{y_name} {dims}"}


def static_exact(d, size, scale, s, axis):
    """The value before it becomes an integer, and what the f32 steps may do to it."""
    shape = [1] * d.ndim
    shape[axis] = -1
    factor = scale.astype(np.float64).reshape(shape) * float(s["x_scale"]) / float(s["y_scale"])
    return d * factor, 8 * EPS * (size * factor + np.abs(d * factor) + 1.0)


def qlinear_matmul(rng, replay, tally):
    m, n, k = int(rng.integers(1, 9)), int(rng.integers(1, 30)), int(rng.integers(1, 200))
    s = draw_static(rng, k)
    codes, scales, scale, zero, raw, zero_raw, unsigned = weights_of(rng, n, k, s)
    x = rng.integers(s["x_low"], s["x_low"] + 256, (m, k)).astype(s["x_type"])
    scalar = (lambda v, t: np.array(v, t))
    b_scale, b_zero = (scale, zero_raw) if scale.size == n and n > 1 else (scale[0], zero_raw[0])
    theirs, = onnx_run("QLinearMatMul", {}, [
        x, scalar(s["x_scale"], np.float32), scalar(s["x_zero"], s["x_type"]),
        np.ascontiguousarray(raw.T), np.asarray(b_scale, np.float32), np.asarray(b_zero, raw.dtype),
        scalar(s["y_scale"], np.float32), scalar(s["y_zero"], s["x_type"])])
    facts = static_facts("matmul", s, n, unsigned, NAMES[np.dtype(s["x_type"]).name], (m, n))
    arrays = {"x": x, "codes": codes.astype(np.uint8), "scale": scales.reshape(n, 1)}
    if unsigned:
        arrays["zero"] = (zero - 128).astype(np.int32)
    exactly = rng.random() < 0.5  # a bias of zeros: sums are integers to the end
    if exactly:
        arrays["bias"] = np.zeros(n, np.int32)
    ours = replay.codes(facts, arrays, (m, n), s["x_type"])
    left = x.astype(np.float64) - s["x_zero"]
    right = codes.astype(np.float64) - zero
    # Else zero points of weights are a product of their own, and its rounding error is relative.
    size = np.abs(left) @ np.abs(codes - 128.0).T
    size += np.abs(left).sum(1)[:, None] * np.abs(zero - 128).T
    if exactly:
        size = np.abs(left @ right.T)
    exact, error = static_exact(left @ right.T, size, scales, s, 1)
    what = f"QLinearMatMul m={m} n={n} k={k} {'u8' if unsigned else 's8'}"
    tally.equal(what, ours, theirs, exact, error)


def draw_conv(rng):
    g = {"groups": int(rng.choice([1, 1, 2, 3])), "ci": int(rng.choice([1, 2, 3, 8])),
         "co": int(rng.choice([1, 2, 5])), "batch": int(rng.integers(1, 3)),
         "kh": int(rng.integers(1, 4)), "kw": int(rng.integers(1, 4)),
         "h": int(rng.integers(5, 10)), "w": int(rng.integers(5, 10)),
         "stride": [int(v) for v in rng.integers(1, 4, 2)],
         "dilation": [int(v) for v in rng.integers(1, 3, 2)],
         "pad": [int(v) for v in rng.integers(0, 3, 4)]}
    g["n"], g["k"] = g["groups"] * g["co"], g["kh"] * g["kw"] * g["ci"]
    g["attributes"] = {"kernel_shape": [g["kh"], g["kw"]], "strides": g["stride"], "pads": g["pad"],
                       "dilations": g["dilation"], "group": g["groups"]}
    return g


def geometry_facts(g):
    join = " ".join
    return {"geometry": f"{g['kh']} {g['kw']} {g['groups']}", "stride": join(map(str, g["stride"])),
            "dilation": join(map(str, g["dilation"])), "pad": join(map(str, g["pad"]))}


def to_oihw(codes, g):
    """[n, taps, channels] to the order of ONNX."""
    images = codes.reshape(g["n"], g["kh"], g["kw"], g["ci"])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def plain_conv(x, w, g):
    """Integers below 2^24 throughout (255 * 255 * 72): f32 is exact."""
    inputs = [x.astype(np.float32), to_oihw(w, g).astype(np.float32)]
    result, = onnx_run("Conv", g["attributes"], inputs)
    return result.astype(np.float64)


def qlinear_conv(rng, replay, tally):
    g = draw_conv(rng)
    s = draw_static(rng, g["k"])
    codes, scales, scale, zero, raw, zero_raw, unsigned = weights_of(rng, g["n"], g["k"], s)
    x = rng.integers(s["x_low"], s["x_low"] + 256,
                     (g["batch"], g["groups"] * g["ci"], g["h"], g["w"])).astype(s["x_type"])
    bias = rng.integers(-5000, 5000, g["n"]).astype(np.int32) if rng.random() < 0.7 else None
    scalar = (lambda v, t: np.array(v, t))
    per = scale.size == g["n"] and g["n"] > 1
    theirs, = onnx_run("QLinearConv", g["attributes"], [
        x, scalar(s["x_scale"], np.float32), scalar(s["x_zero"], s["x_type"]), to_oihw(raw, g),
        scale if per else scale[0], zero_raw if per else zero_raw[0],
        scalar(s["y_scale"], np.float32), scalar(s["y_zero"], s["x_type"]), bias])
    y_name = NAMES[np.dtype(s["x_type"]).name]
    facts = static_facts("conv2d", s, g["n"], unsigned, y_name, theirs.shape)
    facts.update(geometry_facts(g))
    arrays = {"x": x, "codes": codes.astype(np.uint8), "scale": scales.reshape(-1, 1)}
    if unsigned:
        arrays["zero"] = (zero - 128).astype(np.int32)
    if bias is not None:
        arrays["bias"] = bias
    ours = replay.codes(facts, arrays, theirs.shape, s["x_type"])
    left = x.astype(np.float64) - s["x_zero"]
    d = plain_conv(left, codes.astype(np.float64) - zero, g)
    size = plain_conv(np.abs(left), np.abs(codes - 128.0) + np.abs(zero - 128), g)
    if bias is not None:
        size = np.abs(d)  # integers to the end
        d = d + bias.reshape(1, -1, 1, 1)
    exact, error = static_exact(d, size, scales, s, 1)
    tally.equal(f"QLinearConv {g}", ours, theirs, exact, error)


def draw_integer(rng, n, k):
    """uint8 codes [n, k] with zero points: one for all, one for each output, or what int8 has."""
    codes = rng.integers(0, 256, (n, k))
    kind = rng.integers(0, 3)
    if kind == 0:
        return codes, np.full(1, 128)
    return codes, rng.integers(0, 256, n if kind == 1 else 1)


def integer_case(op, s, g, codes, zeros, y_shape):
    """Facts and arrays of a product of integers, but for x and the geometry."""
    n = codes.shape[0]
    shifted = bool((zeros != 128).any())
    facts = static_facts(op, s, n, shifted, "i32", y_shape)
    arrays = {"codes": codes.astype(np.uint8), "scale": np.ones((n, 1), np.float32)}
    if shifted:
        arrays["zero"] = (np.broadcast_to(zeros, (n,)).reshape(n, 1) - 128).astype(np.int32)
    if g is not None:
        facts.update(geometry_facts(g))
    return facts, arrays


def conv_integer(rng, replay, tally):
    g = draw_conv(rng)
    zero = int(rng.integers(0, 256))
    codes, zeros = draw_integer(rng, g["n"], g["k"])
    zeros = zeros[:1]  # ONNX Runtime has one for all
    x = rng.integers(0, 256, (g["batch"], g["groups"] * g["ci"], g["h"], g["w"])).astype(np.uint8)
    theirs, = onnx_run("ConvInteger", g["attributes"],
                       [x, to_oihw(codes.astype(np.uint8), g), np.array(zero, np.uint8),
                        np.array(zeros[0], np.uint8)])
    s = {"x_scale": 1.0, "y_scale": 1.0, "y_zero": 0, "x_zero": zero}
    facts, arrays = integer_case("conv2d", s, g, codes, zeros, theirs.shape)
    ours = replay.codes(facts, {"x": x, **arrays}, theirs.shape, np.int32)
    tally.equal(f"ConvInteger {g} zero={zeros}", ours, theirs)


def matmul_integer(rng, replay, tally):
    m, n, k = int(rng.integers(1, 9)), int(rng.integers(1, 30)), int(rng.integers(1, 300))
    if rng.random() < 0.1:
        k = 4096
    zero = int(rng.integers(0, 256))
    codes, zeros = draw_integer(rng, n, k)
    x = rng.integers(0, 256, (m, k)).astype(np.uint8)
    theirs, = onnx_run("MatMulInteger", {}, [
        x, np.ascontiguousarray(codes.T.astype(np.uint8)), np.array(zero, np.uint8),
        np.array(zeros[0], np.uint8) if zeros.size == 1 else zeros.astype(np.uint8)])
    s = {"x_scale": 1.0, "y_scale": 1.0, "y_zero": 0, "x_zero": zero}
    facts, arrays = integer_case("matmul", s, None, codes, zeros, (m, n))
    ours = replay.codes(facts, {"x": x, **arrays}, (m, n), np.int32)
    tally.equal(f"MatMulInteger m={m} n={n} k={k} zero={zeros}", ours, theirs)


def float_conv(rng, replay, tally):
    g = draw_conv(rng)
    transpose = rng.random() < 0.6
    codes = rng.integers(0, 256, (g["n"], g["k"]))
    scales = rng.uniform(0.001, 0.02, (g["n"], 1)).astype(np.float32)
    w = (codes - 128).astype(np.float32) * scales
    x = rng.standard_normal((g["batch"], g["groups"] * g["ci"], g["h"], g["w"])).astype(np.float32)
    if transpose:
        # Ours [group, co, taps, ci] -> theirs [group * ci, co, taps].
        taps = (g["kh"], g["kw"])
        shaped = w.reshape(g["groups"], g["co"], *taps, g["ci"]).transpose(0, 4, 1, 2, 3)
        shaped = np.ascontiguousarray(shaped.reshape(g["groups"] * g["ci"], g["co"], *taps))
        out = [((g["h"], g["w"])[d] - 1) * g["stride"][d] - g["pad"][d] - g["pad"][d + 2]
               + g["dilation"][d] * ((g["kh"], g["kw"])[d] - 1) + 1 for d in (0, 1)]
        if min(out) < 1:
            return
        theirs, = onnx_run("ConvTranspose", g["attributes"], [x, shaped])
    else:
        theirs, = onnx_run("Conv", g["attributes"], [x, to_oihw(w, g)])
    dims = " ".join(str(d) for d in theirs.shape)
    facts = {"op": "conv_transpose2d" if transpose else "conv2d", "strategy": "float",
             "format": "8 -1 0", "y": f"f32 {dims}", **geometry_facts(g)}
    arrays = {"x": x, "codes": codes.astype(np.uint8), "scale": scales}
    ours, error = replay.floats(facts, arrays, theirs.shape)
    what = f"{'ConvTranspose' if transpose else 'Conv'} {g}"
    tally.bound(what, ours, theirs.astype(np.float64), error)


def dynamic_quantize(rng, replay, tally):
    """Ranges whose lower end is a whole number of steps: there ONNX's zero point moves nothing."""
    k = int(rng.integers(2, 200))
    step, zero = 2.0 ** int(rng.integers(-12, 4)), int(rng.integers(0, 256))
    x = rng.uniform(-zero * step, (255 - zero) * step, k).astype(np.float32)
    x[0], x[1] = -zero * step, (255 - zero) * step
    codes, scale, zero_point = onnx_run("DynamicQuantizeLinear", {}, [x])
    data = replay.run({"op": "quantize_rows"}, {"x": x.reshape(1, k)})
    ours = np.frombuffer(data[:k], np.uint8)
    facts = np.frombuffer(data[k:], np.float32)
    exact = (x.astype(np.float64) + zero * step) / step
    tally.equal("DynamicQuantizeLinear codes", ours, codes, exact, np.full(k, 255 * 8 * EPS))
    tally.equal("DynamicQuantizeLinear zero point", np.array([zero]), zero_point.reshape(1))
    tally.bound("DynamicQuantizeLinear scale", facts[:1].astype(np.float64),
                np.array([scale], np.float64), np.zeros(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=60)
    options = parser.parse_args()
    program = os.environ.get("QUERN_REPLAY", "build/ci/quern-replay")
    if not os.path.exists(program):
        print(f"test_onnx.py: no program {program}: set QUERN_REPLAY")
        return 2
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(program, folder)
        for test in (matmul_nbits, matmul_integer, qlinear_matmul, conv_integer, qlinear_conv,
                     float_conv, dynamic_quantize):
            tally = Tally()
            rng = np.random.default_rng(options.seed)
            for _ in range(options.cases):
                test(rng, replay, tally)
            failed = failed or bool(tally.failures)
            verdict = "FAILED" if tally.failures else "ok"
            print(f"{verdict:7} {test.__name__:18} {options.cases} cases, {tally.values} values, "
                  f"{tally.ties} on a rounding boundary")
            for failure in tally.failures[:5]:
                print(f"    {failure}")
    print(f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}, seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
