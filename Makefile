# SPDX-License-Identifier: Apache-2.0
# Thin: each line calls CMake or a script. The first use installs what is missing (tools/setup.sh).

prefix ?= /usr/local
quern = build/release/quern

.PHONY: all demo check bench gpu-check gpu-bench install clean

all:
	@tools/setup.sh demo
	@tools/build.sh release

demo: all
	@$(quern) demo $(ARGS)

check:
	@tools/check.sh

bench: all
	@$(quern) bench $(ARGS)

gpu-check gpu-bench:
	@echo "quern $@: this version has no CUDA kernels; 'make check' and 'make bench' cover the CPU."
	@exit 1

install: all
	@cmake --install build/release --prefix $(prefix)

clean:
	@rm -rf build
