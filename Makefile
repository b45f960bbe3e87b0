# SPDX-License-Identifier: Apache-2.0
# The commands of the project. Each first installs what is missing (tools/bootstrap).

.DEFAULT_GOAL := help
PRESET ?= release

# The workload of `make run`: chatty conversations on a cache that is too small for them. SHORT=1
# chooses the short form.
RUN_REQUESTS := $(if $(SHORT),800 --duration 240,2000 --duration 600)
RUN_TRACE := --seed 7 --requests $(RUN_REQUESTS) --mean-turns 3 --turn-gap 0:5,50:30,100:200
RUN_REPLAY := --cache-bytes 24MiB --host-blocks 512 --share-tails --priorities 3

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## Build the library and the command (build/release/quire; PRESET= for another)
	@tools/bootstrap build
	@tools/build.sh $(PRESET) quire quire_cli

.PHONY: run
run: ## Replay a made-up trace with attention, report in build/run/report.html (SHORT=1, ARGS=)
	@$(MAKE) --no-print-directory build
	@mkdir -p build/run
ifdef ARGS
	build/$(PRESET)/quire $(ARGS)
else
	build/$(PRESET)/quire trace $(RUN_TRACE) -o build/run/trace.jsonl
	build/$(PRESET)/quire replay build/run/trace.jsonl $(RUN_REPLAY) --html build/run/report.html
endif

.PHONY: check
check: ## Run the conformance suite on every backend of this machine (SHORT=1 for its smoke cases)
	@$(MAKE) --no-print-directory build
	build/$(PRESET)/quire check $(if $(SHORT),--suite smoke)

.PHONY: test
test: ## Every test this machine can run; JOBS="format release ..." for some of them
	@tools/bootstrap test
	@tools/ci_jobs.sh $(JOBS)

.PHONY: test-torch
test-torch: ## Compare with PyTorch (installs 1.5 GB; TRANSFORMERS=5.17.0 for another version of that)
	@tools/bootstrap torch $(TRANSFORMERS)
	@TRANSFORMERS=$(TRANSFORMERS) tools/ci_jobs.sh torch

.PHONY: format
format: ## Format every tracked source in place
	@tools/bootstrap lint
	@tools/format.sh --fix

.PHONY: lint
lint: ## Check format, source rules and clang-tidy
	@tools/bootstrap lint
	@tools/ci_jobs.sh format tidy

.PHONY: bench
bench: ## Micro-benchmarks and a short quire bench (ARGS= for another one)
	@tools/bootstrap build
	@tools/build.sh release quire_bench quire_cli
	build/release/bench/quire_bench
	build/release/quire bench $(or $(ARGS),--suite all --quick)

.PHONY: clean
clean: ## Remove the build trees
	rm -rf build
