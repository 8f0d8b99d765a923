# SPDX-License-Identifier: Apache-2.0
"""Small random language models as Hugging Face folders - weights, config.json, tokenizer.json - and
their logits in double, as transformers defines them. Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3."""
import json
import os

import numpy as np

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
                 "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
                 "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
                 "gemma3_text": "Gemma3ForCausalLM"}
TEXTS = ("She sells 12 sea shells by the sea-shore.", "It's 1999 again;\n\n  naïve café",
         "a\tb", "日本 ok")
WINDOW = 8
SPLIT = {"llama": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
         "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}


def byte_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(other)}}


def byte_level(rule):
    """tokenizer.json of a byte-level BPE with few merges, and how many tokens it has."""
    alphabet = byte_alphabet()
    merges = ["s e", "Ġ s", "h e", "l l", "Ġs e", "e l", "1 9", "9 9"]
    tokens = [alphabet[b] for b in range(256)] + [m.replace(" ", "") for m in merges]
    added = [{"id": len(tokens) + i, "content": f"<|{word}|>", "special": True, "lstrip": False,
              "rstrip": False, "normalized": False, "single_word": False}
             for i, word in enumerate(("begin", "end"))]
    split = {"type": "Split", "pattern": {"Regex": SPLIT[rule]}, "behavior": "Isolated",
             "invert": False}
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    made = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "post_processor": None, "decoder": whole,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, whole]},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}}
    return made, len(tokens) + 2, len(tokens)


def sentence_pieces(is_gemma):
    """tokenizer.json of a BPE with byte fallback, as SentencePiece models are converted to."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if is_gemma else ["<unk>", "<s>", "</s>"]
    bytes_of = [f"<0x{b:02X}>" for b in range(256)]
    merges = ["▁ s", "s e", "h e", "l l", "▁s e", "e l", "1 9", "9 9", "▁ a"]
    letters = list("▁abcdefghijklmnopqrstuvwxyzISG0123456789.-';")
    tokens = special + bytes_of + [m.replace(" ", "") for m in merges] + letters
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    added = [{"id": i, "content": t, "special": True, "lstrip": False, "rstrip": False,
              "normalized": False, "single_word": False} for i, t in enumerate(special)]
    made = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": blank if is_gemma else {"type": "Sequence",
                                                  "normalizers": [prepend, blank]},
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
                      "byte_fallback": True, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}}
    return made, len(tokens), 2 if is_gemma else 1


def bf16(values):
    """Rounded to what 16-bit brain floats hold."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    return (bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000).view("<f4")


