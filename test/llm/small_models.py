#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example engine on small random models that are made here, beside the same layers in numpy
(double): perplexity of a text, and greedy text. Usage: small_models.py LLM; 77: no numpy."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: the engine's models need numpy")
    sys.exit(77)

LLM = sys.argv.pop(1) if __name__ == "__main__" else None
TEXT = "She sells 12 sea shells; they're by the sea-shore.\n\nIt's 1999 again, naïve café. " * 3
F32, Q8_0, Q4_1 = 0, 8, 3


# ---- files --------------------------------------------------------------------------------------

def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    if isinstance(v[0], str):
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(string(s) for s in v)
    kind, code = (6, "f") if isinstance(v[0], float) else (5, "i")
    return struct.pack("<IIQ", 9, kind, len(v)) + struct.pack(f"<{len(v)}{code}", *v)


def write_gguf(path, keys, tensors):
    """tensors: (name, shape with the innermost last, type, bytes)"""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(string(k) + value(v) for k, v in keys.items())
    at, infos, data = 0, b"", b""
    for name, shape, kind, raw in tensors:
        infos += string(name) + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, at)
        data += raw + bytes(-len(raw) % 32)
        at = len(data)
    head += infos
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)


def quantized(rng, n, k, kind):
    """Random blocks of a type: their bytes, and the values they stand for."""
    d = (rng.uniform(0.5, 1.5, (n, k // 32)) * 0.03 / np.sqrt(k / 64)).astype("<f2")
    if kind == Q8_0:
        q = rng.integers(-40, 41, (n, k // 32, 32)).astype(np.int8)
        raw = np.concatenate([d[..., None].view(np.uint8), q.view(np.uint8)], axis=2)
        return raw.tobytes(), (d.astype(float)[..., None] * q).reshape(n, k)
    q = rng.integers(0, 16, (n, k // 32, 32)).astype(np.uint8)
    m = (-8 * d.astype(float)).astype("<f2")
    packed = q[..., :16] | q[..., 16:] << 4
    raw = np.concatenate([d[..., None].view(np.uint8), m[..., None].view(np.uint8), packed], axis=2)
    scale, least = d.astype(float)[..., None], m.astype(float)[..., None]
    return raw.tobytes(), (scale * q + least).reshape(n, k)


def byte_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(other)}}


# ---- a model ------------------------------------------------------------------------------------

HUGGING_FACE = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm"}


class Model:
    """Random weights in a GGUF file, and the layers in double."""

    def __init__(self, arch, path, seed=1, tied=False, mixed=False):
        self.arch, self.rng = arch, np.random.default_rng(seed)
        self.layers, self.width, self.heads, self.kv, self.dim, self.ffn = 3, 96, 6, 2, 32, 160
        self.gemma = arch == "gemma3"
        if self.gemma:
            self.layers = 7
        self.tensors, self.values = [], {}
        alphabet = byte_alphabet()
        self.tokens = [alphabet[b] for b in range(256)]
        merges = self.merges = ["s e", "Ġ s", "h e", "l l", "Ġs e"]
        self.tokens += [m.replace(" ", "") for m in merges] + ["<|end|>"]
        self.n_tokens = len(self.tokens)
        self.matrix("token_embd.weight", self.n_tokens, self.width, Q8_0)
        self.vector("output_norm.weight", self.width)
        if not tied:
            self.matrix("output.weight", self.n_tokens, self.width, Q4_1)
        for i in range(self.layers):
            self.layer(f"blk.{i}.", mixed)
        keys = {"general.architecture": arch, "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": self.tokens,
                "tokenizer.ggml.token_type": [1] * (self.n_tokens - 1) + [3],
                "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_bos_token": False,
                "tokenizer.ggml.eos_token_id": self.n_tokens - 1}
        for key, v in (("block_count", self.layers), ("embedding_length", self.width),
                       ("attention.head_count", self.heads), ("attention.head_count_kv", self.kv),
                       ("attention.key_length", self.dim), ("feed_forward_length", self.ffn),
                       ("context_length", 512), ("attention.layer_norm_rms_epsilon", 1e-5),
                       ("rope.freq_base", 10000.0 if not self.gemma else 1e6),
                       ("attention.sliding_window", 16)):
            keys[f"{arch}.{key}"] = v
        write_gguf(path, keys, self.tensors)

    def write_folder(self, folder):
        """The same weights, not quantized, as a Hugging Face folder."""
        header, data = {}, b""
        for name, values in self.values.items():
            stem, kind = name.rsplit(".", 1)
            parts = stem.split(".")
            new = HUGGING_FACE[parts[-1]]
            if parts[0] == "blk":
                new = f"model.layers.{parts[1]}.{new}"
            raw = values.astype("<f4").tobytes()
            header[f"{new}.{kind}"] = {"dtype": "F32", "shape": list(values.shape),
                                       "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        config = {"model_type": self.arch, "num_hidden_layers": self.layers,
                  "hidden_size": self.width, "num_attention_heads": self.heads,
                  "num_key_value_heads": self.kv, "head_dim": self.dim,
                  "intermediate_size": self.ffn, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                  "max_position_embeddings": 512, "eos_token_id": [self.n_tokens - 1]}
        tokenizer = {
            "added_tokens": [{"id": self.n_tokens - 1, "content": "<|end|>", "special": True}],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]},
            "model": {"type": "BPE", "merges": [m.split(" ") for m in self.merges],
                      "vocab": {t: i for i, t in enumerate(self.tokens[:-1])}}}
        for name, value_of in (("config", config), ("tokenizer", tokenizer)):
            with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
                json.dump(value_of, file)

    def matrix(self, name, n, k, kind):
        raw, values = quantized(self.rng, n, k, kind)
        self.tensors.append((name, (n, k), kind, raw))
        self.values[name] = values

    def vector(self, name, n, around=1.0):
        values = (around + 0.2 * self.rng.standard_normal(n)).astype("<f4")
        self.tensors.append((name, (n,), F32, values.tobytes()))
        self.values[name] = values.astype(float)

    def layer(self, p, mixed):
        q, kv = self.heads * self.dim, self.kv * self.dim
        other = Q8_0 if mixed else Q4_1
        for name, n, k, kind in (("attn_q", q, self.width, Q4_1), ("attn_k", kv, self.width, Q4_1),
                                 ("attn_v", kv, self.width, other),
                                 ("ffn_up", self.ffn, self.width, other),
                                 ("attn_output", self.width, q, Q4_1),
                                 ("ffn_gate", self.ffn, self.width, Q4_1),
                                 ("ffn_down", self.width, self.ffn, Q8_0)):
            self.matrix(f"{p}{name}.weight", n, k, kind)
        norms = ["attn_norm", "ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm"] if self.gemma else []
        for name in norms:
            self.vector(f"{p}{name}.weight", self.width)
        if self.arch in ("qwen3", "gemma3"):
            self.vector(f"{p}attn_q_norm.weight", self.dim)
            self.vector(f"{p}attn_k_norm.weight", self.dim)
        if self.arch == "qwen2":
            for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                self.vector(f"{p}{name}.bias", n, 0.0)

    # -- the same in double

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.values[name + ".weight"]

    def rotate(self, x, base):
        """x: [tokens, heads, dim]"""
        half = self.dim // 2
        angle = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        pairs = (slice(0, None, 2), slice(1, None, 2)) if self.arch == "llama" else \
            (slice(0, half), slice(half, None))
        a, b = x[..., pairs[0]], x[..., pairs[1]]
        out[..., pairs[0]], out[..., pairs[1]] = a * c - b * s, a * s + b * c
        return out

    def attention(self, h, i):
        p, t = f"blk.{i}.", len(h)
        q, k, v = ((h @ self.values[f"{p}attn_{n}.weight"].T +
                    self.values.get(f"{p}attn_{n}.bias", 0)).reshape(t, -1, self.dim)
                   for n in "qkv")
        if f"{p}attn_q_norm.weight" in self.values:
            q, k = self.norm(q, p + "attn_q_norm"), self.norm(k, p + "attn_k_norm")
        local = self.gemma and (i + 1) % 6 != 0
        base = 1e6 if self.gemma and not local else 1e4
        q, k = self.rotate(q, base), self.rotate(k, base)
        k, v = (np.repeat(a, self.heads // self.kv, axis=1) for a in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(self.dim)
        distance = np.arange(t)[:, None] - np.arange(t)[None, :]
        scores[:, (distance < 0) | (distance >= (16 if local else t + 1))] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", weights, v).reshape(t, -1) @ \
            self.values[f"{p}attn_output.weight"].T

    def network(self, h, i):
        gate, up = (h @ self.values[f"blk.{i}.ffn_{n}.weight"].T for n in ("gate", "up"))
        act = gate / (1 + np.exp(-gate)) if not self.gemma else \
            0.5 * gate * (1 + np.tanh(0.7978845608 * (gate + 0.044715 * gate ** 3)))
        return (act * up) @ self.values[f"blk.{i}.ffn_down.weight"].T

    def logits(self, tokens):
        x = self.values["token_embd.weight"][tokens] * (np.sqrt(self.width) if self.gemma else 1)
        for i in range(self.layers):
            p = f"blk.{i}."
            y = self.attention(self.norm(x, p + "attn_norm"), i)
            x = x + (self.norm(y, p + "post_attention_norm") if self.gemma else y)
            y = self.network(self.norm(x, p + "ffn_norm"), i)
            x = x + (self.norm(y, p + "post_ffw_norm") if self.gemma else y)
        head = self.values.get("output.weight", self.values["token_embd.weight"])
        return self.norm(x, "output_norm") @ head.T

    def encode(self, text):
        """The merges of this vocabulary happen inside words: s e, h e, l l, and ' s', ' se'."""
        alphabet, out = byte_alphabet(), []
        spelled = "".join(alphabet[b] for b in text.encode())
        for word in spelled.replace("Ġ", "\0Ġ").split("\0"):
            parts = list(word)
            for pair in (("s", "e"), ("Ġ", "s"), ("h", "e"), ("l", "l"), ("Ġs", "e")):
                i = 0
                while i + 1 < len(parts):
                    if (parts[i], parts[i + 1]) == pair:
                        parts[i:i + 2] = [pair[0] + pair[1]]
                    i += 1
            out += [self.tokens.index(s) for s in parts]
        return out

    def perplexity(self, tokens):
        z = self.logits(tokens)[:-1]
        z = z - z.max(-1, keepdims=True)
        chosen = z[np.arange(len(z)), tokens[1:]]
        return np.exp((np.log(np.exp(z).sum(-1)) - chosen).mean())


def run(*arguments):
    return subprocess.run([LLM, *arguments], capture_output=True, timeout=300, check=False)


class Engine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "model.gguf")
        self.text = os.path.join(self.folder.name, "text")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(TEXT)

    def perplexity_of(self, *options):
        result = run(self.path, "--perplexity", self.text, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return float(result.stdout.split()[1])

    def compare(self, model):
        tokens = model.encode(TEXT)
        expected = model.perplexity(tokens)
        for options in (("--block", "256"), ("--block", "7", "-t", "1"), ("--block", "1")):
            with self.subTest(arch=model.arch, options=options):
                found = self.perplexity_of("--strategy", "float", *options)
                self.assertLess(abs(found / expected - 1), 2e-4, f"{found}, not {expected}")
        found = self.perplexity_of("--strategy", "int8-block")
        self.assertLess(abs(found / expected - 1), 0.03, f"int8-block: {found}, not {expected}")

    def test_llama(self):
        self.compare(Model("llama", self.path))

    def test_llama_with_tied_head_and_mixed_formats(self):
        self.compare(Model("llama", self.path, seed=2, tied=True, mixed=True))

    def test_qwen2(self):
        self.compare(Model("qwen2", self.path, seed=3))

    def test_qwen3(self):
        self.compare(Model("qwen3", self.path, seed=4, tied=True))

    def test_gemma3(self):
        self.compare(Model("gemma3", self.path, seed=5, tied=True))

    def test_folders(self):
        for arch, tied in (("mistral", False), ("qwen2", False), ("qwen3", False)):
            with self.subTest(arch=arch):
                model = Model(arch, self.path, seed=7, tied=tied)
                model.write_folder(self.folder.name)
                expected = model.perplexity(model.encode(TEXT))
                result = run(self.folder.name, "--perplexity", self.text, "--strategy", "float",
                             "--quantize", "int8:g32")
                self.assertEqual(result.returncode, 0, result.stderr)
                found = float(result.stdout.split()[1])
                self.assertLess(abs(found / expected - 1), 0.01, f"{found}, not {expected}")
                self.assertIn(b"not quantized became int8:g32", result.stderr)

    def test_folders_that_lack_something(self):
        model = Model("qwen2", self.path, seed=7)
        for name, words in (("tokenizer.json", "tokenizer.json"), ("config.json", "config.json")):
            with self.subTest(name=name):
                model.write_folder(self.folder.name)
                os.remove(os.path.join(self.folder.name, name))
                result = run(self.folder.name, "-p", "x")
                self.assertEqual(result.returncode, 1)
                self.assertIn(words, result.stderr.decode())

    def test_greedy_text(self):
        model = Model("llama", self.path, seed=6)
        tokens = model.encode("she sells")
        made = []
        for _ in range(12):
            made.append(int(model.logits(tokens + made)[-1].argmax()))
        result = run(self.path, "-p", "she sells", "-n", "12", "--strategy", "float", "--ids")
        self.assertEqual([int(i) for i in result.stdout.split()], made)
        back = {c: b for b, c in byte_alphabet().items()}
        expected = b"".join(bytes(back[c] for c in model.tokens[i])
                            for i in made if i < model.n_tokens - 1)
        result = run(self.path, "-p", "she sells", "-n", "12", "--strategy", "float", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.rstrip(b"\n"), expected.rstrip(b"\n"))

    def test_refusals(self):
        model = Model("llama", self.path)
        cut = os.path.join(self.folder.name, "cut.gguf")
        with open(self.path, "rb") as file, open(cut, "wb") as out:
            out.write(file.read()[:-5000])
        other = os.path.join(self.folder.name, "other.gguf")
        write_gguf(other, {"general.architecture": "bloom"}, model.tensors)
        lacks = os.path.join(self.folder.name, "lacks.gguf")
        keys = {"general.architecture": "llama", "llama.block_count": 3}
        write_gguf(lacks, keys, model.tensors)
        for arguments, words in (([cut, "-p", "x"], "truncated"), ([other, "-p", "x"], "bloom"),
                                 ([lacks, "-p", "x"], "incomplete"), ([self.path], "usage"),
                                 ([self.path, "-p", "x", "-n", "many"], "many"),
                                 ([self.path, "-p", "x" * 3000, "--context", "64"], "exceed"),
                                 (["/nowhere.gguf", "-p", "x"], "/nowhere.gguf")):
            with self.subTest(words=words):
                result = run(*arguments)
                self.assertIn(result.returncode, (1, 2))
                self.assertIn(words, result.stderr.decode())


if __name__ == "__main__":
    unittest.main()
