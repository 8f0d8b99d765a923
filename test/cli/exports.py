#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern convert --to, from outside: a small model with config and tokenizer through every format
and back, configurations, names and rows between Hugging Face and GGUF, refusals, interruptions.

    exports.py QUERN [NAME...]
"""
import json
import os
import random
import signal
import struct
import sys
import time
import unittest

from command import QUERN, Case, quern, safetensors

HIDDEN, HEADS, KV, FFN, VOCAB, GROUP = 128, 4, 2, 256, 40, 32
LAYER = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
         "self_attn.v_proj": (HIDDEN // 2, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
         "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
         "mlp.down_proj": (HIDDEN, FFN)}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
          "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": HEADS,
          "num_key_value_heads": KV, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
          "max_position_embeddings": 64, "vocab_size": VOCAB, "tie_word_embeddings": True,
          "bos_token_id": 1, "eos_token_id": [2, 3]}
TOKENIZER = {"model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(VOCAB - 2)},
                       "merges": [["t", "1"], "t 2"]},
             "added_tokens": [{"id": VOCAB - 2, "content": "<end>", "special": True}],
             "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?x"}}}


def words(values, each=8, bits=4):
    """Codes to words, the first in the lowest bits."""
    out = []
    for at in range(0, len(values), each):
        word = sum(v << (bits * i) for i, v in enumerate(values[at:at + each]))
        out.append(word - (1 << 32) if word >= 1 << 31 else word)
    return out


def gptq(draw, n, k, g_idx=None):
    """Tensors of GPTQ (v2), 4 bits; g_idx: the group of each column."""
    groups = k // GROUP
    u = [[draw.randrange(16) for _ in range(k)] for _ in range(n)]
    z = [[draw.randrange(1, 16) for _ in range(n)] for _ in range(groups)]
    s = [struct.unpack("<e", struct.pack("<e", draw.uniform(.001, .01)))[0]
         for _ in range(groups * n)]
    columns = [words([row[i] for i in range(k)]) for row in u]
    qweight = [columns[i][w] for w in range(k // 8) for i in range(n)]
    g_idx = g_idx or [i // GROUP for i in range(k)]
    return {"qweight": ("I32", [k // 8, n], qweight),
            "qzeros": ("I32", [groups, n // 8], [w for row in z for w in words(row)]),
            "scales": ("F16", [groups, n], s), "g_idx": ("I32", [k], g_idx)}


def model(folder, has_order=False):
    draw = random.Random(1)
    tensors = {"model.embed_tokens.weight": ("F16", [VOCAB, HIDDEN],
                                             [i % 7 / 8 for i in range(VOCAB * HIDDEN)]),
               "model.norm.weight": ("F16", [HIDDEN], [1.5] * HIDDEN)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = ("F16", [HIDDEN], [0.5] * HIDDEN)
    for name, (n, k) in LAYER.items():
        order = [i // GROUP for i in range(k)]
        if has_order:
            draw.shuffle(order)
        for part, value in gptq(draw, n, k, order).items():
            tensors[f"model.layers.0.{name}.{part}"] = value
    os.makedirs(folder)
    safetensors(f"{folder}/model.safetensors", tensors)
    with open(f"{folder}/config.json", "w") as file:
        json.dump({**CONFIG, "quantization_config": {
            "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False,
            "desc_act": has_order, "checkpoint_format": "gptq_v2"}}, file)
    with open(f"{folder}/tokenizer.json", "w") as file:
        json.dump(TOKENIZER, file)
    with open(f"{folder}/generation_config.json", "w") as file:
        file.write("{}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def load(path):
    return json.loads(read(path))


def tensors_of(path):
    raw = read(path)
    size = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + size])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + size + v["data_offsets"][0]:
                                            8 + size + v["data_offsets"][1]])
            for k, v in head.items()}


class Exports(Case):
    def test_all(self):
        """GPTQ to each format and back to the same bytes."""
        model("m")
        same = tensors_of("m/model.safetensors")
        for to in ("awq", "gptq", "gptq_v2", "gptq_p", "ct"):
            said = quern("convert", "m", "-o", to + "/", "--to", to)
            self.assertIn("exact: every value was read back", said)
            self.assertEqual(read(f"{to}/tokenizer.json"), read("m/tokenizer.json"))
            self.assertTrue(os.path.exists(f"{to}/generation_config.json"))
            self.assertFalse(os.path.exists(f"{to}.part") or os.path.exists(f"{to}/.quern-convert"))
            quern("convert", to, "-o", f"{to}-back", "--to", "gptq_v2")
            self.assertEqual(tensors_of(f"{to}-back/model.safetensors"), same)
            quern("convert", to, "-o", f"{to}.st")
            quern("convert", f"{to}.st", "-o", f"{to}-own", "--to", "gptq_v2", "--config", "m")
            self.assertEqual(tensors_of(f"{to}-own/model.safetensors"), same)
        q = load("awq/config.json")["quantization_config"]
        self.assertEqual((q["quant_method"], q["group_size"], q["version"], q["bits"]),
                         ("awq", GROUP, "gemm", 4))
        q = load("gptq/config.json")["quantization_config"]
        self.assertEqual((q["checkpoint_format"], q["sym"], q["desc_act"], q["group_size"]),
                         ("gptq", False, False, GROUP))
        self.assertEqual(load("gptq/quantize_config.json"), q)
        q = load("ct/config.json")["quantization_config"]
        weights = q["config_groups"]["group_0"]["weights"]
        self.assertEqual((q["format"], weights["group_size"], weights["symmetric"],
                          q["config_groups"]["group_0"]["targets"]),
                         ("pack-quantized", GROUP, False, ["Linear"]))
        self.assertEqual(load("ct/config.json")["hidden_size"], HIDDEN)

    def test_act_order(self):
        model("m", has_order=True)
        quern("convert", "m", "-o", "ct", "--to", "ct")
        group = load("ct/config.json")["quantization_config"]["config_groups"]["group_0"]
        self.assertEqual(group["weights"]["actorder"], "group")
        quern("convert", "ct", "-o", "back", "--to", "gptq_v2")
        self.assertEqual(tensors_of("back/model.safetensors"), tensors_of("m/model.safetensors"))
        self.complains("convert", "m", "-o", "a", "--to", "awq", status=3,
                       says=["act-order", "gptq, gptq_v2, gptq_p, ct, onnx, quern could hold it"])
        self.assertEqual(sorted(os.listdir(".")), ["back", "ct", "m"])

    def test_gguf(self):
        """Names, rows of q and k, metadata, and all of it back."""
        model("m")
        quern("convert", "m", "-o", "m.gguf", "--to", "gguf")
        listed = json.loads(quern("inspect", "m.gguf", "--json"))
        kinds = {m["name"]: m.get("format", m["dtype"]) for m in listed["modules"]}
        self.assertEqual(kinds["blk.0.attn_q.weight"], "q5_0")
        self.assertEqual((kinds["output_norm.weight"], kinds["token_embd.weight"]), ("F32", "F16"))
        raw = read("m.gguf")
        for key in ("llama.attention.head_count_kv", "llama.rope.freq_base", "llama-bpe",
                    "tokenizer.ggml.merges", "<end>", "tokenizer.ggml.eos_token_id"):
            self.assertIn(key.encode(), raw, key)
        quern("convert", "m.gguf", "-o", "back", "--to", "ct", "--config", "m")
        self.assertEqual(load("back/config.json")["vocab_size"], VOCAB)
        # Rows of a head are interleaved in GGUF; a plain q_proj shows it.
        rows = [float(i) for i in range(HIDDEN) for _ in range(HIDDEN)]
        tensors = {"model.layers.0.self_attn.q_proj.weight": ("F16", [HIDDEN, HIDDEN], rows)}
        for part, value in gptq(random.Random(3), HIDDEN, HIDDEN).items():
            tensors[f"model.layers.0.mlp.down_proj.{part}"] = value
        os.makedirs("r")
        safetensors("r/model.safetensors", tensors)
        with open("r/config.json", "w") as file:
            json.dump({**CONFIG, "quantization_config": {
                "quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False,
                "checkpoint_format": "gptq_v2"}}, file)
        said = quern("convert", "r", "-o", "r.gguf", "--to", "gguf")
        self.assertIn("no tokenizer", said.err)
        quern("convert", "r.gguf", "-o", "r-back", "--to", "ct", "--config", "r")
        size = HIDDEN // HEADS
        want = [h * size + half * (size // 2) + i for h in range(HEADS)
                for i in range(size // 2) for half in (0, 1)]
        at = read("r.gguf").find(struct.pack("<e", 1.0) * HIDDEN) # row 1 of Hugging Face
        start = at - want.index(1) * HIDDEN * 2
        got = [struct.unpack_from("<e", read("r.gguf"), start + i * HIDDEN * 2)[0]
               for i in range(HIDDEN)]
        self.assertEqual(got, want)
        self.assertEqual(tensors_of("r-back/model.safetensors")
                         ["model.layers.0.self_attn.q_proj.weight"][2],
                         tensors_of("r/model.safetensors")
                         ["model.layers.0.self_attn.q_proj.weight"][2])

    def test_onnx(self):
        """A model of nodes, its data beside it, and nothing left over; all equal to the source."""
        model("m")
        quern("convert", "m", "-o", "m.onnx", "--to", "onnx", "--external-data")
        self.assertTrue(os.path.exists("m.onnx.data") and not os.path.exists("m.onnx.part"))
        self.assertLess(os.path.getsize("m.onnx"), os.path.getsize("m.onnx.data"))
        self.assertIn(b"MatMulNBits", read("m.onnx"))
        quern("compare", "m", "m.onnx")
        quern("verify", "m.onnx")
        self.complains("convert", "m.onnx", "-o", "n.onnx", "--to", "onnx", status=3,
                       says="no weight of its graph is to become another")
        os.mkdir("n.onnx.part") # a run that was killed at once
        quern("convert", "m.onnx", "-o", "n.onnx", "--to", "onnx:qdq", "--resume")
        self.assertTrue(os.path.exists("n.onnx.data") and not os.path.exists("n.onnx.part"))
        self.assertNotIn(b"MatMulNBits", read("n.onnx"))
        self.assertEqual(read("n.onnx").count(b"DequantizeLinear"),
                         2 * read("m.onnx").count(b"MatMulNBits"))
        quern("compare", "m.onnx", "n.onnx")
        self.complains("convert", "m.onnx", "-o", "n.onnx", "--to", "onnx:qdq", status=2,
                       says="--force")
        os.mkdir("n.onnx.part")
        self.complains("convert", "m.onnx", "-o", "n.onnx", "--to", "onnx:qdq", status=2,
                       says="--force")
        quern("convert", "n.onnx", "-o", "o.onnx", "--to", "onnx")
        quern("compare", "m.onnx", "o.onnx")
        quern("convert", "m.onnx", "-o", "back", "--to", "gptq_v2", "--config", "m")
        quern("compare", "m", "back")
        os.truncate("m.onnx.data", os.path.getsize("m.onnx.data") - 1)
        self.complains("inspect", "m.onnx", status=3, says="truncated")

    def test_plain_gguf(self):
        """A GGUF file of floats is quantized to one with its metadata, straight or in two steps."""
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../oracle"))
        try:
            from hf_models import HfModel
        except ImportError:
            self.skipTest("numpy is not installed")
        HfModel("llama").write("hf")
        quern("convert", "hf", "-o", "m.gguf", "--to", "gguf", "-q")
        quern("quantize", "m.gguf", "-o", "straight.gguf", "--to", "gguf:q8_0", "-q")
        quern("quantize", "hf", "-o", "other.gguf", "--to", "gguf:q8_0", "-q")
        quern("quantize", "m.gguf", "-o", "q.st", "--format", "q8_0", "-q")
        quern("convert", "q.st", "-o", "steps.gguf", "--to", "gguf", "--config", "m.gguf", "-q")
        with open("straight.gguf", "rb") as a, open("steps.gguf", "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertIn("21 tensors, 0 failed", quern("compare", "straight.gguf", "other.gguf"))
        out = quern("compare", "q.st", "m.gguf", "--min-sqnr", "30")
        self.assertIn("21 tensors, 0 failed", out)
        quern("compare", "straight.gguf", "hf", "--min-sqnr", "30")
        self.complains("convert", "q.st", "-o", "x.gguf", "--to", "gguf", status=3,
                       says=["no name in GGUF", "--config FILE.gguf"])
        self.complains("convert", "hf", "-o", "x.st", "--format", "bf16", status=2,
                       says=["--format", "quern quantize"])
        self.complains("convert", "hf", "-o", "x.st", "--requantize", status=2,
                       says=["nothing to round"])
        self.complains("convert", "hf", "-o", "x.packed", "--to", "packed", status=3,
                       says=["21 plain tensors", "quern quantize"])
        quern("quantize", "m.gguf", "-o", "ct", "--to", "ct", "--format", "int4:g32:f16", "-q")
        with open("ct/config.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["model_type"], "llama")

    def test_refusals(self):
        model("m")
        self.complains("convert", "m", "-o", "x", "--to", "onnx9", status=2, says="no such format")
        self.complains("convert", "m", "-o", "x", "--to", "bnb", status=3,
                       says=["bnb cannot hold it", "--requantize"])
        self.complains("convert", "m", "-o", "x", "--to", "gguf:q4_0", status=3,
                       says=["row 0", "q4_0"])
        self.complains("convert", "m", "-o", "m", "--to", "awq", status=2, says="there already")
        self.complains("convert", "m", "-o", "x", "--to", "awq", "--group", "24", status=3,
                       says=["do not divide"])
        self.complains("convert", "m", "-o", "x", "--to", "ct", "-i", "*norm*", status=3,
                       says=["no quantized weight"])
        os.makedirs("x.part/mine")
        self.complains("convert", "m", "-o", "x", "--to", "awq", status=4,
                       says=["x.part", "not of 'quern convert'"])
        os.removedirs("x.part/mine")
        self.assertEqual(os.listdir("."), ["m"])
        said = quern("convert", "m", "-o", "x", "--to", "bnb", "--requantize")
        self.assertIn("7 weights quantized again", said)
        q = load("x/config.json")["quantization_config"]
        self.assertTrue(q["load_in_4bit"] and q["bnb_4bit_quant_type"] == "nf4")
        quern("convert", "x", "-o", "y", "--to", "bnb")
        self.assertEqual(tensors_of("x/model.safetensors"), tensors_of("y/model.safetensors"))
        quern("convert", "m", "-o", "g", "--to", "awq", "--group", "16", "-q")
        self.assertEqual(load("g/config.json")["quantization_config"]["group_size"], 16)
        quern("convert", "m", "--to", "ct", "-n")

    def test_resume(self):
        """Killed at any time, nothing is under the name, and --resume gives the same bytes."""
        import subprocess
        model("m")
        quern("convert", "m", "-o", "want", "--to", "ct")
        begin = time.monotonic()
        quern("convert", "m", "-o", "again", "--to", "ct")
        whole = time.monotonic() - begin
        for i in range(8):
            process = subprocess.Popen([QUERN, "convert", "m", "-o", "got", "--to", "ct",
                                        "--resume", "-q"])
            time.sleep(whole * i / 8)
            process.send_signal(signal.SIGKILL if i % 2 else signal.SIGINT)
            process.wait()
            if os.path.exists("got"):
                break
        if not os.path.exists("got"):
            quern("convert", "m", "-o", "got", "--to", "ct", "--resume")
        self.assertEqual(read("got/model.safetensors"), read("want/model.safetensors"))
        # Killed just behind the rename, a run leaves what it was made from.
        self.assertEqual(sorted(set(os.listdir("got")) - {".quern-convert"}),
                         sorted(os.listdir("want")))
        self.assertFalse(os.path.exists("got.part"))
        os.makedirs("other.part")
        with open("other.part/.quern-convert", "w") as file:
            file.write("something else")
        self.complains("convert", "m", "-o", "other", "--to", "ct", "--resume", status=4,
                       says=["was made from another model"])
        said = quern("convert", "m", "-o", "other", "--to", "ct")
        self.assertIn("is thrown away", said.err)


class Folders(Case):
    """quantize --to, compare and run on folders."""

    def plain(self):
        draw = random.Random(4)
        tensors = {"model.embed_tokens.weight": ("F16", [VOCAB, HIDDEN],
                                                 [i % 5 / 4 for i in range(VOCAB * HIDDEN)]),
                   "model.norm.weight": ("F16", [HIDDEN], [1.5] * HIDDEN),
                   "model.layers.0.input_layernorm.weight": ("F16", [HIDDEN], [0.5] * HIDDEN)}
        for name, (n, k) in LAYER.items():
            tensors[f"model.layers.0.{name}.weight"] = (
                "F16", [n, k], [draw.gauss(0, .02) for _ in range(n * k)])
        os.makedirs("p")
        safetensors("p/model.safetensors", tensors)
        for name, value in (("config", CONFIG), ("tokenizer", TOKENIZER)):
            with open(f"p/{name}.json", "w") as file:
                json.dump(value, file)

    def test_quantize(self):
        self.plain()
        for to, more in (("awq", []), ("gptq_v2", ["--group", "32", "--scheme", "zp"]),
                         ("ct", ["-f", "mxfp4"]), ("bnb", []), ("gguf:q8_0", []), ("gguf", [])):
            out = to.replace(":", "-")
            slash = "" if to.startswith("gguf") else "/"
            said = quern("quantize", "p", "-o", out + slash, "--to", to, *more)
            self.assertIn("7 weights as", said)
            self.assertIn("exact", said)
            self.assertFalse(os.path.exists(f"{out}.quantized") or os.path.exists(f"{out}.part"))
            said = quern("compare", out, "p", "--min-sqnr", "15")
            self.assertIn("10 tensors, 0 failed", said)
        self.assertEqual(load("awq/config.json")["quantization_config"]["group_size"], 128)
        self.assertEqual(load("gptq_v2/config.json")["quantization_config"]["sym"], False)
        self.assertEqual(load("ct/config.json")["quantization_config"]["format"],
                         "mxfp4-pack-quantized")
        self.assertEqual(read("awq/tokenizer.json"), read("p/tokenizer.json"))
        quern("quantize", "p", "-o", "some", "--to", "awq", "-i", "*proj.weight", "-e", "*down*")
        self.assertEqual(load("some/config.json")["quantization_config"]["modules_to_not_convert"],
                         ["model.layers.0.mlp.down_proj", "lm_head"])
        self.complains("quantize", "p", "-o", "awq", "--to", "awq", status=2, says="there already")
        self.complains("quantize", "p", "-o", "x", "--to", "onnx9", status=2, says="no such format")
        with open("x.quantized", "w") as file:
            file.write("mine")
        self.complains("quantize", "p", "-o", "x", "--to", "awq", status=2, says="not ours")
        self.assertEqual(read("x.quantized"), b"mine")

    def test_compare_and_run(self):
        model("m")
        quern("convert", "m", "-o", "m.gguf", "--to", "gguf")
        quern("convert", "m", "-o", "c", "--to", "ct")
        for a, b in (("m", "m.gguf"), ("m.gguf", "c"), ("c", "m")):
            said = json.loads(quern("compare", a, b, "--json"))
            self.assertEqual((len(said["tensors"]), said["failed"], said["pass"]), (11, 0, True))
            self.assertTrue(all(t["max_abs"] == 0 for t in said["tensors"]), said)
        quern("convert", "m", "-o", "m.packed", "--to", "packed")
        quern("verify", "m.packed")
        quern("quantize", "c", "-o", "no.st", status=3)
        self.plain()
        said = quern("compare", "m", "p", status=1)
        self.assertIn("not there", said)
        from command import npy_read, npy_write
        npy_write("x.npy", [2, HIDDEN], [((i * 7) % 11 - 5) / 4 for i in range(2 * HIDDEN)])
        results = []
        for weights in ("m:model.layers.0.mlp.up_proj.weight",
                        "c:model.layers.0.mlp.up_proj.weight",
                        "m.packed:model.layers.0.mlp.up_proj.weight", "m.gguf:blk.0.ffn_up.weight"):
            quern("run", "-w", weights, "-x", "x.npy", "-o", "y.npy", "--force")
            results.append(npy_read("y.npy")[1])
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])
        for mine, other in zip(results[0], results[3]):
            self.assertAlmostEqual(mine, other, places=4)
        self.complains("run", "-w", "m:none", "-x", "x.npy", "-o", "z.npy", status=3, says="none")
        self.complains("run", "-w", "m:model.norm.weight", "-x", "x.npy", "-o", "z.npy", status=3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
