# PYTHON: the interpreter that makes the virtual environment (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv run lint test test-all bench bench-model clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' Makefile

venv: $(STAMP) ## set up .venv with opennki (editable) and the developer tools

# The stamp holds the checkout's path: a moved or copied checkout is set up anew,
# since its .venv would still import the package from the old place.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

# The stamp goes first and comes back last, so an interrupted set-up never counts
# as done; without a stamp, whatever is in .venv is dropped.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "opennki needs Python 3.11 or newer: make PYTHON=...")'
	@test "$$(cat $(STAMP) 2>/dev/null)" = "$(CURDIR)" || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/opennki
	@printf '%s\n' "$(CURDIR)" > $(STAMP).new && mv $(STAMP).new $(STAMP)

run: venv ## compile and run the kernel library
	$(BIN)/opennki demo

lint: venv ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint ## lint, then the tests
	$(BIN)/pytest -q -n 2

test-all: lint ## lint, then all tests, the slow ones too
	$(BIN)/pytest -q -n 2 -m ""

bench: venv ## the benchmarks
	$(BIN)/python tests/bench/bench.py

bench-model: venv ## the time model against published measurements of a card
	cd tests && ../$(BIN)/python -m bench.bench_model

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
