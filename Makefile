# From a fresh checkout to a running demo: `make demo`. Needs Python 3.11+ and Java 17+, and says
# how to install either where it is missing. Everything else goes into .venv, and only there.

SHELL := bash
# Tests start hundreds of Python processes: what was compiled once is kept.
unexport PYTHONDONTWRITEBYTECODE
# Spark and Python are those of .venv, whatever another Spark's user has in the shell.
unexport PYTHONHOME PYTHONPATH SPARK_HOME SPARK_CONF_DIR HADOOP_CONF_DIR YARN_CONF_DIR
unexport PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_DRIVER_PYTHON_OPTS
unexport PYSPARK_SUBMIT_ARGS PYSPARK_HADOOP_VERSION
# pip fails as root if the home is read-only, because it expects that root can write everywhere.
ifneq ($(shell test -n "$$PIP_CACHE_DIR$$XDG_CACHE_HOME" || test -w "$$HOME" || echo 1),)
export PIP_NO_CACHE_DIR := 1
export UV_NO_CACHE := 1
endif
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# Tests write in memory where it has room for them: a disk would be waited for at each file.
export PYTEST_DEBUG_TEMPROOT ?= $(shell \
	test "$$(df --output=avail -k /dev/shm 2> /dev/null | tail -1)" -gt 4000000 2> /dev/null \
	&& echo /dev/shm)
DELTA := $(VENV)/.delta
S3 := $(VENV)/.s3
KAFKA := $(VENV)/.kafka
QUICK := build/quick-spark/spark.jsa
FLINK := $(VENV)/.flink
AZURITE := $(VENV)/.azurite
HDFS := $(VENV)/.hdfs
ICEBERG := $(VENV)/.iceberg
DUCKDB_ICEBERG := $(VENV)/duckdb-iceberg
S3PROXY := $(VENV)/.s3proxy
GO_PROGRAMS := $(VENV)/.go-programs
GRAFANA := $(VENV)/.grafana
PROMETHEUS := $(VENV)/.prometheus
CEPH := $(VENV)/.ceph
PYFLINK := $(VENV)/pyflink
NEWEST := build/newest
CONNECT_CLIENT := build/spark-client/.ready
PYTHONS := build/.simulate-pythons
PACKAGING := $(VENV)/packaging
SITE := build/.site
# The newest release of each supported version of Spark.
SPARKS := 4.0.5 4.1.4 4.2.1 4.3.0
SPARK := $(firstword $(SPARKS))
# Each release has an environment, and works in make test-versions on the stores of this tree.
RELEASES := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' releases.toml)
# Spark is started through a Java that fits, wherever it is installed.
WITH_JAVA := JAVA_HOME="$$($(PY) statestore/spark/java.py)" && export JAVA_HOME &&

# uv needs a third of pip's processor time. It is told what pip is told, in the sections of pip's
# configuration, the last of which counts. Where uv fails, for example without its wheel, pip tries.
define PIP_SETTINGS
settings="$$($(PY) -m pip config list 2> /dev/null)"; \
for section in global install :env:; do eval "$$(sed -n <<< "$$settings" -e "/=''$$/d" \
	-e "s/^$$section\.index-url=/export UV_DEFAULT_INDEX=/p" \
	-e "s/^$$section\.extra-index-url=/export UV_INDEX=/p" \
	-e "s/^$$section\.find-links=/export UV_FIND_LINKS=/p" \
	-e "s/^$$section\.cert=/export SSL_CERT_FILE=/p")"; done
endef
# The wheel of PySpark is built here, and installed at once: to compress it would take 13 seconds.
INSTALL = $(PIP_SETTINGS); install() { \
	$(PY) -m uv pip install $$([ -t 2 ] || echo --quiet) --python "$$1" "$${@:2}" \
	--config-settings-package pyspark:--build-option=--compression=stored \
	|| "$$1" -m pip install --quiet --disable-pip-version-check "$${@:2}"; }; install

# After pip's own messages, which have the reason.
PIP_FAILED = { echo "pip could not install the packages, for the reason above; check the network, or" \
	"name a mirror in PIP_INDEX_URL or a proxy in HTTPS_PROXY, and repeat the command" >&2; exit 16; }

.DEFAULT_GOAL := help
.PHONY: help demo cluster-demo examples notebooks test fetch durations test-wheel test-spark test-versions test-newest compatibility quick nightly kills kills-streaming endurance lint check races damages power fuzz simulate digests pythons protocol bench docs site vendor dist lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: $(READY) $(DELTA) ## run the demo; DIR=path, or a URL as az://…, keeps what it writes there
	@$(WITH_JAVA) $(VENV)/bin/statestore demo $(DIR)

