#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/check.sh [STEP...]: all that must hold before a change lands, one line a step, and while one
# runs, a line a minute with the last line of its output. The output of a step is in build/log/STEP
# and is printed when the step fails; later steps still run, and the last lines say which tests
# failed and why.
#
#   gcc      build with gcc, warnings are errors; with ccache, what it compiles serves cuda, too
#   test     every test of that build: units, API (once more as on smaller machines), full sweep,
#            ABI, tree, consumers, bare cc
#   cuda     the CUDA backend for sm_80 and sm_90a, where nvcc is: its build, and the tests that see
#            it and need no GPU (tools/gpu_check.sh has those that do)
#   clang    the same build and tests with clang, short sweep
#   asan     clang, AddressSanitizer and UBSan: the tests, short sweep; here and in tsan without
#            the kernels that this machine cannot run
#   fuzz     every libFuzzer target for FUZZ_SECONDS (10) from its corpus
#   tsan     ThreadSanitizer: the tests that start threads; the short sweep of operations, every
#            kernel on three threads
#   aarch64  cross build, short sweep under qemu-user
set -u
cd "$(dirname "$0")/.." || exit 1
. tools/progress.sh
mkdir -p build/log
jobs=$(nproc)
failed=''

step() { # name what function
    local name=$1 what=$2 log=build/log/$1 start=$SECONDS verdict=ok
    shift 2
    running() { # cut, so that a line of it stays one
        printf 'running %-8s %.80s' "$name" "$(tail -n 1 "$log" | tr -d '\r')"
    }
    progress_begin "${TICK:-60}" running
    # Without pipefail or -e in the caller: the function's own && chain decides.
    if ! "$@" >"$log" 2>&1; then
        verdict=FAILED
        failed="$failed $name"
    fi
    progress_end
    printf '%-7s %-8s %-52s %4d s\n' "$verdict" "$name" "$what" $((SECONDS - start))
    if [ "$verdict" = FAILED ]; then
        sed 's/^/    /' "$log"
    else
        # What a step had to leave out is part of its answer.
        grep -h '^skipped: ' "$log" | sort -u | sed 's/^/        /'
    fi
}

tests() { # preset [ctest arguments]
    local preset=$1
    shift
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@"
}

# gcc and cuda compile most objects alike: once, where there is ccache.
cached() {
    if command -v ccache >/dev/null; then
        CMAKE_C_COMPILER_LAUNCHER="env;CCACHE_DIR=$PWD/build/ccache;ccache" "$@"
    else
        "$@"
    fi
}

run_gcc() { cached tools/build.sh ci; }
run_test() { tests ci; }

run_cuda() {
    if ! PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then
        echo "skipped: there is no nvcc here"
        return 0
    fi
    # Without PTX, which nothing here runs; the preset leaves out tests that see nothing of it.
    cached tools/build.sh cuda && tests cuda
}

run_clang() { tools/build.sh clang && tests clang -LE once; }

run_asan() {
    export ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1
    export UBSAN_OPTIONS=print_stacktrace=1
    ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-14 llvm-symbolizer | head -n 1)
    export ASAN_SYMBOLIZER_PATH
    tools/build.sh fuzz && tests fuzz -LE once
}

fuzz_one() { # program
    local corpora
    # New inputs go to the first folder, the checked-in corpus is only read.
    corpora=("build/fuzz/corpus/${1##*/}")
    mkdir -p "${corpora[0]}"
    [ -d "fuzz/corpus/${1##*/}" ] && corpora+=("fuzz/corpus/${1##*/}")
    "$1" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=30 -rss_limit_mb=2048 \
        -malloc_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="${corpora[0]}-crash-" "${corpora[@]}" >"build/log/${1##*/}" 2>&1
}

run_fuzz() {
    local target found=() verdict
    ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-14 llvm-symbolizer | head -n 1)
    export ASAN_SYMBOLIZER_PATH ASAN_OPTIONS=allocator_may_return_null=1
    tools/build.sh fuzz fuzzers || return 1
    for target in build/fuzz/fuzz/*; do
        [ -x "$target" ] && found+=("$target")
    done
    [ ${#found[@]} -gt 0 ] || { echo "no fuzz target was built"; return 1; }
    export -f fuzz_one
    printf '%s\0' "${found[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'fuzz_one "$1"' fuzz_one
    verdict=$?
    for target in "${found[@]}"; do
        echo "== ${target##*/}"
        cat "build/log/${target##*/}"
    done
    return $verdict
}

run_tsan() {
    # Newer kernels place mappings where this runtime does not expect them; without address
    # randomisation they fall where it does.
    local fixed=''
    setarch "$(uname -m)" -R true 2>/dev/null && fixed="setarch $(uname -m) -R"
    tools/build.sh tsan || return 1
    # unit.conv takes minutes here, and the sweep runs convolutions on several threads, too.
    # api.fork starts threads in the child of a process with threads, which this runtime refuses;
    # the other steps run it.
    $fixed ctest --test-dir build/tsan --output-on-failure --no-tests=error -j "$jobs" \
        -LE once -E '(unit\.conv|api\.fork)$'
}

run_aarch64() {
    if [ "$(uname -m)" != x86_64 ]; then
        echo "skipped: this machine is not x86-64, its own build is the Arm build"
        return 0
    fi
    tools/build.sh aarch64 && tests aarch64 -LE once
}

# numpy and ONNX Runtime are an independent oracle: used when they can be had, never needed.
prepare_python() {
    [ -d test/oracle ] || return 0
    build/venv/bin/python -c 'import gguf, numpy, onnx, onnxruntime, safetensors, tokenizers' \
        2>/dev/null && return 0
    python3 -m venv build/venv && timeout 300 build/venv/bin/pip install -q \
        --disable-pip-version-check -r test/oracle/requirements.txt
}

tools/setup.sh check || exit 1
if ! prepare_python >build/log/python 2>&1; then
    echo "skipped python   no ONNX Runtime from the Python index (build/log/python)"
fi

steps=${*:-gcc test cuda clang asan fuzz tsan aarch64}
started=$SECONDS
for name in $steps; do
    case $name in
        gcc) step gcc "build with gcc, no warning" run_gcc ;;
        test) step test "all tests" run_test ;;
        cuda) step cuda "the CUDA backend, sm_80 and sm_90a; its tests, no GPU" run_cuda ;;
        clang) step clang "build with clang, no warning; tests, short sweep" run_clang ;;
        asan) step asan "AddressSanitizer + UBSan: tests, short sweep" run_asan ;;
        fuzz) step fuzz "libFuzzer, every target for ${FUZZ_SECONDS:-10} s" run_fuzz ;;
        tsan) step tsan "ThreadSanitizer: tests with threads, short sweep" run_tsan ;;
        aarch64) step aarch64 "aarch64 cross build; short sweep under qemu" run_aarch64 ;;
        *) echo "tools/check.sh: no step '$name'" >&2; exit 2 ;;
    esac
done

if [ -n "$failed" ]; then
    for name in $failed; do
        echo "FAILED: $name, whose output is in build/log/$name"
        why_it_failed "build/log/$name" | sed 's/^[[:space:]]*/    /'
    done
    echo "FAILED:$failed"
    exit 1
fi
echo "all is well, $((SECONDS - started)) s"
