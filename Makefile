# Everything goes through one virtual environment in .venv, made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STUDY ?= quickstart-$(shell date +%Y%m%d-%H%M%S)
OUTPUT := quickstart_output
WORKERS ?= auto

.PHONY: help setup quickstart test test-all coverage lint check bench bench-controller bench-trials soak twice scripts failures pruning calibration validate-model claims referee record portfolio pretrain pretrained search clean

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

test: $(READY)  ## Run the tests, those with real DeepSpeed trials and Ray among them
	$(BIN)/python -m pytest -m "not slow and not real and not ray" -n $(WORKERS)
	$(BIN)/python -m pytest -m "not slow and (real or ray)"

test-all: $(READY)  ## Run every test, those too that take long
	$(BIN)/python -m pytest -m "not real and not ray" -n $(WORKERS)
	$(BIN)/python -m pytest -m "real or ray"

coverage: $(READY)  ## Run every test, with branch coverage
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered

lint: $(READY)  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test-all  ## Everything that can fail

bench: $(READY)  ## Measure: CLI start, controller overhead, several trials at once
	$(BIN)/python tests/benchmarks/command_line.py
	$(BIN)/python tests/benchmarks/controller.py
	$(BIN)/python tests/benchmarks/parallel.py
	$(BIN)/python tests/benchmarks/performance_model.py

bench-trials: $(READY)  ## Measure trials: cold, warm, the steps alone, DeepSpeed's autotuner; then 200 warm trials for leaks
	$(BIN)/python tests/benchmarks/trials.py --rival
	$(BIN)/python tests/benchmarks/trials.py --leaks 200

twice: $(READY)  ## Run the quickstart's campaign twice: do both name one winner, or a declared tie?
	$(BIN)/python tests/benchmarks/twice.py --folder $(OUTPUT)/twice-$(STUDY)

soak: $(READY)  ## Run 100 real trials under random faults, then 1,000 simulated ones, and count what came of them
	$(BIN)/python tests/benchmarks/soak.py
	$(BIN)/python tests/benchmarks/soak.py --simulated --trials 1000 --every 1

bench-controller: $(READY)  ## Measure how the controller, the storage and the listings scale (TRIALS=100000: for long)
	$(BIN)/python tests/benchmarks/scale.py --trials $(or $(TRIALS),10000)

scripts: $(READY)  ## Tune each script of experiments/scripts, and print what was gained
	$(BIN)/python tests/benchmarks/scripts.py

failures: $(READY)  ## Print the failure matrices of warm trials and of scripts: how each fault ends, how soon, what is left
	$(BIN)/python tests/benchmarks/faults.py
	$(BIN)/python -m tests.benchmarks.failures

claims: $(READY)  ## Print claims about training large models that go round, and what the performance model says of them
	$(BIN)/python -m autotune.planning.claims

pruning: $(READY)  ## Print what the pruner saves on recorded trials, and whether the winner stays
	$(BIN)/python -m tests.benchmarks.pruning

calibration: $(READY)  ## Print how well the performance model foretells recorded trials, before and after calibration
	$(BIN)/python -m tests.benchmarks.calibration

validate-model: $(READY)  ## Print the performance model's error against published measurements, source by source
	$(BIN)/python -m autotune.performance.validation experiments/published

referee: $(READY)  ## Print how often a comparison of searchers is right, by simulation: intervals, claims, what it finds
	$(BIN)/python -m tests.benchmarks.referee --cases 2000

record: $(READY)  ## Record real trials over a sample of the space, to replay them (CAMPAIGN=..., RECORDING=NAME.jsonl.gz; goes on)
	$(BIN)/python -m tests.benchmarks.record $(or $(CAMPAIGN),experiments/quickstart/campaign.yaml) $(or $(RECORDING),$(OUTPUT)/recording.jsonl.gz) $(RECORD)

portfolio: $(READY)  ## Derive the portfolio of warm starts from simulated workloads, and say what it is worth
	$(BIN)/python -m tests.benchmarks.portfolio --write

pretrain: $(READY)  ## Train the policy of the searcher ppo anew, from its seed (OUTPUT/pretrained)
	$(BIN)/autotune pretrain --seed 0 --output $(OUTPUT)/pretrained

pretrained: $(READY)  ## Compare ppo with other searchers on simulated workloads that it was not trained on
	$(BIN)/python -m tests.benchmarks.pretrained_policy

search: $(READY)  ## Compare searchers on simulated workloads, with a right and a wrong performance model (hours; goes on)
	mkdir -p $(OUTPUT)
	$(BIN)/python -m tests.benchmarks.search --results $(OUTPUT)/search.jsonl

clean:  ## Remove the virtual environment and what the quickstart made
	rm -rf $(VENV) $(OUTPUT)
