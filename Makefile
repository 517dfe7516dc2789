# All you need is Linux, Python 3.11+ and make:
#   make run     start a NameServer and a broker in one process, with data in ./data
#   make test    run every test
#   make check   run the linters, the type checker and every test, as CI does
#   make soak    run the long tests, with many random rounds; SEED=7 repeats a seed
#   make wheel   build dist/*.whl and dist/*.tar.gz, and try both in empty environments
# `make run` installs the server's few dependencies only; the other targets add the development
# packages. PYTHON=/path/to/python chooses the interpreter of a new .venv; by default
# tools/choose-python picks the fastest suitable one.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Each stamp is a copy of the pyproject.toml that was installed. A touched but unchanged file
# therefore installs nothing.
RUNTIME := $(VENV)/.runtime.toml
DEVELOPMENT := $(VENV)/.development.toml
# The compiled kernel lies beside its sources; any target rebuilds it after they changed.
KERNEL := $(VENV)/.kernel
# A build that fails prints one line and stops nothing: pyromq runs on its Python code alone.
BUILD_KERNEL := $(BIN)/python setup.py --quiet build_ext --inplace
KERNEL_SOURCES := setup.py $(wildcard src/pyromq/protocol/kernel/*.py src/pyromq/protocol/kernel/*.pxd)

# Let Python cache bytecode: the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test soak lint fmt bench bench-spark kernel wheel clean
# `make -j check` still runs the linters before the tests.
.NOTPARALLEL:

run: $(RUNTIME) $(KERNEL)
	@exec $(BIN)/pyromq standalone --data data

check: lint test

# More pytest workers than cores (tests/conftest.py); the tests of a file share servers and stay on
# one worker. On the first run, two processes compile all tests, so that not every worker does it.
COLLECT := $(BIN)/python -m pytest --collect-only --quiet
test: $(DEVELOPMENT) $(KERNEL)
	@$(BIN)/pyromq --version
	@test -d tests/__pycache__ || { \
	  $(COLLECT) tests/unit >/dev/null 2>&1 & $(COLLECT) tests --ignore=tests/unit >/dev/null 2>&1; \
	  wait; }
	$(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

# -v prints the names of the tests, which contain their seeds.
soak: $(DEVELOPMENT) $(KERNEL)
	PYROMQ_SOAK=1 PYROMQ_SEED=$(SEED) $(BIN)/python -m pytest -m 'soak or hypothesis' -v $(PYTEST_ARGS)

lint: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(DEVELOPMENT)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Compare with Apache RocketMQ, NATS and Kafka: make bench BENCH_ARGS="--only java,pyromq --rounds 1"
bench: $(DEVELOPMENT) $(KERNEL)
	$(BIN)/python -m bench $(BENCH_ARGS)

# Compare with Spark's Kafka connector: make bench-spark BENCH_ARGS="--messages 1,4,16 --rounds 1"
bench-spark: $(DEVELOPMENT) $(KERNEL)
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

# Try again, for example after the installation of a compiler.
kernel: $(RUNTIME)
	$(BUILD_KERNEL)
	@$(BIN)/pyromq --version

wheel: $(DEVELOPMENT)
	$(BIN)/python tools/try_wheel.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build
	rm -f src/pyromq/protocol/kernel/*.so

# --no-compile saves a fifth of the time: Python compiles the modules it uses, at first use. The
# kernel is built while pip downloads, which saves another quarter.
$(RUNTIME): pyproject.toml | $(BIN)/python
	@cmp -s pyproject.toml $@ || { echo "installing the server's packages" && \
	  $(PIP) --no-compile 'cython>=3.1' 'setuptools>=77' && \
	  { $(BUILD_KERNEL) & PYROMQ_PURE=1 $(PIP) --no-compile --no-build-isolation --editable . ; \
	    status=$$?; wait; exit $$status; }; }
	@cp pyproject.toml $@

# The development packages include the server's, so `make run` has nothing left to install.
$(DEVELOPMENT): pyproject.toml | $(BIN)/python
	@cmp -s pyproject.toml $@ || { echo "installing the development packages" && $(PIP) --editable '.[dev]' ; }
	@cp pyproject.toml $@ && cp pyproject.toml $(RUNTIME)

# After a change of the sources; an installation has built it already, which this finds out.
$(KERNEL): $(KERNEL_SOURCES) | $(BIN)/python
	@$(BUILD_KERNEL) && touch $@

$(BIN)/python:
	@python="$(PYTHON)"; python="$${python:-$$(tools/choose-python)}" && \
	  "$$python" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pyromq needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")' && \
	  echo "creating $(VENV) with $$python" && "$$python" -m venv $(VENV)
