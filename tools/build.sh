#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/build.sh PRESET [TARGET...]: configures and builds one preset of CMakePresets.json into
# build/PRESET. Quiet when all goes well; what went wrong is printed. Compiler warnings always are.
set -u
cd "$(dirname "$0")/.." || exit 1
preset=$1
shift
mkdir -p build/log
log=build/log/$preset.configure

if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
exec cmake --build "build/$preset" "${targets[@]}" -- --quiet
