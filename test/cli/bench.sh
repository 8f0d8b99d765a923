#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh QUERN: quern bench and explain, as a person uses it (bench.py says what is checked).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 "$(dirname "$0")/bench.py" "$1" Bench Tuning
