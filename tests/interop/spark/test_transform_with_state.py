"""States of a transformWithState: imported, shown, and exported at other parallelisms."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from statestore import OperatorKey, StateStore
from statestore.errors import (
    FormatVersionError,
    MissingFileError,
    StoreNotFoundError,
    UnsupportedTypeError,
)
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.export_state import export_checkpoint, repartition_location
from statestore.interop.spark.import_state import ImportedCheckpoint, import_checkpoint
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.query_settings import SparkTarget
from statestore.interop.spark.show_location import show_location
from statestore.interop.spark.stores import family_names, rebuild_families
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage
from tests.interop.spark.processors import DAY, Counting
from tests.interop.spark.queries import (
    NO_DATA_BATCHES,
    QUERIES,
    Query,
    events,
    run,
    settings,
    state_rows,
)

UID = "transformWithStateInPandasExec-0"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STATES = {
    "tws_avro": ["default", "timers", "last", "seen"],
    "tws_ttl": ["default", "timers", "byId", "n", "seen"],
}
FORMATS = {"tws_ttl": "2", "tws_listed": "2"}


class Moves:
    """A query that moves between locations, and one that stays. Both read the same files."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, partitions: int = 2) -> None:
        self.spark, self.folder, self.query = spark, folder, QUERIES[name]
        self.conf = {FORMAT: FORMATS.get(name, "1"), NO_DATA_BATCHES: "false"}
        self.partitions = partitions
        self.source = folder / "events"
        self.store = StateStore.open(str(folder / "store"), spark=spark, layout="auto")

    def run(self, where: str) -> dict[int, list[str]]:
        return run(
            self.spark,
            self.query,
            source=self.source,
            location=str(self.folder / where),
            provider="rocksdb",
            partitions=self.partitions,
            conf=self.conf,
        )

    def take(self, where: str) -> ImportedCheckpoint:
        return import_checkpoint(self.spark, str(self.folder / where), self.store)

    def give(self, where: str, partitions: int) -> None:
        location = str(self.folder / where)
        export_checkpoint(self.store, location, partitions=partitions)

    def rows(self, where: str) -> Mapping[str, list[str]]:
        return state_rows(self.spark, self.folder / where)

    def is_described(self, where: str, partitions: int) -> None:
        """Assert that the schemas are found in the checkpoint's location, regardless of its
        history.
        """
        location = self.folder / where
        described = [*location.glob("state/0/_metadata/v2/*")]
        assert described
        for text in (one.read_text() for one in described):
            assert f'"numPartitions":{partitions},' in text
            (path,) = re.findall(r'"file:([^"]*/_stateSchema/default/[^"]*)"', text)
            assert location in Path(path).parents
            assert Path(path).exists()
        (commit,) = location.glob("commits/*")
        assert commit.read_text().startswith(f"v{self.conf[FORMAT]}\n")


@pytest.mark.long
@pytest.mark.parametrize("name", ["tws_avro", "tws_ttl"])
def test_a_query_continues_at_another_parallelism(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """It runs at 1 and 2. Each partition opens stores of ten column families in each
    micro-batch.

    In each run, Spark reads the exported rows of Avro in :func:`test_a_location_that_was_moved`,
    and a query continues in :func:`test_spark_continues_with_changed_variables`.
    """
    moves = Moves(spark, tmp_path, name, partitions=1)
    events(moves.source, 0, 1)
    moves.run("first")
    first = moves.take("first")
    moves.give("second", 2)
    assert [store.state for store in first.record.stores] == STATES[name]
    assert moves.rows("second") == moves.rows("first")
    moves.is_described("second", 2)

    events(moves.source, 1, 2)
    emitted = moves.run("second")
    assert emitted == moves.run("first")
    assert any(emitted.values())


@pytest.mark.long
def test_a_location_that_was_moved(spark: SparkSession, tmp_path: Path) -> None:
    """Spark looks for its schema files in the old place; an import finds them in the new one."""
    moves = Moves(spark, tmp_path, "tws_avro", partitions=1)
    events(moves.source, 0, 1)
    moves.run("first")
    rows = moves.rows("first")
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "first").rename(tmp_path / "elsewhere" / "moved")
    before = sorted((path, path.stat().st_mtime_ns) for path in moved.rglob("*"))
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        moves.rows("elsewhere/moved")
    origin = f"file:{tmp_path}/first"
    assert show_location(spark, str(moved)).moved_from == origin
    imported = moves.take("elsewhere/moved")
    assert imported.moved_from == origin
    assert [store.state for store in imported.record.stores] == STATES["tws_avro"]
    moves.give("second", 2)
    assert moves.rows("second") == rows
    moves.is_described("second", 2)
    assert sorted((path, path.stat().st_mtime_ns) for path in moved.rglob("*")) == before

    for schema in moved.glob("state/0/_stateSchema/default/*"):
        schema.unlink()
    with pytest.raises(MissingFileError, match=r"_stateSchema/default/.* copy this file too"):
        show_location(spark, str(moved))


