# make demo: install into .venv and run the quickstart.   make test: install, lint, type-check, test.   make test-fast: while working.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two test processes with one thread each are faster than one process with two threads.
WORKERS ?= 2
PYTEST_ARGS ?=

SITE ?= build/site

# Environments with the oldest and the newest dependencies: some gigabytes.
BOUNDS ?= .bounds

.PHONY: help demo test test-fast test-bounds lint docs release-check bench clean

help:
	@echo "make demo   create $(VENV), install, run 'bayesrnn quickstart' (about a minute on 2 cores)"
	@echo "make test   create $(VENV), install, lint, type-check, run all tests with coverage"
	@echo "make test-fast    the same without the tests marked slow, and without coverage: about 2 minutes"
	@echo "make test-bounds  the fast tests with the oldest and with the newest dependencies allowed, in $(BOUNDS)/"
	@echo "make lint   ruff, mypy and the import contracts alone"
	@echo "make docs   build the site into $(SITE); warnings are errors"
	@echo "make release-check  build the release into dist/ and check it: the list to go through before an upload"
	@echo "make bench  the CPU benchmark"
	@echo "make clean  remove $(VENV), $(BOUNDS), caches and build outputs (runs/ and data/ stay)"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bayesrnn needs Python 3.11 or newer; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[lab]'
	@touch $@

# Without --no-compile pip compiles every module of every package; tests import a part of them.
$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed-test $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/bayesrnn quickstart --out runs/demo --force

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term $(PYTEST_ARGS)

test-fast: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow' $(PYTEST_ARGS)

test-bounds:
	$(PYTHON) tests/bounds.py lowest --venv $(BOUNDS)/lowest
	$(PYTHON) tests/bounds.py highest --venv $(BOUNDS)/highest

docs: $(VENV)/.installed-test
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs $(SITE)
	$(BIN)/python -m docs.build.site $(SITE)

release-check: $(VENV)/.installed-dev lint docs
	$(BIN)/python -m pytest -q tests/test_typed.py tests/test_wheel.py tests/test_docs.py -k 'not examples_run and not commands'
	$(BIN)/python tests/release.py --out dist

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/cpu.py

clean:
	rm -rf $(VENV) $(BOUNDS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
