#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern quantize from outside.

    quantize.py QUERN [NAME...]
"""
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import unittest

from command import (QUERN, Case, is_sanitized, normal, npy_read, npy_write, quern,
                     quern_on_a_leash, safetensors)


class Quantize(Case):
    def test_everything(self):
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "--all")
        tensors = {t["name"]: t for t in json.loads(quern("inspect", "q.safetensors", "--json"))[
            "tensors"]}
        self.assertEqual({n for n, t in tensors.items() if "format" in t}, {
            "embed.weight", "layers.0.up.weight", "layers.0.down.weight", "layers.0.conv.weight",
            "layers.0.depthwise.weight"})
        self.assertEqual(tensors["layers.0.up.weight"]["format"], "int4:g128")
        conv = tensors["layers.0.conv.weight"]
        self.assertEqual([conv[key] for key in ("n", "k", "kh", "kw", "conv_groups")],
                         [16, 72, 3, 3, 1])
        self.assertEqual(tensors["layers.0.depthwise.weight"]["conv_groups"], 8)
        self.assertEqual(tensors["steps"]["dtype"], "I64")
        self.assertIn("format = pt", quern("inspect", "q.safetensors"))

    def test_formats(self):
        self.model()
        for words, least in (
                (["--bits", 8, "--group", "pc"], 38), (["--bits", 8], 38),
                (["--scheme", "zp", "--group", 32], 17), (["--scheme", "off", "--group", 32], 17),
                (["--bits", 3, "--group", 32], 10), (["--format", "nf4:g64"], 17),
                (["--format", "fp8:pc"], 26), (["--format", "int4:c8"], 12),
                (["--method", "search", "--group", 32], 17), (["--range", "half"], 15)):
            with self.subTest(words=words):
                quern("quantize", "model.safetensors", "-o", "q.safetensors", "--force", "-q",
                      "-e", "*depthwise*", *words)
                out = quern("compare", "q.safetensors", "--original", "model.safetensors",
                            "--min-sqnr", least, "--json")
                rows = {t["name"]: t for t in json.loads(out)["tensors"]}
                self.assertEqual(len(rows), 7)
                self.assertTrue(rows["steps"]["equal"])
                self.assertTrue(rows["layers.0.norm.weight"]["equal"])
                self.assertFalse(rows["layers.0.conv.weight"]["equal"])

    def test_again(self):
        """Weights that are quantized already stay what they are; others may follow."""
        self.model()
        quern("quantize", "model.safetensors", "-o", "a.safetensors", "-q", "-i", "embed.weight")
        out = quern("quantize", "a.safetensors", "-n")
        self.assertRegex(out, r"embed\.weight\.scale .*copied: of a quantized weight")
        quern("quantize", "a.safetensors", "-o", "b.safetensors", "-q", "--format", "q8_0")
        found = {t["name"]: t.get("format")
                 for t in json.loads(quern("inspect", "b.safetensors", "--json"))["tensors"]}
        self.assertEqual(found["embed.weight"], "int4:g128")
        self.assertIn("q8_0", found.values())
        quern("compare", "b.safetensors", "model.safetensors", "--min-sqnr", 12)
        self.complains("quantize", "b.safetensors", "-o", "c.safetensors", status=3,
                       says="nothing in it")
        self.assertFalse(os.path.exists("c.safetensors"))

    def test_conv_groups(self):
        safetensors("m.safetensors", {name: ("F16", [8, 4, 1, 1], normal(32))
                                      for name in ("a", "b", "c")})
        words = ["quantize", "m.safetensors", "-n", "--all", "--conv-groups", "a=2",
                 "--conv-groups"]
        out = json.loads(quern(*words, "[bc]=4", "--conv-groups", "c=8", "--json"))
        self.assertEqual([t["conv_groups"] for t in out["tensors"]], [2, 4, 8])
        self.complains(*words, "d=2", status=2, says=["d=2", "no convolution"])
        self.complains(*words, "b=3", status=2, says="divisor")
        self.complains(*words, "b", status=2, says="PATTERN=VALUE")

    def plan(self, *words):
        out = quern("quantize", *words, "-n", "--json")
        return {t["name"]: t for t in json.loads(out)["tensors"]}

    def test_rules(self):
        """What had better not be quantized is not, by name and shape, and the reason is told."""
        big = ("F16", [64, 128], normal(64 * 128))
        wide = ("F16", [16, 128], normal(16 * 128))
        kept = {
            "model.embed_tokens.weight": (big, "embedding"),
            "transformer.wte.weight": (big, "embedding"), "shared.weight": (big, "embedding"),
            "bert.embeddings.word_embeddings.weight": (big, "embedding"),
            "transformer.wpe.weight": (big, "position"),
            "bert.embeddings.position_embeddings.weight": (big, "position"),
            "pos_emb": (big, "position"), "layers.0.mlp.gate.weight": (wide, "router"),
            "layers.0.block_sparse_moe.router.layer.weight": (wide, None),
            "layers.0.feed_forward.router.weight": (wide, "router"),
            "blk.0.ffn_gate_inp.weight": (wide, "router"),
            "layers.0.mlp.shared_expert_gate.weight": (("F16", [1, 2048], normal(2048)), "router"),
            "layers.0.input_layernorm.weight": (("F16", [128], normal(128)), "2-d"),
            "layers.0.norm.weight": (wide, "norm"),
            "x.weight": (("F16", [3, 5], normal(15)), "tiny"),
            "score.weight": (("F16", [2, 1024], normal(2048)), "tiny"),
            "dw.weight": (("F16", [8, 1, 3, 3], normal(72)), "tiny"),
        }
        taken = {"layers.0.mlp.gate_proj.weight": big, "lm_head.weight": big,
                 "layers.0.shared_expert.up_proj.weight": big, "decomposition.weight": big,
                 "norm1.linear.weight": big, "time_embedding.linear_1.weight": big,
                 "h.0.mlp.gate.weight": ("F16", [128, 64], normal(64 * 128)),
                 "layers.0.block_sparse_moe.router.layer.weight": wide}
        safetensors("m.safetensors", {**{n: t for n, (t, _) in kept.items()}, **taken})
        plan = self.plan("m.safetensors")
        self.assertEqual({n for n, t in plan.items() if t["quantized"]}, set(taken))
        for name, (_, reason) in kept.items():
            if reason is not None:
                self.assertIn(reason, plan[name]["reason"], name)
                self.assertEqual(plan[name]["skipped"], reason != "2-d", name)
        text = quern("quantize", "m.safetensors", "-n")
        self.assertRegex(text, r"kept as they are by rule: .*4 embedding.*--all")
        plan = self.plan("m.safetensors", "--all")
        self.assertEqual({n for n, t in plan.items() if not t["quantized"]},
                         {"layers.0.input_layernorm.weight"})
        # Programs that read such folders take the head for floats; GGUF's do not.
        for to, is_kept in (("awq", True), ("gptq_v2", True), ("ct", True), ("bnb", True),
                            ("gguf:q8_0", False)):
            plan = self.plan("m.safetensors", "--to", to)
            self.assertEqual(plan["lm_head.weight"]["quantized"], not is_kept, to)
            self.assertEqual("head" in plan["lm_head.weight"].get("reason", ""), is_kept, to)
        # A name in full is meant; a pattern only narrows.
        plan = self.plan("m.safetensors", "-i", "model.embed_tokens.weight", "-i", "transformer.*")
        self.assertEqual({n for n, t in plan.items() if t["quantized"]},
                         {"model.embed_tokens.weight"})
        out = quern("quantize", "m.safetensors", "-o", "q.safetensors")
        self.assertIn("kept as they are by rule: ", out)
        self.assertRegex(out.err, r"x\.weight 3 x 5 F16 -> copied: tiny")
        found = json.loads(quern("quantize", "m.safetensors", "-o", "q.safetensors", "--force",
                                 "--json", "-q"))
        self.assertEqual(found["skipped"], len(kept) - 2)
        self.assertEqual(len(found["plan"]), len(plan))

    def test_other_formats(self):
        """Weights that others have quantized are named and refused, or copied when told to."""
        def ints(*shape):
            return ("I32", list(shape), [0] * math.prod(shape))

        def floats(*shape):
            return ("F16", list(shape), normal(math.prod(shape)))

        def bytes_(*shape):
            return ("U8", list(shape), [0] * math.prod(shape))

        cases = {
            "GPTQ": {"a.qweight": ints(16, 64), "a.qzeros": ints(1, 8), "a.scales": floats(1, 64),
                     "a.g_idx": ints(128)},
            "AWQ": {"a.qweight": ints(128, 8), "a.qzeros": ints(1, 8), "a.scales": floats(1, 64)},
            "bitsandbytes, 4 bits": {
                "a.weight": bytes_(4096, 1), "a.weight.absmax": bytes_(128),
                "a.weight.quant_map": floats(16),
                "a.weight.quant_state.bitsandbytes__nf4": bytes_(80)},
            "bitsandbytes, 8 bits": {"a.weight": ("I8", [64, 64], [0] * 4096),
                                     "a.SCB": floats(64)},
            "compressed-tensors": {"a.weight_packed": ints(64, 16), "a.weight_scale": floats(64, 1),
                                   "a.weight_shape": ints(2)},
            "fp8 with a scale a block": {"a.weight": ("I8", [64, 64], [0] * 4096),
                                         "a.weight_scale_inv": floats(32, 32)},
            "compressed-tensors or fp8": {"a.weight": ("I8", [64, 64], [0] * 4096),
                                          "a.weight_scale": floats(64, 32)},
            "MLX": {"a.weight": ints(64, 64), "a.scales": floats(64, 32),
                    "a.biases": floats(64, 32)},
            "MXFP4": {"a_blocks": bytes_(64, 2, 16), "a_scales": bytes_(64, 2)},
        }
        for scheme, tensors in cases.items():
            with self.subTest(scheme=scheme):
                safetensors("m.safetensors", {**tensors, "lm_head.weight": floats(64, 64),
                                              "a.bias": floats(64)})
                for more in (["-o", "q.safetensors"], ["-n"]):
                    line = self.complains("quantize", "m.safetensors", *more, status=3,
                                          says=[f"({scheme})", "--copy-unknown"])
                    self.assertIn(f"as {len(tensors)} tensors are", line)
                self.assertFalse(os.path.exists("q.safetensors"))
                plan = self.plan("m.safetensors", "--copy-unknown")
                self.assertEqual({n for n, t in plan.items() if t.get("quantized_by") == scheme},
                                 set(tensors))
                self.assertEqual({n for n, t in plan.items() if t["quantized"]},
                                 {"lm_head.weight"})
                # Patterns that leave them out have said what is to happen.
                quern("quantize", "m.safetensors", "-n", *[w for n in tensors for w in ("-e", n)])
        # Of a type that cannot be copied: named all the same.
        with open("m.gguf", "wb") as file:
            def text(word):
                return struct.pack("<Q", len(word)) + word.encode()

            head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("blk.0.q.weight")
            head += struct.pack("<IQQIQ", 2, 128, 64, 8, 0)
            file.write(head + b"\0" * (-len(head) % 32 + 64 * 4 * 34))
        self.complains("quantize", "m.gguf", "-n", status=3, says=["(GGUF)", "blk.0.q.weight"])
        safetensors("m.safetensors", {"d.weight": floats(16, 64), "d.scales": floats(16, 64)})
        self.assertTrue(all(t["quantized"] for t in self.plan("m.safetensors").values()))

    def values(self, tensors, *words):
        """Quantize finely; the weights again, by the product with unit vectors."""
        safetensors("m.safetensors", tensors)
        quern("quantize", "m.safetensors", "-o", "q.safetensors", "-q", "--force", "--all",
              "--format", "int8:pc", *words)
        quern("compare", "q.safetensors", "m.safetensors", "--min-sqnr", 30)
        return {t["name"]: t for t in json.loads(quern("inspect", "q.safetensors", "--json"))[
            "tensors"]}

    def rows(self, name, k):
        npy_write("eye.npy", [k, k], [float(i == j) for i in range(k) for j in range(k)])
        quern("run", "-w", f"q.safetensors:{name}", "-x", "eye.npy", "-o", "y.npy", "--force")
        shape, y = npy_read("y.npy")
        return [y[j * shape[1] + i] for i in range(shape[1]) for j in range(k)]

    def near(self, got, expected):
        self.assertEqual(len(got), len(expected))
        self.assertTrue(all(abs(a - b) <= 0.01 for a, b in zip(got, expected)),
                        [(a, b) for a, b in zip(got, expected) if not abs(a - b) <= 0.01][:3])

    def test_axes_of_matrices(self):
        n, k = 6, 10
        w = normal(n * k, 5, 0.4)
        turned = [w[o * k + i] for i in range(k) for o in range(n)]
        plain, gpt2 = ("F32", [n, k], w), ("F32", [k, n], turned)
        npy_write("x.npy", [1, k], normal(k))
        for tensors, words, source in (
                ({"a.weight": plain}, [], "assumed"),
                ({"a.weight": plain, "a.bias": ("F32", [n], w[:n])}, [], "bias"),
                ({"a.weight": gpt2, "a.bias": ("F32", [n], w[:n])}, [], "bias"),
                ({"a.weight": gpt2}, ["--axes", "*=oi", "--axes", "a.*=io"], "option"),
                ({"a.weight": plain, "a.bias": ("F32", [k], w[:k])}, ["--axes", "a.weight=oi"],
                 "option")):
            found = self.values(tensors, *words)
            self.assertEqual([found["a.weight"][key] for key in ("n", "k")], [n, k])
            self.near(self.rows("a.weight", k), w)
            self.assertEqual(self.plan("m.safetensors", "--all", *words)["a.weight"]["axes_from"],
                             source)
        # A square matrix of GPT-2, beside one that its bias tells of.
        square = normal(k * k, 6, 0.4)
        found = self.values({"h.0.attn.c_attn.weight": gpt2,
                             "h.0.attn.c_attn.bias": ("F32", [n], w[:n]),
                             "h.0.attn.c_proj.weight": ("F32", [k, k], square),
                             "h.0.attn.c_proj.bias": ("F32", [k], w[:k])})
        self.near(self.rows("h.0.attn.c_proj.weight", k),
                  [square[i * k + o] for o in range(k) for i in range(k)])
        self.assertEqual(self.plan("m.safetensors", "--all")["h.0.attn.c_proj.weight"]["axes_from"],
                         "name")
        text = quern("quantize", "m.safetensors", "-n", "--all", "--axes", "*=oi")
        self.assertRegex(text, r"c_proj.weight .*oi, option")
        safetensors("m.safetensors", {"a.weight": plain, "b.weight": plain})
        text = quern("quantize", "m.safetensors", "-n", "--all")
        self.assertIn("2 weights taken as [out, in], for want of a bias that tells (a.weight, ...)",
                      text)
        for words in (["--axes", "a.weight"], ["--axes", "a.weight=ox"],
                      ["--axes", "a.weight=oihw"], ["--axes", "none=io"]):
            self.complains("quantize", "m.safetensors", "-n", *words, status=2, says=words[1])

    def test_axes_of_experts(self):
        e, n, k = 3, 6, 10
        w = normal(e * n * k, 5, 0.4)
        turned = [w[(x * n + o) * k + i] for x in range(e) for i in range(k) for o in range(n)]
        safetensors("m.safetensors", {"experts.up": ("F32", [e, n, k], w)})
        plan = self.plan("m.safetensors", "--all")
        self.assertIn("--axes", plan["experts.up"]["reason"])
        for tensor, order in ((("F32", [e, n, k], w), "eoi"), (("F32", [e, k, n], turned), "eio")):
            found = self.values({"experts.up": tensor}, "--axes", f"experts.*={order}")
            self.assertEqual(set(found), {f"experts.up.{i}" for i in range(e)})
            for x in range(e):
                self.near(self.rows(f"experts.up.{x}", k), w[x * n * k:(x + 1) * n * k])
        # Quantized once more, the file still knows where they came from; another original does not
        # fit.
        quern("quantize", "q.safetensors", "-o", "r.safetensors", "--copy-unknown", "-q",
              status=3)
        other = ("F32", [e, k, n + 1], normal(e * k * (n + 1)))
        safetensors("o.safetensors", {"experts.up": other})
        self.complains("compare", "q.safetensors", "o.safetensors", status=3, says="eio")

    def test_axes_of_convolutions(self):
        """Each order holds the same weights as torch's Conv2d does."""
        o, i, h, w = 4, 6, 3, 2
        weights = normal(o * i * h * w, 5, 0.4)
        sizes = {"o": o, "i": i, "h": h, "w": w}

        def ordered(order):
            out = []

            def walk(at):
                if len(at) == len(order):
                    out.append(weights[((at["o"] * i + at["i"]) * h + at["h"]) * w + at["w"]])
                    return
                letter = order[len(at)]
                for v in range(sizes[letter]):
                    walk({**at, letter: v})

            walk({})
            return ("F32", [sizes[letter] for letter in order], out)

        npy_write("x.npy", [1, i, 5, 5], normal(i * 25, 3, 1))
        results = []
        for order in ("oihw", "iohw", "hwio", "ohwi"):
            found = self.values({"conv.weight": ordered(order)}, "--axes", f"conv.weight={order}")
            self.assertEqual([found["conv.weight"][key] for key in ("n", "k", "kh", "kw")],
                             [o, i * h * w, h, w])
            quern("run", "-w", "q.safetensors", "-x", "x.npy", "-o", "y.npy", "--force")
            results.append(npy_read("y.npy"))
        self.assertTrue(all(r == results[0] for r in results))
        # A bias tells; without one a name that says transposed is not guessed at.
        plan = self.plan_of({"a.weight": ordered("iohw"), "a.bias": ("F32", [o], [0] * o),
                             "b.weight": ordered("oihw"), "b.bias": ("F32", [o], [0] * o),
                             "c.weight": ordered("oihw"), "deconv1.weight": ordered("iohw")})
        self.assertEqual([plan[n].get("axes") for n in ("a.weight", "b.weight", "c.weight")],
                         ["iohw", "oihw", "oihw"])
        self.assertEqual([plan[n].get("axes_from") for n in ("a.weight", "b.weight", "c.weight")],
                         ["bias", "bias", "assumed"])
        self.assertIn("iohw", plan["deconv1.weight"]["reason"])

    def plan_of(self, tensors):
        safetensors("m.safetensors", tensors)
        return self.plan("m.safetensors", "--all")

    def test_axes_of_groups(self):
        """torch's ConvTranspose2d of two groups, [in, out / groups, 1, 1]: by its definition."""
        i, o, groups = 4, 6, 2
        w = normal(i * o // groups, 5, 0.4)
        found = self.values({"up.weight": ("F32", [i, o // groups, 1, 1], w)}, "--axes",
                            "up.weight=iohw", "--conv-groups", "up.*=2")
        self.assertEqual([found["up.weight"][key] for key in ("n", "k", "conv_groups")], [o, 2, 2])
        x = normal(i, 6, 1)
        npy_write("x.npy", [1, i, 1, 1], x)
        quern("run", "-w", "q.safetensors", "-x", "x.npy", "-o", "y.npy", "--op",
              "conv_transpose2d")
        expected = [sum(x[g * 2 + c] * w[(g * 2 + c) * 3 + r] for c in range(2))
                    for g in range(groups) for r in range(3)]
        self.near([v / 3 for v in npy_read("y.npy")[1]], [v / 3 for v in expected])

    def test_axes_of_one_dimension(self):
        o, i, w = 4, 6, 3
        values = normal(o * i * w, 5, 0.4)
        self.assertIn("--axes", self.plan_of({"conv.weight": ("F32", [o, i, w], values)})[
            "conv.weight"]["reason"])
        found = self.values({"conv.weight": ("F32", [o, i, w], values)}, "--axes", "*=oiw")
        self.assertEqual([found["conv.weight"][key] for key in ("n", "k", "kh", "kw")],
                         [o, i * w, 1, w])
        x = normal(i * 5, 6, 1)
        npy_write("x.npy", [1, i, 5], x)
        quern("run", "-w", "q.safetensors", "-x", "x.npy", "-o", "y.npy")
        expected = [sum(x[c * 5 + p + t] * values[(r * i + c) * w + t] for c in range(i)
                        for t in range(w)) for r in range(o) for p in range(5 - w + 1)]
        self.near([v / 4 for v in npy_read("y.npy")[1]], [v / 4 for v in expected])

    def test_dry_run(self):
        self.model()
        for words in ([], ["--format", "int4:g32:zp"], ["--format", "int8:pc"],
                      ["--format", "int4:g64:off:f16"]):
            plan = json.loads(quern("quantize", "model.safetensors", "--dry-run", "--json", *words))
            self.assertEqual(os.listdir("."), ["model.safetensors"])
            quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q", *words)
            true = sum(t["bytes"] for t in json.loads(quern("inspect", "q.safetensors", "--json"))[
                "tensors"])
            self.assertLess(abs(plan["bytes_after"] / true - 1), 0.02, words)
            os.remove("q.safetensors")
        text = quern("quantize", "model.safetensors", "--dry-run", "--all")
        self.assertIn("copied: neither 2-d nor 4-d", text)
        self.assertIn("8 groups", text)

    def test_patterns(self):
        self.model()
        out = json.loads(quern("quantize", "model.safetensors", "-o", "q.safetensors", "--json",
                               "-q", "-i", "layers.*", "-i", "steps", "-e", "*.up.*"))
        self.assertEqual(out["quantized"], 2)
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "-i", "lay",
                       status=2, says="lay")
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "-e", "[", status=2)
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "-i", "steps",
                       status=3)
        self.complains("quantize", "model.safetensors", "-o", "r.safetensors", "--conv-groups",
                       "*conv*=3", status=2)
        self.assertFalse(os.path.exists("r.safetensors"))

    def test_calibration(self):
        self.model()
        safetensors("x.safetensors", {
            "layers.0.up.weight": ("F32", [2, 100, 160], normal(32000, 8, 1)),
            "layers.0.down": ("F16", [200, 96], normal(19200, 9, 1))})
        words = ["quantize", "model.safetensors", "-q", "--force", "-o", "q.safetensors", "-i",
                 "*up*", "-i", "*down*", "--group", 32]
        for more in (["--method", "gptq"], ["--method", "gptq", "--act-order"],
                     ["--method", "gptq", "--damping", "0.05"], ["--method", "search"],
                     ["--prescale", "awq"], ["--prescale", "smooth"],
                     ["--prescale", "smooth", "--alpha", "0.6"]):
            with self.subTest(more=more):
                quern(*words, "-c", "x.safetensors", *more)
                quern("compare", "q.safetensors", "model.safetensors", "--min-sqnr", 12)
        self.complains(*words, "--method", "gptq", status=2, says="--calibration")
        self.complains(*words, "--act-order", status=2)
        self.complains(*words, "--plain-scales", status=2, says="--plain-scales")
        sqnr = []
        for more in ([], ["--plain-scales"]):
            quern(*words, "-c", "x.safetensors", "--method", "gptq", *more)
            with open("q.safetensors", "rb") as file:
                sqnr.append(file.read())
        self.assertNotEqual(*sqnr)
        self.complains(*words, "--damping", "0.1", status=2, says="--damping")
        self.complains(*words, "--alpha", "0.3", "--prescale", "awq", "-c", "x.safetensors",
                       status=2, says="--alpha")
        safetensors("y.safetensors", {"layers.0.up": ("F32", [10, 3], normal(30))})
        self.complains(*words, "--method", "gptq", "-c", "y.safetensors", status=3)

    def test_npy_and_shards(self):
        npy_write("w.npy", [8, 32], normal(256))
        quern("quantize", "w.npy", "-o", "q.safetensors", "-q")
        self.assertIn("w ", quern("inspect", "q.safetensors"))
        # Transposed, as numpy saves W.T: the same weights.
        values = normal(256)
        npy_write("w.npy", [8, 32], [values[i % 8 * 32 + i // 8] for i in range(256)],
                  fortran=True)
        quern("quantize", "w.npy", "-o", "f.safetensors", "-q")
        quern("compare", "f.safetensors", "q.safetensors", "--min-sqnr", 300)
        npy_write("e.npy", [8, 32], [values[i % 8 * 32 + i // 8] for i in range(256)],
                  fortran=True)
        quern("quantize", "w.npy", "e.npy", "-o", "g.safetensors", "-q", "-e", "e")
        npy_write("e.npy", [8, 32], values)
        quern("quantize", "w.npy", "e.npy", "-o", "h.safetensors", "-q", "-e", "e")
        quern("compare", "g.safetensors", "h.safetensors", "--min-sqnr", 300)
        os.mkdir("model")
        safetensors("model/a-1.safetensors", {"a": ("F16", [8, 32], normal(256))})
        safetensors("model/a-2.safetensors", {"b": ("F16", [8, 32], normal(256))})
        index = {"weight_map": {"a": "a-1.safetensors", "b": "a-2.safetensors"}}

        def write_index(value):
            with open("model/model.safetensors.index.json", "w", encoding="utf-8") as file:
                file.write(value if isinstance(value, str) else json.dumps(value))

        write_index(index)
        quern("quantize", "model", "-o", "r.safetensors", "-q", "--all")
        names = {t["name"] for t in json.loads(quern("inspect", "r.safetensors", "--json"))[
            "tensors"]}
        self.assertEqual(names, {"a", "b"})
        write_index({"weight_map": {"a": "../model.safetensors"}})
        self.complains("quantize", "model", "-o", "s.safetensors", status=3, says="outside")
        write_index({"weight_map": {"c": "a-1.safetensors"}})
        self.complains("quantize", "model", "-o", "s.safetensors", status=3, says="'c'")
        write_index("{")
        self.complains("quantize", "model", "-o", "s.safetensors", status=3)
        os.remove("model/model.safetensors.index.json")
        self.complains("quantize", "model", "-o", "s.safetensors", status=3)
        self.complains("quantize", "w.npy", "w.npy", "model/a-1.safetensors",
                       "model/../model/a-1.safetensors", "-o", "s.safetensors", status=3,
                       says="two of the files")

    def test_bad_values(self):
        for bad in (math.inf, -math.inf, math.nan):
            values = normal(320)
            values[3 * 32 + 17] = bad
            safetensors("m.safetensors", {"good": ("F32", [10, 32], normal(320)),
                                          "x.weight": ("F32", [10, 32], values)})
            line = self.complains("quantize", "m.safetensors", "-o", "q.safetensors", "--all",
                                  status=3)
            self.assertIn("x.weight", line)
            self.assertRegex(line, r"\b3\b.*\b17\b")
            self.assertEqual(sorted(os.listdir(".")), ["m.safetensors"])

    def test_bad_files(self):
        self.complains("quantize", "no.safetensors", "-o", "q.safetensors", status=3,
                       says="no.safetensors")
        self.model()
        with open("model.safetensors", "rb") as file:
            raw = file.read()
        for name, data in (("cut", raw[:len(raw) // 2]), ("tiny", raw[:7]), ("empty", b""),
                           ("long", raw + b"x"), ("json", raw[:8] + b"[" + raw[9:]),
                           ("huge", b"\xff" * 8 + raw[8:])):
            with open(name, "wb") as file:
                file.write(data)
            self.complains("quantize", name, "-o", "q.safetensors", status=3, says=name)
            self.complains("inspect", name, status=3, says=name)
        self.assertFalse(os.path.exists("q.safetensors"))
        self.complains("quantize", "model.safetensors", "-o", "no/q.safetensors", status=4)
        self.complains("quantize", "model.safetensors", status=2, says="-o FILE")

    def test_exists(self):
        self.model()
        with open("q.safetensors", "w", encoding="utf-8") as file:
            file.write("mine")
        self.complains("quantize", "model.safetensors", "-o", "q.safetensors", status=2,
                       says="--force")
        with open("q.safetensors", encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "--force", "-q")
        quern("compare", "q.safetensors", "model.safetensors", "--min-sqnr", 10)

    @unittest.skipIf(os.geteuid() == 0, "root writes everywhere")
    def test_read_only(self):
        self.model()
        os.mkdir("shut")
        os.chmod("shut", 0o555)
        self.complains("quantize", "model.safetensors", "-o", "shut/q.safetensors", status=4)

    def test_no_space(self):
        safetensors("m.safetensors", {"a": ("F16", [512, 512], normal(512 * 512))})

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        self.complains("quantize", "m.safetensors", "-o", "q.safetensors", status=4,
                       preexec_fn=small_files)
        self.assertEqual(os.listdir("."), ["m.safetensors"])

    def test_interrupted(self):
        self.many("m.safetensors")
        words = ["quantize", "m.safetensors", "-o", "q.safetensors", "--method", "search", "-t",
                 "1"]
        process = quern_on_a_leash(*words)
        first = process.stderr.readline() + process.stderr.readline()
        self.assertIn("[2/", first)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("--resume", err.strip().split("\n")[-1])
        self.assertEqual(sorted(os.listdir(".")), ["m.safetensors", "q.safetensors.part"])
        out = quern(*words, "--resume", "--json", "-q")
        self.assertGreaterEqual(json.loads(out)["resumed"], 2)
        self.assertEqual(sorted(os.listdir(".")), ["m.safetensors", "q.safetensors"])
        words[3] = "whole.safetensors"
        quern(*words, "-q")
        with open("q.safetensors", "rb") as a, open("whole.safetensors", "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_memory(self):
        """At most twice the largest tensor (here 33.6 MB), and what every process takes."""
        if is_sanitized():
            self.skipTest("a sanitizer's memory is not ours")
        quern("demo", "--make-model", "m.safetensors", "--gb", "0.08")
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")

        def peak(*words):
            return 1024 * int(subprocess.run(
                [sys.executable, "-c", script, QUERN, *words], check=True, capture_output=True,
                text=True).stdout.split()[-1])

        idle = peak("info", "-q")
        used = peak("quantize", "m.safetensors", "-o", "q.safetensors", "-q")
        self.assertLess(used, 2 * 4096 * 4096 * 2 + idle)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
