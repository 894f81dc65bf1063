"""TTL in a store: written, restored and compacted, at any parallelism, with a given clock."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from statestore import StateStore, TimeToLive
from statestore.errors import InvalidArgumentError, SchemaMismatchError, StateStoreError
from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import slices_of
from statestore.format.state import TtlVisibility
from statestore.keys.groups import KeyGroupRange
from statestore.layers.compaction import Compactor
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.reader import read_slices
from statestore.parquet.writer import ParquetOptions
from statestore.rows.digests import rows_digest
from statestore.snapshot.state_spec import Changes
from tests.support.options import changes_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TTL = TimeToLive("100ms", "at")
SHOWN = TimeToLive("100ms", "at", visibility=TtlVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
LONG_MAX = 2**63 - 1
EVERYTHING = KeyGroupRange(0, 7)
KEYED: dict[str, Any] = {"key": "k", "max_parallelism": 8}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path), table_format="parquet", compaction=None)


def full(store: StateStore, rows: Any, now: int = 0, **options: Any) -> KeyedEntry:
    with store.snapshot(parallelism=2, now_ms=now) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, **KEYED, **options)
    return checkpoint.manifest.keyed[0]


def change(store: StateStore, now: int, ttl: Any = None, **changes: Any) -> KeyedEntry:
    with store.snapshot(parallelism=2, now_ms=now) as checkpoint:
        given = changes_in(changes)
        checkpoint.write_changes("u", "n", given, **KEYED, ttl=ttl, **changes)
    return checkpoint.manifest.keyed[0]


def at(store: StateStore, now: int, parallelism: int = 2, **where: Any) -> list[dict[str, Any]]:
    """Return the restored rows without their key group."""
    restored = store.restore(parallelism=parallelism, now_ms=now, **where).keyed("u", "n")
    tables = [restored.to_arrow(subtask) for subtask in range(parallelism)]
    rows = pa.concat_tables(tables).drop_columns(["key_group"])
    assert restored.digest == rows_digest(rows)
    return sorted(rows.to_pylist(), key=lambda row: repr(row["k"]))


def keys(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["k"] for row in rows]


ROWS = [{"k": "a", "v": 1, "at": 0}, {"k": "b", "v": 2, "at": 50}, {"k": "c", "v": 3, "at": -60}]


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_expired_rows_are_not_restored(store: StateStore, parallelism: int) -> None:
    """Exact to the millisecond, also before 1970; no row gets a new time."""
    full(store, ROWS, ttl=TTL)
    expected = {-61: "abc", 39: "abc", 40: "ab", 99: "ab", 100: "b", 149: "b", 150: ""}
    for now, left in expected.items():
        assert keys(at(store, now, parallelism)) == list(left)
    assert at(store, 149) == [ROWS[1]]


def test_a_row_near_the_greatest_time_stays_alive(store: StateStore) -> None:
    """The end of its TTL does not overflow."""
    full(store, [{"k": "a", "at": LONG_MAX - 5}], ttl=TTL)
    assert keys(at(store, LONG_MAX - 1)) == ["a"]
    assert keys(at(store, LONG_MAX)) == []


def test_every_read_hides_expired_rows(store: StateStore) -> None:
    """A key, all states of a key, and a query, by the clock of the call."""
    full(store, ROWS, ttl=TTL)
    for now, there in ((99, ROWS[:1]), (100, [])):
        assert store.restore(now_ms=now).keyed("u", "n").get("a") == there
        assert [list(state.rows) for state in store.inspect.key("a", now_ms=now).states] == [there]
        asked = store.query("SELECT k, v, \"at\" FROM n WHERE k = 'a'", now_ms=now)
        assert asked.read_all().to_pylist() == there


def test_the_default_clock_is_the_machines(store: StateStore) -> None:
    """One row is from 1970, and one is new."""
    full(store, [{"k": "a", "at": 0}], ttl=TimeToLive("1h", "at"))
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "n", [{"k": "b"}])
    restored = store.restore(parallelism=1)
    assert keys(restored.keyed("u", "n").to_arrow(0).to_pylist()) == ["b"]
    assert [len(state.rows) for key in "ab" for state in store.inspect.key(key).states] == [0, 1]
    assert store.query("SELECT k FROM n").read_all().to_pylist() == [{"k": "b"}]


def test_expired_rows_can_be_visible_until_compaction(store: StateStore) -> None:
    """If the state's visibility allows it."""
    full(store, ROWS, ttl=SHOWN)
    assert keys(at(store, 10**6)) == ["a", "b", "c"]
    compacting = StateStore.open(
        store.url, table_format="parquet", compaction=CompactionRule(share=0.01, most_share=1)
    )
    change(compacting, now=120, upserts=[{"k": k, "v": 0} for k in "defghijkl"])
    assert keys(at(compacting, 10**6)) == list("bdefghijkl")


