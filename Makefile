# Two commands on a fresh machine: `make serve` and `make test`. Everything lives in .venv and models/.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
export PRISM_MODELS_DIR ?= $(CURDIR)/models

INSTALLED := .venv/.installed
MODEL := $(PRISM_MODELS_DIR)/SmolLM2-135M-Instruct/config.json

.PHONY: help setup browser serve test test-fast explore chaos lint format wheel-test clean

help:
	@echo "make serve       set everything up, then serve on http://127.0.0.1:8000 (CONFIG=preset-or-file)"
	@echo "make test        set everything up, then run all tests"
	@echo "make test-fast   unit tests only"
	@echo "make explore     unit tests with new random examples for the property tests"
	@echo "make chaos       many random faults under load (PRISM_CHAOS_SEED=n repeats a run), some minutes"
	@echo "make browser     install Debian's Chromium, in which tests look at the live page"
	@echo "make lint        ruff and mypy"
	@echo "make format      let ruff format the code"
	@echo "make wheel-test  build the wheel, install it bare, serve one request from it, run its tests"
	@echo "make clean       remove .venv, models and build leftovers"

setup: $(INSTALLED) $(MODEL)

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: apt-get install python3 python3-venv"; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo "there is no $(PYTHON)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11; name another one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make environments: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

$(INSTALLED): pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --no-compile -e ".[sglang,dev]"  # 40,000 files: Python compiles those that it needs
	@touch $@

$(MODEL): | $(INSTALLED)
	$(BIN)/prism-ray fetch-model smollm2

# For whoever may install packages; the tests that need it are skipped where it is not.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	       --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; }

serve: setup
	$(BIN)/prism-ray serve $(CONFIG)

test: setup
	$(BIN)/python tools/run_tests.py

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest tests/unit

explore: $(INSTALLED)
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest tests/unit

chaos: setup
	PRISM_CHAOS=1 $(BIN)/python -m pytest -s tests/chaos

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel-test: $(INSTALLED)
	$(BIN)/python tests/packaging/wheel_smoke.py

clean:
	rm -rf .venv models build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
