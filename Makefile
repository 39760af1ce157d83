# make demo   a virtual environment, the engine, a small real model, generated text
# make test   the same environment with the test tools: linters, type checks, every test
# make test-amx    kernels of the level amx, emulated: for a CPU with AVX512 but without AMX
# make test-vllm   an environment with vLLM, and the tests of the plugin in it
# Needs Python 3.10+ with venv and headers, g++ 11+ or clang 14+, and a Python package registry.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# -v: pytest's usual summary lines, whatever the configured default is.
PYTEST_ARGS ?= -v

# What the native module is built from; a change here installs again (and compiles what changed).
BUILT_FROM := pyproject.toml CMakeLists.txt $(wildcard src/edge_infer_companions.*) \
  $(shell find native -type f 2>/dev/null)
CXX_FILES := $(shell find native -name '*.h' -o -name '*.cc' 2>/dev/null)
REFERENCE := tests/requirements-reference.txt
# Only the CPU build of torch will do: its local version (+cpu) is in the pin, and this index is
# asked where the configured ones do not have it.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# Without build isolation the compiled objects in build/ stay valid from one install to the next.
INSTALL := $(BIN)/python -m pip install -qq --no-build-isolation

# vLLM's environment is its own: it pins torch and dozens of packages.
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMPS := $(VLLM_VENV)/.stamps
WHEELS := build/wheels
PACKAGED := $(BUILT_FROM) $(shell find src/edge_infer -type f -not -name '*.pyc' 2>/dev/null)

.PHONY: demo test test-amx test-vllm lint format install clean baseline-llamacpp baseline-openvino \
  baseline-onnxruntime-genai baseline-vllm-cpu bench
.DELETE_ON_ERROR:

demo: $(STAMPS)/demo
	@$(BIN)/edge-infer demo

test: lint $(STAMPS)/reference
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# In the build tree that the environment of make test was installed from.
test-amx: $(STAMPS)/test $(STAMPS)/reference
	@tree=$$(ls -d build/$$($(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*/) && \
	$(BIN)/cmake --build $$tree --target emulated_amx && \
	PYTHONPATH=$(CURDIR)/tests/other_native \
	EDGE_INFER_TEST_NATIVE=$$(ls $(CURDIR)/$${tree}native/emulated_amx/_native*.so) \
	  $(BIN)/python -m pytest $(PYTEST_ARGS) tests/native tests/models/test_packed.py \
	  tests/models/test_demo_agreement.py -k "amx or packed"

test-vllm: $(VLLM_STAMPS)/test
	$(VLLM_BIN)/python -m pytest $(PYTEST_ARGS) tests/vllm_plugin

lint: $(STAMPS)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(STAMPS)/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

install: $(STAMPS)/test

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; set PYTHON=/path/to/python3."; exit 1; }
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "A C++20 compiler is needed: g++ 11 or newer, or clang 14 or newer."; exit 1; }
	@echo "Making $(VENV) and installing the build tools ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq "pip>=23" "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/venv $(BUILT_FROM)
	@echo "Building and installing edge-infer and the demo model's packages ..."
	@$(INSTALL) -e ".[demo]"
	@touch $@

$(STAMPS)/test: $(STAMPS)/venv $(BUILT_FROM)
	@echo "Building and installing edge-infer with its test tools ..."
	@$(INSTALL) -e ".[demo,serve,test,dev]"
	@touch $@ $(STAMPS)/demo

# torch and transformers, which the tests in tests/models compare with; the engine never uses them.
$(STAMPS)/reference: $(STAMPS)/venv $(REFERENCE)
	@echo "Installing the reference that tests compare with (torch for the CPU, transformers) ..."
	@if $(INSTALL) -r $(REFERENCE) 2>$(STAMPS)/reference.log || \
	    $(INSTALL) -r $(REFERENCE) --extra-index-url $(TORCH_CPU_INDEX) 2>>$(STAMPS)/reference.log; then \
	  touch $@; \
	elif [ -n "$$EDGE_INFER_REQUIRE_ASSETS" ]; then \
	  cat $(STAMPS)/reference.log; exit 1; \
	else \
	  echo "No CPU build of torch within reach: tests that compare with transformers are skipped"; \
	  echo "($(STAMPS)/reference.log says why)."; \
	fi

# Torch first and alone: where no CPU build is within reach, this ends before vLLM is downloaded.
$(VLLM_STAMPS)/torch: tests/requirements-vllm.txt
	@echo "Making $(VLLM_VENV) and installing torch for the CPU ..."
	@$(PYTHON) -m venv $(VLLM_VENV)
	@mkdir -p $(VLLM_STAMPS)
	@pip="$(VLLM_BIN)/python -m pip install -qq"; log=$(VLLM_STAMPS)/torch.log; \
	$$pip "pip>=23" && rm -f $(VLLM_STAMPS)/index && torch=$$(grep ^torch== $<) && \
	if $$pip "$$torch" 2>$$log; then :; \
	elif $$pip "$$torch" --extra-index-url $(TORCH_CPU_INDEX) 2>>$$log; then \
	  echo "--extra-index-url $(TORCH_CPU_INDEX)" >$(VLLM_STAMPS)/index; \
	else \
	  cat $$log; \
	  echo "No CPU build of torch ($$torch) is within reach of pip; vLLM needs this one, and the"; \
	  echo "CUDA builds that PyPI has will not do. Set TORCH_CPU_INDEX to an index that has it, or"; \
	  echo "PIP_FIND_LINKS to a folder with its wheel."; \
	  exit 1; \
	fi
	@touch $@

# The module that $(VENV) has compiled, as the wheel that a user would install.
$(WHEELS)/made: $(STAMPS)/venv $(PACKAGED)
	@rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	@$(BIN)/python -m pip wheel -qq --no-build-isolation --no-deps -w $(WHEELS) .
	@touch $@

$(VLLM_STAMPS)/test: $(VLLM_STAMPS)/torch $(WHEELS)/made
	@echo "Installing vLLM and edge-infer in $(VLLM_VENV) ..."
	@wheel=$$(echo $(abspath $(WHEELS))/*.whl); pip="$(VLLM_BIN)/python -m pip install -qq"; \
	index=$$(cat $(VLLM_STAMPS)/index 2>/dev/null); \
	$$pip $$index "edge-infer[vllm,demo] @ file://$$wheel" -r tests/requirements-vllm.txt && \
	$$pip --no-deps --force-reinstall "$$wheel"
	@touch $@

baseline-llamacpp baseline-openvino baseline-onnxruntime-genai baseline-vllm-cpu: baseline-%:
	PYTHON=$(PYTHON) baselines/$*/build.sh

# Hours on a quiet machine, 40 minutes with QUICK=1; STEPS="decode sequences" does a part
# (benchmarks/series.sh --plan lists them).
bench: $(STAMPS)/test $(STAMPS)/reference baseline-llamacpp \
  $(if $(filter peers,$(STEPS)),baseline-openvino baseline-onnxruntime-genai baseline-vllm-cpu) \
  $(if $(findstring vllm,$(STEPS)),$(VLLM_STAMPS)/test)
	PATH="$(abspath $(BIN)):$$PATH" VLLM_PYTHON=$(VLLM_BIN)/python benchmarks/series.sh $(if $(QUICK),--quick) $(STEPS)

clean:
	rm -rf $(VENV) $(VLLM_VENV) build .pytest_cache .mypy_cache .ruff_cache
