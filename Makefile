# `make demo` and `make test` are all a newcomer needs; both set up everything they use in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What pip is asked for. On Linux the public index serves a CUDA build; for the smaller CPU build:
#   make test TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0

.PHONY: demo test test-engines lint docs clean

demo: $(VENV)/demo-ready
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	$(BIN)/paceline models pull smollm2-135m
	rm -f $(VENV)/demo.jsonl
	$(BIN)/paceline bench smollm2-135m -d lookup -n auto,3 -o $(VENV)/demo.jsonl
	$(BIN)/paceline report $(VENV)/demo.jsonl -o $(VENV)/demo.html

test: $(VENV)/test-ready lint
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	$(BIN)/paceline models pull smollm2-135m
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

# What `paceline export` writes, against the engines themselves: long, and outside CI.
test-engines: $(VENV)/test-ready
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	$(BIN)/python engine_checks/run.py
	$(BIN)/python engine_checks/deployments.py

lint: $(VENV)/test-ready
	$(BIN)/ruff check src tests benchmarks examples scripts engine_checks
	$(BIN)/ruff format --check src tests benchmarks examples scripts engine_checks
	$(BIN)/mypy

# The pages that are made from the program itself.
docs: $(VENV)/demo-ready
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	$(BIN)/python scripts/write_help_page.py docs/command-line.md

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# llama-cpp-python is built here, with flags that are safe on this machine. The environment is made
# again when pyproject.toml changes.
$(VENV)/demo-ready: pyproject.toml scripts/llamacpp_cmake_args.py | $(BIN)/python
	CMAKE_ARGS="$$($(BIN)/python scripts/llamacpp_cmake_args.py)" $(BIN)/pip install --quiet '.[llamacpp,report]'
	touch $@

$(VENV)/test-ready: $(VENV)/demo-ready
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet '.[llamacpp,transformers,openvino,test]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
