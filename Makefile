# make help lists the targets. Everything is installed into .venv; stamp files in it make a second call quick.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
GPU := $(shell command -v nvidia-smi)

PORT ?= 1919
PROMPT ?= def read_file(path):
# Neither make nor the shell touches the quotes and dollars of a prompt.
override PROMPT := $(value PROMPT)
export PROMPT
ARGS ?=
SPECULATION := --speculative-algorithm mtp --speculative-num-steps 3

# The demo's matrices are too small to share among threads; raise it for a larger checkpoint on a CPU.
THREADS ?= 1
RUN := OMP_NUM_THREADS=$(THREADS) $(BIN)/ft

# Two test processes of one thread each fill two cores.
WORKERS ?= 2
CHECK_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
PYTEST := $(CHECK_ENV) $(BIN)/pytest -n $(WORKERS)

.PHONY: help serve generate test lint types install tools clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'
	@echo 'variables: PYTHON, PORT=1919, PROMPT="...", ARGS="further flags of ft", THREADS=1, WORKERS=2'

serve: $(VENV)/.runtime ## serve the demo checkpoint, speculation on, at port 1919
	$(RUN) serve --port $(PORT) $(SPECULATION) $(ARGS)

generate: $(VENV)/.runtime ## continue PROMPT with the demo checkpoint
	$(RUN) generate "$$PROMPT" $(SPECULATION) $(ARGS)

test: lint types ## every check: ruff, mypy, tests, contracts, seeded faults
	$(PYTEST) tests
	$(PYTEST) contracts --mutants

lint: $(VENV)/.test ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.test ## mypy --strict over the package, then over the tests
	$(BIN)/mypy
	$(BIN)/mypy tests

install: $(VENV)/.runtime ## install what serving needs

tools: $(VENV)/.test ## install what the checks need as well

clean: ## remove .venv and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# On a GPU machine the interpreter's own torch is seen, and stays if it is new enough.
$(VENV)/.venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(if $(GPU),--system-site-packages) $(VENV)
	touch $@

$(VENV)/.torch: requirements/torch-cpu.txt requirements/torch-cuda.txt requirements/base.txt | $(VENV)/.venv
	$(PIP) install -r requirements/torch-$(if $(GPU),cuda,cpu).txt -r requirements/base.txt
	touch $@

# The package itself is installed as a link to this checkout, so editing it needs no second install.
$(VENV)/.runtime: pyproject.toml $(VENV)/.torch
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

# With torch for a GPU comes its Triton; without one Triton interprets the kernels, in the checks only.
$(VENV)/.test: requirements/test.txt requirements/triton-cpu.txt $(VENV)/.runtime
	$(PIP) install -r requirements/test.txt $(if $(GPU),,-r requirements/triton-cpu.txt)
	touch $@