def test_a_location_without_the_description_of_its_operator(tmp_path: Path) -> None:
    (tmp_path / "state" / "0" / "_stateSchema" / "default").mkdir(parents=True)
    (tmp_path / "state" / "0" / "_stateSchema" / "default" / "0_a").touch()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{"conf":{}}\n0')
    location = CheckpointLocation(LocalStorage(str(tmp_path)))
    with pytest.raises(FormatVersionError, match=r"state/0/_metadata, .* copy this folder too"):
        location.operators(0)


@pytest.mark.long
@pytest.mark.parametrize("name", STATES)
def test_a_query_that_was_moved_is_moved_again(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """The partitions change from 2 to 3 to 1, and the second import is incremental."""
    moves = Moves(spark, tmp_path, name)
    events(moves.source, 0, 2)
    moves.run("first")
    moves.take("first")
    moves.give("second", 3)
    events(moves.source, 2, 3)
    moves.run("second")
    assert moves.take("second").is_incremental
    moves.give("third", 1)
    moves.is_described("third", 1)

    events(moves.source, 3, 4)
    emitted, plain = moves.run("third"), moves.run("first")
    assert emitted == {batch: plain[batch] for batch in emitted}
    assert any(emitted.values())


class Taken(NamedTuple):
    """Two imported micro-batches of a query with TTLs. The second one changed one key."""

    moves: Moves
    first: ImportedCheckpoint
    second: ImportedCheckpoint

    def rows(self, state: str, checkpoint: int | str = "latest") -> list[dict[str, Any]]:
        restored = self.moves.store.restore(checkpoint=checkpoint).keyed(UID, state)
        return [row.asDict() for row in restored.to_spark().drop("key_group").collect()]

    def refused(self, state: str, row: dict[str, Any]) -> str:
        """Edit a row of a state, and return the error of an export."""
        store, there = self.moves.store, self.moves.folder / "refused"
        with store.snapshot(parallelism=4) as checkpoint:
            checkpoint.write_changes(UID, state, [row])
            checkpoint.carry_rest()
        with pytest.raises(UnsupportedTypeError) as raised:
            self.moves.give(there.name, 7)
        assert not there.exists()
        return str(raised.value)


@pytest.fixture(scope="module")
def taken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    """The query has a value, a list and a map, all with a TTL, and timers."""
    folder = tmp_path_factory.mktemp("taken")
    moves = Moves(spark, folder, "tws_ttl")
    events(moves.source, 0, 1)
    moves.run("spark")
    first = moves.take("spark")
    event = {"k": "k1", "id": 4, "v": 1, "t": "2026-01-01T00:10:00+00:00"}
    (moves.source / "00001.json").write_text(json.dumps(event))
    moves.run("spark")
    second = moves.take("spark")
    return Taken(moves, first, second)


@pytest.mark.long
def test_a_later_micro_batch_is_written_as_changes(taken: Taken) -> None:
    find = taken.moves.store.checkpoint
    first, second = (
        find(one.checkpoint_id).manifest.metrics for one in (taken.first, taken.second)
    )
    assert first is not None
    assert second is not None
    assert taken.second.is_incremental
    assert second.written.rows < first.written.rows / 10
    assert second.written.size_bytes < first.written.size_bytes


@pytest.mark.long
def test_variables_are_states_with_columns(taken: Taken) -> None:
    """A key without events keeps its expiration time."""
    old, new = ({row["k"]: row for row in taken.rows("n", at)} for at in (1, 2))
    assert {key for key in new if new[key] != old.get(key)} == {"k1-0"}
    assert new["k1-0"]["n"] == old["k1-0"]["n"] + 1
    begun = show_location(taken.moves.spark, str(taken.moves.folder / "spark")).planned_at_ms
    assert new["k1-0"]["ttlExpirationMs"] == begun + 10 * DAY

    listed, mapped = taken.rows("seen"), taken.rows("byId")
    lengths = {key: sum(row["k"] == key for row in listed) for key in new}
    assert lengths == {key: row["n"] for key, row in new.items()}
    places = [row["position"] for row in listed if row["k"] == "k1-0"]
    assert sorted(places) == list(range(new["k1-0"]["n"]))
    (last,) = [r["v"] for r in listed if (r["k"], r["position"]) == ("k1-0", max(places))]
    assert last == 1
    assert sum(row["n"] for row in mapped) == len(listed)
    assert {row["user_key_id"] for row in mapped} <= set(range(7))
    assert [*mapped[0]] == ["k", "user_key_id", "n", "ttlExpirationMs"]
    assert [*taken.rows("timers")[0]] == ["k", "expiration"]
    assert {row["k"] for row in taken.rows("timers")} == set(new)


@pytest.mark.long
def test_positions_do_not_depend_on_the_order_of_rows(taken: Taken, tmp_path: Path) -> None:
    moves, (raw, *_) = taken.moves, taken.second.record.stores
    store = StateStore.open(str(tmp_path / "store"), spark=moves.spark, layout="auto")
    with settings(moves.spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "3"}):
        again = import_checkpoint(moves.spark, str(moves.folder / "spark"), store)
    assert again.record.stores[0].contents == raw.contents
    assert max(row["position"] for row in taken.rows("default")) > 3


