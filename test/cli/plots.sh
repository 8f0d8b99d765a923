#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# plots.sh QUERN: the records of benchmarks become tables and pictures (plots.py says how), and
# docs/parallel.md is what bench/scaling.py makes of its record.
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the pictures"
    exit 77
}
python3 "$(dirname "$0")/../../bench/scaling.py" --check || exit 1
exec python3 "$(dirname "$0")/plots.py"
