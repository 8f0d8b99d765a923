#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# commands.sh QUERN: all but quantize, bench and demo, as a person uses it (commands.py).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 "$(dirname "$0")/commands.py" "$1"
