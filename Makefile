# Two commands do everything on a machine with Python 3.11+ and make:
#   make run    start a NameServer and a broker in one process, data under ./data
#   make test   run every test
#   make soak   run the long ones, many random rounds: make soak SEED=7 takes a seed again
# PYTHON=/path/to/python makes the environment with that one; else the fastest suitable one.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Children of the tests, and the next run, would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test soak lint fmt bench bench-spark clean

run: $(STAMP)
	@exec $(BIN)/pyromq standalone --data data

# A worker for each core; the tests of one file stay together and share their servers.
# The workers would all compile the same tests at once: before the first run, two do it for all.
COLLECT := $(BIN)/python -m pytest --collect-only --quiet
test: $(STAMP)
	@test -d tests/__pycache__ || { \
	  $(COLLECT) tests/unit >/dev/null 2>&1 & $(COLLECT) tests --ignore=tests/unit >/dev/null 2>&1; \
	  wait; }
	$(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

# -v shows each test's name, which holds its seed.
soak: $(STAMP)
	PYROMQ_SOAK=1 PYROMQ_SEED=$(SEED) $(BIN)/python -m pytest -m 'soak or hypothesis' -v $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m bench $(BENCH_ARGS)

# Beside Spark's Kafka connector: make bench-spark BENCH_ARGS="--messages 1,4,16 --rounds 1"
bench-spark: $(STAMP)
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { \
	  python="$(PYTHON)"; python="$${python:-$$(tools/choose-python)}" && \
	  "$$python" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pyromq needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")' && \
	  echo "making $(VENV) with $$python" && "$$python" -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