def test_timestamps_expire_like_milliseconds(store: StateStore) -> None:
    """In a timestamp column, which snapshots also set."""
    then = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)
    full(store, [{"k": "a", "at": then}], ttl=TTL)
    change(store, now=1050, upserts=[{"k": "b"}])
    assert keys(at(store, 1099)) == ["a", "b"]
    assert keys(at(store, 1100)) == ["b"]
    assert at(store, 1149)[0]["at"] == datetime(1970, 1, 1, 0, 0, 1, 50_000, tzinfo=UTC)
    assert keys(at(store, 1150)) == []


def test_list_elements_and_map_entries_expire_separately(store: StateStore) -> None:
    """Each row has its own time."""
    elements = [{"k": "a", "position": n, "v": n, "at": 10 * n} for n in range(4)]
    entries = [{"k": "a", "m": f"m{n}", "v": n, "at": 10 * n} for n in range(4)]
    with store.snapshot(parallelism=2, now_ms=0) as checkpoint:
        checkpoint.write_keyed(
            "u",
            "list",
            elements,
            kind="list",
            entry="position",
            key="k",
            max_parallelism=8,
            ttl=TTL,
        )
        checkpoint.write_keyed(
            "u", "map", entries, kind="map", entry="m", key="k", max_parallelism=8, ttl=TTL
        )
    with store.snapshot(parallelism=2, now_ms=115) as checkpoint:
        touched = [{"k": "a", "position": 1, "v": 7}]
        checkpoint.write_changes(
            "u",
            "list",
            touched,
            key="k",
            max_parallelism=8,
            kind="list",
            entry="position",
        )
        checkpoint.write_changes(
            "u",
            "map",
            [{"k": "a", "m": "m0", "v": 8}],
            key="k",
            max_parallelism=8,
            kind="map",
            entry="m",
        )
    restored = store.restore(now_ms=120)
    assert [row["v"] for row in restored.keyed("u", "list").get("a")] == [7, 3]
    assert [row["v"] for row in restored.keyed("u", "map").get("a")] == [8, 3]


def test_an_expired_change_hides_the_row_that_it_replaced(store: StateStore) -> None:
    """An older row with a later time is still alive, but does not return."""
    full(store, [{"k": "a", "v": 1, "at": 1000}], ttl=TTL)
    change(store, now=0, upserts=[{"k": "a", "v": 2, "at": 0}])
    assert at(store, 100) == []
    merged = Compactor(CheckpointFiles(store.checkpoint().storage, 9, ParquetOptions()), 100)
    twice = change(store, now=0, upserts=[{"k": "b", "v": 2, "at": 500}])
    one = merged.merge(twice, 2)
    assert len(one.layers) == 1
    marks = merged_rows(store, one.layers[0].entry)
    assert marks == [("a", None, 1), ("b", 500, 0)]


def merged_rows(store: StateStore, entry: KeyedEntry) -> list[tuple[str, int | None, int]]:
    storage = store.checkpoint().storage
    batches = read_slices(storage, entry, slices_of(entry, EVERYTHING))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted((row["k"], row["at"], row["__deleted__"]) for row in rows)


