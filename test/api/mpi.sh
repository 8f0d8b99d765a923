#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mpi.sh ROOT LIBQUERN.SO: quern/mpi.h with every MPI there is: the example of a block compiles
# without a warning as C, and has the bits of one process on 1 to 4 ranks.
set -u
root=$1 library=$2
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
ran=0 failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none HYDRA_LAUNCHER=fork TMPDIR=$scratch
for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" >/dev/null || ! command -v "mpirun.$mpi" >/dev/null; then
        echo "skipped: no $mpi"
        continue
    fi
    # The MPI's own header is not ours to judge.
    include=$(pkg-config --cflags "$([ $mpi = openmpi ] && echo ompi-c || echo mpich)" |
        sed 's/-I/-isystem /g')
    # shellcheck disable=SC2086
    if ! "mpicc.$mpi" -std=c11 $include -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes \
        -Werror -I"$root/include" "$root/examples/mpi/block.c" "$library" \
        -Wl,-rpath,"$(dirname "$library")" -o "$scratch/block"; then
        failed=1
        continue
    fi
    for n in 1 2 3 4; do
        timeout 100 "mpirun.$mpi" -np $n "$scratch/block" >"$scratch/out" 2>&1
        rc=$?
        if [ $rc -ne 0 ] || ! grep -q "^$n ranks, .*bits of one process: yes" "$scratch/out"; then
            echo "$mpi -np $n: status $rc"
            cat "$scratch/out"
            failed=1
        fi
        ran=$((ran + 1))
    done
done
[ $ran -gt 0 ] || [ $failed -ne 0 ] || exit 77
echo "$ran runs"
exit $failed
