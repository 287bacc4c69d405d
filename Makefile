# `make` alone lists the targets. ARGS=… is handed on by demo, test, test-all and bench.

PYTHON ?=
ARGS ?=
BIN := .venv/bin
PYTEST := $(BIN)/pytest -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check bench figures format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and install Earnest with its test tools (PYTHON=python3.13 to choose one)
	@scripts/setup $(PYTHON)

demo: setup ## tell the story of two refunds, and stay up for more (ARGS="--port 9000")
	@$(BIN)/earnest demo --tour --stay $(ARGS)

test: setup ## run the tests, all but the slow ones (ARGS="-k lease")
	@scripts/system-packages
	@scripts/node-packages
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: setup ## run all tests, with many seeds
	@scripts/system-packages
	@scripts/node-packages
	@$(PYTEST) $(ARGS)

check: setup ## the gate before a commit: format, lint, types, arrows, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(wildcard tests/unit) tests/architecture

bench: setup ## compare speed with the peers, side by side; takes half an hour (ARGS="--only drain_1")
	@$(BIN)/python -m bench.compare $(ARGS)

figures: setup ## measure anew and write docs/figures.md; takes an hour (ARGS=crashes for one)
	@$(BIN)/python scripts/figures.py $(ARGS)

format: setup ## format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

clean: ## remove .venv, caches and what was built
	@rm -rf .venv build dist htmlcov .coverage* .hypothesis .*_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
