#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# quantize.sh QUERN: quern quantize, as a person uses it (quantize.py says what is checked).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 "$(dirname "$0")/quantize.py" "$1"
