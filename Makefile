# One virtual environment, made on demand; every command below can be the first one on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test test-pure test-ops fuzz sanitize shield interop check format soak bench clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

install: $(STAMP) ## create .venv and install the package with its exact pins

$(STAMP): pyproject.toml constraints.txt $(wildcard sidecar/*/*.c)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,dev]'
	@touch $@

demo: install ## real gateway requests through real sockets, with a table of what was done
	$(BIN)/sidecar demo

test: install ## all tests that need no GPU, no network and no other program
	$(BIN)/python -m pytest

test-pure: install ## the tests of the core where its parts in C are left out
	PURE_PYTHON=1 $(BIN)/python -m pytest tests/admission tests/dialects tests/materialize tests/hostile tests/test_*.py

test-ops: install ## checks with Prometheus, a browser, Kubernetes schemas and container tools; installs them as root on Debian
	$(BIN)/python -m tests.ops

fuzz: install ## 200,000 mutated messages: every one answered once, no exception, memory flat
	$(BIN)/python -m tests.fuzz

sanitize: install ## the parts in C under the address and undefined-behaviour sanitizers of cc
	PYTHON=$(BIN)/python scripts/sanitize.sh

shield: install ## write docs/shield.md with the engine of scripts/interop-venvs.sh
	$(BIN)/python scripts/shield.py

interop: install ## the real gateway builds and the real engine's Python around the sidecar; x86-64, about ten minutes
	scripts/interop-venvs.sh
	INTEROP_HOME=.interop $(BIN)/python -m pytest tests/interop
	INTEROP_HOME=.interop $(BIN)/python -m tests.interop.measure_relay

check: install ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: install ## minutes of load and faults with real processes; SOAK_SCALE=0.1 for a short run
	$(BIN)/python -m tests.soak

bench: install ## all benchmarks; tables on the terminal, JSON in out/
	$(BIN)/python -m benchmarks

clean: ## remove what the other targets made
	rm -rf $(VENV) .interop out .pytest_cache .ruff_cache .mypy_cache .hypothesis
