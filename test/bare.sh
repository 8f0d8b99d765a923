#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bare.sh COMPILER ROOT SCRATCH: the library without its build system. `cc -std=c11` over every
# portable source, no -m flag, no definition, two include paths: an archive comes out, and a
# program made of it computes.
set -eu
compiler=$1 root=$2 scratch=$3
rm -rf "$scratch"
mkdir -p "$scratch"

sources=$(find "$root"/src/{base,quant,cpu,checkpoint,api} -name '*.c' \
    ! -name '*x86_*' ! -name '*arm_*' | sort)
compile_one() {
    local object
    object=$scratch/$(echo "${1#"$root"/src/}" | tr / _).o
    "$compiler" -std=c11 -O1 -I"$root/include" -I"$root/src" -c "$1" -o "$object"
}
export -f compile_one
export compiler root scratch
echo "$sources" | xargs -P "$(nproc)" -I '{}' bash -c 'compile_one "$1"' _ '{}'

ar rcs "$scratch/libquern.a" "$scratch"/*.o
"$compiler" -std=c11 -I"$root/include" "$root/test/consumer/program.c" -o "$scratch/program" \
    "$scratch/libquern.a" -lm -pthread
"$scratch/program"
