#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/build.sh PRESET [TARGET...]: configures and builds one preset of CMakePresets.json into
# build/PRESET. Quiet when all goes well, but for a line every half a minute that says how far it
# is; what went wrong is printed. Compiler warnings always are.
#
# The preset release has CUDA kernels for the GPUs of this machine, if there are any (and nvcc),
# since kernels for all GPUs take minutes; CUDA_ARCHS="80;90a" names others, CUDA_ARCHS=all all.
set -u
cd "$(dirname "$0")/.." || exit 1
preset=$1
shift
mkdir -p build/log
log=build/log/$preset.configure

options=()
if [ "$preset" = release ]; then
    archs=${CUDA_ARCHS:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        tr -d '. ' | sed 's/^90$/90a/' | sort -u | paste -sd ';')}
    case $archs in
        all) options=(-DQN_CUDA=AUTO -UQN_CUDA_ARCHS) ;;
        [0-9]*) options=(-DQN_CUDA=AUTO "-DQN_CUDA_ARCHS=$archs") ;;
        *) options=(-DQN_CUDA=OFF) ;;
    esac
fi
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
targets=()
[ $# -eq 0 ] || targets=(--target "$@")

# TICK seconds between lines; what was compiled since the beginning is counted.
. tools/progress.sh
touch "build/log/$preset.begin"
compiled() {
    echo "build $preset: $(find "build/$preset" -name '*.o' -newer "build/log/$preset.begin" |
        wc -l) files compiled"
}
progress_begin "${TICK:-30}" compiled >&2
cmake --build "build/$preset" "${targets[@]}" -- --quiet
verdict=$?
progress_end
exit $verdict