@pytest.mark.long_cases("folds-value", "merges-map")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["value", "map"])
@pytest.mark.parametrize(
    "rule",
    [CompactionRule(), CompactionRule(merge_layers=2, share=5, most_share=5)],
    ids=["folds", "merges"],
)
def test_any_history_restores_the_rows_that_have_not_expired(
    tmp_path: Path, kind: str, rule: CompactionRule
) -> None:
    """Compared with a dictionary, whichever layers were merged or folded."""
    rng = random.Random(f"{kind} {rule}")
    store = StateStore.open(str(tmp_path), table_format="parquet", compaction=rule)
    entry: dict[str, Any] = {"kind": "map", "entry": "m"} if kind == "map" else {}
    known: dict[tuple[str, int], dict[str, Any]] = {}
    for step in range(10):
        now = 20 * step
        chosen = {(f"k{rng.randrange(20)}", rng.randrange(2) * bool(entry)) for _ in range(8)}
        upserts = {
            name: {"k": name[0], "m": name[1], "v": step, "at": now - rng.randrange(60)}
            for name in sorted(chosen)
        }
        gone = {f"k{rng.randrange(20)}" for _ in range(2)} - {name for name, _ in upserts}
        with store.snapshot(parallelism=3, now_ms=now) as checkpoint:
            deletes = [{"k": name} for name in sorted(gone)] or None
            ttl = TTL if step == 0 else None
            checkpoint.write_changes(
                "u", "n", Changes(list(upserts.values()), deletes), **KEYED, ttl=ttl, **entry
            )
        known = {name: row for name, row in known.items() if name[0] not in gone} | upserts
        for parallelism, later in ((1, 0), (3, rng.randrange(100))):
            left = [row for row in known.values() if row["at"] + 100 > now + later]
            found = at(store, now + later, parallelism)
            assert sorted(found, key=repr) == sorted(left, key=repr)


def test_a_fold_drops_expired_rows(store: StateStore) -> None:
    """They leave the base and the layers, so that no file has them; only with a clock."""
    full(store, ROWS, ttl=TTL)
    entry = change(
        store, now=120, upserts=[{"k": "d", "v": 4, "at": 70}, {"k": "e", "v": 5, "at": 10}]
    )
    storage = store.checkpoint().storage
    rows = {}
    for now in (None, 100, 120, 10**6):
        compactor = Compactor(CheckpointFiles(storage, 9, ParquetOptions()), now)
        folded = compactor.fold(entry, [EVERYTHING])
        assert folded.layers == ()
        rows[now] = folded.rows
    assert rows == {None: 5, 100: 3, 120: 2, 10**6: 0}


def test_turning_ttl_on_sets_all_times_to_the_clock(store: StateStore) -> None:
    """For a full snapshot of a state that had none, and of a new state."""
    bare = [{"k": "a", "v": 1}, {"k": "b", "v": 2}]
    full(store, bare)
    full(store, bare, now=1000, ttl=TTL)
    assert at(store, 1099) == [row | {"at": 1000} for row in bare]
    assert at(store, 1100) == []


def test_full_rows_of_a_state_with_ttl_need_times(store: StateStore) -> None:
    """Otherwise all rows would start a new TTL. Changes differ, because they are written now."""
    full(store, ROWS, ttl=TTL)
    for ttl in (None, TTL, TimeToLive("100ms", "other")):
        with pytest.raises(
            InvalidArgumentError, match=r"lifetime of all rows would restart.*changes.*ttl='off'"
        ):
            full(store, [{"k": "a", "v": 1}], now=9, ttl=ttl)
    with (
        pytest.raises(InvalidArgumentError, match="lifetime of all rows would restart"),
        store.snapshot(parallelism=2, now_ms=9) as checkpoint,
    ):
        checkpoint.write_changes_against("u", "n", [{"k": "a", "v": 1}])
    change(store, now=70, upserts=[{"k": "a", "v": 9}])
    assert at(store, 160) == [{"k": "a", "v": 9, "at": 70}]
    assert len(store.checkpoints()) == 2


