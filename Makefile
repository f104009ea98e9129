# make install: create the environment. make bench: install, measure, write the page. make test: install, lint, test.
#
#   VENV=.venv     the environment; VENV= installs nothing and uses PYTHON's packages, .venv-vllm and .venv-mamba
#   OUT=out/...    the run's folder; resume an interrupted run with the same OUT
#   SUITES=        suites or groups to run (bench/README.md); default: `paper` on a GPU, otherwise `quick`
#   RUN_OPTIONS=   more options of `ttt-bench run`
PYTHON ?= python3
VENV ?= .venv
ifndef OUT
OUT := out/$(shell date +%Y%m%d-%H%M%S)
endif
SUITES ?=
RUN_OPTIONS ?=
TARGET := $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
# A relative path, because the path of this folder may contain spaces.
BIN := $(if $(VENV),$(VENV)/bin/,)
PIP_FIRST = -m pip install --quiet --require-hashes --requirement bench/requirements/pip.txt
# NVIDIA's containers set PIP_CONSTRAINT, which contradicts the lock files. pip refuses PIP_USER in an environment.
unexport PIP_CONSTRAINT PIP_USER
# Quiet twice: pip would print a warning of setuptools about every editable install.
EDITABLE = --quiet --quiet --no-deps --editable .
PY := $(if $(VENV),$(BIN)python,$(PYTHON))
# Clusters share $(VENV): a machine without a GPU must not replace the packages of one with a GPU.
INSTALLED := $(if $(VENV),$(or $(wildcard $(VENV)/.installed-cuda),$(VENV)/.installed-$(TARGET)))
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
MAMBA_PIP = .venv-mamba/bin/python -m pip $(1) --quiet --no-deps --no-build-isolation

# The Python of the environment $(1), or PYTHON if the environment does not exist.
PYTHON_OF = $(or $(wildcard $(1)/bin/python),$(PYTHON))

# Create an environment or complete it; stop if the lock file does not support its Python.
# Arguments: the environment; a condition on the minor version v; the condition in words.
define CREATE
@$(PYTHON_OF) -c "import sys; v = sys.version_info[1]; sys.exit(0 if $(2) else 'make: this needs Python $(3), and $(PYTHON_OF) is 3.%d; $(if $(wildcard $(1)/bin/python),delete $(1) and )set PYTHON=python3.12' % v)"
$(PYTHON_OF) -m venv $(1)
$(1)/bin/python $(PIP_FIRST)
endef

# With VENV=, nothing is installed: stop if PYTHON lacks the packages.
HAS_PACKAGES = $(if $(VENV),,@$(PY) -c "import sys; from importlib.util import find_spec; sys.exit(0 if all(map(find_spec, ('torch', 'typer', 'pandas'))) else 'make: $(PY) lacks packages of ttt-bench; set PYTHON= to another, or omit VENV= to install them')")

.PHONY: help install bench baselines venv-vllm venv-mamba numbers test lock locks test-gpu sanitize lint chromium axe slurm clean

help:
	@sed -n 's/^# \{0,1\}//p; /^PYTHON/q' Makefile

install: $(INSTALLED)

bench: $(INSTALLED)
	$(HAS_PACKAGES)
ifeq ($(TARGET),cuda)
	$(if $(VENV),-@$(MAKE) --no-print-directory venv-vllm)
	$(if $(VENV),-@$(MAKE) --no-print-directory venv-mamba)
	-$(PY) -m bench build
endif
	$(PY) -m bench run $(SUITES) --out "$(OUT)" --resume $(RUN_OPTIONS)
	$(if $(findstring --dry-run,$(RUN_OPTIONS)),,$(PY) -m bench report "$(OUT)")

# Separate environments for systems whose pins conflict; bench/environments.py finds them.
baselines: venv-vllm venv-mamba

venv-vllm venv-mamba: venv-%:
	@echo "make: checking .venv-$*, installing missing packages (log: .venv-$*.log)"
	@$(MAKE) --no-print-directory .venv-$*/.installed >.venv-$*.log 2>&1 || { \
	  rm -f .venv-$*/.installed; tail -n 5 .venv-$*.log; \
	  echo "make: no $*: its environment failed to install (log: .venv-$*.log)"; exit 1; } >&2

.venv-vllm/.installed: bench/requirements/vllm.txt bench/requirements/pip.txt
	$(call CREATE,.venv-vllm,v == 12,3.12)
	.venv-vllm/bin/python -m pip install --quiet --requirement $<
	.venv-vllm/bin/python -m pip install $(EDITABLE)
	@touch $@

