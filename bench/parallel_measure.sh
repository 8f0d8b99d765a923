#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# parallel_measure.sh QUERN: what bench/scaling.py is calibrated with and checked by, as lines of
# JSON: two processes of mpirun.openmpi, each on a core of its own with one thread, compute
# feed-forward blocks together, over shared memory and over TCP of this machine (the line's "net").
set -u
quern=$1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
for net in memory tcp; do
    [ $net = memory ] || export OMPI_MCA_btl=tcp,self
    for how in int4:g32/int8-block int8:pc/int8-row; do
        for shape in 2816x1024 4096x1536 5632x2048 8192x2048 11008x4096 14336x4096; do
            mpirun.openmpi -np 2 --bind-to core "$quern" bench --parallel block \
                --n "${shape%x*}" --k "${shape#*x}" --m 1,8,16,64,128 --weights "${how%/*}" \
                --strategy "${how#*/}" --threads 1 --min-time 0.2 --json |
                grep '"scaling":"strong"' | sed "s/^{/{\"net\":\"$net\",/"
        done
    done
done