def test_changes_without_a_base_get_times_and_are_written_in_full(store: StateStore) -> None:
    """The first checkpoint of a job that always writes changes."""
    entry = change(store, now=5, ttl=TTL, upserts=[{"k": "a"}])
    assert (entry.layers, entry.state.ttl) == ((), TTL)
    assert at(store, 6) == [{"k": "a", "at": 5}]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_split("u", "o", [[], []])
        checkpoint.drop("u", "n")
    with store.snapshot(parallelism=2, now_ms=7) as checkpoint:
        checkpoint.write_changes("u", "n", [{"k": "b"}])
        checkpoint.carry_rest()
    assert at(store, 8) == [{"k": "b", "at": 7}]


def test_a_null_time_is_refused(store: StateStore) -> None:
    """In full rows and in changes; nothing is visible, and deletes need no time."""
    bad = [{"k": "a", "v": 1, "at": 0}, {"k": "b", "v": 1, "at": None}]
    with pytest.raises(InvalidArgumentError, match=r"1 rows of state 'n' of operator 'u'.*'at'"):
        full(store, bad, ttl=TTL)
    full(store, ROWS, ttl=TTL)
    with pytest.raises(InvalidArgumentError, match=r"1 rows of .*state 'n' of operator 'u'.*'at'"):
        change(store, now=0, upserts=bad)
    assert store.checkpoints() == (1,)
    change(store, now=0, upserts=bad[:1], deletes=[{"k": "b"}])
    assert keys(at(store, 0)) == ["a", "c"]


