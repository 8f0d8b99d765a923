#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# verify.sh QUERN: checks of structure, values and checksums (verify.py).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 -B "$(dirname "$0")/verify.py" "$@"