cluster-demo: $(READY) $(KAFKA) ## run the demo on a Spark cluster, Kafka and S3, all on this machine
	@$(WITH_JAVA) $(PY) -m tests.servers.cluster_demo

examples: $(READY) $(DELTA) ## run the notebooks in examples/, as the tests do
	@$(WITH_JAVA) $(PY) -m pytest tests/test_examples.py $(ARGS)

notebooks: $(READY) $(DELTA) ## run the notebooks in examples/, and store their outputs
	@$(WITH_JAVA) $(PY) -m tests.support.notebooks

# What takes longest by tests/durations.json is started first, so that no worker has it left when the
# others are done. One worker runs all tests of Spark's session and one those of tests/services, so
# that the JVM and each server start once. Three workers run on two cores, as tests also wait.
test: $(READY) $(DELTA) $(S3) $(AZURITE) $(HDFS) $(ICEBERG) $(KAFKA) $(FLINK) $(QUICK) ## run the tests, three at a time; ARGS="-k name" goes to pytest
	@$(WITH_JAVA) $(PY) -m pytest --numprocesses $(or $(WORKERS),3) --dist loadgroup --no-loadscope-reorder \
		-m "not long and not versions" $(ARGS)

fetch: $(READY) $(DELTA) $(S3) $(AZURITE) $(HDFS) $(ICEBERG) $(KAFKA) $(FLINK) $(QUICK) ## fetch everything that make test needs

durations: ## run all tests and record in tests/durations.json how long each test takes
	@$(MAKE) --no-print-directory test ARGS="--record-durations $(ARGS)"

test-spark: build/spark-$(SPARK)/.ready ## test each feature that uses Spark with SPARK=4.3.0, by default the oldest; ARGS names other tests
	@$(WITH_JAVA) build/spark-$(SPARK)/bin/python -m pytest -p no:unraisableexception \
		-W ignore::ResourceWarning --junitxml build/spark-$(SPARK)/tests.xml \
		$(or $(ARGS),tests/spark/test_versions.py)

test-versions: $(RELEASES:%=build/release-%/.ready) ## let each release and this tree work on the same stores; ARGS="-k name" goes to pytest
	@$(PY) -m pytest -m versions $(ARGS) tests/versions

