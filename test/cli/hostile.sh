#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# hostile.sh QUERN: names, types, files and sizes that nobody means well with (hostile.py).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 -B "$(dirname "$0")/hostile.py" "$1"
