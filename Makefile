# `make reproduce` and `make test` work as the first command on a fresh clone; `make help` lists the rest.
PYTHON ?= python3
RECIPE ?= cpu-code
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install reproduce verify notebooks test test-reliability lint lab bench seeds figures colab site site-check clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# a .venv that is there is kept, unless PYTHON is given and another
INSTALL := $(PYTHON) -m install $(if $(filter file,$(origin PYTHON)),,--this-python)

install:  ## make .venv and install the CPU profile from its lock: make install TORCH_INDEX=https://my.mirror/whl/cpu
	@$(INSTALL)

reproduce: install  ## run notebooks 01 to 05: make reproduce RECIPE=cpu-code ARGS="--set seed=1 --run seed-1"
	@$(BIN)/grpo reproduce --recipe $(RECIPE) $(ARGS)

verify: install  ## after `make reproduce`: make its tables and figures again from its records and compare the bytes
	@$(BIN)/grpo verify --recipe $(RECIPE) $(ARGS)

# a worker per core, two at most, for memory; a file stays on one worker; the longest, the chain, begins early
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 2 --dist loadfile --no-loadscope-reorder

notebooks: install  ## run the chapters and keep their outputs in notebooks/: make notebooks ARGS="--only 04"
	@$(BIN)/python docs/outputs.py --recipe $(RECIPE) $(ARGS)

test: install  ## run all tests, the smoke chain included: make test ARGS="-k sandbox"
	@$(PYTEST) $(ARGS)

test-reliability: install  ## kills, faults, fuzzing and long runs, which take long: GRPO_KILLS=20 kills the real chain too
	@$(PYTEST) tests/reliability $(ARGS)

lint: install  ## check style and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright && $(BIN)/python docs/outputs.py --check

lab: install  ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab notebooks

bench: install  ## measure the speed of rewards, generation, training and the sandbox
	@$(BIN)/python benchmarks/rewards.py
	@$(BIN)/python benchmarks/generation.py
	@$(BIN)/python benchmarks/training.py
	@$(BIN)/python benchmarks/sandbox.py

seeds: install  ## after `make reproduce`: train two more seeds and compare: ARGS="--seeds 0 1 2 3 4"
	@$(BIN)/python benchmarks/seeds.py --recipe $(RECIPE) $(ARGS)

figures: install  ## draw a finished run's figures again, and put them into figures/<run>/
	@$(BIN)/grpo figures --recipe $(RECIPE) --to figures $(ARGS)

colab:  ## write REPOSITORY=you/your-copy on GitHub into the notebooks' links to Colab and their setup cells
	@echo "$(REPOSITORY)" | grep -Eqx '[A-Za-z0-9._-]+/[A-Za-z0-9._-]+' || \
		{ echo "Say where your copy is: make colab REPOSITORY=you/your-copy"; exit 1; }
	@sed -i -e '/git.*clone/s#github\.com/[^/]*/[^\]*#github.com/$(REPOSITORY)#' \
		-e 's#google\.com/github/[^/]*/[^/]*/#google.com/github/$(REPOSITORY)/#' notebooks/*.ipynb

site:  ## after `make reproduce`: notebooks, results and reference as a website in _site/
	@$(INSTALL) --site
	@$(BIN)/python docs/build.py --recipe $(RECIPE) $(ARGS)

site-check:  ## check the links of _site/ and open every page in headless Chromium
	@$(INSTALL) --site
	@$(BIN)/python docs/check.py $(ARGS)

clean:  ## remove .venv; outputs stay
	@rm -rf $(VENV)
