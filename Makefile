# `make quickstart` shows a sandbox live; `make test` runs the tests. Both install what they need (as root).

SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
export AENV_STATE ?= $(CURDIR)/.state

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: setup
setup: ## install system packages, the virtual environment and the package
	@scripts/setup

.PHONY: quickstart
quickstart: setup ## start a server, drive a sandbox through the E2B SDK, print what happened
	@$(PY) examples/quickstart.py

.PHONY: test
test: setup ## the quick suite, set-up and checks included: ten minutes
	@$(MAKE) --no-print-directory --jobs=2 lint go-test
	@scripts/test -n 2 --no-loadscope-reorder -m "not long" --durations=25 tests

.PHONY: test-long
test-long: setup ## the long suite: an hour at most
	@scripts/test -n 2 --no-loadscope-reorder -m long --timeout=3000 --durations=15 tests
	@scripts/fuzz

.PHONY: fuzz
fuzz: setup ## fuzz the guest agent, FUZZTIME (10m) for each target, side by side
	@scripts/fuzz

.PHONY: lint
lint: setup ## ruff, mypy, gofmt, go vet
	@scripts/lint

.PHONY: go-test
go-test: setup ## the tests of envd
	@cd guest && ../$(VENV)/bin/go test ./...

.PHONY: envd
envd: setup ## compile the guest agent again after a change in guest/
	@$(PY) hatch_build.py

.PHONY: clean
clean: ## remove everything that was built or installed in this folder
	rm -rf $(VENV) $(AENV_STATE) build dist src/aenv/guest/envd
