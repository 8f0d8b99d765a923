#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of torch as they are (f32), and with quern's layers, in turn in one process.

    QUERN_LIBRARY=build/release/libquern.so PYTHONPATH=python bench/torch_models.py [THREADS]

The models are those of MiniLM-L6 and SmolLM2-135M (transformers makes them; their sizes, random
weights: what is timed does not depend on the values).
"""
import copy
import sys
import time

import torch
import transformers

import quern
import quern.torch

ROUNDS = 7


def encoder():
    config = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                                     intermediate_size=1536, vocab_size=30522)
    return transformers.BertModel(config).eval()


def decoder():
    config = transformers.LlamaConfig(hidden_size=576, intermediate_size=1536,
                                      num_hidden_layers=30, num_attention_heads=9,
                                      num_key_value_heads=3, vocab_size=49152,
                                      tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config).eval()


def prefill(model, tokens):
    ids = torch.randint(5, 1000, (1, tokens))
    return lambda: model(input_ids=ids)


def decode(model, past=64):
    """One token after `past` others, whose keys and values are kept."""
    ids, next_id = torch.randint(5, 1000, (1, past)), torch.randint(5, 1000, (1, 1))
    cache = model(input_ids=ids, use_cache=True).past_key_values

    def step():
        model(input_ids=next_id, past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return step


def in_turn(calls):
    """{name: the least of ROUNDS times, in ms}"""
    best = dict.fromkeys(calls, 1e9)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            best[name] = min(best[name], (time.perf_counter() - begin) * 1e3)
    return best


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    ways = (("int4:g32", "float"), ("int4:g32", "int8-block"), ("int8:pc", "int8-row"))
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, quern "
          f"{quern.__commit__}, {threads} threads, {','.join(quern.default_context().isa)}")
    for name, make, work in (
            ("MiniLM-L6, 128 tokens", encoder, lambda m: prefill(m, 128)),
            ("MiniLM-L6, 16 tokens", encoder, lambda m: prefill(m, 16)),
            ("SmolLM2-135M, 128 tokens", decoder, lambda m: prefill(m, 128)),
            ("SmolLM2-135M, one token after 64", decoder, decode)):
        plain = make()
        models = {"torch f32": plain}
        for format, strategy in ways:
            model = copy.deepcopy(plain)
            if hasattr(model, "lm_head"):  # not the embedding's any more
                model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            quern.torch.quantize_(model, format, strategy=strategy)
            models[f"{format} {strategy}"] = model
        with torch.inference_mode():
            best = in_turn({way: work(model) for way, model in models.items()})
        for way, ms in best.items():
            print(f"{name:34} {way:22} {ms:8.2f} ms {best['torch f32'] / ms:5.2f} x")


if __name__ == "__main__":
    main()
