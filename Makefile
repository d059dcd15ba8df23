# Every target makes its own virtual environment first; a fresh clone needs nothing but Python and make.
#
#   make demo                    about a hundred prompts, recognised by two worker processes
#   make demo AUDIO=folder       your own recordings: 16 kHz mono wav files
#   make test ARGS="-k errors"   more arguments for pytest
#   make chaos N=200             two hundred runs, disturbed and started again
#   make test-espnet3            ESPnet's recipe and tests on this layer; needs the network once
#   make chaos-slurm N=500       five hundred disturbances of detached runs on a real SLURM
#   make attack N=5000           five thousand small programs that try to break it
#   make test PYTHON=python3.13 VENV=.venv313
#   make test-torch TORCH=torch==2.13.0  a version to install first, such as one without CUDA

PYTHON ?= python3
VENV   ?= .venv
AUDIO  ?=
ARGS   ?=
JOBS   ?= 4
N      ?= 200
TORCH  ?=

# files whose tests need no Dask
LIGHT := $(addprefix parallel/, functions runner ledger engine durable/test_killed.py durable/test_resume.py \
	detached/test_blame.py detached/test_late.py detached/test_submit.py) cli/test_runs.py cli/test_golden_run.py

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install --quiet

unexport PYTHONDONTWRITEBYTECODE # tests start thousands of processes, each of which would compile the package anew

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-light test-security test-clusters test-kube test-gpu test-torch test-demo test-espnet3 chaos chaos-slurm attack extras lint types bench dist docs pages site recording screenshots clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/recipe.stamp ## decode speech with two workers; AUDIO=folder takes your own wav files
	$(RUN) egs3/asterisk/asr/demo.py $(if $(AUDIO),--audio "$(AUDIO)") $(ARGS)

