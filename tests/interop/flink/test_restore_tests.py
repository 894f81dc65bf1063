"""Flink's own restore tests pass on savepoints that were exported or repacked.

Each test restores a job from a savepoint and compares the output with the output of a job that was
never stopped, so it fails if a row of the state was lost or changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.interop.flink import export_savepoint, import_savepoint, repack_savepoint
from statestore.interop.flink.options import ExportSelection
from tests.servers.flink_restore_tests import MIGRATION, SQL, Verdicts
from tests.servers.published import FLINK_1_13, FLINK_1_15, FLINK_1_20, FLINK_SQL, PublishedJar

pytestmark = [pytest.mark.flink, pytest.mark.timeout(900)]

Way = Callable[[Path, Path, Path], None]
"""Writes a savepoint from another one; the third folder is for a store."""

RESTORE_TESTS = "restore-tests"
STREAM = "org.apache.flink.table.planner.plan.nodes.exec.stream"
SQL_TESTS = 206


def copied(source: Path, target: Path, _: Path) -> None:
    shutil.copytree(source, target)


def exported(max_parallelism: int | None = None) -> Way:
    """Return a way through a store; operators that no import can read are carried."""

    def write(source: Path, target: Path, folder: Path) -> None:
        store = StateStore.open(str(folder), table_format="parquet")
        unread = {one.operator for one in import_savepoint(str(source), store).left_out}
        export_savepoint(
            store,
            str(target),
            max_parallelism=max_parallelism,
            selection=ExportSelection(carry=sorted(unread)),
        )

    return write


def repacked(max_parallelism: int) -> Way:
    def write(source: Path, target: Path, _: Path) -> None:
        repack_savepoint(str(source), str(target), max_parallelism=max_parallelism)

    return write


WAYS = {
    "original": copied,
    "exported": exported(),
    "exported-720": exported(720),
    "repacked-300": repacked(300),
    "repacked-7": repacked(7),
}


class Fixtures:
    """A working directory for SQL's restore tests: published plans, and written savepoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self._published = folder / "published" / RESTORE_TESTS
        self._stores = folder / "stores"
        FLINK_SQL.unpack(RESTORE_TESTS, folder / "published")
        self._written = self.folder / "src" / "test" / "resources" / RESTORE_TESTS
        for plan in self._published.rglob("plan"):
            shutil.copytree(plan, self._written / plan.relative_to(self._published))

    def savepoints(self, *nodes: str) -> list[str]:
        """Return the published savepoints of operators, by default all."""
        found = (place.parent for place in self._published.rglob("_metadata"))
        names = sorted(str(place.relative_to(self._published)) for place in found)
        return [name for name in names if not nodes or name.startswith(nodes)]

    def write(self, savepoint: str, way: Way) -> None:
        way(self._published / savepoint, self._written / savepoint, self._stores / savepoint)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_all_operators_of_sql_continue(way: str, tmp_path: Path) -> None:
    fixtures = Fixtures(tmp_path)
    savepoints = fixtures.savepoints()
    assert len(savepoints) == 203
    for savepoint in savepoints:
        fixtures.write(savepoint, WAYS[way])
    verdicts = SQL.run(
        fixtures.folder,
        [f"--select-package={STREAM}", "--include-classname=.*RestoreTest"],
        seconds=600,
    )
    assert verdicts.failed == {}
    assert len(verdicts.passed) == SQL_TESTS


SAMPLE = {
    "stream-exec-match_1": "MatchRecognizeRestoreTest",
    "stream-exec-over-aggregate_1": "OverWindowRestoreTest",
    "stream-exec-sort-limit_1": "SortLimitRestoreTest",
    "stream-exec-temporal-sort_1": "TemporalSortRestoreTest",
    "stream-exec-temporal-join_1": "TemporalJoinRestoreTest",
    "stream-exec-changelog-normalize_1": "ChangelogNormalizeRestoreTest",
}
"""Operators with state of CEP, structured values, arrays, keys without fields, and timers."""


