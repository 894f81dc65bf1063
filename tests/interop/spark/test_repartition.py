"""A query continues from a repartitioned location as if it had never been stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.errors import (
    CommitConflictError,
    CorruptionError,
    DamagedFileError,
    DuplicateKeyError,
    InvalidArgumentError,
    StorageError,
    UnsupportedTypeError,
)
from statestore.interop.spark import (
    export_checkpoint,
    export_state,
    import_checkpoint,
    repartition_location,
)
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.query_settings import STRICT, SparkTarget
from statestore.storage import LocalStorage, Storage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.interop.spark.queries import (
    NO_DATA_BATCHES,
    QUERIES,
    copy_location,
    events,
    planned_only,
    run,
    state_rows,
)
from tests.interop.spark.test_query_settings import QUERY as STARTED_ON_3_2
from tests.interop.spark.test_round_trip import (
    HDFS,
    JOIN_IN_FAMILIES,
    ROCKS,
    WAYS,
)
from tests.support.stores import file_bytes

Provider = Literal["hdfs", "rocksdb"]

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class Moved:
    """A query at 2 partitions whose location is repartitioned to 3."""

    def __init__(
        self, spark: SparkSession, folder: Path, name: str, conf: dict[str, str] | None = None
    ) -> None:
        self.spark, self.folder, self.query = spark, folder, QUERIES[name]
        self.conf = {NO_DATA_BATCHES: "false", **(conf or {})}

    def run(self, where: str, provider: Provider, files: int) -> dict[int, list[str]]:
        events(self.folder / "events", 0, files)
        return run(
            self.spark,
            self.query,
            source=self.folder / "events",
            location=str(self.folder / where),
            provider=provider,
            partitions=2,
            conf=self.conf,
        )

    def move(self, provider: Provider | None, partitions: int = 3) -> None:
        moved = repartition_location(
            self.spark,
            str(self.folder / "before"),
            str(self.folder / "moved"),
            partitions=partitions,
            target=SparkTarget(provider=provider),
        )
        assert (moved.partitions, moved.dry_run) == (partitions, False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "before", "after", "conf"),
    [
        *(
            pytest.param(
                *(name, before, after, {}),
                id=name,
                marks=[] if name == "dedup" else pytest.mark.long,
            )
            for name, before, after, _ in WAYS
        ),
        pytest.param(
            *("join", ROCKS, ROCKS, JOIN_IN_FAMILIES), id="column families", marks=pytest.mark.long
        ),
        pytest.param(
            *("tws_avro", ROCKS, ROCKS, {}), id="transformWithState", marks=pytest.mark.long
        ),
        pytest.param(
            "agg", ROCKS, ROCKS, {FORMAT: "2"}, id="agg in format 2", marks=pytest.mark.long
        ),
    ],
)
def test_a_query_continues_at_another_number_of_partitions(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    before: Provider,
    after: Provider,
    conf: dict[str, str],
) -> None:
    moved = Moved(spark, tmp_path, name, conf)
    moved.run("before", before, 2)
    copy_location(tmp_path / "before", tmp_path / "plain")
    moved.move(after)
    output = moved.run("moved", after, 3)
    assert output == moved.run("plain", before, 3)
    assert any(output.values())


@pytest.fixture(scope="module")
def before(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an aggregation after two micro-batches, which no test changes."""
    folder = tmp_path_factory.mktemp("repartition")
    Moved(spark, folder, "agg").run("before", HDFS, 2)
    return folder


@pytest.mark.long
def test_the_files_are_those_of_an_import_and_export(
    spark: SparkSession, tmp_path: Path, before: Path
) -> None:
    """The logs are equal, and each partition has the same rows."""
    source = str(before / "before")
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    import_checkpoint(spark, source, store)
    exported = export_checkpoint(store, str(tmp_path / "exported"), partitions=5)
    direct = repartition_location(spark, source, str(tmp_path / "direct"), partitions=5)
    assert [one.rows for one in direct.stores] == [one.rows for one in exported.stores]
    assert (direct.query_id, direct.batch) == (exported.query_id, exported.batch)

    one, other = file_bytes(tmp_path / "exported"), file_bytes(tmp_path / "direct")
    assert one.keys() == other.keys()
    logs = [name for name in one if not name.endswith(".snapshot")]
    assert [one[name] for name in logs] == [other[name] for name in logs]


@pytest.mark.long
def test_a_planned_micro_batch_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    moved = Moved(spark, tmp_path, "agg")
    moved.run("before", HDFS, 2)
    last = planned_only(tmp_path / "before")
    copy_location(tmp_path / "before", tmp_path / "plain")
    moved.move(ROCKS, 7)
    output = moved.run("moved", ROCKS, 2)
    assert min(output) == last
    assert output == moved.run("plain", HDFS, 2)


