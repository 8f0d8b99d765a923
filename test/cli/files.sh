#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# files.sh QUERN: inputs that change, outputs that are in the way, runs that go on (files.py).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 -B "$(dirname "$0")/files.py" "$@"