# mamba-ssm has no wheel for this PyTorch, so nvcc builds it, which takes long. Its setup.py requests C++17, but
# PyTorch's headers need C++20.
.venv-mamba/.installed: bench/requirements/mamba.txt bench/requirements/cuda.txt
	@test -n "$(NVCC)" || { echo "Mamba is left out: building mamba-ssm needs the nvcc of CUDA 13; install it or set CUDA_HOME" >&2; exit 1; }
	$(call CREATE,.venv-mamba,v == 12,3.12)
	.venv-mamba/bin/python -m pip install --quiet --requirement bench/requirements/cuda.txt
	.venv-mamba/bin/python -m pip install --quiet "setuptools==80.10.2" "wheel==0.48.0"
	rm -rf .venv-mamba/packages
	$(call MAMBA_PIP,download) --dest .venv-mamba/packages --requirement bench/requirements/mamba.txt
	cd .venv-mamba/packages && tar -xzf mamba_ssm-*.tar.gz && rm mamba_ssm-*.tar.gz \
	  && sed -i s/c++17/c++20/ mamba_ssm-*/setup.py
	MAMBA_FORCE_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE $(call MAMBA_PIP,install) .venv-mamba/packages/*
	.venv-mamba/bin/python -m pip install $(EDITABLE)
	@touch $@

# The tables of Markdown files, from published runs; reports/results/tables.toml defines them.
numbers: $(INSTALLED)
	$(PY) -m bench.numbers reports/results/tables.toml $(shell git grep --files-with-matches "^<!-- table" -- "*.md")

# --no-loadscope-reorder: xdist would start long files with few tests last. Many tests wait for subprocesses, so there
# is one more worker than cores, up to four.
test: $(INSTALLED) lint chromium axe slurm
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 PYTEST_XDIST_AUTO_NUM_WORKERS=$$($(PY) -c "import os; print(os.cpu_count() + 1)") \
	  $(PY) -m pytest -m "not gpu and not index" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Write the lock files of bench/requirements from its .in files and pyproject.toml, with the newest releases.
lock: .venv-lock/.installed
	.venv-lock/bin/python bench/requirements/lock.py

# Check that each lock file still resolves; downloads metadata from the package index, no packages.
locks: $(INSTALLED) .venv-lock/.installed
	$(PY) -m pytest -rs -m index tests/test_locks.py

# Kernel tests mostly compile, so four workers share the GPU. Other tests may measure time, so they run one at a time.
test-gpu: $(INSTALLED)
	-$(PY) -m bench build
	$(PY) -m pytest -m gpu tests/tk_kernels --numprocesses 4 --dist loadgroup
	$(PY) -m pytest -m gpu --ignore tests/tk_kernels

# Run every kernel under memcheck, racecheck and synccheck on a Hopper GPU; write the results to the file RECORD, too.
sanitize: $(INSTALLED)
	$(PY) -m tests.tk_kernels.sanitize $(RECORD)

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet bench harness reports tests tk_kernels
	$(PY) -m mypy bench harness reports tk_kernels

# The report's tests open pages in a real browser.
chromium: $(INSTALLED)
	@$(PY) -c "from reports.picture import chromium_path; chromium_path()" 2>/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	|| echo "make test: install Chromium (apt-get install chromium); the report's tests open pages in it"

# The report's tests check its pages with axe-core, an accessibility checker. Without it, these tests are skipped.
AXE := 4.14.1
axe: build/axe-$(AXE).min.js

build/axe-$(AXE).min.js:
	@mkdir -p build
	@{ command -v npm >/dev/null && npm pack --silent --pack-destination build axe-core@$(AXE) >/dev/null \
	  && tar -xzOf build/axe-core-$(AXE).tgz package/axe.min.js > $@.part && mv $@.part $@; } \
	|| echo "make test: cannot download axe-core (this needs npm and a registry); the pages' accessibility is not tested"

# The tests of Slurm jobs start their own Slurm. Without it, these tests are skipped.
slurm:
	@{ command -v sbatch && command -v munged; } >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null; } \
	|| echo "make test: install Slurm (apt-get install slurm-wlm munge); without it, the tests of Slurm jobs are skipped"

.venv-lock/.installed:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv==0.13.9
	@touch $@

$(VENV)/.installed-%: bench/requirements/%.txt pyproject.toml
	$(call CREATE,$(VENV),$(if $(filter cuda,$*),v == 12,11 <= v <= 13),$(if $(filter cuda,$*),3.12,3.11 to 3.13))
	$(BIN)python -m pip install --quiet --requirement bench/requirements/$*.txt
	$(BIN)python -m pip install $(EDITABLE)
	@touch $@

clean:
	rm -rf $(VENV) .venv-vllm .venv-mamba .venv-lock .venv-vllm.log .venv-mamba.log build *.egg-info
