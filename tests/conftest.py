"""Fixtures for all tests: one Spark session per worker, a history in every form of a state, and
Hypothesis's profile.

With ``CI=1`` Hypothesis tries the same examples on every run, so that a failure is reproducible.
Otherwise it tries new examples, of which ``make quick`` tries few and ``make nightly`` many.
Spark starts only if a test requests ``spark``.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadGroupScheduling

from statestore.spark.session import spark_session
from statestore.storage import LocalStorage
from statestore.store import StateStore
from tests.nightly.groups import GROUPS, LEFT_OUT, LEFT_OUT_TESTS, group_of
from tests.servers.quick_spark import quick_spark
from tests.support.at_once import ThreadAtOnce
from tests.support.changes import changed_folders
from tests.support.durations import (
    DURATIONS,
    SECONDS_OF_AN_UNMEASURED_TEST,
    DurationRecorder,
    file_of,
    recorded_durations,
    report_collected,
    without_group,
    work_unit,
)
from tests.support.examples import LONG
from tests.support.forms import FORMS, Checkpoints, history
from tests.support.stores import opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from xdist.remote import Producer

# Thousands of collected tests and parsed modules stay in memory. With Python's own thresholds, the
# collector examines them so often that it takes a tenth of the time.
gc.set_threshold(100_000, 50, 50)

FEW_EXAMPLES, MANY_EXAMPLES = 15, 100
# No deadline: the first example of a run includes imports and shares two cores with other workers.
settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=FEW_EXAMPLES
)
settings.register_profile("quick", settings.get_profile("dev"), max_examples=10)
settings.register_profile(LONG, settings.get_profile("dev"), max_examples=MANY_EXAMPLES)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

READ_MODULES = tuple(
    f"tests/test_{name}.py" for name in ("house_rules", "layers", "module_tests", "patches")
)
HAS_LOW_PRIORITY = pytest.StashKey[bool]()

# For the processes that tests start, and for the session below.
os.environ |= quick_spark() | {**os.environ}


@pytest.fixture(autouse=True)
def compaction_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run background compactions directly after a commit, so that results do not depend on timing.

    Tests of the thread and tests that start processes use the real thread: ``real_threads``.
    """
    if "real_threads" not in request.fixturenames:
        monkeypatch.setattr("statestore.snapshot.background_compaction.Thread", ThreadAtOnce)


