# SPDX-License-Identifier: Apache-2.0
# The commands of the project. Each first installs what is missing (tools/bootstrap).

.DEFAULT_GOAL := help
PRESET ?= release

# What `make run` gives to the command unless ARGS says otherwise; SHORT=1 chooses the short form.
RUN_ARGS := $(if $(SHORT),check --suite smoke,check)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## Build the library and the command (build/release/quire; PRESET= for another)
	@tools/bootstrap build
	@tools/build.sh $(PRESET) quire quire_cli

.PHONY: run
run: ## Build and run the command (SHORT=1 for the short form, ARGS= for others)
	@$(MAKE) --no-print-directory build
	build/$(PRESET)/quire $(or $(ARGS),$(RUN_ARGS))

.PHONY: test
test: ## Every test this machine can run; JOBS="format release ..." for some of them
	@tools/bootstrap test
	@tools/ci_jobs.sh $(JOBS)

.PHONY: test-torch
test-torch: ## Compare with PyTorch (installs its libraries, about 1.5 GB)
	@tools/bootstrap torch
	@tools/ci_jobs.sh torch

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
