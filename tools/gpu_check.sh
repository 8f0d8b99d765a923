#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/gpu_check.sh [STEP...]: all that must hold on a machine with a GPU, one line a step. The
# output of a step is in build/log/gpu-STEP and is printed when the step fails.
#
#   build      with nvcc, for the GPU that is there
#   sweep      every operation, format and kernel against the reference, captured in graphs and
#              repeated, bit for bit (QUICK=1: a small part)
#   memcheck   a small part of it under compute-sanitizer, each operand in memory of its own
#   racecheck  the same for races in shared memory
#   torch      products and convolutions beside PyTorch's, where it is installed
#
# GPU_BUILD=DIR takes quern and quern-check out of DIR and builds nothing: for a machine
# without nvcc. GPU=1 takes the second GPU.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/log
build=${GPU_BUILD:-build/gpu}
gpu=${GPU:-0}
jobs=$(($(nproc) < 10 ? $(nproc) : 10))
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

run_sweep() {
    "$build/quern-check" --device "cuda:$gpu" --jobs "$jobs" ${QUICK:+--quick}
}

# Both tools make every launch ten to a thousand times slower, and one bad access looks like any
# other: one shape of each strategy and operation.
run_sanitizer() { # tool
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
    local filter
    for filter in 'api.matmul/*int4:g32*' 'api.grouped/*' 'api.conv*/int4:g128*' \
        'api.quantize_rows/f16/*'; do
        compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 \
            "$build/quern-check" --device "cuda:$gpu" --quick --separate --jobs 0 \
            --filter "$filter" || return 1
    done
}

run_torch() {
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null ||
        { echo "no PyTorch with CUDA"; return 77; }
    [ -x "$build/quern" ] || { echo "no command in $build: it needs cJSON"; return 77; }
    python3 test/gpu/against_torch.py --quern "$build/quern" --device "cuda:$gpu"
}

started=$SECONDS
steps=${*:-build sweep memcheck racecheck torch}
for name in $steps; do
    case $name in
        build) step build "for the GPU that is there" run_build ;;
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
