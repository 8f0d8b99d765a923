#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/gpu_check.sh [STEP...]: all that must hold on a machine with a GPU, one line a step. The
# output of a step is in build/log/gpu-STEP and is printed when the step fails.
#
#   build      with nvcc, for the GPU that is there
#   kernels    every row of the table of kernels by name, in a graph and a hundred times, bit for
#              bit
#   sweep      every operation and format against the reference, with every kernel that takes it,
#              captured in graphs and repeated, bit for bit (QUICK=1: a small part)
#   machine    bad input: test/gpu/machine.c (no driver, no GPU, a ruined one), pointers.c (memory
#              and weights of other places), capture.c (what a graph cannot hold), memory.c (a full
#              card); and packing on the GPU byte for byte (repack.c)
#   devices    several GPUs in one process, where there are two (devices.c)
#   memcheck   a small part of kernels and sweep, and packing, under compute-sanitizer, each operand
#              in memory of its own
#   racecheck  the same for races in shared memory
#   torch      products and convolutions beside PyTorch's, where it is installed
#
# GPU_BUILD=DIR takes quern, quern-check and the programs test_gpu_* out of DIR (or DIR/test) and
# builds nothing: for a machine without nvcc. GPU=1 takes the second GPU. JOBS=N: processes at a
# time. SANITIZER_SECONDS=N: a part under compute-sanitizer that takes longer fails (120).
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/log
build=${GPU_BUILD:-build/gpu}
gpu=${GPU:-0}
jobs=${JOBS:-$(($(nproc) < 16 ? $(nproc) : 16))}
failed=''

step() { # name what function
    local name=$1 what=$2 log=build/log/gpu-$1 start=$SECONDS verdict=ok
    shift 2
    "$@" >"$log" 2>&1
    case $? in
        0) ;;
        77) verdict=skipped ;;
        *) verdict=FAILED failed="$failed $name" ;;
    esac
    printf '%-7s %-9s %-58s %4d s\n' "$verdict" "$name" "$what" $((SECONDS - start))
    [ "$verdict" = ok ] || tail -n 60 "$log" | sed 's/^/    /'
}

run_build() {
    if [ -n "${GPU_BUILD:-}" ]; then
        echo "taken from $build"
        [ -x "$build/quern-check" ] || return 1
        return 77
    fi
    local arch
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i "$gpu" | tr -d .) || return 1
    [ "$arch" = 90 ] && arch=90a
    local cli=OFF # the command needs cJSON
    pkg-config --exists libcjson && cli=ON
    cmake --preset gpu "-DQN_CUDA_ARCHS=$arch" "-DQN_CLI=$cli" && cmake --build build/gpu -- --quiet
}

run_kernels() {
    "$build/quern-check" --device "cuda:$gpu" --jobs "$jobs" --filter 'kernels/*' &&
        "$build/quern-check" --device "cuda:$gpu" --jobs 2 --filter 'cuda/*'
}

run_sweep() {
    "$build/quern-check" --device "cuda:$gpu" --jobs "$jobs" ${QUICK:+--quick}
}

# 77 where all of them say so; else the first other status.
run_programs() {
    local name program status verdict=77
    # They take the first GPU that they see.
    [ "$gpu" = 0 ] || [ "$1" = devices ] || local -x CUDA_VISIBLE_DEVICES=$gpu
    for name in "$@"; do
        program=$build/test/test_gpu_$name
        [ -x "$program" ] || program=$build/test_gpu_$name
        echo "== $name"
        "$program"
        status=$?
        [ $status = 0 ] && [ $verdict = 77 ] && verdict=0
        [ $status = 0 ] || [ $status = 77 ] || verdict=1
    done
    return $verdict
}

# Both tools make every launch ten to a thousand times slower, and one bad access looks like any
# other: every kernel by name, and one shape of each strategy and operation; all at the same time.
run_sanitizer() { # tool
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
    local filter log=build/log/gpu-$1 n=0 failed=0 status pids=() program
    local sanitize=(timeout "${SANITIZER_SECONDS:-120}"
        compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5)
    for filter in 'kernels/qni_matmul_f16*' 'kernels/qni_matmul_bf16*' 'kernels/qni_matmul_q8*' \
        'kernels.images/*' \
        'api.matmul/*int4:g32*' 'api.grouped/*' 'api.conv*/int4:g128*' 'api.quantize_rows/f16/*'; do
        n=$((n + 1))
        "${sanitize[@]}" "$build/quern-check" --device "cuda:$gpu" --quick --separate --jobs 0 \
            --filter "$filter" >"$log-$n" 2>&1 &
        pids+=($!)
    done
    program=$build/test/test_gpu_repack
    [ -x "$program" ] || program=$build/test_gpu_repack
    n=$((n + 1))
    "${sanitize[@]}" "$program" small >"$log-$n" 2>&1 &
    pids+=($!)
    for n in "${!pids[@]}"; do
        wait "${pids[$n]}"
        status=$?
        echo "== part $((n + 1))"
        cat "$log-$((n + 1))"
        [ $status = 124 ] && echo "stopped after ${SANITIZER_SECONDS:-120} s (SANITIZER_SECONDS)"
        [ $status = 0 ] || failed=1
    done
    return $failed
}

run_torch() {
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
        { echo "no PyTorch with CUDA"; return 77; }
    [ -x "$build/quern" ] || { echo "no command in $build: it needs cJSON"; return 77; }
    python3 test/gpu/against_torch.py --quern "$build/quern" --device "cuda:$gpu"
}

started=$SECONDS
steps=${*:-build kernels machine devices sweep torch memcheck racecheck}
for name in $steps; do
    case $name in
        build) step build "for the GPU that is there" run_build ;;
        kernels) step kernels "every kernel by name, 100 times, and in graphs" run_kernels ;;
        machine)
            step machine "bad input, full memory, captures, packing" \
                run_programs machine pointers capture memory repack ;;
        devices) step devices "two GPUs in one process" run_programs devices ;;
        sweep) step sweep "every operation against the reference" run_sweep ;;
        memcheck) step memcheck "compute-sanitizer: accesses" run_sanitizer memcheck ;;
        racecheck)
            step racecheck "compute-sanitizer: races in shared memory" run_sanitizer racecheck ;;
        torch) step torch "products and convolutions beside PyTorch's" run_torch ;;
        *) echo "tools/gpu_check.sh: no step '$name'" >&2; exit 2 ;;
    esac
done
if [ -n "$failed" ]; then
    echo "FAILED:$failed"
    exit 1
fi
echo "all is well, $((SECONDS - started)) s"
