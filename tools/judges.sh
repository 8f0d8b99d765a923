#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/judges.sh [PACKAGE...]: installs into build/venv the packages of the Python index that
# exports are tried in (test/oracle/judges.txt), or those that are named. What cannot be installed
# here is told, and its tests stay skipped. Gigabytes, and a quarter of an hour of compiling.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/log
tools/setup.sh check || exit 1
[ -x build/venv/bin/pip ] || python3 -m venv build/venv || exit 1
if [ $# -gt 0 ]; then
    lines=$(printf '%s\n' "$@")
else
    lines=$(grep -v '^#' test/oracle/judges.txt)
fi
missing=''
while read -r packages; do
    log="build/log/judge-${packages// /-}"
    # shellcheck disable=SC2086
    if timeout 3600 build/venv/bin/pip install -q --disable-pip-version-check $packages \
        >"$log" 2>&1 </dev/null; then
        echo "installed $packages"
    else
        echo "skipped: $packages cannot be installed here ($log)"
        missing=yes
    fi
done <<<"$lines"
[ -z "$missing" ] || echo "quern: tests of what is missing will be skipped"
