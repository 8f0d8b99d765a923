#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# exports.sh QUERN: quern convert --to other programs' formats (exports.py says what is checked).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 "$(dirname "$0")/exports.py" "$1"