def test_a_ttl_is_kept_changed_and_turned_off(store: StateStore) -> None:
    """For changes only the column is fixed; a full snapshot can change everything."""
    full(store, ROWS, ttl=TTL)
    longer = TimeToLive("1s", "at", visibility=TtlVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
    assert change(store, now=0, upserts=ROWS[:1]).state.ttl == TTL
    assert change(store, now=0, ttl=longer, deletes=[{"k": "c"}]).state.ttl == longer
    assert store.checkpoint().manifest.keyed[0].state.ttl == longer
    assert full(store, ROWS).state.ttl == longer
    moved = [{"k": "a", "v": 1, "seen": 40}]
    renamed = full(store, moved, renamed={"at": "seen"})
    assert renamed.state.ttl == TimeToLive("1s", "seen", visibility=longer.visibility)
    assert full(store, moved, ttl="off").state.ttl is None
    assert at(store, LONG_MAX) == moved
    assert full(store, moved, ttl=TimeToLive("1ms", "seen")).state.ttl == TimeToLive("1ms", "seen")
    assert keys(at(store, 40)) == ["a"]
    assert keys(at(store, 41)) == []


@pytest.mark.parametrize("first", [None, TTL], ids=["without", "with"])
@pytest.mark.parametrize("asked", [TTL, TimeToLive("100ms", "v"), "off"], ids=["at", "v", "off"])
def test_changes_use_the_ttl_column_of_their_base(
    store: StateStore, first: TimeToLive | None, asked: Any
) -> None:
    """They neither set the times of the base nor drop its rows."""
    full(store, ROWS, ttl=first)
    if (first, asked) in ((TTL, TTL), (None, "off")):
        change(store, now=0, ttl=asked, upserts=[ROWS[0] | {"v": 9}])
        assert at(store, 0) == [ROWS[0] | {"v": 9}, *ROWS[1:]]
        assert keys(at(store, LONG_MAX)) == ([] if first else ["a", "b", "c"])
        return
    with pytest.raises(SchemaMismatchError, match=r"TTL.*full snapshot"):
        change(store, now=0, ttl=asked, upserts=ROWS)
    assert store.checkpoints() == (1,)


def test_changes_of_an_older_base_have_its_ttl(store: StateStore) -> None:
    """Not the TTL of a later checkpoint."""
    full(store, ROWS)
    full(store, ROWS, ttl=TTL)
    with store.snapshot(parallelism=2, now_ms=9) as checkpoint:
        checkpoint.write_changes("u", "n", ROWS[:1], base=1)
    assert checkpoint.manifest.keyed[0].state.ttl is None
    assert keys(at(store, LONG_MAX)) == ["a", "b", "c"]


@pytest.mark.parametrize("ttl", ["on", 5, True])
def test_an_invalid_ttl_is_refused(store: StateStore, ttl: Any) -> None:
    """The message describes the format."""
    with pytest.raises(InvalidArgumentError, match="TimeToLive"):
        full(store, ROWS, ttl=ttl)


def test_declared_rows_need_times(store: StateStore) -> None:
    """Subtasks in other processes do not know the checkpoint's clock."""
    bare = pa.schema([("k", pa.string()), ("v", pa.int64())])
    with (
        pytest.raises(InvalidArgumentError, match="lack the TTL column 'at'"),
        store.snapshot(parallelism=1, now_ms=0) as checkpoint,
    ):
        checkpoint.declare_keyed("u", "n", bare, **KEYED, ttl=TTL)
    with store.snapshot(parallelism=1, now_ms=0) as checkpoint:
        timed = bare.append(pa.field("at", pa.int64()))
        writer = checkpoint.declare_keyed("u", "n", timed, **KEYED, ttl=TTL)
        checkpoint.acknowledge(writer.subtask(0).write(ROWS))
    assert keys(at(store, 100)) == ["b"]


def test_an_invalid_clock_is_refused_before_any_claim(store: StateStore) -> None:
    """In a snapshot, a restore, a lookup and a query."""
    full(store, ROWS, ttl=TTL)
    bad: Any = 1.5
    for ask in (
        lambda: store.snapshot(parallelism=1, now_ms=bad),
        lambda: store.restore(now_ms=bad),
        lambda: store.inspect.key("a", now_ms=bad),
        lambda: store.query("SELECT 1", now_ms=bad),
    ):
        with pytest.raises(StateStoreError, match="now_ms"):
            ask()


@pytest.mark.long
def test_spark_sets_times_and_hides_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    """In full and as changes, as a DataFrame and as a data source, with one clock in all tasks."""
    store = StateStore.open(str(tmp_path), spark=spark, table_format="parquet", compaction=None)
    instants = spark.sql("SELECT 'a' AS k, timestamp_millis(-7) AS at")
    full(store, instants, ttl=TTL)
    change(store, now=50, upserts=spark.sql("SELECT 'b' AS k"))
    full_again = spark.sql("SELECT id AS k FROM range(9)")
    with store.snapshot(parallelism=2, now_ms=50) as checkpoint:
        checkpoint.write_keyed("u", "longs", full_again, key="k", max_parallelism=8, ttl=TTL)
        checkpoint.write_changes("u", "n", Changes(deletes=[{"k": "c"}]))
    for now, left in ((92, ["a", "b"]), (93, ["b"]), (150, [])):
        assert keys(at(store, now)) == left
    restored = store.restore(now_ms=149)
    assert [row["at"] for key in range(9) for row in restored.keyed("u", "longs").get(key)] == [
        50
    ] * 9
    frame = store.restore(now_ms=93, parallelism=2).keyed("u", "n").to_spark()
    assert [row.k for row in frame.collect()] == ["b"]
    read = spark.read.format("keyed_state").options(store=str(tmp_path), operator="u", state="n")
    assert read.load().collect() == []
    assert [row.k for row in read.option("now_ms", "93").load().collect()] == ["b"]


def test_compact_all_drops_expired_rows_of_key_groups_without_changes(tmp_path: Path) -> None:
    """Also in a state without layers: expired rows are removed from the files."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    rows = [{"k": number, "seen": number * 10} for number in range(100)]
    with store.snapshot(parallelism=1, now_ms=0) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", ttl=TimeToLive("500ms", "seen"))
    report = store.maintenance.compact(everything=True, now_ms=1000)
    assert report.new_checkpoint_id == 2
    assert store.checkpoint(2).manifest.keyed[0].rows == 49  # visible after 500
    assert store.checkpoint(1).manifest.keyed[0].rows == 100