@pytest.fixture
def real_threads() -> None:
    """Let background compactions run in their thread, as they do for users."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this worker: 2 cores, Delta, and a temporary warehouse."""
    session = spark_session(
        app_name="statestore-tests",
        master="local[2]",
        extra_conf={
            "spark.sql.shuffle.partitions": "2",
            # VACUUM lists folders with this number of tasks. The default is 10,000.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
            # Delta caches a table's snapshot in this number of Spark partitions. The default is 50.
            "spark.databricks.delta.snapshotPartitions": "2",
            # Spark caches compiled code for this number of queries. The default is 100, and tests
            # repeat more.
            "spark.sql.codegen.cache.maxEntries": "2000",
            # Without this, each call of a column function inspects Python's stack and sends it to
            # the JVM.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            # Keeps the plan text that Spark records for its web page short.
            "spark.sql.ui.explainMode": "simple",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture
def uncompiled(spark: SparkSession) -> Iterator[None]:
    """For queries that mainly read Delta's own logs. Each of their tasks would generate code again
    to decode rows of a log. Whole-stage code generation stays on.
    """
    name = "spark.sql.codegen.factoryMode"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "NO_CODEGEN")
    yield
    spark.conf.set(name, before)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The location of a store that does not exist yet."""
    return str(tmp_path / "store")


@pytest.fixture
def store(url: str) -> StateStore:
    """An empty store of plain Parquet files."""
    return opened(url)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A storage in the test's folder."""
    return LocalStorage(str(tmp_path))


@pytest.fixture(params=[(form, "ranged") for form in FORMS], ids=FORMS)
def taken(tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    """Five checkpoints of one state, in each form that a state can have."""
    return history(tmp_path / "store", *request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make durations` uses."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write the seconds that each test takes to {DURATIONS.name}",
    )
    parser.addoption(
        "--nightly",
        choices=[*GROUPS],
        help="run only a group of the tests that make test leaves out",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record durations in the process that receives all reports, which is not an xdist worker."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder(config.rootpath), DurationRecorder.NAME)


def group_of_one_worker(item: pytest.Item) -> str | None:
    """Return the group of a test that one worker runs, so that each server, the browser, and the
    JVM of Spark's session start once, and the modules are parsed once.
    """
    if item.nodeid.startswith("tests/services/"):
        return "servers"
    if "browser" in getattr(item, "fixturenames", ()):
        return "browser"
    if item.nodeid.startswith(READ_MODULES):
        return "structure"
    return "spark" if "spark" in marks_of(item) else None


def pytest_collection_finish() -> None:
    """Let Python's collector ignore the collected tests and the imported modules, which stay."""
    gc.freeze()
    # Python collects several times at its exit, and DuckDB reports what is left. Once is enough.
    atexit.register(gc.unfreeze)
    atexit.register(gc.disable)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give Spark's worker the cores first, because its unit is the longest by far.

    Every other worker lowers its priority, and that of the processes that it starts, once.
    """
    config = item.config
    if not hasattr(config, "workerinput") or config.stash.get(HAS_LOW_PRIORITY, False):
        return
    if "spark" not in marks_of(item):
        os.nice(5)
        config.stash[HAS_LOW_PRIORITY] = True


class WorkUnitScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Let one worker run all tests of a group, and all other tests of a file."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """Replace the distribution by groups, which `make test` chooses."""
    return WorkUnitScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark the tests that use Spark's session or Hypothesis, before pytest deselects tests by their
    markers; then order the work units by the recorded duration of the selected tests.

    The longest unit comes first. A worker that starts a long one last would run it alone.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("examples")
        if group := group_of_one_worker(item):
            item.add_marker(pytest.mark.xdist_group(group))
    mark_long_cases(items)
    mark_unchanged_programs(config, items)
    if config.getoption("--record-durations"):
        report_collected(config, [item.nodeid for item in items])
    marks = {item.nodeid: marks_of(item) for item in items}
    config.stash[LEFT_OUT_TESTS] = {
        nodeid: group_of(file_of(nodeid), names)
        for nodeid, names in marks.items()
        if not LEFT_OUT.isdisjoint(names)
    }
    if nightly := config.getoption("--nightly"):
        groups = config.stash[LEFT_OUT_TESTS]
        others = [item for item in items if groups.get(item.nodeid) != nightly]
        items[:] = [item for item in items if groups.get(item.nodeid) == nightly]
        config.hook.pytest_deselected(items=others)
    yield
    durations = recorded_durations()
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in items:
        known = durations.get(without_group(item.nodeid), SECONDS_OF_AN_UNMEASURED_TEST)
        seconds[work_unit(item.nodeid)] += known
    # stable: tests of a unit stay in its order
    items.sort(key=lambda item: seconds[work_unit(item.nodeid)], reverse=True)


def marks_of(item: pytest.Item) -> set[str]:
    """Return the names of a test's marks."""
    return {mark.name for mark in item.iter_markers()}


def mark_long_cases(items: Sequence[pytest.Item]) -> None:
    """Mark cases as ``long`` that ``long_cases`` lists.

    Raises:
        UsageError: If no collected case of a test has a listed id, unless only some are collected.
    """
    cases: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("long_cases"):
            cases[item.nodeid.partition("[")[0]][item.callspec.id] = item
    for test, by_id in cases.items():
        (marker, *_) = next(iter(by_id.values())).iter_markers("long_cases")
        unknown = set(marker.args) - by_id.keys()
        if unknown and len(by_id) > 1:
            raise pytest.UsageError(
                f"{test} has no cases {sorted(unknown)}, which long_cases lists"
            )
        for case_id in marker.args:
            if case_id in by_id:
                by_id[case_id].add_marker("long")


def mark_unchanged_programs(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Mark tests of search programs as ``long``, unless the folder of the program changed."""
    of_programs = [item for item in items if item.get_closest_marker("search_program")]
    changed = changed_folders(config.rootpath) if of_programs else None
    if changed is not None:
        for item in of_programs:
            if str(item.path.parent.relative_to(config.rootpath)) not in changed:
                item.add_marker("long")
