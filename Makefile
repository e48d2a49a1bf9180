# Everything runs from here; `make` alone lists it. Nothing needs to be installed before.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FUZZ_S ?= 120
SEEDS ?= 200
FIRST ?= 1
# Tests, and every command here, start many processes: each would compile all that it imports
unexport PYTHONDONTWRITEBYTECODE
# Three processes on two cores: many tests wait some of the time. Each process has a broker of its own. test-all has two:
# with three, new brokers next to its sessions of Spark and its stacks took longer than 10 s to acknowledge a record
PROCESSES := 3
PYTEST = $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadscope --no-loadscope-reorder
# The installation waits for the network while the checks use the processor
CHECKED = $(MAKE) --jobs 2 --no-print-directory check $(VENV)/.installed-for-tests
LOCKS := deploy/local/jgo.lock.toml deploy/prometheus/jgo.lock.toml deploy/mirror/jgo.lock.toml deploy/spark/jgo.lock.toml

.PHONY: help setup demo unit test test-all check drills drills-transactions bench bench-peers docs compose-verify simulate mutants fuzz lock sbom audit pin clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install what is needed: Java, Redis, Prometheus (by apt when root), .venv, jars

# uv takes 2 s for what takes pip 45 s. But it builds pyspark from source each time, where pip keeps the wheel that it built
$(STAMP): requirements.txt pyproject.toml $(LOCKS)
	@echo "setup: Java 17, redis-server, prometheus and prometheus-redis-exporter" >&2
	@$(PYTHON) -m deploy.local.prerequisites --install
	@echo "setup: Python packages into $(VENV), checked against their hashes" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	@# An interrupted venv has python, but no pip
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r deploy/images/spark.txt -r deploy/images/uv.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@echo "setup: jars of Kafka, its JMX agent, MirrorMaker 2 and Spark, checked against the locks in deploy" >&2
	@$(BIN)/python -m deploy.local.jars
	@$(BIN)/python -m deploy.local.archives
	@touch $@

demo: setup ## 28,205 real bank transactions under faults, then the verdict
	@$(BIN)/once demo

$(VENV)/.installed-for-tests: $(STAMP)
	@echo "setup: Chromium, PostgreSQL and libfaketime, for the tests" >&2
	@$(PYTHON) -m deploy.local.prerequisites --install --tests
	@touch $@

test: setup ## What check does; every layer, and a fault of each kind
	@$(CHECKED)
	@$(PYTEST) -m "not full"

test-all: PROCESSES := 2
test-all: setup ## The same, every row of every matrix, and more generated examples
	@$(CHECKED)
	@$(PYTEST) --hypothesis-profile thorough

unit: setup ## No broker, no browser: for the inner loop
	@$(PYTEST) --hypothesis-profile quick -m "not full" tests/unit tests/property

check: setup ## Lint, format, types, import contracts, and whether all tests can be collected
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@# One core for mypy; on the other, pytest compiles all tests, which each of its processes would do
	@$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest --collect-only --quiet > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; kill $$types; exit 1; }; \
	wait $$types

drills: setup ## Every claim on real brokers, and every alert's fault on a monitored stack, each with a verdict
	@$(BIN)/once drill run --all
	@$(BIN)/once drill run --tag alert

drills-transactions: setup ## Faults of every request of a transaction: aiokafka, this project's runtime and the Java client
	@$(BIN)/python -m tests.drills.transactions

bench: setup ## Throughput, latency, CPU and memory of the pipeline on this machine
	@$(BIN)/python -m tests.bench

bench-peers: setup ## The same work by Kafka Streams, librdkafka and a tuned aiokafka loop, in turn; LONG=1: 1,200,000 payments too
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r tests/bench/peers/requirements.txt
	@$(BIN)/python -m tests.bench.peers $(if $(LONG),--long)

docs: setup ## Write the generated pages of docs/
	@$(BIN)/once docs --write

compose-verify: setup ## docker-compose.yml brought up on a real engine, loaded under faults, and the verdicts
	@$(BIN)/python -m tests.compose

simulate: setup ## SEEDS histories of the services on a simulated cluster, from seed FIRST on
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) $(if $(filter undefined,$(origin FAULTS)),,--faults "$(FAULTS)")

mutants: setup ## The checks of the reconciliation, broken one by one: the named test must notice; ONLY=legs: one check or mutant
	@$(BIN)/python -m tests.pipeline.mutants $(if $(ONLY),--only $(ONLY))

fuzz: setup ## Fuzz the decoders, led by what inputs reach in the code, for FUZZ_S seconds (120)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r tests/fuzz/requirements.txt
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_S)

COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11

lock: setup ## Compile the locks from pyproject.toml; pins that still fit stay as they are
	@$(COMPILE) --extra dev -o requirements.txt pyproject.toml
	@$(COMPILE) -o tests/fuzz/requirements.txt tests/fuzz/requirements.in
	@$(COMPILE) -o deploy/supply/requirements.txt deploy/supply/requirements.in
	@$(COMPILE) -o tests/bench/peers/requirements.txt tests/bench/peers/requirements.in
	@$(COMPILE) -c requirements.txt --no-emit-package pyspark --no-emit-package py4j -o deploy/images/services.txt pyproject.toml
	@echo uv | $(COMPILE) -c requirements.txt -o deploy/images/uv.txt -
	@echo pyspark | $(COMPILE) -c requirements.txt -o deploy/images/spark.txt -
	@printf 'setuptools\nwheel\n' | $(COMPILE) -c requirements.txt -o deploy/images/build.txt -

sbom: setup ## A bill of materials of all that is locked, CycloneDX 1.6, in sbom.cdx.json
	@$(BIN)/python -m deploy.supply.sbom > sbom.cdx.json

# pip-audit inspects the locks from outside: it is in no environment of the project
$(VENV)/audit/.installed: deploy/supply/requirements.txt
	@$(PYTHON) -m venv $(VENV)/audit
	@$(BIN)/uv pip install --quiet --python $(VENV)/audit/bin/python --require-hashes -r deploy/supply/requirements.txt
	@touch $@

audit: setup $(VENV)/audit/.installed ## Known vulnerabilities of the locked packages; 69: some could not be audited
	@$(BIN)/python -m deploy.supply.audit --pip-audit $(VENV)/audit/bin/pip-audit

pin: setup ## The digests of all images, behind their tags; 69: the registry cannot be reached
	@$(BIN)/python -m deploy.supply.pins

clean: ## Stop the local stack and delete its data and .venv
	@if $(BIN)/once --version >/dev/null 2>&1; then $(BIN)/once down --dir .once; \
	elif test -e .once/supervisor.lock && ! flock --nonblock .once/supervisor.lock true; then \
		echo "clean: a stack runs, and $(BIN)/once cannot stop it: end its supervisor, then run this again" >&2; exit 1; fi
	@rm -rf .once $(VENV)