test: $(VENV)/dev.stamp ## run the default test suite, JOBS files at a time
	$(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-light: $(VENV)-light/stamp ## runs in this process, on local workers and detached, with no package but those of `pip install .`
	$(VENV)-light/bin/python -m pytest -n $(JOBS) --dist loadfile $(addprefix tests/, $(LIGHT)) $(ARGS)

test-torch: $(VENV)/torch.stamp ## training, the recipe's own model, datasets of Hugging Face and lhotse: with torch
	ESPNET3_TEST_GPU=cpu $(RUN) -m pytest -m gpu tests/gpu
	ESPNET3_TEST_TORCH=1 $(RUN) -m pytest tests/components tests/parallel/provenance/test_content.py \
		tests/parallel/durable/test_changed_items.py tests/egs3/test_asterisk_ctc.py tests/egs3/test_asterisk_comparison.py tests/egs3/test_asterisk_killed.py \
		tests/docs/test_examples.py $(ARGS)

test-demo: $(VENV)/demo.stamp ## the page of the stage demo in a headless Chromium, which must be installed
	ESPNET3_TEST_DEMO=1 $(RUN) -m pytest tests/systems/test_demo.py tests/egs3/test_asterisk_demo_page.py $(ARGS)

test-security: $(VENV)/dev.stamp ## what a second account of this machine can do to a run; needs root, who acts as both
	$(RUN) -m pytest tests/security $(ARGS)

test-clusters: $(VENV)/$(if $(TORCH),torch,dev).stamp ## tests on real SLURM, Grid Engine, OAR, HTCondor and sshd; needs root; TORCH=torch: training, too
	$(if $(TORCH),ESPNET3_TEST_TORCH=1) tests/clusters/run.sh "$(RUN)" $(ARGS)

test-kube: $(VENV)/dev.stamp ## tests on a control plane of Kubernetes, built from source once; needs root
	tests/clusters/kube/run.sh "$(RUN)" $(ARGS)

test-gpu: $(VENV)/gpu.stamp ## on a machine with GPUs: the recipe's own model on each, then its speed and how busy they are
	$(RUN) -m pytest -m gpu tests/gpu $(ARGS)
	$(RUN) -m benchmarks.gpu

test-espnet3: $(VENV)/dev.stamp ## ESPnet's own recipe and tests with this layer; ARGS="--only times", --write
	$(RUN) -m tests.dropin $(ARGS)

chaos: $(VENV)/dev.stamp ## kill and damage N runs, start them again, compare; ARGS="--seed 7"
	$(RUN) -m tests.chaos --rounds $(N) $(ARGS)

chaos-slurm: $(VENV)/dev.stamp ## disturb detached runs on a real SLURM, N times in all; needs root
	CLUSTERS= tests/clusters/run.sh "$(RUN)" -m tests.clusters.chaos_slurm --disturbances $(N) $(ARGS)

attack: $(VENV)/dev.stamp ## attack with N drawn programs; ARGS="--first 1000" for other seeds
	$(RUN) -m tests.attack --draws $(N) $(ARGS)

extras: $(VENV)/dev.stamp ## resolve every extra as pip would install it; ARGS="python3.10 python3.13" for others
	$(RUN) -m tests.extras $(ARGS)

lint: $(VENV)/dev.stamp ## check rules and format with ruff
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/dev.stamp ## check the package with mypy --strict
	$(RUN) -m mypy

bench: $(VENV)/bench.stamp ## compare with other libraries: half an hour; ARGS=--quick: two minutes
	$(RUN) -m benchmarks $(ARGS)

dist: $(VENV)/dist.stamp ## build wheel and sdist of both distributions into dist/, and check them as an index would
	rm -rf dist
	for each in . systems; do $(RUN) -m build --outdir dist $$each || exit; done
	$(RUN) -m twine check --strict dist/*

docs: $(VENV)/dev.stamp ## run the code of every page, check links and the table of backends
	$(RUN) -m pytest tests/docs $(ARGS)

pages: $(VENV)/dev.stamp ## write the pages that are made of the code: docs/generated
	$(RUN) website/pages.py

site: $(VENV)/site.stamp ## build the documentation site into build/site, with warnings as errors
	cd website && NO_MKDOCS_2_WARNING=1 "$(abspath $(RUN))" -m mkdocs build --quiet $(ARGS)

screenshots: $(VENV)/screenshots.stamp ## pictures of terminal views, a notebook, report and site, also those in docs/; needs Chromium
	$(RUN) website/screenshots.py

recording: $(VENV)/site.stamp ## record the commands of README on a terminal: docs/recording.svg
	$(RUN) website/recording.py

clean: ## remove the environment, caches and build products; data and results stay
	rm -rf "$(VENV)" build dist .pytest_cache .ruff_cache .mypy_cache ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: one folder; a stamp for each set of packages, renewed when its list changes ---

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "needs Python 3.10 or newer, and $(PYTHON) is not: make ... PYTHON=python3.12" >&2; exit 1; }
	@new=1; [ ! -e "$(VENV)" ] || new=; \
	$(PYTHON) -m venv "$(VENV)" || { [ -z "$$new" ] || rm -rf "$(VENV)"; \
		echo "$(PYTHON) cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo '*' > "$(VENV)/.gitignore"

$(VENV)/recipe.stamp: pyproject.toml | $(RUN)
	@echo "installing the recipe's packages into $(VENV)"
	@$(PIP) --editable '.[recipe]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(RUN)
	@echo "installing the packages for development into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/recipe.stamp $@ # the recipe's packages are among them

$(VENV)-light/stamp: pyproject.toml
	@echo "installing the package alone, and what its tests need, into $(VENV)-light"
	@$(PYTHON) -m venv $(VENV)-light
	@$(VENV)-light/bin/python -m pip --disable-pip-version-check install --quiet --editable . \
		numpy pandas pytest pytest-timeout pytest-xdist rich
	@! $(VENV)-light/bin/python -c 'import distributed' 2>/dev/null
	@echo '*' > $(VENV)-light/.gitignore
	@touch $@

$(VENV)/torch.stamp: pyproject.toml | $(RUN)
	@echo "installing torch and what needs it into $(VENV)"
	@$(PIP) $(TORCH) --editable '.[data,train,report,dev]'
	@touch $(VENV)/recipe.stamp $(VENV)/dev.stamp $@

$(VENV)/gpu.stamp: pyproject.toml | $(RUN)
	@echo "installing torch, dask-cuda and what needs them into $(VENV)"
	@$(PIP) $(TORCH) --editable '.[gpu,train,dev]'
	@touch $(VENV)/recipe.stamp $(VENV)/dev.stamp $@

$(VENV)/demo.stamp: pyproject.toml | $(RUN)
	@echo "installing gradio and playwright into $(VENV)"
	@$(PIP) --editable '.[demo,dev]' playwright
	@touch $(VENV)/recipe.stamp $(VENV)/dev.stamp $@

$(VENV)/site.stamp: pyproject.toml | $(RUN)
	@echo "installing mkdocs into $(VENV)"
	@$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/screenshots.stamp: pyproject.toml | $(RUN)
	@echo "installing mkdocs, JupyterLab and playwright into $(VENV)"
	@$(PIP) --editable '.[docs,report]' jupyterlab ipywidgets playwright
	@touch $(VENV)/site.stamp $@

$(VENV)/dist.stamp: | $(RUN)
	@$(PIP) build twine
	@touch $@

$(VENV)/bench.stamp: pyproject.toml benchmarks/requirements.txt | $(RUN)
	@echo "installing the libraries to compare with into $(VENV)"
	@$(PIP) --editable '.[dask,jobqueue]' --requirement benchmarks/requirements.txt
	@touch $@
