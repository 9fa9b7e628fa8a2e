# `make demo` and `make test` set up all they need in .venv first; a second run finds it ready.

PYTHON := .venv/bin/python

.PHONY: demo test test-full lint clean setup setup-tests

demo: setup
	$(PYTHON) scripts/get_models.py magika
	$(PYTHON) examples/identify_files.py

test: setup-tests
	$(PYTHON) scripts/run_tests.py

test-full: setup-tests
	$(PYTHON) scripts/run_tests.py --full

lint: setup
	$(PYTHON) scripts/run_tests.py lint

setup:
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --tests

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
