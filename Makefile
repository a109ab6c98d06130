# `make` lists what there is to do. All of it happens in a virtual environment of its own.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(VENV)/installed ## Train, quantize, export and verify a digits model; minutes, no data to download
	$(BIN)/python examples/train_imagenet.py

.PHONY: test
test: lint types unit ## Lint, type check, and run the tests that catch nearly everything; 5 minutes on two cores

.PHONY: test-all
test-all: test arm backends thorough ## The same, and all other tests but those of minutes each; two hours

.PHONY: arm
arm: $(VENV)/installed ## Make the Arm system that some of the tests emulate, where it can be had
	@$(BIN)/python -m tests.arm.system || echo "Tests on emulated Arm processors are skipped."

# Of PyTorch, a version whose CPU build can be had: TORCH="torch==2.13.0".
TORCH ?= torch>=2.4

.PHONY: backends
backends: $(VENV)/installed-test ## Install the other backends of Keras 3, where they can be had
	@$(BIN)/python -m pip install --quiet --editable '.[jax]' '$(TORCH)' || echo "Tests of JAX and PyTorch are skipped."

.PHONY: lint
lint: $(VENV)/installed-test ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(VENV)/installed-test ## Check types
	$(BIN)/mypy

.PHONY: unit
unit: $(VENV)/installed-test ## Run the fast tests, on all cores
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

.PHONY: durations
durations: $(VENV)/installed-test ## Measure the fast tests, and make those thorough that take too long
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --measure

.PHONY: thorough
thorough: $(VENV)/installed-test ## Run the tests that `make unit` leaves out, but those of minutes each
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'thorough and not slow'

# Of another commit, other tests; the same of the same one.
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
SHARE ?= 0.06

.PHONY: sample
sample: $(VENV)/installed-test ## Run a sixteenth of the thorough tests, drawn by the commit's hash; SHARE=0.5: half of them
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'thorough and not slow' --share $(SHARE) --draw '$(COMMIT)'

.PHONY: test-slow
test-slow: $(VENV)/installed-test ## Run the tests that take minutes each
	$(BIN)/python -m pytest -m slow

.PHONY: test-versions
test-versions: $(VENV)/installed ## Try the oldest and newest versions of Python, TensorFlow, NumPy and LiteRT, and those between; an hour
	$(BIN)/python -m pip install --quiet --editable '.[dist]'
	$(BIN)/python -m nox

.PHONY: dist
dist: $(VENV)/installed ## Build the wheel and the source distribution into dist/, check them, and try the wheel in a new environment
	rm -rf dist
	$(BIN)/python -m pip install --quiet --editable '.[dist]'
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/versions/wheel.py dist/*.whl
	$(BIN)/python -m nox --session versions-newest -- "$$(ls dist/*.whl)"

.PHONY: tables
tables: $(VENV)/installed-test ## Render the pages with figures from benchmarks/pages/ and benchmarks/results/
	$(BIN)/python -m benchmarks.tables

.PHONY: docs
docs: $(VENV)/installed-docs ## Build the documentation into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

.PHONY: bench
bench: $(VENV)/installed ## Measure steps, quantizers, graphs, input, inference and scaling; an hour, on an idle machine
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/step_profile.py
	$(BIN)/python benchmarks/step_profile.py --step=evaluation --output=benchmarks/results/step_profile_evaluation.csv
	$(BIN)/python benchmarks/quantizer_speed.py
	$(BIN)/python benchmarks/graph_cost.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/input_pipeline.py
	$(BIN)/python benchmarks/latency.py

.PHONY: bench-grid
bench-grid: $(VENV)/installed ## Measure steps of five models at two image sizes and three batches; a day, and 64 GB
	$(BIN)/python benchmarks/step_time.py --models=mobilenet_v1,mobilenet_v2,resnet18,resnet50,preresnet50 \
		--image_sizes=96,224 --batch_sizes=8,32,128 --steps=10

.PHONY: clean
clean: ## Remove the virtual environment and the caches, but no runs
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist site *.egg-info

# The stamps make an installation happen once, and again when what it installs has changed.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "sat-tf needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# Python compiles what is imported; compiling all that is installed takes a quarter of its time.
$(VENV)/installed: setup.py pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --editable .
	@touch $@

$(VENV)/installed-docs: setup.py pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-test: setup.py pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/installed
