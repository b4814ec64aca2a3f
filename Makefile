# The two commands of a newcomer are `make demo` and `make test`; both set up .venv first, once.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
COVERAGE := .pytest_cache/coverage

.PHONY: demo test test-slow attack lint format bench pages clean

demo: $(READY)
	$(BIN)/corral train point-gather --out runs/demo --overwrite

test: $(READY) lint
	COVERAGE_FILE=$(COVERAGE) $(BIN)/pytest -n auto --dist worksteal -m "not slow" --cov=corral --cov-report=
	@echo "coverage: $$(COVERAGE_FILE=$(COVERAGE) $(BIN)/coverage report --format=total)% of the lines of src/corral"

test-slow: $(READY)
	$(BIN)/pytest -n auto --dist worksteal -m slow

# 10,000 attacks with bad files, settings, flags, environments and kills; options: make attack ARGS="--help"
attack: $(READY)
	PYTHONPATH=tests $(BIN)/python -m attack $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Measures this machine; options: make bench ARGS="--help"
bench: $(READY)
	$(BIN)/python -m benchmarks.bench $(ARGS)

# Puts the numbers and figures of benchmarks/results and results into docs/.
pages: $(READY)
	$(BIN)/python -m docs.pages

# Set-up is redone only when what it installs has changed.
$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Corral needs Python 3.11 or newer; found $$("$(PYTHON)" --version) at $(PYTHON). Try: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv runs build .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
