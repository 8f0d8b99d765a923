#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py onnxruntime|torch: a peer of `quern bench --peers` in Python. bench/peer.h has the
conversation.

ONNX Runtime: MatMulNBits, int4 and int8 blocks, with f32 and with int8 activations.
torch: int4 weights with bf16 activations, int8 weights with dynamic int8 activations, and through
oneDNN 3 int8 products and convolutions whose activations are codes already.

Weights arrive as f32 and are quantized here as the operator wants them, before the time begins.
All loops are calls of one operator from Python; a call costs some microseconds, which count.
"""
import json
import sys
import time
import warnings

UNCOUNTED = 2  # calls that wake threads and fill caches


class Way:
    """name, run(copy) -> y, and how many copies of the weights there are."""

    def __init__(self, name, run, copies=1, to_values=None):
        self.name, self.run, self.copies, self.next, self.y = name, run, copies, 0, None
        self.to_values = to_values or (lambda y: y)

    def once(self):
        self.y = self.run(self.next)
        self.next = (self.next + 1) % self.copies


def copies_of(problem, size):
    return max(1, min(2048, -(-int(problem["rotate_bytes"]) // max(1, size))))


def group_codes(np, w, group, bits):
    """Codes in [0, 2^bits), with the middle as zero, and scales [n, k / group]. Weights that are
    multiples of a scale already keep it: of the likely ones, the best of each group is taken."""
    n, k = w.shape
    middle = 1 << (bits - 1)
    blocks = w.reshape(n, k // group, group)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    best = codes = scale = None
    for most in range(-middle, -max(middle // 2, middle - 4), 1):
        for sign in (1, -1):
            s = largest / (sign * most)
            inverse = np.divide(1, s, out=np.zeros_like(s), where=s != 0)
            c = np.clip(np.rint(blocks * inverse), -middle, middle - 1)
            off = np.abs(c * s - blocks).max(axis=2, keepdims=True)
            if best is None:
                best, codes, scale = off, c, s
            else:
                better = off < best
                best = np.where(better, off, best)
                codes, scale = np.where(better, c, codes), np.where(better, s, scale)
    return (codes + middle).astype(np.uint8).reshape(n, k), scale[..., 0]


def row_codes(np, w):
    scale = np.abs(w).max(axis=1) / 127
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return np.rint(w * inverse[:, None]).astype(np.int8), scale


# ---------------------------------------------------------------------------------- ONNX Runtime


class OnnxRuntime:
    def __init__(self):
        import numpy
        import onnx
        import onnxruntime
        self.np, self.onnx, self.ort = numpy, onnx, onnxruntime
        self.version = onnxruntime.__version__

    def session(self, problem, codes, scale, bits, level):
        np, helper = self.np, self.onnx.helper
        n, k = int(problem["n"]), int(problem["k"])
        group = k // scale.shape[1]
        blob = codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4
        numpy_helper = self.onnx.numpy_helper
        graph = helper.make_graph(
            [helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=k,
                              N=n, bits=bits, block_size=group, accuracy_level=level)], "g",
            [helper.make_tensor_value_info("x", 1, ["m", k])],
            [helper.make_tensor_value_info("y", 1, ["m", n])],
            [numpy_helper.from_array(blob.reshape(n, k // group, group * bits // 8), "b"),
             numpy_helper.from_array(scale.astype(np.float32).reshape(-1), "s")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21),
                                                        helper.make_opsetid("com.microsoft", 1)],
                                  ir_version=10)
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = int(problem["threads"])
        options.log_severity_level = 4
        return self.ort.InferenceSession(model.SerializeToString(), options,
                                         ["CPUExecutionProvider"])

    def ways(self, problem, x, w):
        if problem["op"] != "matmul" or problem["x"] != "f32" or problem["bits"] not in (4, 8):
            return []
        n, k, bits = int(problem["n"]), int(problem["k"]), int(problem["bits"])
        group = int(problem["group"])
        if group not in (16, 32, 64, 128, 256):
            group = 128  # the operator has no rows without blocks
        if k % group != 0:
            return []
        codes, scale = group_codes(self.np, w, group, bits)
        copies = copies_of(problem, codes.size * bits // 8)
        found = []
        levels = ((4, "int8 x"),) if problem["strategy"].startswith("int8") else ((1, "f32 x"),)
        for level, what in levels:
            # One session after another, each with its own prepacked weights.
            many = [self.session(problem, codes, scale, bits, level) for _ in range(copies)]
            found.append(Way("MatMulNBits int%d g%d, %s" % (bits, group, what),
                             lambda i, many=many: many[i].run(None, {"x": x})[0], copies))
        return found


# ----------------------------------------------------------------------------------------- torch


class Torch:
    def __init__(self):
        import numpy
        import torch
        self.np, self.torch, self.version = numpy, torch, torch.__version__
        torch.set_grad_enabled(False)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=UserWarning)

    def int4(self, problem, x, w):
        """bf16 x, groups, weights unpacked on the way."""
        torch, group = self.torch, int(problem["group"])
        n, k = w.shape
        if group not in (32, 64, 128, 256) or n % 32 != 0 or k % group != 0:
            return []
        codes, scale = group_codes(self.np, w, group, 4)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            torch.from_numpy(codes.astype(self.np.int32)), 1)
        facts = torch.stack([torch.from_numpy(scale.T.copy()), torch.zeros(k // group, n)],
                            dim=2).bfloat16().contiguous()
        many = [packed.clone() for _ in range(copies_of(problem, n * k // 2))]
        xb = torch.from_numpy(x).bfloat16()
        return [Way("int4 g%d, bf16 x" % group,
                    lambda i: torch.ops.aten._weight_int4pack_mm_for_cpu(xb, many[i], group, facts),
                    len(many), lambda y: y.float().numpy())]

    def dynamic(self, problem, x, w):
        torch = self.torch
        codes, scale = row_codes(self.np, w)
        weight = torch._make_per_channel_quantized_tensor(
            torch.from_numpy(codes), torch.from_numpy(scale).double(),
            torch.zeros(len(scale), dtype=torch.long), 0)
        many = [torch.ops.quantized.linear_prepack(weight.clone(), None)
                for _ in range(copies_of(problem, codes.size))]
        xt = torch.from_numpy(x)
        return [Way("int8 per channel, int8 x (dynamic)",
                    lambda i: torch.ops.quantized.linear_dynamic(xt, many[i]), len(many),
                    lambda y: y.numpy())]

    def scale_of_x(self, problem, x):
        if problem["strategy"] == "int8-static":
            return float(problem["x_scale"])
        return float(self.np.abs(x).max() / 127)

    def static(self, problem, x, w):
        torch, np = self.torch, self.np
        codes, scale = row_codes(np, w)
        xs = self.scale_of_x(problem, x)
        xq = torch.from_numpy(np.clip(np.rint(x / xs), -128, 127).astype(np.int8))
        wq, ws = torch.from_numpy(codes), torch.from_numpy(scale.astype(np.float32))
        zeros = torch.zeros(len(scale), dtype=torch.int32)
        many = [torch.ops.onednn.qlinear_prepack(wq, list(xq.shape))
                for _ in range(copies_of(problem, codes.size))]

        def run(i):
            return torch.ops.onednn.qlinear_pointwise(xq, xs, 0, many[i], ws, zeros, None, 1.0, 0,
                                                      torch.float32, "none", [], "")
        return [Way("oneDNN 3, int8 per channel", run, len(many), lambda y: y.numpy())]

    def conv(self, problem, x, w):
        torch, np = self.torch, self.np
        if not problem["strategy"].startswith("int8") or problem["image"] != "nhwc":
            return []
        pad, groups = [int(p) for p in problem["pad"]], int(problem["groups"])
        if pad[0] != pad[2] or pad[1] != pad[3]:
            return []
        b, ci, h, width, kh, kw = (int(problem[k]) for k in ("batch", "ci", "h", "w", "kh", "kw"))
        codes, scale = row_codes(np, w)
        xs = self.scale_of_x(problem, x)
        # The operator reads u8: 128 is zero.
        xq = torch.from_numpy((np.clip(np.rint(x / xs), -128, 127) + 128).astype(np.uint8))
        xq = xq.reshape(b, h, width, ci).permute(0, 3, 1, 2)
        wq = torch.from_numpy(codes).reshape(-1, kh, kw, ci // groups).permute(0, 3, 1, 2)
        ws = torch.from_numpy(scale.astype(np.float32))
        zeros = torch.zeros(len(scale), dtype=torch.int32)
        stride, dilation = [[int(v) for v in problem[k]] for k in ("stride", "dilation")]
        pads = pad[:2]
        many = [torch.ops.onednn.qconv_prepack(wq, ws, xs, 128, stride, pads, dilation, groups,
                                               list(xq.shape))
                for _ in range(copies_of(problem, codes.size))]
        is_code = problem["y"] == "i8"
        ys = float(problem["y_scale"]) if is_code else 1.0
        kind = torch.int8 if is_code else torch.float32

        def run(i):
            return torch.ops.onednn.qconv2d_pointwise(xq, xs, 128, many[i], ws, zeros, None, stride,
                                                      pads, dilation, groups, ys, 0, kind, "none",
                                                      [], "")
        return [Way("oneDNN 3, int8 per channel", run, len(many),
                    lambda y: y.permute(0, 2, 3, 1).float().numpy() * ys)]

    def ways(self, problem, x, w):
        self.torch.set_num_threads(int(problem["threads"]))
        is_int8, found = problem["strategy"].startswith("int8"), []
        if problem["op"] == "conv2d":
            makers = [self.conv]
        elif problem["x"] == "f32" and is_int8:
            makers = [self.dynamic, self.static]
        elif is_int8:
            makers = [self.static]
        else:
            makers = [self.int4] if problem["bits"] == 4 else []
        for make in makers:
            try:
                made = make(problem, x, w)
                for way in made:
                    way.once()  # what it refuses, it refuses here
                found += made
            except (RuntimeError, AttributeError, NotImplementedError) as error:
                print("peers.py: torch %s: %s" % (make.__name__, str(error).split("\n")[0]),
                      file=sys.stderr)
        return found


# --------------------------------------------------------------------------------- conversation


def make(peer, problem):
    np = peer.np
    x = np.fromfile(problem["x_file"], np.float32)
    w = np.fromfile(problem["w_file"], np.float32).reshape(int(problem["n"]), int(problem["k"]))
    if problem["op"] != "conv2d":
        x = x.reshape(int(problem["m"]), int(problem["k"]))
    return peer.ways(problem, x, w)


def run(way, seconds):
    for _ in range(UNCOUNTED):
        way.once()
    samples, begin = [], time.perf_counter()
    now = begin
    while not samples or now - begin < seconds:
        way.once()
        after = time.perf_counter()
        samples.append((after - now) * 1e6)
        now = after
    return samples


def main():
    try:
        peer = {"onnxruntime": OnnxRuntime, "torch": Torch}[sys.argv[1]]()
    except (ImportError, OSError) as error:
        print(json.dumps({"skip": str(error).split("\n")[0]}), flush=True)
        return
    print(json.dumps({"peer": sys.argv[1], "version": peer.version}), flush=True)
    ways = []
    for line in sys.stdin:
        order = json.loads(line)
        what, reply = order["do"], {"ok": True}
        if what == "make":
            ways = make(peer, order)
            reply = {"ways": [way.name for way in ways]}
        elif what == "run":
            reply = {"us": run(ways[order["way"]], order["seconds"])}
        elif what == "result":
            way = ways[order["way"]]
            peer.np.ascontiguousarray(way.to_values(way.y), peer.np.float32).tofile(order["y_file"])
        elif what == "drop":
            ways = []
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
