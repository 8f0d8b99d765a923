#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command and its files: inputs that change while they are read, outputs that are in the
way, runs that an interruption cut in two.

    files.py QUERN [NAME...]
"""
import os
import signal
import sys
import unittest

from command import COMPLAINT, Case, normal, quern, quern_on_a_leash, safetensors


class Inputs(Case):
    def ends_with_a_word(self, words, path, bytes_left):
        """The file is cut while its tensors are read; the last line names it."""
        process = quern_on_a_leash(*words)
        process.stderr.readline()
        os.truncate(path, bytes_left)
        err = process.communicate(timeout=280)[1]
        line = err.strip().split("\n")[-1]
        self.assertEqual(process.returncode, 3, (words, err))
        self.assertRegex(line, COMPLAINT)
        self.assertIn(path, line)
        self.assertEqual([name for name in os.listdir(".") if name.startswith("q.")], [])

    def test_shrinks_under_many_threads(self):
        """Whichever thread meets the end first: a sentence with the file's name, exit status 3, and
        nothing is left."""
        for attempt in range(6):
            for method in ("rtn", "search"):
                self.many("m.safetensors")
                self.ends_with_a_word(["quantize", "m.safetensors", "-o", "q.safetensors",
                                       "--method", method, "-t", "4"],
                                      "m.safetensors", 4096 + attempt * 65536)

    def test_shrinks_within_a_page(self):
        """What is left of the last page reads as zeros, and no signal comes."""
        self.many("m.safetensors")
        whole = os.path.getsize("m.safetensors")
        self.ends_with_a_word(["quantize", "m.safetensors", "-o", "q.safetensors", "-t", "2"],
                              "m.safetensors", whole - 100)

    def test_is_rewritten(self):
        """Of the same size, other bytes."""
        self.many("m.safetensors")
        process = quern_on_a_leash("quantize", "m.safetensors", "-o", "q.safetensors", "-t", "2")
        process.stderr.readline()
        with open("m.safetensors", "r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"ab")
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 3, err)
        self.assertIn("m.safetensors: it was changed", err)
        self.assertFalse(os.path.exists("q.safetensors"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
