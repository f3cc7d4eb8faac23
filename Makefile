# One target per job; each sets up what it needs and none needs root. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?=
EXTRAS ?=
BOARD ?= ulx3s-85f
SUITES ?= gemm conv tiny nets blocks conditions sim
SECONDS := 600
PROGRAMS ?=
COVERAGE ?= 1
WAVES ?= build/sim.fst

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COUNTS := build/coverage
COUNTING := $(if $(filter-out 0,$(COVERAGE)),--hw-coverage $(COUNTS))
# Each process begins with half of the tests, so that tests of one file share compiled networks and references.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile=ci

# The prover, like any make further down, would take this one's job server and overrides for its own.
unexport MAKEFLAGS MFLAGS MAKELEVEL
# Tests start hundreds of Python processes, each of which would compile all modules if none may write bytecode.
unexport PYTHONDONTWRITEBYTECODE
# Each of the two processes has one core; threads of the linear algebra library would only wait for each other.
test soak: export OPENBLAS_NUM_THREADS := 1

.PHONY: help setup sim test bench soak lint format docs fpga waves lock clean cxx

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1|/' | column -t -s '|'

setup: $(READY) $(EXTRAS:%=$(READY)-%)  ## fill .venv with the locked packages (EXTRAS=torch: with those for PyTorch models)

$(READY): requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) $(PYTHON)
	@touch $@

$(READY)-%: $(READY)
	@scripts/extra.sh $(VENV) $*
	@touch $@

# Verilator's output is compiled on this machine: the one thing no wheel brings.
cxx:
	@command -v $(CXX) > /dev/null || { echo "make: $(CXX) is missing: it compiles the simulator." \
		"Debian, Ubuntu: apt install g++. Fedora: dnf install gcc-c++." >&2; exit 1; }

sim: $(READY) cxx  ## serve handwritten digits on the simulated chip while better programs are found and loaded
	$(BIN)/python -m scripts.sim

test: $(READY) cxx  ## run all tests, with a random half of the cases of random ones
	$(PYTEST) --random-cases 0.5 --ignore=tests/soak tests

bench: $(READY) cxx  ## print the performance tables and write docs/benchmarks.md (SUITES="gemm conv tiny nets conditions sim")
	$(BIN)/python -m scripts.bench $(SUITES)

# Coverage is that of the tests above: chips that count run several times as slowly, too slowly for the long ones. The
# random programs run by themselves, so that their two lanes are the two processes' only work.
soak: $(READY) cxx  ## all tests with line coverage, long ones, random programs (SECONDS=600 or PROGRAMS=20000; COVERAGE=0)
	@rm -rf $(COUNTS)
	$(if $(COUNTING),$(PYTEST) $(COUNTING) --ignore=tests/soak tests)
	$(PYTEST) --ignore=tests/soak/test_random_programs.py tests/soak
	MLA_SOAK_SECONDS=$(SECONDS) MLA_SOAK_PROGRAMS=$(or $(PROGRAMS),0) $(PYTEST) tests/soak/test_random_programs.py
	$(if $(COUNTING),$(BIN)/python -m scripts.coverage $(COUNTS) --json $(COUNTS).json)

lint: $(READY)  ## style, format, types, and who may import whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.check_isa
	$(BIN)/python -m scripts.docs --check

format: $(READY)  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: $(READY)  ## generate the reference pages and the pictures, and build the site in build/site
	$(BIN)/python -m scripts.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build  # without its theme's advertisement of a successor

fpga: $(READY)  ## synthesis, place and route, bitstream and report (BOARD=ulx3s-85f)
	$(BIN)/mla fpga --board $(BOARD)

waves: $(READY) cxx  ## run the digits and record the chip's signals (WAVES=build/sim.fst)
	$(BIN)/python -m scripts.sim --waves $(WAVES)

lock:  ## choose the newest allowed packages and pin them in requirements.lock
	scripts/lock.sh

clean:  ## remove what these targets wrote, except .venv and the cache that MLA_CACHE names
	rm -rf build *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find compiler cosim examples hw scripts tests -name __pycache__ -prune -exec rm -rf {} +
	find hw cosim compiler tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
