#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# headers.sh ROOT: every public header compiles alone and twice, as C11 and as C++11, with every
# compiler there is, without a warning under the flags a strict user might have.
set -u
root=$1
strict='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failed=0 compiled=0

compile() { # compiler language flags...
    local compiler=$1 ending=$2 header
    shift 2
    command -v "$compiler" >/dev/null || { echo "skipped: no $compiler"; return; }
    for header in "$root"/include/quern/*.h; do
        name=$(basename "$header")
        if [ "$name" = dlpack.h ] && ! echo '#include <dlpack/dlpack.h>' |
            "$compiler" -E -x c - >/dev/null 2>&1; then
            echo "skipped: $name, DLPack's own header is not installed"
            continue
        fi
        include=''
        if [ "$name" = mpi.h ]; then # the MPI's own header is not ours to judge
            include=$(pkg-config --cflags mpi-c 2>/dev/null | sed 's/-I/-isystem /g')
            # shellcheck disable=SC2086
            if ! echo '#include <mpi.h>' | "$compiler" $include -E -x c - >/dev/null 2>&1; then
                echo "skipped: $name, there is no MPI"
                continue
            fi
        fi
        # What the tests have in the place of NCCL and CUDA.
        [ "$name" != nccl.h ] || include="-isystem $root/test/api/fake_nccl"
        printf '#include <quern/%s>\n#include <quern/%s>\n' "$name" "$name" >"$scratch/one$ending"
        # shellcheck disable=SC2086
        if ! "$compiler" "$@" $include -I"$root/include" -fsyntax-only "$scratch/one$ending"; then
            echo "$name does not stand alone as $* with $compiler"
            failed=1
        fi
        compiled=$((compiled + 1))
    done
}

for compiler in gcc clang; do
    # shellcheck disable=SC2086
    compile $compiler .c -std=c11 $strict
done
for compiler in g++ clang++; do
    # shellcheck disable=SC2086
    compile $compiler .cc -std=c++11 $strict
done
# With CUDA's own runtime, as C++ for nvcc; NCCL's header is that of the tests.
if PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then
    mkdir "$scratch/nccl" && cp "$root/test/api/fake_nccl/nccl.h" "$scratch/nccl/"
    printf '#include <quern/nccl.h>\nint main() { return 0; }\n' >"$scratch/one.cu"
    if ! PATH=$PATH:/usr/local/cuda/bin nvcc -Werror all-warnings -c -o "$scratch/one.o" \
        -I"$root/include" -isystem "$scratch/nccl" "$scratch/one.cu"; then
        echo "nccl.h does not compile with nvcc"
        failed=1
    fi
fi
[ $compiled -gt 0 ] || { echo "no compiler, no header: nothing was checked"; failed=1; }
exit $failed
