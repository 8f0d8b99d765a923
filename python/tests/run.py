#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All tests of the Python package: run.py [-v] [NAME...]. Status 77 where numpy is missing, or
where all tests of the named modules are skipped.

QUERN_LIBRARY names the library of a build tree; without it the installed package is tested.
"""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    try:
        import numpy  # noqa: F401
    except ImportError as why:
        print(f"skipped: the Python package is not tested: {why}")
        return 77
    sys.path.insert(0, HERE)
    if os.environ.get("QUERN_LIBRARY"):
        sys.path.insert(0, os.path.join(HERE, ".."))
        os.environ["PYTHONPATH"] = os.path.join(HERE, "..")
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.discover(HERE)
    result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1).run(suite)
    for why in sorted({why for _, why in result.skipped}):
        print(f"skipped: tests of the Python package: {why}")
    if names and result.wasSuccessful() and len(result.skipped) >= result.testsRun:
        return 77
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