@pytest.mark.long
def test_a_sample_of_operators_continues_after_each_way(tmp_path: Path) -> None:
    """Also, a test fails if its operator was left out, so the tests do look at the state."""
    fixtures = Fixtures(tmp_path)
    ways = [way for name, way in WAYS.items() if name != "original"]
    for number, savepoint in enumerate(fixtures.savepoints(*SAMPLE)):
        fixtures.write(savepoint, ways[number % len(ways)])
    fixtures.write("stream-exec-limit_1/limit/savepoint", without_limit)
    classes = [*SAMPLE.values(), "LimitRestoreTest"]
    verdicts = SQL.run(
        fixtures.folder, [f"--select-class={STREAM}.{name}" for name in classes], seconds=300
    )
    assert set(verdicts.failed) == {"LimitRestoreTest 1 limit"}, verdicts.failed
    assert {name.partition(" ")[0] for name in verdicts.passed} == set(SAMPLE.values())
    assert len(verdicts.passed) == 32


def without_limit(source: Path, target: Path, folder: Path) -> None:
    store = StateStore.open(str(folder), table_format="parquet")
    done = import_savepoint(str(source), store)
    (limit,) = {state.operator for state in done.record.states if state.is_keyed}
    export_savepoint(store, str(target), selection=ExportSelection(leave_out=[limit]))


JAVA, SCALA = "org.apache.flink.test", "org.apache.flink.api.scala.migration"
MIGRATIONS = {
    f"{JAVA}.checkpointing.StatefulJobSnapshotMigrationITCase": (
        "new-stateful-udf-migration-itcase-flink",
        44,
    ),
    f"{JAVA}.checkpointing.StatefulJobWBroadcastStateMigrationITCase": (
        "new-stateful-broadcast-udf-migration-itcase-flink",
        44,
    ),
    f"{SCALA}.StatefulJobSavepointMigrationITCase": (
        "stateful-scala-udf-migration-itcase-flink",
        37,
    ),
    f"{SCALA}.StatefulJobWBroadcastStateMigrationITCase": (
        "stateful-scala-with-broadcast-udf-migration-itcase-flink",
        37,
    ),
    f"{JAVA}.migration.TypeSerializerSnapshotMigrationITCase": (
        "type-serializer-snapshot-migration-itcase-flink",
        20,
    ),
}
"""The tests of jobs, the prefix of their savepoints, and how many of these Flink 1.20 restores."""


@pytest.mark.long
@pytest.mark.parametrize("way", ["original", "exported"])
@pytest.mark.parametrize("name", MIGRATIONS)
def test_jobs_of_all_versions_continue(name: str, way: str, tmp_path: Path) -> None:
    """Savepoints of Flink 1.3 to 1.7 are not restored by 1.20, and fail in each way."""
    prefix, count = MIGRATIONS[name]
    work = tmp_path / "work"
    for jar in (FLINK_1_13, FLINK_1_15, FLINK_1_20):
        for savepoint in published(jar, prefix):
            if not (work / savepoint).exists():
                source = jar.unpack(savepoint, tmp_path / "published")
                WAYS[way](source, work / savepoint, tmp_path / "stores" / savepoint)
    verdicts = MIGRATION.run(work, [f"--select-class={name}"], seconds=600)
    assert since_1_8(verdicts) == {}
    assert len(verdicts.passed) == count


def published(jar: PublishedJar, prefix: str) -> list[str]:
    """Return savepoints of a jar, except those of Flink 1.3 to 1.7."""
    old = tuple(f"{prefix}1.{minor}-" for minor in range(8))
    return [name for name in jar.folders() if name.startswith(prefix) and not name.startswith(old)]


def since_1_8(verdicts: Verdicts) -> dict[str, str]:
    """Return the failed tests, except those of Flink 1.3 to 1.7."""
    old = tuple(f"flink1.{minor}-" for minor in range(8))
    return {name: text for name, text in verdicts.failed.items() if not any(x in name for x in old)}
