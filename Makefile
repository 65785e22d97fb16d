# `make demo` and `make test` do all set-up themselves; they need only Python 3.11 to 3.13, pip and make.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
DOCS := $(VENV)/.docs
PYTEST := $(VENV)/bin/python -m pytest

.PHONY: setup demo docs docs-serve test test-slow lint dist clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: setup
	$(VENV)/bin/ucan demo

# What the site needs, which is far less than `make setup` installs.
$(DOCS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS)

# The site, in site/: the tutorials are run, and a warning or an error ends the build.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m mkdocs build --strict

docs-serve: $(DOCS)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m mkdocs serve --dev-addr 127.0.0.1:8000

# Two workers with one thread each: more threads than cores slows torch down several times over. Each takes a half of the
# tests in order, then some that are left to the other: what the tests of a file share is made once.
test: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist worksteal -m "not slow"

test-slow: setup
	OMP_NUM_THREADS=1 $(PYTEST) -n 2 -m slow

lint: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The wheel and the sdist in dist/, as they would be published, both checked.
dist: setup
	rm -rf build dist
	$(VENV)/bin/python -m build --no-isolation
	$(VENV)/bin/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