class HfModel:
    """Random weights under Hugging Face's names. layers, width and the like as in config.json."""

    def __init__(self, kind, tied=None, width=64, seed=3, scaling=None):
        self.kind, self.draw, self.scaling = kind, np.random.default_rng(seed), scaling
        self.has_four_norms = kind in ("gemma2", "gemma3_text")
        self.is_gemma = kind.startswith("gemma")
        self.layers = 7 if kind == "gemma3_text" else 2
        self.width, self.ffn, self.heads, self.kv = width, 2 * width, 4, 2
        self.dim = 32 if kind == "qwen3" or self.is_gemma else width // 4
        self.tied = self.is_gemma if tied is None else tied
        self.tokenizer, self.vocab, self.bos = (
            byte_level("llama" if kind == "llama" else "qwen2")
            if kind in ("llama", "qwen2", "qwen3") else sentence_pieces(self.is_gemma))
        self.values = {}
        self.make()

    def matrix(self, name, n, k):
        self.values[name] = bf16(self.draw.normal(0, 1.5 / np.sqrt(k), (n, k)))

    def vector(self, name, n, around):
        self.values[name] = bf16(around + self.draw.normal(0, 0.3, n))

    def make(self):
        around = 0.0 if self.is_gemma else 1.0
        self.matrix("model.embed_tokens.weight", self.vocab, self.width)
        self.vector("model.norm.weight", self.width, around)
        if not self.tied:
            self.matrix("lm_head.weight", self.vocab, self.width)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if self.has_four_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for i in range(self.layers):
            p = f"model.layers.{i}."
            for norm in norms:
                self.vector(f"{p}{norm}.weight", self.width, around)
            for part, heads in (("q", self.heads), ("k", self.kv), ("v", self.kv)):
                self.matrix(f"{p}self_attn.{part}_proj.weight", heads * self.dim, self.width)
                if self.kind == "qwen2":
                    self.vector(f"{p}self_attn.{part}_proj.bias", heads * self.dim, 0.0)
                if self.kind in ("qwen3", "gemma3_text") and part != "v":
                    self.vector(f"{p}self_attn.{part}_norm.weight", self.dim, around)
            self.matrix(f"{p}self_attn.o_proj.weight", self.width, self.heads * self.dim)
            self.matrix(f"{p}mlp.gate_proj.weight", self.ffn, self.width)
            self.matrix(f"{p}mlp.up_proj.weight", self.ffn, self.width)
            self.matrix(f"{p}mlp.down_proj.weight", self.width, self.ffn)

    def config(self):
        made = {"architectures": [ARCHITECTURES[self.kind]], "model_type": self.kind,
                "hidden_size": self.width, "intermediate_size": self.ffn,
                "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv, "head_dim": self.dim, "rms_norm_eps": 1e-6,
                "rope_theta": self.base(5), "max_position_embeddings": 256,
                "vocab_size": self.vocab, "tie_word_embeddings": self.tied,
                "bos_token_id": self.bos, "eos_token_id": 1 if self.is_gemma else self.bos + 1,
                "hidden_act": "gelu_pytorch_tanh" if self.is_gemma else "silu",
                "torch_dtype": "bfloat16"}
        if self.has_four_norms:
            made.update(sliding_window=WINDOW, query_pre_attn_scalar=self.dim,
                        hidden_activation="gelu_pytorch_tanh",
                        layer_types=["sliding_attention" if self.is_local(i) else "full_attention"
                                     for i in range(self.layers)])
        if self.kind == "gemma2":
            made.update(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
        if self.kind == "gemma3_text": # as transformers 5 writes it
            del made["rope_theta"]
            made["rope_parameters"] = {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default",
                                   **(self.scaling or {})},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}
        elif self.scaling is not None:
            made["rope_scaling"] = self.scaling
        return made

    def is_local(self, layer):
        """Does the layer see WINDOW positions only?"""
        if self.kind == "gemma2":
            return layer % 2 == 0
        return self.kind == "gemma3_text" and layer % 6 != 5

    def base(self, layer):
        if self.kind == "gemma3_text":
            return 10000.0 if self.is_local(layer) else 1e6
        return 10000.0 if self.kind in ("mistral", "gemma", "gemma2") else 500000.0

    def frequencies(self, layer):
        half = self.dim // 2
        plain = self.base(layer) ** (-np.arange(half) / half)
        if self.scaling is None or self.kind == "gemma3_text" and self.is_local(layer):
            return plain
        factor = self.scaling["factor"]
        if self.scaling["rope_type"] == "linear":
            return plain / factor
        low, high = (self.scaling[f"{name}_freq_factor"] for name in ("low", "high"))
        old = self.scaling["original_max_position_embeddings"]
        length = 2 * np.pi / plain # of waves, in positions
        smooth = (old / length - low) / (high - low)
        mixed = (1 - smooth) * plain / factor + smooth * plain
        return np.where(length < old / high, plain,
                        np.where(length > old / low, plain / factor, mixed))

    def write(self, folder):
        """The folder, weights in bf16. Needs the safetensors package's layout only, not it."""
        os.makedirs(folder, exist_ok=True)
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, values in self.values.items():
            raw = (values.view("<u4") >> 16).astype("<u2").tobytes()
            header[name] = {"dtype": "BF16", "shape": list(values.shape),
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{folder}/model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data)
        for name, value in (("config", self.config()), ("tokenizer", self.tokenizer),
                            ("tokenizer_config", {"add_bos_token": False})):
            with open(f"{folder}/{name}.json", "w", encoding="utf-8") as file:
                json.dump(value, file)

    def norm(self, x, name, values):
        scale = values[name + ".weight"].astype(float) + (1 if self.is_gemma else 0)
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def rotate(self, x, layer):
        half = self.dim // 2
        angle = np.arange(len(x))[:, None] * self.frequencies(layer)
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, i, values):
        p, n, made = f"model.layers.{i}.self_attn.", len(x), []
        for part in "qkv":
            y = x @ values[f"{p}{part}_proj.weight"].T.astype(float)
            y = (y + values.get(f"{p}{part}_proj.bias", 0)).reshape(n, -1, self.dim)
            if f"{p}{part}_norm.weight" in values:
                y = self.norm(y, f"{p}{part}_norm", values)
            made.append(y if part == "v" else self.rotate(y, i))
        q, k, v = made
        k, v = (np.repeat(t, self.heads // self.kv, axis=1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.dim)
        back = np.arange(n)[:, None] - np.arange(n)
        seen = back >= 0
        if self.kind == "gemma2":
            score = 50 * np.tanh(score / 50)
        if self.is_local(i):
            seen &= back < WINDOW
        score = np.where(seen, score, -np.inf)
        share = np.exp(score - score.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        y = np.einsum("hqk,khd->qhd", share, v).reshape(n, -1)
        return y @ values[f"{p}o_proj.weight"].T.astype(float)

    def network(self, x, i, values):
        w = {part: values[f"model.layers.{i}.mlp.{part}_proj.weight"].T.astype(float)
             for part in ("gate", "up", "down")}
        g = x @ w["gate"]
        if self.is_gemma:
            g = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g ** 3)))
        else:
            g = g / (1 + np.exp(-g))
        return (g * (x @ w["up"])) @ w["down"]

    def logits(self, tokens, values=None):
        """[tokens, vocabulary] in double; values: what a quantized copy of the weights holds."""
        values = {**self.values, **(values or {})}
        x = values["model.embed_tokens.weight"].astype(float)[tokens]
        if self.is_gemma:
            x = x * np.sqrt(self.width)
        for i in range(self.layers):
            p = f"model.layers.{i}."
            h = self.attention(self.norm(x, p + "input_layernorm", values), i, values)
            if self.has_four_norms:
                x = x + self.norm(h, p + "post_attention_layernorm", values)
                h = self.network(self.norm(x, p + "pre_feedforward_layernorm", values), i, values)
                x = x + self.norm(h, p + "post_feedforward_layernorm", values)
            else:
                x = x + h
                x = x + self.network(self.norm(x, p + "post_attention_layernorm", values), i,
                                     values)
        x = self.norm(x, "model.norm", values)
        head = values["model.embed_tokens.weight" if self.tied else "lm_head.weight"]
        y = x @ head.T.astype(float)
        return 30 * np.tanh(y / 30) if self.kind == "gemma2" else y


def distance(a, b):
    """How far logits lie apart, as a part of how far they spread."""
    return np.sqrt(np.mean((a - b) ** 2)) / b.std()