@pytest.mark.long
def test_a_dry_run_counts_the_rows_and_writes_nothing(
    spark: SparkSession, tmp_path: Path, before: Path
) -> None:
    titles: list[str] = []
    planned = repartition_location(
        spark,
        str(before / "before"),
        str(tmp_path / "new"),
        partitions=4,
        dry_run=True,
        on_progress=lambda done, total, title: titles.append(f"{done}/{total} {title}"),
    )
    (store,) = planned.stores
    assert (len(store.rows), planned.dry_run) == (4, True)
    assert sum(store.rows) == len(state_rows(spark, before / "before")["0/default"])
    assert not (tmp_path / "new").exists()
    assert titles == ["0/2 reading default of stateStoreSave-0", "1/2 default of operator 0"]


@pytest.mark.long
def test_rows_in_other_partitions_than_their_keys_imply(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark 3.2 and before placed them so. A key in two partitions has no right value."""
    events(tmp_path / "events", 0, 2)
    run(
        spark,
        STARTED_ON_3_2,
        source=tmp_path / "events",
        location=str(tmp_path / "before"),
        provider="hdfs",
        partitions=3,
        conf={STRICT: "false"},
    )
    where = str(tmp_path / "before")
    repartition_location(spark, where, str(tmp_path / "moved"), partitions=3)
    assert state_rows(spark, tmp_path / "moved") == state_rows(spark, tmp_path / "before")
    state = tmp_path / "before" / "state" / "0"
    for file in (state / "0").glob("*.delta"):
        for name in (file.name, f".{file.name}.crc"):
            shutil.copy(state / "0" / name, state / "1" / name)
    with pytest.raises(DuplicateKeyError, match=r"stateStoreSave-0 has rows of the key .* in two"):
        repartition_location(spark, where, str(tmp_path / "again"), partitions=3)
    assert not (tmp_path / "again").exists()


def test_rows_in_a_wrong_partition_leave_the_location_unusable(
    spark: SparkSession, tmp_path: Path, before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = StoreColumns.move

    def wrong(self: StoreColumns, rows: DataFrame, partitions: int) -> DataFrame:
        return move(self, rows, partitions).repartition(partitions)

    monkeypatch.setattr(StoreColumns, "move", wrong)
    with pytest.raises(CorruptionError, match="rows are in partitions where Spark does not look"):
        repartition_location(spark, str(before / "before"), str(tmp_path / "new"), partitions=3)
    monkeypatch.undo()
    assert CheckpointLocation(LocalStorage(str(tmp_path / "new"))).is_unfinished


@pytest.mark.long
@pytest.mark.parametrize("step", ["commits/1", "offsets/1"])
def test_a_repartition_that_dies_is_refused_by_spark_and_by_the_next_one(
    spark: SparkSession, tmp_path: Path, before: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    new = str(tmp_path / "new")

    def write_to(storage: Storage) -> None:
        place = storage.url
        monkeypatch.setattr(
            export_state,
            "open_storage",
            lambda url, _: storage if str(url) == place else LocalStorage(str(url)),
        )
        repartition_location(spark, str(before / "before"), place, partitions=3)

    calls = calls_of(LocalStorage(str(tmp_path / "watched")), write_to)
    number = next(c.number for c in calls if (c.operation, c.name) == ("put_if_absent", step))
    with pytest.raises(StorageError):
        write_to(FaultyStorage(LocalStorage(new), Fault(number, FaultKind.ERROR, lasting=True)))
    monkeypatch.undo()
    assert CheckpointLocation(LocalStorage(new)).is_unfinished
    with pytest.raises(CommitConflictError, match="delete the folder"):
        repartition_location(spark, str(before / "before"), new, partitions=3)


def change_state(location: Path) -> None:
    file = max((location / "state" / "0" / "0").glob("*.delta"))
    file.write_bytes(file.read_bytes()[:-9])


def no_change(location: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "options", "error"),
    [
        (change_state, {}, DamagedFileError),
        (no_change, {"partitions": 0}, InvalidArgumentError),
        (no_change, {"target": SparkTarget(provider="leveldb")}, InvalidArgumentError),  # type: ignore[arg-type]
        (no_change, {"batch": 7}, InvalidArgumentError),
        (no_change, {"location": "inside"}, InvalidArgumentError),
    ],
    ids=["a damaged file", "no partitions", "a provider", "a micro-batch", "inside the old one"],
)
def test_what_cannot_be_repartitioned_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    before: Path,
    change: Callable[[Path], None],
    options: dict[str, object],
    error: type[Exception],
) -> None:
    copy_location(before / "before", tmp_path / "before")
    change(tmp_path / "before")
    inside = tmp_path / "before" / "new"
    new = inside if options.pop("location", None) else tmp_path / "new"
    arguments: dict[str, object] = {"partitions": 3, **options}
    with pytest.raises(error):
        repartition_location(spark, str(tmp_path / "before"), str(new), **arguments)  # type: ignore[arg-type]
    assert not new.exists()


@pytest.mark.long
def test_column_families_are_only_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    moved = Moved(spark, tmp_path, "tws_avro")
    moved.run("before", ROCKS, 1)
    with pytest.raises(UnsupportedTypeError, match="only with provider rocksdb"):
        moved.move(HDFS)
    assert not (tmp_path / "moved").exists()