@pytest.mark.long
def test_edited_bytes_are_not_exported(taken: Taken) -> None:
    raw = taken.rows("default", taken.second.checkpoint_id)[0]
    said = taken.refused("default", raw | {"value_bytes": bytes(len(raw["value_bytes"]))})
    assert f"state 'default' of operator '{UID}' is kept as Spark's bytes" in said


@pytest.mark.long
def test_column_families_are_generated_like_sparks(taken: Taken) -> None:
    """Each column family is equal byte for byte, with its times, counts and timers."""
    restored = taken.moves.store.restore(checkpoint=taken.second.checkpoint_id)
    made: dict[str, list[tuple[Any, ...]]] = {}
    for part in taken.second.record.stores:
        if isinstance(part.columns, StoreColumns):
            rows = restored.keyed(UID, part.state).to_spark()
            for row in rebuild_families(part, part.columns, rows, 2).collect():
                owner, family, *rest = row
                assert family in family_names(part)
                made.setdefault(family, []).append((owner, *rest))
    (raw, *_) = taken.second.record.stores
    stored: dict[str, list[tuple[Any, ...]]] = {}
    rows = restored.keyed(UID, "default").to_spark().withColumn("owner", raw.columns.owner(2))
    for row in rows.collect():
        one = (row.owner, row.key_bytes, row.position, row.value_bytes)
        stored.setdefault(row.column_family_name, []).append(one)
    assert {name: sorted(rows) for name, rows in made.items()} == {
        name: sorted(rows) for name, rows in stored.items()
    }
    assert len(made) == 10


@pytest.mark.long
def test_spark_continues_with_changed_variables(spark: SparkSession, tmp_path: Path) -> None:
    """Values, elements, times and timers were changed, and a key was purged."""
    moves = Moves(spark, tmp_path, "tws_listed")
    events(moves.source, 0, 1)
    moves.run("spark")
    moves.take("spark")
    store, source = moves.store, moves.source
    state = {
        name: [row.asDict() for row in store.restore().keyed(UID, name).to_spark().collect()]
        for name in ("seen", "last", "timers")
    }
    lengths = Counter(row["k"] for row in state["seen"] if row["k"] is not None)
    (shortened, length), *_ = lengths.most_common(1)
    edited, purged, early, plain = sorted(lengths.keys() - {shortened})[:4]
    elements, shorter = (
        sorted((row for row in state["seen"] if row["k"] == key), key=lambda row: row["position"])
        for key in (edited, shortened)
    )
    more = {"k": edited, "position": len(elements), "id": -1, "v": 1000}
    timers = [row for row in state["timers"] if row["k"] == early]
    store.maintenance.forget(OperatorKey(UID, purged), search=False)
    with store.snapshot(parallelism=2) as checkpoint:
        first = [{"k": shortened, "position": 0}]
        checkpoint.write_changes(UID, "seen", Changes([more], deletes=first))
        gone = [{"k": early, "expiration": row["expiration"]} for row in timers]
        checkpoint.write_changes(
            UID, "timers", Changes([{"k": early, "expiration": 1}], deletes=gone)
        )
        checkpoint.carry_rest()
    moves.give("at-3", 3)
    refuses_deleted_bytes(moves, plain)

    (source / "00001.json").write_text("\n".join(map(event_of, (edited, purged, plain, shortened))))
    changed, unchanged = told(moves, "at-3"), told(moves, "spark")
    has = [(row["id"], row["v"]) for row in elements]
    assert unchanged[edited, "events"] == str([*has, new(edited)])
    assert changed[edited, "events"] == str([*has, (-1, 1000), new(edited)])
    assert changed[purged, "events"] == str([new(purged)])
    assert length > 1
    left = [(row["id"], row["v"]) for row in shorter[1:]]
    assert changed[shortened, "events"] == str([*left, new(shortened)])
    assert changed[early, "timer 1"] == str(
        [
            (row["id"], row["v"])
            for row in sorted(state["seen"], key=lambda row: row["position"])
            if row["k"] == early
        ]
    )
    assert changed[plain, "events"] == unchanged[plain, "events"]


def refuses_deleted_bytes(moves: Moves, key: str) -> None:
    """Assert that a key cannot be deleted from the bytes alone, which are read-only."""
    moves.store.maintenance.edit(UID, "default", delete=[key])
    with pytest.raises(UnsupportedTypeError, match=r"'default'.*read-only.*differs from them"):
        moves.give("refused", 3)


def told(moves: Moves, where: str) -> dict[tuple[str, str], str]:
    """Run the query at a location, and return what it emits of each key."""
    (emitted,) = moves.run(where).values()
    rows = map(json.loads, emitted)
    return {(row["k"], row["what"]): row["has"] for row in rows}


def new(key: str) -> tuple[int, int]:
    """Return the element that a new event adds to the list of a key."""
    return int(key.rpartition("-")[2]), 7


def event_of(key: str) -> str:
    number, v = new(key)
    k = key.rpartition("-")[0]
    return json.dumps({"k": k, "id": number, "v": v, "t": "2026-01-01T00:11:00+00:00"})


@pytest.mark.long
def test_changed_variables_in_avro_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    moves = Moves(spark, tmp_path, "tws_avro")
    events(moves.source, 0, 1)
    moves.run("spark")
    moves.take("spark")
    row = moves.store.restore().keyed(UID, "last").to_spark().drop("key_group").first()
    assert row is not None
    moves.store.maintenance.edit(UID, "last", put=[row.asDict() | {"last": 1}])
    with pytest.raises(UnsupportedTypeError, match=r"'last' .* stores its variables as avro"):
        moves.give("at-7", 7)
    assert not (tmp_path / "at-7").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("cast(small as double)", {None}),
        ("t", {f"2026-01-01T00:00:{number:02}.000Z" for number in range(20)}),
    ],
    ids=["null", "time"],
)
def test_keys_that_spark_stores_as_other_ones_are_refused(
    spark: SparkSession, tmp_path: Path, expression: str, keys: set[str | None]
) -> None:
    """Each row is in the partition of the key of its events."""

    def counted(rows: DataFrame) -> DataFrame:
        groups = rows.selectExpr(f"{expression} as key", "v").groupBy("key")
        return groups.transformWithStateInPandas(Counting(), "k string, n long", "Update", "None")

    source, location = tmp_path / "events", str(tmp_path / "first")
    source.mkdir()
    times = (f"2026-01-01T00:00:{number:02}+00:00" for number in range(20))
    (source / "0.json").write_text("\n".join(json.dumps({"v": 1, "t": time}) for time in times))
    run(
        spark,
        Query("counted", "update", counted),
        source=source,
        location=location,
        provider="rocksdb",
        partitions=2,
        # Hardly any machine has this time zone.
        conf={"spark.sql.session.timeZone": "Pacific/Kiritimati"},
    )
    stored = {json.loads(row)["key"]["key"] for row in state_rows(spark, location)["0/default/n"]}
    assert len(stored) == len(keys)
    assert not stored & keys
    said = "in another partition than its key implies, "
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    with pytest.raises(UnsupportedTypeError, match=said):
        import_checkpoint(spark, location, store)
    with pytest.raises(StoreNotFoundError):
        store.restore()
    with pytest.raises(UnsupportedTypeError, match=said):
        repartition_location(spark, location, str(tmp_path / "second"), partitions=3)
    assert not (tmp_path / "second").exists()


@pytest.mark.long
def test_another_provider_is_refused(taken: Taken, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match="only with provider rocksdb"):
        export_checkpoint(
            taken.moves.store,
            str(tmp_path / "there"),
            partitions=7,
            target=SparkTarget(provider="hdfs"),
            checkpoint=taken.second.checkpoint_id,
        )
    assert not (tmp_path / "there").exists()


@pytest.mark.long
def test_the_location_is_shown(taken: Taken) -> None:
    (operator,) = show_location(taken.moves.spark, str(taken.moves.folder / "spark")).operators
    (store,) = operator.stores
    imported = {one.state: one for one in taken.second.record.stores}
    assert operator.problem is None
    assert (store.name, store.key) == ("default", "struct<k:string>")
    assert [(variable.name, variable.form, variable.has_ttl) for variable in store.variables] == [
        ("timers", "timers", False),
        ("byId", "map", True),
        ("n", "value", True),
        ("seen", "list", True),
    ]
    assert store.rows is not None
    counts = {
        store.name: store.rows,
        **{variable.name: variable.rows for variable in store.variables},
    }
    assert {len(rows) for rows in counts.values()} == {2}
    rows = {name: one.contents.rows for name, one in imported.items()}
    assert {name: sum(each) for name, each in counts.items()} == rows
