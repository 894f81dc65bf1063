"""What all tests share: one Spark session for each worker, a history in every form that a store
may have it in, and Hypothesis's profile.

``CI=1`` makes Hypothesis try the same examples on every run, so that a red build is red again;
everywhere else it looks for new ones; ``make quick`` tries fewer. Spark starts only when a test
asks for ``spark``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from statestore.spark.session import spark_session
from tests.servers.quick_spark import quick_spark
from tests.support.at_once import ThreadAtOnce
from tests.support.examples import LONG
from tests.support.forms import FORMS, Checkpoints, history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# No deadline: the first example of a run pays for imports and, on two cores, for its neighbours.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("dev"), max_examples=10)
settings.register_profile(LONG, settings.get_profile("dev"))
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# For the processes that tests start, and the session below.
os.environ |= quick_spark() | {**os.environ}


@pytest.fixture(autouse=True)
def compaction_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Background compactions run right after a commit: what a test sees depends on no schedule.

    Tests that are about the thread, or spawn processes, have the real one: ``real_threads``.
    """
    if "real_threads" not in request.fixturenames:
        monkeypatch.setattr("statestore.snapshot.background.Thread", ThreadAtOnce)


@pytest.fixture
def real_threads() -> None:
    """Let background compactions run in their thread, as they do for users."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this worker: 2 cores, Delta, a warehouse that is thrown away."""
    session = spark_session(
        app_name="statestore-tests",
        master="local[2]",
        extra_conf={
            "spark.sql.shuffle.partitions": "2",
            # VACUUM lists folders with as many tasks, 10,000 by default.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
            # Delta keeps what it knows of a table in so many Spark partitions, 50 by default.
            "spark.databricks.delta.snapshotPartitions": "2",
            # Of so many queries compiled code is kept, 100 by default: tests ask the same again.
            "spark.sql.codegen.cache.maxEntries": "2000",
            # Else each call of a function of columns walks Python's stack, and tells the JVM.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            # What a page would show of each query, if somebody looked: short.
            "spark.sql.ui.explainMode": "simple",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def uncompiled(spark: SparkSession) -> Iterator[None]:
    """For queries that are mostly Delta's own: each task of theirs would make code again that turns
    lines of a log into rows. Whole stages are compiled as ever.
    """
    name = "spark.sql.codegen.factoryMode"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "NO_CODEGEN")
    yield
    spark.conf.set(name, before)


@pytest.fixture(params=[(form, "ranged") for form in FORMS], ids=FORMS)
def taken(tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    """Five checkpoints of one state, in each form that they may have."""
    return history(tmp_path / "store", *request.param)


# Seconds that each test file takes, as `make durations` measured them.
DURATIONS = Path(__file__).with_name("durations.json")
SECONDS_OF_AN_UNMEASURED_FILE = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make durations` uses."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write the seconds that each test file takes to {DURATIONS.name}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record durations in the process that gets all reports, which is not an xdist worker."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder(config.rootpath))


class DurationRecorder:
    """Adds up the seconds of each file's tests and writes them at the end of the session.

    Files that the session did not run keep the seconds of the session before.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a test's setup, call or teardown to its file."""
        file = report.nodeid.partition("::")[0]
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write whole seconds, without the test files that no longer exist."""
        measured = {file: round(seconds) for file, seconds in self._seconds.items()}
        seconds = recorded_durations() | measured
        kept = {file: seconds[file] for file in sorted(seconds) if (self._root / file).exists()}
        DURATIONS.write_text(json.dumps(kept, indent=1) + "\n")


def recorded_durations() -> dict[str, float]:
    """Return the seconds that each file took, by its path from the root of the project."""
    durations: dict[str, float] = json.loads(DURATIONS.read_text())
    return durations


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by their recorded duration, and mark the tests that use Spark's session.

    The longest file comes first. A worker that starts a long file last would run it alone.
    """
    durations = recorded_durations()

    def seconds(item: pytest.Item) -> float:
        file = item.nodeid.partition("::")[0]
        return durations.get(file, SECONDS_OF_AN_UNMEASURED_FILE)

    items.sort(key=seconds, reverse=True)  # stable: tests of a file stay in its order
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
