# Everything goes through one virtual environment in .venv, made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUDY ?= quickstart-$(shell date +%Y%m%d-%H%M%S)
OUTPUT := quickstart_output

.PHONY: help setup quickstart test test-all coverage lint check bench bench-controller scripts failures clean

help:  ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(READY)  ## Make the virtual environment (torch for CPU, everything pinned by constraints.txt)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

quickstart: $(READY)  ## Tune a small model by real trials: baseline against best, configuration, report
	mkdir -p $(OUTPUT)
	$(BIN)/autotune launch experiments/quickstart/campaign.yaml --study $(STUDY) --storage sqlite:///$(OUTPUT)/autotune.db --set run_directory=$(OUTPUT)/runs
	$(BIN)/autotune export $(STUDY) --storage sqlite:///$(OUTPUT)/autotune.db -o $(OUTPUT)/$(STUDY)/ds_config.json
	$(BIN)/autotune report $(STUDY) --storage sqlite:///$(OUTPUT)/autotune.db -o $(OUTPUT)/$(STUDY)/report.html
	@echo
	@echo "Next: does the gain hold? Run the best against the baseline again, interleaved:"
	@echo "  $(BIN)/autotune validate $(STUDY) --storage sqlite:///$(OUTPUT)/autotune.db"

test: $(READY)  ## Run the tests, those with real DeepSpeed trials and Ray among them
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY)  ## Run every test, those too that take long
	$(BIN)/python -m pytest

coverage: $(READY)  ## Run every test, with branch coverage
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered

lint: $(READY)  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test-all  ## Everything that can fail

bench: $(READY)  ## Measure: CLI start, controller overhead, where the time of a real trial goes
	$(BIN)/python tests/benchmarks/command_line.py
	$(BIN)/python tests/benchmarks/controller.py
	$(BIN)/python tests/benchmarks/trial.py

bench-controller: $(READY)  ## Measure how the controller, the storage and the listings scale (TRIALS=100000: for long)
	$(BIN)/python tests/benchmarks/scale.py --trials $(or $(TRIALS),10000)

scripts: $(READY)  ## Tune each script of experiments/scripts, and print what was gained
	$(BIN)/python tests/benchmarks/scripts.py

failures: $(READY)  ## Print the failure matrix: how scripts that go wrong end, and how soon nothing of them is left
	$(BIN)/python -m tests.benchmarks.failures

clean:  ## Remove the virtual environment and what the quickstart made
	rm -rf $(VENV) $(OUTPUT)
