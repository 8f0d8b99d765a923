#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bench/record.sh QUERN SET [WORD...]: the figures of README.md and docs/performance.md, into
# bench/results/cpu-ISA-SET.jsonl, where ISA is the best that the machine has: amx, avx512, avx2.
# SET: matmul, strategies, formats, sweep, experts, conv, layers. WORDs are put before each command
# (nice, taskset).
# QUERN is a command with peers beside it (`make bench-peers`). Then: bench/plot.py
set -eu
quern=$1 what=$2
shift 2
results=$(dirname "$0")/results
new=$results/cpu-$what.jsonl.new
: >"$new"

record() {
    echo "quern bench $*" >&2
    "${before[@]}" "$quern" bench --json "$@" >>"$new"
}
before=("$@")

# Of several rounds bench/plot.py takes the least median of each line and of each peer: where others
# use the host, a second is slow now and then.
case $what in
    matmul)
        shape='--n 4096 --k 4096 --min-time 0.2 --peers'
        for m in 1 8 32 128 512; do
            record $shape --m $m --weights int8:pc --strategy int8-row
            record $shape --m $m --weights int4:pc --strategy int8-row
            record $shape --m $m --weights int4:g128 --strategy int8-block
            record $shape --m $m --weights int4:g32 --strategy int8-block
            record $shape --m $m --weights int4:g128:zp --strategy float
        done
        ;;
    conv)
        for round in 1 2 3; do
            echo "round $round of 3" >&2
            for m in 1 8; do
                for layers in conv1 'layer1*' 'layer2*' 'layer3*' 'layer4*'; do
                    record --layers "resnet50/$layers" --m $m --weights int8:pc --image nhwc \
                        --y i8 --strategy int8-static --warm --min-time 0.1 --peers
                done
            done
        done
        ;;
    strategies)
        for round in 1 2 3; do
            echo "round $round of 3" >&2
            for how in 'int4:g128 int8-row f32' 'q4_0 int8-block f32' 'int8:pc int8-static i8' \
                'int4:g128:zp float f32' 'int4:g128:zp float bf16' 'int4:g128:zp dense bf16'; do
                set -- $how
                record --n 4096 --k 4096 --m 1,8,32,128,512 --min-time 0.1 --weights $1 \
                    --strategy $2 --x $3
            done
        done
        ;;
    formats)
        # Beside dense products of the type that this machine multiplies best.
        type=f32 strategies=float
        if "$quern" info --json | grep -q '"amx_bf16"'; then
            type=bf16 strategies=float,dense
        fi
        for weights in int4:g16 int4:g32 int4:g32:zp int4:g64 int4:g128 int4:g128:zp int4:pc \
            int8:g16 int8:g32 int8:g128:zp int8:pc nf4:g64 fp8:g128 fp8:pc \
            q4_0 q5_1 q8_0 q4_k q6_k iq4_nl mxfp4 nvfp4; do
            record --n 4096 --k 4096 --m 16,64,512 --min-time 0.05 --weights $weights \
                --strategy $strategies --x $type --peer onednn,openblas
        done
        ;;
    sweep)
        ms=1,2,3,4,6,8,12,16,20,24,32,48,64,96,128,192,256,384,512
        for round in 1 2 3 4 5; do
            echo "round $round of 5" >&2
            for how in 'int8:pc int8-row' 'int4:g128 int8-block' 'int4:g32 int8-block' \
                'int4:g128 float'; do
                record --n 4096 --k 4096 --m $ms --min-time 0.1 --weights "${how% *}" \
                    --strategy "${how#* }"
            done
        done
        ;;
    experts)
        for round in 1 2 3; do
            echo "round $round of 3" >&2
            for strategy in int8-block float; do
                record --op grouped --experts 64 --top-k 2 --n 2048 --k 2048 \
                    --m 32,64,128,256,512 --weights int4:g128 --strategy $strategy
            done
        done
        ;;
    layers)
        common='--weights int8:pc --image nhwc --warm --min-time 0.05 --peer onednn'
        for round in 1 2 3; do
            echo "round $round of 3" >&2
            for m in 1 8; do
                record --layers resnext50 --m $m --y i8 --strategy int8-static $common
                record --layers resnext50 --m $m --strategy float $common
                record --layers 'mobilenet-v2/*' --m $m --y i8 --strategy int8-static $common
                record --layers 'mobilenet-v2/*.dw' --m $m --strategy float $common
            done
        done
        ;;
    *)
        echo "bench/record.sh: no set '$what'" >&2
        exit 2
        ;;
esac
isa=$(sed -n '1s/.*"isa":"\([a-z0-9]*\).*/\1/p' "$new")
mv "$new" "$results/cpu-${isa:?}-$what.jsonl"
