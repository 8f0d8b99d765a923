#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# generators.sh ROOT SCRATCH: every generator of CMake that is here configures the tree, whatever
# the order of options; where nvcc is, with the CUDA backend, whose kernels are not compiled. The
# portable library is built by make: everything else in this tree is built by ninja.
set -eu
root=$(cd "$1" && pwd) scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch"

configure() { # generator, folder, options
    local generator=$1 folder=$scratch/$2
    shift 2
    if ! cmake -G "$generator" -S "$root" -B "$folder" "$@" >"$folder.log" 2>&1; then
        cat "$folder.log"
        echo "FAILED: cmake -G '$generator' $*"
        exit 1
    fi
}

has_cuda=false
if PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then
    has_cuda=true
else
    echo "skipped: there is no nvcc here: generators without CUDA only"
fi

for generator in 'Unix Makefiles' Ninja; do
    tool=ninja
    [ "$generator" = Ninja ] || tool=make
    if ! command -v $tool >/dev/null; then
        echo "skipped: there is no $tool here"
        continue
    fi
    # As a newcomer does, with the generator alone.
    configure "$generator" "$tool" -DQN_TESTS=OFF
    if $has_cuda; then
        grep -rq --include=build.ninja --include=Makefile quern_cuda_sm75 "$scratch/$tool" || {
            echo "FAILED: $generator: nvcc is here, but the build has no CUDA kernels"
            exit 1
        }
        configure "$generator" "$tool-archs" -DQN_TESTS=OFF -DQN_CUDA_ARCHS='80;90a' -DQN_CUDA=ON
        # CMake's own variable, and a backend that is turned on in a folder that had none.
        configure "$generator" "$tool-own" -DQN_TESTS=OFF -DQN_CUDA=ON \
            -DCMAKE_CUDA_ARCHITECTURES=80
        configure "$generator" "$tool-portable" -DQN_TESTS=OFF -DQN_CUDA=OFF
        configure "$generator" "$tool-portable" -DQN_CUDA=ON -DQN_CUDA_ARCHS=75
    fi
    [ $tool = make ] || continue
    configure "$generator" "$tool-portable" -DQN_CUDA=OFF -DQN_TESTS=OFF -DQN_CLI=OFF \
        -DQN_ISA_KERNELS=OFF -DCMAKE_BUILD_TYPE=Debug
    cmake --build "$scratch/$tool-portable" >"$scratch/$tool-build.log" 2>&1 || {
        cat "$scratch/$tool-build.log"
        echo "FAILED: $generator does not build the portable library"
        exit 1
    }
    [ -e "$scratch/$tool-portable/libquern.so" ] && [ -e "$scratch/$tool-portable/libquern.a" ]
done
