#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bare.sh COMPILER ROOT SCRATCH: the library without its build system, by the command that the
# README has for it (but with -O0, for the time it takes): every portable source, no -m flag, no
# definition, two include paths. A program made with the result computes.
set -eu
compiler=$1 root=$2 scratch=$3
rm -rf "$scratch"
mkdir -p "$scratch"

command=$(sed -n '/^cc -std=c11 -O3 -fPIC -shared/,/-pthread$/p' "$root/README.md")
[ -n "$command" ] || { echo "README.md has no command that builds the library"; exit 1; }
command=${command/#cc/"$compiler"}
command=${command/-O3/-O0}
(cd "$root" && eval "${command/libquern.so/"$scratch/libquern.so"}")

"$compiler" -std=c11 -I"$root/include" "$root/test/consumer/program.c" -o "$scratch/program" \
    -L"$scratch" -lquern -Wl,-rpath,"$scratch" -lm -pthread
"$scratch/program"
