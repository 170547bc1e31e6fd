# make lab    opens the course in JupyterLab
# make test   proves it: style, types, unit tests, hangs, every notebook, the page in a browser
# Both first make .venv from the pinned list, once. OPTIONS are passed on: make lab OPTIONS=--no-browser

PYTHON ?= python3
OPTIONS ?=
PIP := .venv/bin/python -m pip --disable-pip-version-check

# A virtual environment does not survive a move of its folder, so the stamp holds the folder's name.
STALE := $(shell [ "$$(cat .venv/ready 2>/dev/null)" = "$$PWD" ] || echo stale)

.PHONY: lab test doctor clean stale

lab: .venv/ready
	@.venv/bin/python -m tpcourse lab $(OPTIONS)

test: .venv/ready
	@.venv/bin/python -m pytest --numprocesses 2 --dist loadfile --nbval tests notebooks solutions $(OPTIONS)

doctor: .venv/ready
	@.venv/bin/python -m tpcourse doctor $(OPTIONS)

.venv/ready: requirements.txt pyproject.toml $(STALE)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version.split()[0] \
	    + ": make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@echo "Installing the pinned packages into .venv; this happens once."
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install "$$(grep '^torch==' requirements.txt)"
	@$(PIP) install --quiet --requirement requirements.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@printf '%s\n' "$$PWD" > .venv/ready

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache tests/browser/shots

stale:
