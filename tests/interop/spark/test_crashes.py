"""A crash at any time leaves existing files unchanged, and never a partial checkpoint that looks
valid. A query from a complete export emits the same rows as after a plain restart.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import OperatorKey, StateStore
from statestore.errors import (
    CommitConflictError,
    CorruptionError,
    DamagedFileError,
    StateStoreError,
    StorageError,
)
from statestore.interop.spark import export_state
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.location_writer import Target
from statestore.interop.spark.parts import list_parts, map_columns, read_stored_rows
from statestore.interop.spark.query_settings import SparkTarget
from statestore.interop.spark.state_files import Provider
from statestore.interop.spark.state_reader import observe_state, prepared_session
from statestore.storage import LocalStorage, Storage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.interop.spark.queries import (
    QUERIES,
    copy_location,
    events,
    planned_only,
    run,
)
from tests.support.stores import file_bytes
from tests.syntax import ROOT

# A file source compacts all earlier logs into every second log, and deletes them immediately.
MARKER = "offsets/5"  # two micro-batches before the exported one
COMPACT = {
    "spark.sql.streaming.fileSource.log.compactInterval": "2",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
}


@dataclass(frozen=True)
class Kept:
    """The location of a query after four micro-batches, its emitted rows, and a store that imported
    it.
    """

    spark: SparkSession
    folder: Path
    emitted: dict[int, list[str]]

    @property
    def location(self) -> Path:
        return self.folder / "agg"

    def store(self, path: Path | None = None) -> StateStore:
        return StateStore.open(str(path or self.folder / "store"), spark=self.spark, layout="auto")

    def run(self, location: Path, provider: str, name: str = "agg") -> dict[int, list[str]]:
        return run(
            self.spark,
            QUERIES[name],
            source=self.folder / "events",
            location=str(location),
            provider=provider,
            partitions=2,
            conf=COMPACT,
        )

    def export(
        self,
        target: Path,
        provider: Provider | None = None,
        *,
        store: Path | None = None,
        partitions: int = 3,
        **options: Any,
    ) -> None:
        export_checkpoint(
            self.store(store),
            str(target),
            partitions=partitions,
            target=SparkTarget(provider=provider),
            **options,
        )


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("crashes")
    events(folder / "events", 0, 4)
    emitted = Kept(spark, folder, {}).run(folder / "agg", "hdfs")
    found = Kept(spark, folder, emitted)
    import_checkpoint(spark, str(found.location), found.store())
    return found


@pytest.fixture
def untouched(kept: Kept) -> Iterator[None]:
    """Check that a test leaves existing files byte for byte unchanged, and adds none."""
    before = file_bytes(kept.location), file_bytes(kept.folder / "store")
    yield
    assert (file_bytes(kept.location), file_bytes(kept.folder / "store")) == before


def refuses_to_start(kept: Kept, target: Path, name: str = "agg") -> None:
    """Assert that Spark starts no query with the location, and names the file with the reason."""
    with pytest.raises((StreamingQueryException, SparkRuntimeException)) as caught:
        kept.run(target, "hdfs", name)
    assert (MARKER if (target / "metadata").exists() else "metadata") in str(caught.value)


def on_storage(monkeypatch: pytest.MonkeyPatch, change: Callable[[Storage], Storage]) -> None:
    """Let exports write through another storage."""
    monkeypatch.setattr(export_state, "open_storage", lambda url, _: change(LocalStorage(str(url))))


STEPS = {
    "marker": ("put_if_absent", MARKER),
    "query": ("put_if_absent", "metadata"),
    "plan": ("put_if_absent", "offsets/3"),
    "operators": ("put_if_absent", "state/0/_metadata/metadata"),
    "commit": ("put_if_absent", "commits/3"),
    "sync": ("sync", None),
    "end": ("delete", MARKER),
}
CASES = [
    *((step, FaultKind.ERROR) for step in STEPS),
    *((step, FaultKind.ANSWER_LOST) for step in ("marker", "commit")),
    ("plan", FaultKind.FULL),
]
# The first step, where nothing was written, the last one, and two in the middle.
IN_EACH_RUN = [
    *((step, FaultKind.ERROR) for step in ("marker", "operators", "end")),
    ("commit", FaultKind.ANSWER_LOST),
]


@pytest.fixture(scope="module")
def calls(kept: Kept) -> dict[tuple[str, str | None], int]:
    """Return the number of each call that an export makes on its target's storage."""
    with pytest.MonkeyPatch.context() as patch:

        def export(storage: Storage) -> None:
            on_storage(patch, lambda _: storage)
            kept.export(kept.folder / "watched", "hdfs")

        found = calls_of(LocalStorage(str(kept.folder / "watched")), export)
    names = {(call.operation, call.name): call.number for call in reversed(found)}
    syncs = [number for (what, _), number in names.items() if what == "sync"]
    # Another sync follows the end. If it fails, the location is complete.
    return names | {("sync", None): max(n for n in syncs if n < names["delete", MARKER])}


