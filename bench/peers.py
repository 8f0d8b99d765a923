#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py onnxruntime|torch|llama.cpp: a peer of `quern bench --peers` in Python. bench/peer.h has
the conversation.

ONNX Runtime: MatMulNBits, int4 and int8 blocks, with f32 and with int8 activations.
torch: int4 weights with bf16 activations, int8 weights with dynamic int8 activations, and through
oneDNN 3 int8 products and convolutions whose activations are codes already.
llama.cpp: Q4_0 and Q8_0, f32 activations that its product quantizes, in each order of weights that
its CPU backend has (as they lie in a file, repacked for the CPU, tiles).

Weights arrive as f32 and are quantized here as the operator wants them, before the time begins.
All loops are calls of one operator from Python; a call costs some microseconds, which count.
"""
import ctypes
import importlib.util
import json
import os
import subprocess
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


# ------------------------------------------------------------------------------------- llama.cpp


class GgmlInit(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p),
                ("no_alloc", ctypes.c_bool)]


class LlamaCpp:
    """Through the C interface of ggml, whose shared objects the package llama-cpp-python brings."""

    Q4_0, Q8_0, F32 = 2, 8, 0

    def __init__(self):
        import numpy
        self.np = numpy
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None:
            raise ImportError("no module named llama_cpp")
        folder = os.path.join(os.path.dirname(spec.origin), "lib")
        self.libraries = [ctypes.CDLL(os.path.join(folder, "lib%s.so" % name), ctypes.RTLD_GLOBAL)
                          for name in ("ggml-base", "ggml-cpu", "ggml")]
        from importlib.metadata import version
        self.version = version("llama-cpp-python")
        self.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda level, text, data: None)  # a line for each tensor otherwise
        self.call("ggml_log_set", self.silence, None, to=None)
        self.backend = self.call("ggml_backend_cpu_init")
        self.device = self.call("ggml_backend_get_device", self.backend)
        self.sound = None

    def call(self, name, *args, to=ctypes.c_void_p):
        """Numbers are 64 bits wide, handles are pointers: so is every answer unless `to` says."""
        function = next(getattr(lib, name) for lib in self.libraries if hasattr(lib, name))
        function.restype = to
        return function(*[ctypes.c_void_p(a) if a is None or isinstance(a, int) else a
                          for a in args])

    def orders(self):
        """Names and handles of the orders of weights that the CPU backend has."""
        found = [self.call("ggml_backend_get_default_buffer_type", self.backend)]
        registry = self.call("ggml_backend_dev_backend_reg", self.device)
        more = self.call("ggml_backend_reg_get_proc_address", registry,
                         b"ggml_backend_dev_get_extra_bufts")
        if more:
            extra = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(more)(
                self.device)
            i = 0
            while extra and extra[i]:
                found.append(extra[i])
                i += 1
        return [(self.call("ggml_backend_buft_name", b, to=ctypes.c_char_p).decode(), b)
                for b in found]

    def probe(self, order):
        """One small product in this order, in a process that may die of it."""
        np, kind = self.np, self.Q4_0
        x, w = np.ones((8, 256), np.float32), np.ones((64, 256), np.float32)
        made = self.graphs(dict(self.orders())[order], kind, self.blocks(w, 4), x, 1)
        if made is not None:
            self.call("ggml_backend_graph_compute", self.backend, made[0][0], to=ctypes.c_int)

    def sound_orders(self):
        """Those whose kernels run: with gcc 12 the tiles of ggml are loaded with a configuration
        that the compiler never stored, and the process ends."""
        sound = []
        for name, order in self.orders():
            command = [sys.executable, os.path.abspath(__file__), "llama.cpp", name]
            if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, check=False).returncode == 0:
                sound.append((name, order))
            else:
                print("peers.py: llama.cpp %s: its kernels crash as they were compiled here" % name,
                      file=sys.stderr)
        return sound

    def context(self, tensors):
        return self.call("ggml_init", GgmlInit(1024 * (tensors + 8) + (1 << 17), None, True))

    def blocks(self, w, bits):
        """Q4_0: f16 scale, byte i has the codes of positions i and i + 16. Q8_0: f16, 32 bytes."""
        np, (n, k) = self.np, w.shape
        if bits == 4:
            codes, scale = group_codes(np, w, 32, 4)
            codes = codes.reshape(n, k // 32, 32)
            body = codes[..., :16] | codes[..., 16:] << 4
        else:
            codes, scale = row_codes(np, w.reshape(n * k // 32, 32))
            body, scale = codes.reshape(n, k // 32, 32).view(np.uint8), scale.reshape(n, k // 32)
        head = scale.astype(np.float16)[..., None].view(np.uint8)
        return np.ascontiguousarray(np.concatenate([head, body], axis=2))

    def graphs(self, order, kind, blob, x, copies):
        """A graph of one product for each copy of the weights; None: this order has no such."""
        m, k = x.shape
        n = blob.shape[0]
        weights, values = self.context(copies), self.context(8 * copies)
        ws = [self.call("ggml_new_tensor_2d", weights, kind, k, n) for _ in range(copies)]
        if not self.call("ggml_backend_alloc_ctx_tensors_from_buft", weights, order):
            return None
        xt = self.call("ggml_new_tensor_2d", values, self.F32, k, m)
        ys = [self.call("ggml_mul_mat", values, w, xt) for w in ws]
        if not self.call("ggml_backend_dev_supports_op", self.device, ys[0], to=ctypes.c_bool):
            return None
        self.call("ggml_backend_alloc_ctx_tensors_from_buft", values,
                  self.call("ggml_backend_get_default_buffer_type", self.backend))
        for w in ws:
            self.call("ggml_backend_tensor_set", w, blob.ctypes.data, 0, blob.nbytes, to=None)
        self.call("ggml_backend_tensor_set", xt, x.ctypes.data, 0, x.nbytes, to=None)
        made = []
        for y in ys:
            place = self.context(4)
            graph = self.call("ggml_new_graph_custom", place, 8, False)
            self.call("ggml_build_forward_expand", graph, y, to=None)
            made.append((graph, y))
        return made

    def ways(self, problem, x, w):
        np = self.np
        if (problem["op"] != "matmul" or problem["x"] != "f32" or problem["bits"] not in (4, 8) or
                not problem["strategy"].startswith("int8") or x.shape[1] % 32 != 0):
            return []
        bits, m, n = int(problem["bits"]), x.shape[0], w.shape[0]
        self.call("ggml_backend_cpu_set_n_threads", self.backend, int(problem["threads"]), to=None)
        blob, x = self.blocks(w, bits), np.ascontiguousarray(x)
        found = []
        if self.sound is None:
            self.sound = self.sound_orders()
        for name, order in self.sound:
            made = self.graphs(order, self.Q4_0 if bits == 4 else self.Q8_0, blob, x,
                               copies_of(problem, blob.nbytes))
            if made is None:
                continue

            def run(i, made=made):
                self.call("ggml_backend_graph_compute", self.backend, made[i][0], to=ctypes.c_int)
                return made[i][1]

            def values(y):
                out = np.empty((m, n), np.float32)
                self.call("ggml_backend_tensor_get", y, out.ctypes.data, 0, out.nbytes, to=None)
                return out
            found.append(Way("%s, int8 x, %s" % ("Q4_0" if bits == 4 else "Q8_0", name), run,
                             len(made), values))
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
        peer = {"onnxruntime": OnnxRuntime, "torch": Torch, "llama.cpp": LlamaCpp}[sys.argv[1]]()
    except (ImportError, OSError) as error:
        print(json.dumps({"skip": str(error).split("\n")[0]}), flush=True)
        return
    if len(sys.argv) > 2:
        peer.probe(sys.argv[2])
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