# What pip installs for a user today, which the lock file does not have yet.
test-newest: ## resolve all packages without the lock, then run the quick tests and the golden stores with them
	@echo "for make test-newest: an environment with the newest packages (2.1 GB)"
	@test -x $(NEWEST)/bin/python || "$$(bash -c "$$FIND_PYTHON")" -m venv $(NEWEST)
	@PYTHONWARNINGS=ignore $(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--upgrade --upgrade-strategy eager --editable ".[site,test,dev]" || $(PIP_FAILED)
	@$(NEWEST)/bin/python -m tests.versions.newest
	@$(NEWEST)/bin/python -m pytest tests/test_golden.py
	@$(NEWEST)/bin/python -m pytest --numprocesses $(or $(WORKERS),2) --dist worksteal \
		-m "not spark and not slow and not flink and not long" --hypothesis-profile quick $(ARGS)

compatibility: $(READY) ## run test-spark with each version, also with other Pythons, and write docs/compatibility.md anew
	@for version in $(SPARKS); do $(MAKE) --no-print-directory test-spark SPARK=$$version || exit 1; done
	@$(WITH_JAVA) $(PY) -m tests.spark.environments $(SPARKS)
	@$(PY) -m tests.spark.compatibility $(SPARKS)

quick: $(READY) ## run the tests that need no JVM, no server and no long histories
	@$(PY) -m pytest --numprocesses $(or $(WORKERS),2) --dist worksteal \
		-m "not spark and not slow and not flink and not long" --hypothesis-profile quick $(ARGS)

test-wheel: $(READY) $(DELTA) ## test the wheel alone and beside other versions of PySpark; ARGS="-k name" selects some
	@$(WITH_JAVA) $(PY) -m pytest tests/wheel/test_wheel.py $(ARGS)

nightly: $(READY) ## run what make test leaves out, in shards; HOURS=8 is the limit, JOBS=2 runs two at once, SHARD=name one
	@$(WITH_JAVA) PYFLINK_PYTHON=$(abspath $(PYFLINK))/bin/python $(PY) -m doit \
		run --dir . --file tests/nightly/dodo.py --process $(or $(JOBS),0) \
		$(if $(SHARD),--always-execute "shard:$(SHARD)") || [ $$? = 1 ]
	@$(PY) -m tests.nightly.page

kills: $(READY) $(DELTA) ## kill a job COUNT times (200) and look what is left
	@$(WITH_JAVA) $(PY) -m tests.faults.kills --count $(or $(COUNT),200)

kills-streaming: $(READY) ## kill a streaming query COUNT times (50) and count its events
	@$(WITH_JAVA) $(PY) -m tests.streaming.kills --count $(or $(COUNT),50)

endurance: $(READY) ## a live query for MINUTES (120) with kills, purges, outages and copies; TO=folder gets the figures
	@$(WITH_JAVA) $(PY) -m tests.endurance --minutes $(or $(MINUTES),120) --to $(or $(TO),build/endurance)

lint: $(READY) ## style, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

check: lint test ## lint, then test

RACES := 1000
races: $(READY) ## let processes race for stores; RACES=1000, ARGS="--s3" on the tests' S3 server, "--s3 minio" on another
	$(PY) -m tests.races.run --races $(RACES) $(ARGS)

damages: $(READY) ## damage files of stores and of Flink's savepoints COUNT times (10000), each before one reader
	$(PY) -m tests.damages.run --count $(or $(COUNT),10000) $(ARGS)
	STATESTORE_FLIPS=$(or $(COUNT),10000) $(PY) -m pytest -s --timeout 0 -k flip \
		tests/maintenance/test_verify.py tests/maintenance/test_salvage.py

power: $(READY) ## fail the power after each call that programs make to the file system, DRAWS contents each (10)
	@$(PY) -m tests.power.run --draws $(or $(DRAWS),10) $(ARGS)

HISTORIES := 10000
fuzz: $(READY) $(DELTA) ## random states and changes, every reader compared; HISTORIES=10000
	@$(WITH_JAVA) $(PY) -m tests.fuzz.run --histories $(HISTORIES) $(ARGS)

STEPS := 10000
simulate: $(READY) ## schedules of many actors over one simulated store; STEPS=10000
	$(PY) -m tests.simulate.run --judge --steps $(STEPS) $(ARGS)

digests: $(READY) ## write tests/simulate/digests.json anew, after a change of the calls to a storage
	@$(PY) -m tests.simulate.digests --write

pythons: $(READY) $(PYTHONS) ## compare the simulator's calls and files in each Python of this machine
	@$(PY) -m tests.simulate.pythons

protocol: $(READY) ## the protocol as a model, in every order of its requests
	$(PY) -m tests.protocol.run $(ARGS)

bench: $(READY) $(DELTA) $(FLINK) ## run the benchmarks; ARGS="--help" lists their options
	@$(WITH_JAVA) $(PY) -m bench.run $(ARGS)

docs: $(READY) ## write docs/RESCALING.md, docs/statestore.schema.json and the tests of each module anew
	@$(PY) -m tests.rescaling.page > $(VENV)/page && mv $(VENV)/page docs/RESCALING.md
	@$(PY) -m docs.json_schema
	@$(PY) -m tests.support.module_tests

site: $(SITE) ## build the documentation into build/site; a broken link stops it
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs --quiet build --strict && echo "build/site/index.html"

vendor: $(READY) ## fetch the files of other projects in statestore/ui/static/vendor anew, and check their digests
	@$(PY) -m tests.ui.vendor

dist: $(READY) $(PACKAGING) ## build wheel and sdist into dist/, check them, try the wheel alone, and say what is in it
	rm -rf dist
	@# The time of the commit and the same permissions: each build of a commit makes the same wheel.
	umask 022; SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		$(PACKAGING)/bin/python -m build --outdir dist .
	$(PACKAGING)/bin/python -m twine check --strict dist/*
	$(PACKAGING)/bin/python -m check_wheel_contents dist/*.whl
	$(PY) -m tests.wheel.run dist/*.whl

lock: $(READY) ## write requirements.lock anew from pyproject.toml
	@{ head -n 2 requirements.lock && $(PIP_SETTINGS) && $(PY) -m uv pip compile --quiet --upgrade \
		--python-version 3.11 --extra site --extra test --extra dev --no-header pyproject.toml; } > $(VENV)/lock
	@mv $(VENV)/lock requirements.lock

clean: ## remove .venv and all caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find statestore tests jobs bench -name __pycache__ -prune -exec rm -rf {} +

# Java is looked for before anything is downloaded: without it neither demo nor tests can run.
$(READY): pyproject.toml requirements.lock
	@python="$$(bash -c "$$FIND_PYTHON")" && "$$python" statestore/spark/java.py > /dev/null \
	&& echo "set-up 1/3: $$("$$python" --version), environment in $(VENV)" \
	&& "$$python" -m venv $(VENV)
	@echo "set-up 2/3: packages (1.4 GB on disk; a few minutes the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)" \
		|| $(PIP_FAILED)
	@$(INSTALL) $(PY) --requirements requirements.lock || $(PIP_FAILED)
	@$(INSTALL) $(PY) --no-deps --no-build-isolation --editable . || $(PIP_FAILED)
	@touch $@

# Another version of Spark, in an environment that has nothing else of its own.
build/spark-%/.ready: $(READY)
	@echo "for make test-spark: an environment with Spark $* (480 MB)"
	@rm -rf build/spark-$* && $(PY) -m venv build/spark-$*
	@$(INSTALL) build/spark-$*/bin/python pyspark==$* || $(PIP_FAILED)
	@$(PY) -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> "$$(build/spark-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	@touch $@

# A client of Spark Connect, in which no Spark can start: neither Spark's jars, py4j nor pytest.
$(CONNECT_CLIENT): $(READY)
	@echo "for the nightly: an environment with pyspark-client (450 MB)"
	@rm -rf $(@D) && $(PY) -m venv $(@D)
	@$(INSTALL) $(@D)/bin/python -c requirements.lock --editable . pandas \
		"pyspark-client==$$(sed -n 's/^pyspark==//p' requirements.lock)" || $(PIP_FAILED)
	@touch $@

# A release, built from its commit; all other packages are those of .venv.
build/release-%/.ready: $(READY) releases.toml
	@echo "for make test-versions: release $*"
	@$(PY) -m tests.versions.releases $* && touch $@

# A JVM that fetches jars lives for seconds, in which its second compiler would only cost time.
$(DELTA) $(S3) $(HDFS) $(ICEBERG) $(KAFKA) $(S3PROXY): export SPARK_SUBMIT_OPTS ?= \
	-XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# A step that fails stops the command that needs it; the step says why, in one sentence.
$(DELTA): $(READY)
	@echo "set-up 3/3: fetching Delta's jar (90 MB the first time)"
	@$(PY) -m statestore.spark.session && touch $@

# Spark's way to s3a://, for the tests alone: nobody else waits for it.
$(S3): $(DELTA) statestore/spark/spark-s3.conf
	@echo "for the tests: fetching Spark's jars for S3 (690 MB the first time)"
	@$(PY) -m statestore.spark.session s3 && touch $@

# A server of Azure's protocol, for the tests: a package of npm, by the Node.js of the test packages.
$(AZURITE): $(READY) tests/servers/azure.py
	@echo "for the tests: fetching a server of Azure's protocol (370 MB)"
	@$(PY) -m tests.servers.azure && touch $@

# An HDFS, for the tests.
$(HDFS): $(READY) tests/servers/hdfs.py
	@echo "for the tests: fetching the jars of an HDFS (110 MB)"
	@$(WITH_JAVA) $(PY) -m tests.servers.hdfs && touch $@

# A REST catalog of Iceberg, for the tests.
$(ICEBERG): $(READY) tests/servers/iceberg_rest.py
	@echo "for the tests: fetching the jars of an Iceberg catalog (40 MB)"
	@$(WITH_JAVA) $(PY) -m tests.servers.iceberg_rest && touch $@

# DuckDB's packages with its extensions exist for an older DuckDB than the product has.
$(DUCKDB_ICEBERG): $(READY)
	@echo "for make nightly: an environment with DuckDB's extension for Iceberg (150 MB)"
	@"$$(bash -c "$$FIND_PYTHON")" -m venv $@.new
	@$@.new/bin/python -m pip install --quiet --disable-pip-version-check duckdb==1.5.5 \
		duckdb-extension-avro==1.5.5 duckdb-extension-iceberg==1.5.5 || $(PIP_FAILED)
	@rm -rf $@ && mv $@.new $@

# An S3 server whose conditional put is atomic, and its older version that ignores the condition.
$(S3PROXY): $(READY) tests/servers/s3_zoo.py
	@echo "for the tests: fetching the jars of S3Proxy (100 MB)"
	@$(WITH_JAVA) $(PY) -m tests.servers.s3_zoo && touch $@

# More S3 servers, for make nightly: they are built with the machine's Go.
$(GO_PROGRAMS): $(READY) tests/servers/go_programs.py
	@echo "for make nightly: building S3 servers with Go (some minutes, and 3 GB in Go's caches, the first time)"
	@$(PY) -m tests.servers.go_programs && touch $@

# The types of Grafana's dashboards, for make nightly: packages of npm, as Azurite.
$(GRAFANA): $(READY) tests/servers/grafana_schema.py
	@echo "for make nightly: fetching the types of Grafana's dashboards (26 MB)"
	@$(PY) -m tests.servers.grafana_schema && touch $@

# Prometheus, for make nightly: a package of Debian and Ubuntu, which is unpacked.
$(PROMETHEUS): $(READY) tests/servers/prometheus.py
	@echo "for make nightly: fetching Prometheus (19 MB)"
	@$(PY) -m tests.servers.prometheus && touch $@

# An environment for each other Python of this machine.
$(PYTHONS): $(READY) tests/simulate/pythons.py
	@echo "for make nightly: environments with other Pythons (400 MB each)"
	@mkdir -p $(@D) && $(PY) -m tests.simulate.pythons --fetch && touch $@

# Ceph, for make nightly: packages of Debian and Ubuntu, which are unpacked and not installed.
$(CEPH): $(READY) tests/servers/ceph.py
	@echo "for make nightly: fetching Ceph (70 MB)"
	@$(PY) -m tests.servers.ceph && touch $@

# Kafka's broker and Spark's connector, for the tests and the demo of a cluster.
$(KAFKA): $(READY) tests/servers/jars.py
	@echo "for the tests: fetching the jars of Kafka and of Spark's connector (100 MB the first time)"
	@$(WITH_JAVA) $(PY) -m tests.servers.jars && touch $@

# Flink, for the tests that let it write and read savepoints.
# PyFlink needs older packages than the product has: it gets an environment of its own.
$(PYFLINK): $(READY)
	@echo "for make nightly: an environment with PyFlink (some minutes the first time)"
	@"$$(bash -c "$$FIND_PYTHON")" -m venv $@.new
	@$@.new/bin/python -m pip install --quiet --disable-pip-version-check apache-flink==2.3.0 || $(PIP_FAILED)
	@rm -rf $@ && mv $@.new $@

# The site needs neither Spark nor Arrow (docs/absent_packages.py).
$(SITE): requirements.lock
	@echo "for make site: an environment with MkDocs (150 MB)"
	@rm -rf $@ $@.new && "$$(bash -c "$$FIND_PYTHON")" -m venv $@.new
	@$@.new/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint requirements.lock \
		mkdocs mkdocs-material mkdocstrings-python pymdown-extensions click fsspec msgspec || $(PIP_FAILED)
	@mv $@.new $@

# What builds and checks a release is no part of the locked environment.
$(PACKAGING): $(READY)
	@echo "for make dist: an environment with what builds and checks a release"
	@"$$(bash -c "$$FIND_PYTHON")" -m venv $@.new
	@$@.new/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
		build==1.6.1 check-wheel-contents==0.6.3 twine==7.0.0 || $(PIP_FAILED)
	@rm -rf $@ && mv $@.new $@

$(FLINK): $(READY) tests/servers/flink.py
	@echo "for the tests: fetching the jars of Flink (330 MB the first time)"
	@$(PY) -m tests.servers.flink && touch $@

# What a Spark of the tests starts and writes quicker with; without it they are as right.
$(QUICK): $(DELTA) tests/servers/quick_spark.py tests/servers/java/LocalFiles.java
	@echo "for the tests: an archive of Spark's classes (200 MB)"
	@$(WITH_JAVA) $(PY) -m tests.servers.quick_spark && touch $@ || true

# Prints the first Python that fits, or one sentence with the command that installs one here.
define FIND_PYTHON
for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do
  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; then
    echo "$$python"; exit 0
  fi
done 2> /dev/null
sudo=sudo; [ "$$(id -u)" = 0 ] && sudo=
for manager in apt-get dnf zypper apk pacman brew; do
  command -v $$manager > /dev/null && break
  manager=
done
packages="python3.11"
case $$manager in
  apt-get) install="apt-get install -y"; packages="python3 python3-venv"
    grep -qs 'VERSION_ID="22' /etc/os-release && packages="python3.11 python3.11-venv" ;;
  apk) install="apk add"; packages="python3" ;;
  pacman) install="pacman -S --noconfirm"; packages="python" ;;
  brew) install="brew install"; packages="python@3.13"; sudo= ;;
  zypper) install="zypper install -y"; packages="python311" ;;
  dnf) install="dnf install -y" ;;
  *) install="your system's package manager:"; sudo= ;;
esac
echo "Python 3.11 or newer, with its module venv, is missing; install it with:" \
  $$sudo $$install $$packages >&2
exit 16
endef
export FIND_PYTHON
