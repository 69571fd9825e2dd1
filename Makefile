# `make demo` and `make test` start from nothing: each first builds .venv with the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint clean

demo: $(READY)
	$(BIN)/python examples/mnist_in_five_minutes.py --out runs/demo

test: $(READY) lint
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

clean:
	rm -rf $(VENV) build dist src/*.egg-info
