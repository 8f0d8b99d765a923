#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every sentence of validators and plans reaches the caller of a direct call.

    sentences.py PROGRAM SOURCE...

PROGRAM --print (test_api_sentences) writes the sentences that failing calls gave; each format of a
qni_fail() in the sources must be among them, but for those that no CPU alone can bring about.
"""
import re
import subprocess
import sys

# What it takes a GPU to see, weights from a file of another machine, a machine without the kernels
# of this one, no memory, or a struct that ends before its qn_error.
ELSEWHERE = ("is packed for device", "which needs CPU features that the context lacks",
             "a strict plan refuses", "no memory for a plan", "it ends before y",
             "rows are prepared on the CPU alone", "are for the CPU alone",
             "is for the CPU alone", "a batch of matrices")

STRING = r'"(?:[^"\\]|\\.)*"'
FAIL = re.compile(r"\bqni_fail\(\s*err,\s*[A-Z0-9_a-z]+,\s*((?:" + STRING + r"\s*)+)")


def formats(path):
    with open(path, encoding="utf-8") as file:
        for match in FAIL.finditer(file.read()):
            yield "".join(text[1:-1] for text in re.findall(STRING, match.group(1)))


def pattern(text):
    parts = re.split(r"%(?:\.\d+)?(?:lld|zu|d|s|u)", text)
    return re.compile(".*".join(re.escape(part) for part in parts) + "$")


def main():
    program, *sources = sys.argv[1:]
    output = subprocess.run([program, "--print"], stdout=subprocess.PIPE, check=True, text=True)
    heard = re.findall(r"^sentence: (.*)$", output.stdout, re.M)
    total, missing = 0, []
    for source in sources:
        for text in formats(source):
            total += 1
            if any(word in text for word in ELSEWHERE):
                continue
            if not any(pattern(text).match(sentence) for sentence in heard):
                missing.append(f"{source}: no failing call of the test gives: {text}")
    print("\n".join(missing))
    print(f"{total} sentences, {len(heard)} heard, {len(missing)} missing")
    return 1 if missing or total < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
