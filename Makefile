# make lab    opens the course in JupyterLab
# make test   proves it: style, types, unit tests, hangs, every notebook, the page in a browser
# make grading   grades thirty mixed submissions twice, once killed and resumed, and every solution under nbgrader
# All first make .venv from the pinned list, once. OPTIONS are passed on: make lab OPTIONS=--no-browser

PYTHON ?= python3
OPTIONS ?=
PIP := .venv/bin/python -m pip --disable-pip-version-check

# A virtual environment does not survive a move of its folder, so the stamp holds the folder's name.
STALE := $(shell [ "$$(cat .venv/ready 2>/dev/null)" = "$$PWD" ] || echo stale)

.PHONY: lab test grading doctor clean stale

lab: .venv/ready
	@.venv/bin/python -m tpcourse lab $(OPTIONS)

test: .venv/ready .venv/nbgrader/ready
	@.venv/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --nbval tests notebooks solutions $(OPTIONS)

grading: .venv/ready .venv/nbgrader/ready
	@.venv/bin/python -m tests.grade_all
	@.venv/bin/python -m tests.nbgrader_course

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

# nbgrader changes the JupyterLab that it is installed beside, so it has an environment of its own, on top of .venv.
.venv/nbgrader/ready: .venv/ready requirements-nbgrader.txt
	@.venv/bin/python -m venv --clear --without-pip .venv/nbgrader
	@.venv/bin/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	    > "$$(.venv/nbgrader/bin/python -c 'import site; print(site.getsitepackages()[0])')/course.pth"
	@$(PIP) --python .venv/nbgrader/bin/python install --quiet --no-deps --requirement requirements-nbgrader.txt
	@touch .venv/nbgrader/ready

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache tests/browser/shots

stale:
