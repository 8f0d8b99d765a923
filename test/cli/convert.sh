#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# convert.sh QUERN: quern convert and inspect on other programs' models (convert.py says what is
# checked).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 "$(dirname "$0")/convert.py" "$1"
