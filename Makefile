# The two that matter: make quickstart, make test. `make help` lists the rest.
# Paths are relative throughout, so the clone may live anywhere.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:
MAKEFLAGS += --no-print-directory

# What the scripts read from the environment may be given to make as well.
export LIBTORCH WEFT_CUDA WEFT_PACKAGES JOBS TEST_JOBS NPROC PYTHON TEST RETRY
PREFIX ?= /usr/local
ARGS ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s%s\n", $$1, $$2}' Makefile
	@echo "Variables: ARGS= (more arguments), JOBS= NPROC= LIBTORCH= WEFT_CUDA=on|off"

.PHONY: quickstart
quickstart: setup ## build weft and train a small Llama on 4 ranks
	@scripts/build.sh weft weftrun
	@scripts/quickstart.sh $(ARGS)

.PHONY: test
test: build ## build everything and run the tests (ARGS="-L ddp", TEST=A.B)
	@scripts/setup.sh tests
	@scripts/test.sh $(ARGS)

.PHONY: check-ops
check-ops: setup ## check every DTensor op against one rank (build/ops.json)
	@scripts/build.sh dtensor_op_check
	@build/bin/dtensor_op_check --full --parts A,C,D,E,F --samples tests/dtensor/samples \
	  --registry tests/dtensor/pytorch_registry.txt \
	  --write-table docs/dtensor_ops.md --json build/ops.json $(ARGS)

.PHONY: setup
setup: ## install Debian packages and libtorch, where missing
	@scripts/setup.sh

.PHONY: build
build: setup ## build everything
	@scripts/build.sh

.PHONY: install
install: build ## install to PREFIX (/usr/local)
	@cmake=$$([ -x .venv/bin/cmake ] && echo .venv/bin/cmake || echo cmake); \
	"$$cmake" --install build --prefix "$(PREFIX)"

.PHONY: wheel
wheel: setup ## make dist/weft-*.whl and try it (docs/building.md)
	@scripts/wheel.sh
	@scripts/wheel.sh check

.PHONY: package
package: wheel ## make dist/weft-*.tar.gz and .deb of the wheel and try them
	@scripts/package.sh

.PHONY: site
site: setup ## make the documentation's site (build-site/html)
	@scripts/site.sh

.PHONY: torch-versions
torch-versions: setup ## build and test with the oldest libtorch (ARGS=versions)
	@scripts/torch_versions.sh $(ARGS)

.PHONY: digits
digits: ## fetch the digit images of scikit-learn (.cache/digits.csv.gz)
	@scripts/digits.sh

.PHONY: peer
peer: setup ## make .venv-peer: PyTorch with Python, to compare with
	@scripts/peer.sh

.PHONY: bench
bench: setup peer ## measure against PyTorch in turn (docs/benchmarks.md)
	@scripts/build.sh weft weftrun
	@scripts/bench.sh $(ARGS)

.PHONY: format
format: ## clang-format all sources
	@scripts/lint.sh format --fix

.PHONY: lint
lint: ## the style checks that make test runs too
	@scripts/lint.sh calls && scripts/lint.sh notes && scripts/lint.sh words && \
	  scripts/lint.sh format && scripts/lint.sh reference

.PHONY: tidy
tidy: setup ## clang-tidy (ARGS=files; default: all sources)
	@scripts/tidy.sh $(ARGS)

.PHONY: clean
clean: ## remove build folders (not .venv, not outputs)
	rm -rf build build-*
