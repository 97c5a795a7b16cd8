# make demo [MODEL=path]   optimize a model, race the result against the original;
#                          DEMO_ARGS= shows what tracea-optimize reports
# make test                the default tests; make test-slow adds the long ones
# make test-gpu            kernels on this machine's NVIDIA GPU: right, under compute-sanitizer if it
#                          is installed, and how fast
# make test-torch          tests of tracea_graph.torch; installs PyTorch, on Linux several GB unless a
#                          CPU build is found: TORCH= names another requirement
# make sanitize            all kernels under the address, undefined-behaviour and thread sanitizers
# make check               ruff, mypy, import directions, the documentation; make golden rewrites
#                          the golden files, make docs the generated sections of the documentation
#
# Each target installs what it needs into .venv; nothing else on the machine changes.
# PYTHON chooses the interpreter (3.11 or newer), CXX the C++ compiler of generated kernels.

SHELL := /bin/sh
VENV ?= .venv
PYTHON ?=
MODEL ?=
PYTEST_ARGS ?=
DEMO_ARGS ?= --quiet
TORCH ?= torch>=2.6

bin := $(VENV)/bin
zoo := models/build/minilm.onnx

# Without a compiler the ziglang wheel is one; make's own default of CXX says nothing.
ifeq ($(origin CXX),default)
compiler := $(shell command -v g++ || command -v clang++ || command -v c++)
else
compiler := $(CXX)
endif
zig := $(if $(strip $(compiler)),,zig)

.PHONY: demo test test-slow test-gpu test-torch sanitize check golden docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp $(if $(MODEL),,$(zoo))
	@mkdir -p demo
	@model="$(or $(MODEL),$(zoo))"; out="demo/$$(basename "$$model" .onnx).tracea.onnx"; \
	echo "optimizing $$model, which measures for up to a minute"; \
	$(bin)/tracea-optimize "$$model" -o "$$out" $(DEMO_ARGS) && \
	$(bin)/python -m models.demo "$$model" "$$out"

test: $(VENV)/dev.stamp
	$(bin)/python -m pytest -q -n auto --dist loadfile $(PYTEST_ARGS)

sanitize: $(VENV)/dev.stamp
	$(bin)/python -m pytest -q -m "sanitizer and not slow" tests/sanitizers

test-slow: $(VENV)/dev.stamp
	$(bin)/python -m pytest -q -m "not gpu" $(PYTEST_ARGS)

test-gpu: $(VENV)/dev.stamp
	$(bin)/python -m pytest -q -m gpu $(PYTEST_ARGS) tests/gpu tests/c_api
	$(bin)/python -m tests.gpu.sanitize
	$(bin)/python -m tests.gpu.timing
	$(bin)/python -m tests.gpu.models

test-torch: $(VENV)/dev.stamp
	$(bin)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" onnxscript
	$(bin)/python -m pytest -q $(PYTEST_ARGS) tests/torch

check: $(VENV)/dev.stamp
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/python -m pytest -q tests/test_layout.py tests/test_docs.py

golden: $(VENV)/dev.stamp
	$(bin)/python -m pytest -q --update-golden $(PYTEST_ARGS)

docs: $(VENV)/dev.stamp
	$(bin)/python -m docs.generate

clean:
	rm -rf $(VENV) build demo models/build *.egg-info

$(zoo): models/graphs/minilm.onnx.gz models/make.py | $(VENV)/demo.stamp
	$(bin)/python -m models.make minilm

# Installed editable, so that an edited or pulled source counts at once.
$(VENV)/demo.stamp: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing tracea-graph into $(VENV)"
	@$(bin)/python -m pip install --quiet --disable-pip-version-check -e ".$(if $(zig),[$(zig)])"
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "installing tracea-graph and its development tools into $(VENV)"
	@$(bin)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(bin)/python -m pip install --quiet --disable-pip-version-check --group dev -e ".$(if $(zig),[$(zig)])"
	@touch $@ $(VENV)/demo.stamp

$(VENV)/pyvenv.cfg:
	@for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	    command -v $$python >/dev/null || continue; \
	    $$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
	        2>/dev/null || continue; \
	    echo "making $(VENV) with $$python"; exec $$python -m venv $(VENV); \
	done; \
	echo "tracea-graph needs Python 3.11 or newer with venv and ensurepip" \
	    "(Debian, Ubuntu: the package python3-venv); name it with PYTHON=..." >&2; \
	exit 1
