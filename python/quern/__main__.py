# SPDX-License-Identifier: Apache-2.0
"""python -m quern: the command line, which is a program of its own."""
from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import native


def main() -> NoReturn:
    """Become the command; its exit status is this one's."""
    program = native("quern")
    if program is None:
        sys.exit("quern: the library came without the command (it was built with QN_CLI=OFF)")
    os.execv(program, ["quern", *sys.argv[1:]])


if __name__ == "__main__":
    main()
