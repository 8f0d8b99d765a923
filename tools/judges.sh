#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/judges.sh [PACKAGE...]: installs into build/venv the packages of the Python index that
# exports are tried in (test/oracle/judges.txt), and fetches the sources of autoawq and gptqmodel
# to build/judges; or installs those that are named. What cannot be installed
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
# Of these a single file each decodes on a CPU, and the whole package does not install there.
[ $# -gt 0 ] || for source in autoawq==0.2.9 gptqmodel==7.7.0; do
    log="build/log/judge-${source%%=*}"
    mkdir -p build/judges
    if build/venv/bin/pip install -q setuptools wheel >"$log" 2>&1 &&
        timeout 300 build/venv/bin/pip download -q --disable-pip-version-check --no-deps \
            --no-build-isolation --no-binary :all: -d build/judges "$source" >>"$log" 2>&1 &&
        tar -C build/judges -xf "build/judges/${source/==/-}.tar.gz" 2>>"$log"; then
        echo "fetched $source"
    else
        echo "skipped: the source of $source cannot be fetched here ($log)"
        missing=yes
    fi
done
[ -z "$missing" ] || echo "quern: tests of what is missing will be skipped"
