#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bounds.sh QUERN: memory and time that large checkpoints take (bounds.py).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the tests of the command"
    exit 77
}
exec python3 -B "$(dirname "$0")/bounds.py" "$@"