@pytest.mark.long_cases("end-ERROR", "operators-ERROR")
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("step", "kind"),
    [
        pytest.param(
            step,
            kind,
            id=f"{step}-{kind.name}",
            marks=() if (step, kind) in IN_EACH_RUN else pytest.mark.long,
        )
        for step, kind in CASES
    ],
)
def test_an_export_that_dies_at_a_step(
    kept: Kept,
    calls: dict[tuple[str, str | None], int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: str,
    kind: FaultKind,
) -> None:
    fault, target = Fault(calls[STEPS[step]], kind, lasting=True), tmp_path / "target"
    on_storage(monkeypatch, lambda storage: FaultyStorage(storage, fault))
    with pytest.raises(StorageError):
        kept.export(target, "hdfs")
    monkeypatch.undo()
    if (step, kind) == ("marker", FaultKind.ERROR):
        assert file_bytes(target) == {}
        return
    refuses_to_start(kept, target)
    with pytest.raises(CommitConflictError, match="delete the folder"):
        kept.export(target, "hdfs")


@pytest.mark.long
@pytest.mark.usefixtures("untouched")
def test_a_task_that_cannot_write(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(storage: Storage) -> Storage:
        for partition in range(3):
            (Path(storage.url) / f"state/0/{partition}/4.snapshot").mkdir(parents=True)
        return storage

    target = tmp_path / "target"
    begin = Target.begin
    monkeypatch.setattr(Target, "begin", lambda there: (begin(there), full(there.storage)))
    with pytest.raises(StorageError, match=r"\.snapshot"):
        kept.export(target, "hdfs")
    refuses_to_start(kept, target)


@pytest.mark.long
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("provider", ["rocksdb", "hdfs"])
def test_invalid_rows_leave_no_usable_target(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: Provider
) -> None:
    whole = StoreColumns.to_bytes

    def torn(self: StoreColumns, rows: DataFrame, partitions: int) -> DataFrame:
        bad = F.raise_error(F.lit("this row is torn")).cast("binary")
        row = F.pmod(F.hash("key_bytes"), F.lit(5)) == 0
        return whole(self, rows, partitions).withColumn(
            "value_bytes", F.when(row, bad).otherwise(F.col("value_bytes"))
        )

    monkeypatch.setattr(StoreColumns, "to_bytes", torn)
    with pytest.raises(StateStoreError, match="this row is torn") as caught:
        kept.export(tmp_path / "target", provider)
    assert "operator 0" in str(caught.value)
    monkeypatch.undo()
    refuses_to_start(kept, tmp_path / "target")
    kept.export(tmp_path / "other", provider)
    assert not (tmp_path / "other" / MARKER).exists()


@pytest.mark.usefixtures("untouched")
def test_two_exports_to_one_target(kept: Kept, tmp_path: Path) -> None:
    """An export that starts during another one is refused, and the first one is complete."""
    target, refused = tmp_path / "target", []

    def second(*_: object) -> None:
        with pytest.raises(CommitConflictError, match="another export"):
            kept.export(target, "rocksdb")
        refused.append(True)

    kept.export(target, "hdfs", on_progress=second)
    assert refused
    assert kept.run(target, "hdfs") == {}


@pytest.mark.usefixtures("untouched")
def test_an_export_that_checked_the_target_before_another_finished(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "target"

    class Late(LocalStorage):
        def is_empty(self) -> bool:
            monkeypatch.undo()
            kept.export(target, "hdfs")
            return True

    monkeypatch.setattr(export_state, "open_storage", lambda url, _: Late(str(url)))
    with pytest.raises(CommitConflictError, match="since"):
        kept.export(target, "rocksdb")
    assert not (target / MARKER).exists()
    assert kept.run(target, "hdfs") == {}


@pytest.fixture
def scratch() -> Iterator[str]:
    """A folder with a short name."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield folder


@pytest.mark.usefixtures("untouched")
@pytest.mark.long  # a kill leaves no more behind than the lasting faults at each step above
def test_exports_that_are_killed(kept: Kept, tmp_path: Path, scratch: str) -> None:
    """Each process gets SIGKILL at a random moment of its first exports."""
    jobs = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.interop.spark.exporting"]
        jobs.append(
            (
                folder,
                subprocess.Popen(
                    [*command, str(kept.folder / "store"), str(folder), scratch],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                ),
            )
        )
    left = 0
    try:
        for number, (folder, job) in enumerate(jobs):
            assert job.stdin is not None
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            job.stdin.write("go\n")
            job.stdin.flush()
            wait_for(folder / "target-0" / "metadata")
            time.sleep(random.Random(number).random() / 2)
            os.killpg(job.pid, signal.SIGKILL)
            said = {Path(line.strip()) for line in job.stdout}
            for target in sorted(folder.glob("target-*")):
                if (target / MARKER).exists():
                    assert target not in said
                    refuses_to_start(kept, target)
                    left += 1
                elif target in said or (target / "commits").exists():
                    assert kept.run(target, "hdfs") == {}
                else:
                    assert file_bytes(target) == {}
    finally:
        for _, job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    assert left
    kept.export(tmp_path / "after", "rocksdb")
    assert kept.run(tmp_path / "after", "rocksdb") == {}


def wait_for(path: Path) -> None:
    """Return as soon as the path exists."""
    until = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.long
def test_an_import_that_dies(kept: Kept, tmp_path: Path) -> None:
    """No checkpoint is visible, and the next import makes one that can be exported."""
    watched = calls_of(
        LocalStorage(str(tmp_path / "watched")),
        lambda storage: import_checkpoint(
            kept.spark, str(kept.location), StateStore.open(storage, spark=kept.spark)
        ),
    )
    commit = next(c for c in watched if c.name.startswith("checkpoints/") and "put" in c.operation)
    before = next(c for c in watched if "/operator/" in c.name)
    for number, call in enumerate((before, commit)):
        folder = tmp_path / f"store-{number}"
        storage = FaultyStorage(
            LocalStorage(str(folder)), Fault(call.number, FaultKind.ERROR, lasting=True)
        )
        with pytest.raises(StorageError):
            import_checkpoint(
                kept.spark, str(kept.location), StateStore.open(storage, spark=kept.spark)
            )
        store = StateStore.open(str(folder), spark=kept.spark)
        assert store.checkpoints() == ()
        assert not import_checkpoint(kept.spark, str(kept.location), store).found
        assert import_checkpoint(kept.spark, str(kept.location), store).found
        assert store.checkpoints() == (1,)


def test_a_query_has_more_partitions_than_the_store_has_key_groups(
    kept: Kept, tmp_path: Path
) -> None:
    store = kept.store(tmp_path / "store")
    for batch in (0, 1):
        import_checkpoint(kept.spark, str(kept.location), store, batch=batch, max_parallelism=1)
        assert store.checkpoint().manifest.parallelism == 1
    assert {entry.state.max_parallelism for entry in store.checkpoint().manifest.keyed} == {1}
    kept.export(tmp_path / "target", store=tmp_path / "store", partitions=3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["agg", "join"])
def test_a_micro_batch_that_was_planned_runs_again(kept: Kept, tmp_path: Path, name: str) -> None:
    if name == "join":
        kept = Kept(kept.spark, tmp_path, {})
        events(tmp_path / "events", 0, 2)
        kept.run(tmp_path / "join", "rocksdb", "join")
    provider: Provider = "hdfs" if name == "join" else "rocksdb"
    location, plain = tmp_path / "location", tmp_path / "plain"
    copy_location(kept.folder / name, location)
    last = planned_only(location)
    copy_location(location, plain)
    import_checkpoint(kept.spark, str(location), kept.store(tmp_path / "store"))
    kept.export(tmp_path / "target", provider, store=tmp_path / "store", partitions=7)
    expected = kept.run(plain, "hdfs", name)
    assert min(expected) == last
    assert kept.run(tmp_path / "target", provider, name) == expected


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, *(batch for batch in (0, 2))])
def test_an_older_micro_batch_continues_with_all_later_files(
    kept: Kept, tmp_path: Path, batch: int
) -> None:
    assert (kept.location / "sources" / "0" / "3.compact").exists()
    store = tmp_path / "store"
    import_checkpoint(kept.spark, str(kept.location), kept.store(store), batch=batch)
    kept.export(tmp_path / "target", "rocksdb", store=store, partitions=7)
    expected = {number: rows for number, rows in kept.emitted.items() if number > batch}
    assert kept.run(tmp_path / "target", "rocksdb") == expected


@pytest.mark.long
def test_a_corrected_and_a_purged_key(kept: Kept, tmp_path: Path) -> None:
    """The first key continues from its new value, the purged key starts empty, and all others are
    unchanged.
    """
    store = kept.store(tmp_path / "store")
    import_checkpoint(kept.spark, str(kept.location), store)
    uid = "stateStoreSave-0"
    rows = store.restore().keyed(uid, "default").to_spark().drop("key_group")
    (row,) = rows.where("k = 'k1'").collect()
    (purged,) = rows.where("k = 'k2'").collect()
    count = next(name for name in rows.columns if name.lower().startswith("count"))
    corrected = row.asDict(recursive=True)
    store.maintenance.edit(uid, "default", put=[corrected | {count: corrected[count] + 1000}])
    store.maintenance.forget(OperatorKey(uid, "k2"), search=False)
    for provider in ("hdfs", "rocksdb"):
        kept.export(tmp_path / provider, provider, store=tmp_path / "store")
    copy_location(kept.location, tmp_path / "plain")
    later = kept.folder / "events" / "00004.json"

    def by_key(location: Path, provider: str) -> dict[str, Any]:
        events(later.parent, 4, 5)
        try:
            (emitted,) = kept.run(location, provider).values()
        finally:
            later.unlink()
        return {str(one["k"]): one for one in map(json.loads, emitted)}

    expected = by_key(tmp_path / "plain", "hdfs")
    assert {"k1", "k2"} <= expected.keys()
    for provider in ("hdfs", "rocksdb"):
        found = by_key(tmp_path / provider, provider)
        assert found["k1"] == expected["k1"] | {"n": expected["k1"]["n"] + 1000}
        assert found["k2"]["n"] == expected["k2"]["n"] - purged[count]
        assert {k: v for k, v in found.items() if k not in ("k1", "k2")} == {
            k: v for k, v in expected.items() if k not in ("k1", "k2")
        }


def test_swapped_partitions_are_detected(kept: Kept, tmp_path: Path) -> None:
    target = tmp_path / "target"
    kept.export(target, "hdfs")
    assert misplaced(kept, target) == 0
    one, other, aside = (target / "state" / "0" / name for name in ("1", "2", "aside"))
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    assert misplaced(kept, target) > 0


def misplaced(kept: Kept, target: Path) -> int:
    location = CheckpointLocation(LocalStorage(str(target)))
    (operator,) = location.operators(3)
    with prepared_session(kept.spark, location, 3, ()):
        (part,) = list_parts(operator)
        rows = read_stored_rows(kept.spark, location.spark_url, 3, part)
        return observe_state(rows, map_columns(rows, part), 3).misplaced


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("provider", ["hdfs", pytest.param("rocksdb", marks=pytest.mark.long)])
def test_rows_in_wrong_partitions_leave_a_target_unusable(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: Provider
) -> None:
    right = StoreColumns.owner

    def wrong(self: StoreColumns, partitions: int) -> Column:
        return F.pmod(right(self, partitions) + 1, F.lit(partitions))

    monkeypatch.setattr(StoreColumns, "owner", wrong)
    with pytest.raises(CorruptionError, match="rows are in partitions where Spark does not look"):
        kept.export(tmp_path / "target", provider)
    refuses_to_start(kept, tmp_path / "target")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("provider", ["rocksdb", pytest.param("hdfs", marks=pytest.mark.long)])
def test_rows_that_are_lost_leave_a_target_unusable(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: Provider
) -> None:
    whole = StoreColumns.to_bytes

    def fewer(self: StoreColumns, rows: DataFrame, partitions: int) -> DataFrame:
        return whole(self, rows, partitions).where(F.hash("key_bytes") % 5 != 0)

    monkeypatch.setattr(StoreColumns, "to_bytes", fewer)
    with pytest.raises(CorruptionError, match="Spark read"):
        kept.export(tmp_path / "target", provider)
    refuses_to_start(kept, tmp_path / "target")


@pytest.mark.long
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_values_that_are_lost_leave_a_target_unusable(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: Provider
) -> None:
    """Also if the conversion to Spark's rows loses them: the digest is that of the columns."""
    whole = StoreColumns.to_structs

    def emptier(self: StoreColumns, rows: DataFrame, *others: Column) -> DataFrame:
        name = self.state_schema.names[-1]
        empty = F.lit(None).cast(rows.schema[name].dataType)
        return whole(self, rows.withColumn(name, empty), *others)

    monkeypatch.setattr(StoreColumns, "to_structs", emptier)
    with pytest.raises(CorruptionError, match="values differ"):
        kept.export(tmp_path / "target", provider)
    refuses_to_start(kept, tmp_path / "target")


@pytest.mark.long_cases("damaged")
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("damage", "error", "problem"),
    [
        (Path.unlink, CorruptionError, r"failed: state/0/2/3\.zip is missing or empty"),
        (lambda file: file.write_bytes(b"no archive"), DamagedFileError, "Spark cannot read"),
    ],
    ids=["missing", "damaged"],
)
def test_a_changelog_needs_the_database_to_which_it_applies(
    kept: Kept,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    damage: Callable[[Path], object],
    error: type[StateStoreError],
    problem: str,
) -> None:
    """The rows are read from changelogs, but Spark starts with the databases."""
    target, put = tmp_path / "target", Target.put
    damaged = target / "state" / "0" / ("2" if error is CorruptionError else "0") / "3.zip"

    def put_after_damage(self: Target, name: str, content: bytes) -> None:
        if name.startswith("commits/"):  # all state is written, and nothing is verified
            damage(damaged)
        put(self, name, content)

    monkeypatch.setattr(Target, "put", put_after_damage)
    with pytest.raises(error, match=problem):
        kept.export(target, "rocksdb")
    refuses_to_start(kept, target)
