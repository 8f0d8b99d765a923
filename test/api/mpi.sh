#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mpi.sh ROOT LIBQUERN.SO [QUERN]: quern/mpi.h with every MPI there is: the example of a block
# compiles without a warning as C, and has the bits of one process on 1 to 4 ranks; so have the
# products, experts and convolutions of the tests, and products of the command, with the file that
# joins it to that MPI.
set -u
root=$1 library=$2 quern=${3:-}
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
    # Every product of the tests over ranks, on this MPI in place of their own processes.
    for name in parallel parallel_ops; do
        pkg-config --exists cmocka || continue
        # shellcheck disable=SC2046,SC2086
        if ! "mpicc.$mpi" -std=gnu11 -O1 $include -Wall -Wextra -Werror -DQN_TEST_MPI \
            -I"$root/include" -I"$root/test/api" "$root/test/api/$name.c" "$library" \
            $(pkg-config --cflags --libs cmocka) -lm -Wl,-rpath,"$(dirname "$library")" \
            -o "$scratch/$name"; then
            failed=1
            continue
        fi
        for n in 1 2 3 4; do
            timeout 200 "mpirun.$mpi" -np $n "$scratch/$name" >"$scratch/out" 2>&1
            rc=$?
            if [ $rc -ne 0 ] || ! grep -q '[1-9][0-9]* cases on all ranks, 0 tests failed' \
                "$scratch/out"; then
                echo "$mpi -np $n $name: status $rc"
                grep -v '^\[' "$scratch/out" | tail -20
                failed=1
            fi
            ran=$((ran + 1))
        done
    done
    if [ -z "$quern" ] || [ ! -e "$(dirname "$quern")/quern-$mpi.so" ]; then
        continue
    fi
    for way in column row block; do
        timeout 100 "mpirun.$mpi" -np 2 "$quern" bench --parallel $way --n 96 --k 160 --m 3 \
            --weights int8:pc --strategy int8-row --threads 1 --min-time 0.01 --json \
            >"$scratch/out" 2>&1
        rc=$?
        if [ $rc -ne 0 ] || [ "$(grep -c '"ranks":2' "$scratch/out")" != 2 ] ||
            ! grep -q '"scaling":"strong".*"same_y":"yes"' "$scratch/out"; then
            echo "$mpi bench --parallel $way: status $rc"
            cat "$scratch/out"
            failed=1
        fi
    done
    # quern run over processes: the bits of one.
    run="-x $scratch/x.npy --format int8:pc -s int8-row --act silu --threads 1 --force --json"
    python3 - "$scratch" <<'END' || { echo 'no python3: no quern run'; continue; }
import struct, sys
def npy(name, *shape):
    count, state = 1, 7
    for side in shape:
        count *= side
    values = []
    for i in range(count):
        state = (state * 1103515245 + 12345) % 2147483648
        values.append(state / 1073741824.0 - 1.0)
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % (tuple(shape),)
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    with open(sys.argv[1] + "/" + name + ".npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack("<%df" % count, *values))
npy("x", 5, 160), npy("w", 99, 160), npy("down", 37, 99), npy("bias", 99)
npy("image", 2, 8, 7, 6), npy("kernel", 13, 8, 3, 3)
END
    for n in 1 2 3; do
        for way in column row block conv; do
            case $way in
            column | row) what="-w $scratch/w.npy --bias $scratch/bias.npy --parallel $way $run" ;;
            block) what="-w $scratch/w.npy --down $scratch/down.npy --parallel block $run" ;;
            conv) what="-w $scratch/kernel.npy --pad 1 --parallel column ${run/x.npy/image.npy}" ;;
            esac
            # shellcheck disable=SC2086
            timeout 100 "mpirun.$mpi" -np $n "$quern" run $what -o "$scratch/y$n.npy" \
                >"$scratch/out" 2>&1
            rc=$?
            alone=${what/--parallel $way/}
            [ $n -ne 1 ] || cp "$scratch/y1.npy" "$scratch/$way.npy"
            # shellcheck disable=SC2086
            if [ $n -eq 1 ] && [ $way != block ]; then
                "$quern" run ${alone/--parallel column/} -o "$scratch/alone.npy" >/dev/null
                cmp -s "$scratch/alone.npy" "$scratch/y1.npy" || rc=9
            fi
            if [ $rc -ne 0 ] || ! grep -q "\"ranks\":[[:space:]]*$n," "$scratch/out" ||
                ! cmp -s "$scratch/$way.npy" "$scratch/y$n.npy"; then
                echo "$mpi -np $n run --parallel $way: status $rc"
                cat "$scratch/out"
                failed=1
            fi
        done
    done
    timeout 100 "mpirun.$mpi" -np 2 "$quern" tune --comm --json >"$scratch/out" 2>&1
    rc=$?
    if [ $rc -ne 0 ] || ! grep -q '"latency_s":.*"bytes_per_s":' "$scratch/out"; then
        echo "$mpi tune --comm: status $rc"
        cat "$scratch/out"
        failed=1
    fi
    # What one process refuses ends all.
    if timeout 100 "mpirun.$mpi" -np 2 "$quern" bench --parallel row --op conv2d --n 8 --ci 8 \
        --size 8x8 --weights int8:pc >"$scratch/out" 2>&1 ||
        ! grep -q 'products of matrices' "$scratch/out"; then
        echo "$mpi bench --parallel of a convolution:"
        cat "$scratch/out"
        failed=1
    fi
done
[ $ran -gt 0 ] || [ $failed -ne 0 ] || exit 77
echo "$ran runs"
exit $failed
