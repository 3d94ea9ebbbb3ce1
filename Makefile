# Two commands for a stranger: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export OPENBLAS_NUM_THREADS = 1
export OMP_NUM_THREADS = 1
.PHONY: setup demo test test-slow cluster-up cluster-test cluster-down lint format render bench gpu clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed

demo: setup
	$(BIN)/python -m workflows.submit --folds 3 --backend local

test: setup
	$(BIN)/python -m pytest -n 2

test-slow: setup
	$(BIN)/python -m pytest -m slow

# A Kubernetes with Argo on this machine (Linux, root, Go): docs/cluster-tests.md
cluster-up: setup
	$(BIN)/python -m tests.cluster up

cluster-test: setup
	$(BIN)/python -m pytest -m cluster -rs tests/cluster

cluster-down: setup
	$(BIN)/python -m tests.cluster down

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks.run

# On a machine with an NVIDIA GPU: kernels, GPU tests, timings, a fold, peers (these where torch or jax are installed).
# With a driver for CUDA 12: make gpu GPU_EXTRA=gpu-cu12
GPU_EXTRA ?= gpu
gpu: setup
	$(BIN)/pip install -q -e '.[$(GPU_EXTRA)]'
	$(BIN)/python -m benchmarks.gpu

render: setup
	$(BIN)/python -m workflows.render

clean:
	rm -rf .venv build dist *.egg-info
