#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# dlpack_cxx.sh ROOT: quern/dlpack.h compiles and works as C++11 with every compiler there is.
set -eu
root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ran=0
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || { echo "skipped: no $compiler"; continue; }
    if ! echo '#include <dlpack/dlpack.h>' | $compiler -E -x c++ - >/dev/null 2>&1; then
        echo "skipped: DLPack's own header is not installed"
        continue
    fi
    $compiler -std=c++11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I"$root/include" \
        "$root/test/api/dlpack_cxx.cc" -o "$scratch/program"
    "$scratch/program"
    ran=$((ran + 1))
done
[ $ran -gt 0 ] || exit 77
