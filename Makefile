# make run    a fresh machine to the app in the browser      make test   everything, a real browser included
#             for this machine alone; make run HOST=0.0.0.0 shares it with the network
# make check  style, types, layers                            make bench  timings as ratios against a baseline
# make fuzz   every reader on more than 10^6 inputs             make accuracy   our error on published starts, anew
# make soak   50 visitors for 30 minutes on a server of our own, killed once in the middle, somebody flooding it and
#             somebody having its API work without end beside them (MINUTES=2 SESSIONS=20)
# make fairness  what a visitor and a client of the API have while somebody takes all that can be had
# make drift  newer releases of the engines on the index: what the tables must learn (docs/drift.md)
# make databases  the same requests from ClickHouse and Spark (installs half a gigabyte for each; Java is the machine's)
# make scale  10^8 rows in Spark and DuckDB, the table of docs/workload-scale.md (ROWS=1000000)
# make lock   the lists of pins with their hashes, anew from pyproject.toml (make lock UPGRADE=1: newer ones)
# make package  the wheel, tried in an empty environment of each Python that this machine has (docs/releasing.md)
# make site   the documents and the library's reference as pages to read offline (build/site/index.html)
# make audit  known vulnerabilities, licences (docs/licences.md), bill of materials (build/sbom.cdx.json)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HOST ?= 127.0.0.1
PORT ?= 8501
MINUTES ?= 30
SESSIONS ?= 50
ROWS ?= 100000000

.PHONY: fairness site audit package databases scale lock run test check fuzz soak bench accuracy drift clean

run: $(VENV)/.run
	$(BIN)/python -m streamlit run app.py --server.address $(HOST) --server.port $(PORT)

test: $(VENV)/.test
	$(BIN)/python tools/programs.py browser proxy --install
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(VENV)/.test
	$(BIN)/python -m tools.fuzz --executions 1000000 --keep
	FUZZ_EXAMPLES=2000 LOG_FUZZ_EXAMPLES=20000 $(BIN)/python -m pytest -q tests/test_fuzz.py tests/test_log_fuzz.py

soak: $(VENV)/.test
	$(BIN)/python -m tools.soak --minutes $(MINUTES) --sessions $(SESSIONS)

accuracy: $(VENV)/.test
	$(BIN)/python tools/accuracy.py --fit
	$(BIN)/python tools/accuracy.py

drift: $(VENV)/.test
	$(BIN)/python -m tools.drift $(DRIFT)

databases: $(VENV)/.databases
	$(BIN)/python -m pytest -q tests/test_workload_clickhouse.py tests/test_workload_spark.py

scale: $(VENV)/.databases
	$(BIN)/python -m tools.scale --rows $(ROWS) --write

fairness: $(VENV)/.test
	$(BIN)/python -m benchmarks.fairness

bench: $(VENV)/.test
	$(BIN)/python tools/programs.py browser --install
	$(BIN)/python -m benchmarks

audit: $(VENV)/.test
	$(BIN)/python tools/audit.py

site: $(VENV)/.test
	rm -rf build/site
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env --doctree-dir build/site-trees docs build/site
	@echo build/site/index.html

package: $(VENV)/.test
	$(BIN)/python -m tools.package

lock: $(VENV)/.test
	$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m compileall -q app.py kvcore pages
	$(BIN)/python -m kvcore.base.toml_files
	@touch $@

$(VENV)/.test: tools/requirements.txt $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tools/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.databases: tools/databases.txt $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tools/databases.txt
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info

-include tools/parity/parity.mk
