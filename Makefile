# Two commands on a fresh machine: `make demo` shows what Strandline does, `make test` proves it.
# Everything is kept in .venv and .cache of this folder, except what all checkouts share: the Iceberg runtime, and test servers
# that take minutes to build.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
STAMP := .venv/.stamps
SOURCES := $(shell find src -name '*.py' 2>/dev/null)
ONLY ?=
PYTEST_ARGS ?=
WORKERS ?= 3

# Bytecode is kept: without it every start of Python, and of pytest, compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

REPORT := .cache/test-report.xml
TORTURE_REPORT := .cache/torture-report.xml

.PHONY: help install install-s3 demo screenshots test test-times torture test-parts check bench docs lock clean

help:
	@echo 'make demo      set everything up and run the main job, start to end; SERVE=1 then serves its dashboard'
	@echo 'make test      set everything up, real servers too, and run all tests (PYTEST_ARGS=… is passed on)'
	@echo 'make torture   the long campaigns at full length: kills, random histories, fuzzing (an hour or more)'
	@echo 'make check     lint, types, layers, and the tests that need no Spark'
	@echo 'make install   make the environment: .venv, Java, the Iceberg runtime'
	@echo 'make bench     measure; ONLY=ingest,read picks groups'
	@echo 'make screenshots  make the pictures of README.md again, and of all pages'
	@echo 'make docs      write docs/settings.md, cli.md and sinks-options.md from the code'
	@echo 'make lock      resolve the dependencies again and write the lock files'
	@echo 'make clean     remove what was built here; .venv and .cache too'

install: $(STAMP)/bytecode
	@scripts/java.sh $(PYTHON)
	@$(PYTHON) -m strandline.iceberg.session.runtime

install-s3: install
	@$(PYTHON) -m strandline.iceberg.session.runtime --s3

$(STAMP)/venv: pyproject.toml requirements-dev.lock scripts/venv.sh
	@scripts/venv.sh
	@mkdir -p $(STAMP) && touch $@

# The project itself is installed as a link to src/, so its bytecode is not made by the installer.
$(STAMP)/bytecode: $(STAMP)/venv $(SOURCES)
	@$(PYTHON) -m compileall -q src
	@touch $@

# The lake stays in .cache/demo; SERVE=1 also serves its dashboard, until Ctrl-C.
demo: install
	@rm -rf .cache/demo
	@.venv/bin/strandline demo --dir .cache/demo $(if $(SERVE),--serve)

# The two pictures of README.md.
screenshots: test-parts
	@STRANDLINE_SCREENSHOTS=1 $(PYTHON) -m pytest -q tests/browser -k "readme or fits or empty"
	@mkdir -p docs/images
	@cp .cache/screenshots/readme-overview.png docs/images/overview.png
	@cp .cache/screenshots/readme-sink.png docs/images/sink.png

test-parts: install-s3
	@scripts/test_parts.sh

# One process more than the two cores of a usual build machine: a sixth of the time a test waits for a lease or a kill.
test: test-parts
	@scripts/import_tests_once.sh
	@scripts/check.sh lint >.cache/lint.log 2>&1 & lint=$$!; \
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --junit-xml=$(REPORT) $(PYTEST_ARGS); failed=$$?; \
	wait $$lint || failed=1; cat .cache/lint.log; exit $$failed

# Where the time of the last `make test` went; the next one hands out its files by it.
test-times:
	@$(PYTHON) scripts/test_times.py $(REPORT:.xml=.json) --write

# The report says how many cases the campaigns ran, and with which seed.
torture: test-parts
	@STRANDLINE_TORTURE=1 $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --junit-xml=$(TORTURE_REPORT) $(PYTEST_ARGS)
	@grep -o '<property name="[a-z]*" value="[^"]*"' $(TORTURE_REPORT) | sed 's/<property //' || true

check: $(STAMP)/bytecode
	@scripts/check.sh all

bench: test-parts
	@$(PYTHON) -m bench $(if $(ONLY),--only $(ONLY))

docs: $(STAMP)/bytecode
	@$(PYTHON) scripts/settings_reference.py
	@$(PYTHON) scripts/cli_reference.py
	@$(PYTHON) scripts/help_index.py
	@$(PYTHON) scripts/sinks_reference.py
	@$(PYTHON) scripts/metrics_reference.py

lock:
	@scripts/lock.sh

clean:
	rm -rf .venv .cache dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
