# `make demo` and `make test` work in a fresh clone: each target first builds what it needs. A compiler,
# Python's headers and GoogleTest are installed with apt-get if this user is root; otherwise the
# apt command to run is printed. Tests that need an optional tool (clang, nvcc, pkg-config) are skipped
# if it is missing; ccache and pytest-xdist only make them faster.
#
#   make setup      creates .venv with torch, torchamp and tools; TORCH='torch==2.13.0' selects torch
#   make demo       trains a small network at every opt level, from C++ and from Python
#   make experiments  measures time, memory and losses of mixed precision, and what rounding loses
#   make test       runs the C++ tests, then the Python tests, MAX_JOBS at a time
#   make soak       runs the long tests: more compilers, sanitizers, architectures, projects
#   make bench      measures and predicts ops, steps and full iterations, and compares with torch
#   make gpu-check  tests on the machine's GPU, offline, with the torch of PYTHON; GPU_CHECK=timings measures;
#                   BUILD=<a tree built with tests and examples> builds nothing
#   make sanitize   runs the C++ tests under sanitizers, some under valgrind; slow
#   make docs       writes the guides and the reference of C++ and Python to out/docs
#   make lint       checks formatting and runs static checks
#   make doctor     reports what is installed, what is missing, and what to do about it
#   make sdist      writes the source archive to dist
#   make wheel      writes the wheel for the torch of .venv to dist, with a manylinux tag
#   make help       prints this list
#   make clean      removes build products; keeps .venv

PYTHON ?= python3
TORCH ?=
MAX_JOBS ?= $(shell nproc)
GTEST_SOURCE ?= $(if $(wildcard .gtest),$(CURDIR)/.gtest)
GPU_CHECK ?=
BUILD ?=

VENV := .venv
# In quotes: the path may have spaces.
BIN := "$(CURDIR)/$(VENV)/bin"
IN_VENV := PATH=$(BIN):"$$PATH"
SOURCES := CMakeLists.txt setup.py pyproject.toml \
  $(shell find cmake csrc include python/torchamp -type f -not -name '*.pyc' -not -name '*.so')

.PHONY: setup demo experiments test soak bench gpu-check sanitize docs lint doctor sdist wheel help \
  clean FORCE

setup: $(VENV)/.torchamp

# The script rewrites the file only when something in the environment changed.
$(VENV)/.environment: FORCE
	@build_tools/make_venv.sh "$(PYTHON)" "$(TORCH)"

# The wheel and the tests share build/, so that nothing is compiled twice.
$(VENV)/.torchamp: $(VENV)/.environment $(SOURCES)
	@echo "torchamp: compiling it, a minute or two on two cores; [n/m] counts the files"
	@$(IN_VENV) TORCHAMP_BUILD_DIR="$(CURDIR)/build" MAX_JOBS=$(MAX_JOBS) $(BIN)/python -m pip install \
	  --verbose --config-settings=quiet=1 --no-build-isolation --no-deps --force-reinstall .
	@touch $@
	@echo "torchamp: installed into $(VENV): make demo trains a network, docs/tutorial.md explains one"

demo: setup
	$(IN_VENV) $(BIN)/python examples/demo.py

EXPERIMENTS := conv_noise compare native_loop vgg_sweep which_precision char_gpt
CPP_EXPERIMENTS := conv_noise compare native_loop vgg_sweep

# All run, even if one fails.
experiments: setup
	@$(IN_VENV) cmake -S . -B build -DTORCHAMP_BUILD_EXAMPLES=ON >/dev/null
	@$(IN_VENV) cmake --build build --parallel $(MAX_JOBS) --target $(CPP_EXPERIMENTS)
	@failed=; for each in $(EXPERIMENTS); do \
	  $(IN_VENV) $(BIN)/python examples/python/$$each.py || failed="$$failed $$each"; \
	done; \
	for each in $(CPP_EXPERIMENTS); do \
	  build/examples/cpp/experiments/$$each/$$each || failed="$$failed $$each (C++)"; \
	done; \
	if [ -n "$$failed" ]; then echo "experiments failed:$$failed" >&2; exit 1; fi

RUN_TESTS = $(IN_VENV) MAX_JOBS=$(MAX_JOBS) GTEST_SOURCE="$(GTEST_SOURCE)" build_tools/run_tests.sh

test: setup
	@$(RUN_TESTS)

soak: setup
	@$(RUN_TESTS) soak

bench: setup
	$(IN_VENV) cmake -S . -B build -DTORCHAMP_BUILD_BENCHMARKS=ON
	$(IN_VENV) cmake --build build --parallel $(MAX_JOBS)
	$(IN_VENV) $(BIN)/python benchmarks/run.py

gpu-check:
	GTEST_SOURCE="$(GTEST_SOURCE)" MAX_JOBS=$(MAX_JOBS) $(PYTHON) tests/gpu_check/run.py \
	  $(if $(BUILD),--build "$(BUILD)") $(GPU_CHECK)

sanitize: setup
	$(IN_VENV) sh tests/sanitize.sh $(MAX_JOBS)

docs: setup
	@build_tools/make_docs.sh $(BIN)/python

lint: setup
	@build_tools/lint.sh $(BIN)/python

doctor:
	@if [ -x $(BIN)/python ]; then $(IN_VENV) $(BIN)/python python/torchamp/doctor.py; \
	  else $(PYTHON) python/torchamp/doctor.py; fi

sdist: $(VENV)/.environment
	@$(IN_VENV) build_tools/make_sdist.sh $(BIN)/python

wheel: $(VENV)/.environment
	@$(IN_VENV) MAX_JOBS=$(MAX_JOBS) build_tools/make_wheel.sh $(BIN)/python

help:
	@sed -n 's/^#   //p' Makefile

clean:
	rm -rf build build-* dist out
