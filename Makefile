# `make demo` and `make test` are all a newcomer needs; both set up everything they use in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What pip is asked for. On Linux the public index serves a CUDA build; for the smaller CPU build:
#   make test TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0
# What decodes GGUF files in the demo: ik is a wheel, for Python up to 3.13; llamacpp is built here.
ENGINE ?= $(shell $(PYTHON) -c 'import sys; print("ik" if sys.version_info < (3, 14) else "llamacpp")')
DEMO := bench qwen2.5-coder-0.5b --max-tokens 64 $(if $(filter ik,$(ENGINE)),--also "--same-text")

.PHONY: demo test test-engines lint docs clean

demo: $(VENV)/demo-ready-$(ENGINE)
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	$(BIN)/paceline models pull qwen2.5-coder-0.5b
	rm -f $(VENV)/demo.jsonl
	$(BIN)/paceline $(DEMO) --engine $(ENGINE) -o $(VENV)/demo.jsonl
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
docs: $(VENV)/demo-ready-$(ENGINE)
	$(BIN)/pip install --quiet --no-deps --force-reinstall .
	$(BIN)/python scripts/write_help_page.py docs/command-line.md

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Environments are made again when pyproject.toml changes.
$(VENV)/demo-ready-ik: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --only-binary ik-llama-cpp-python '.[ik,report]'
	touch $@

# llama-cpp-python is built with flags that are safe on this machine.
$(VENV)/demo-ready-llamacpp: pyproject.toml scripts/llamacpp_cmake_args.py | $(BIN)/python
	CMAKE_ARGS="$$($(BIN)/python scripts/llamacpp_cmake_args.py)" $(BIN)/pip install --quiet '.[llamacpp,report]'
	touch $@

$(VENV)/test-ready: $(VENV)/demo-ready-llamacpp
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet '.[ik,llamacpp,transformers,openvino,test]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
