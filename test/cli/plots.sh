#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# plots.sh QUERN: the records of benchmarks become tables and pictures (plots.py says how).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the pictures"
    exit 77
}
exec python3 "$(dirname "$0")/plots.py"
