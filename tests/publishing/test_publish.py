"""A state is shown as an Iceberg table: its rows, its next checkpoints, and the files it keeps."""

from __future__ import annotations

import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from statestore import OperatorKey, ParquetOptions, StateStore, TimeToLive
from statestore.catalog.holds import Publication, publication_of
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.maintenance.retention import tombstone
from tests.publishing.tables import (
    data_files,
    files_in,
    load,
    publish,
    rows_of,
    stored_rows,
    take,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

UTC = dt.UTC
LAYOUTS = pytest.mark.parametrize("layout", ["partitioned", "ranged"])


def every_type(number: int = 200) -> pa.Table:
    """Rows with a column of each type that a state can have, some of them null."""
    numbers = range(number)
    day, second = dt.timedelta(1), dt.timedelta(seconds=1)
    nested = [{"a": n, "b": {"c": str(n)}} if n % 5 else None for n in numbers]
    columns: dict[str, Any] = {
        "k": pa.array(numbers, pa.int64()),
        "byte": pa.array([n % 100 for n in numbers], pa.int8()),
        "short": pa.array(numbers, pa.int16()),
        "int": pa.array(numbers, pa.int32()),
        "float": pa.array([float("nan") if n % 7 == 0 else n / 3 for n in numbers], pa.float32()),
        "double": [None if n % 3 else n / 7 for n in numbers],
        "bool": [n % 2 == 0 for n in numbers],
        "text": ["" if n == 0 else f"text {n} €" for n in numbers],
        "bytes": [bytes([n % 256]) * 3 for n in numbers],
        "date": [dt.date(1960, 1, 1) + n * 300 * day for n in numbers],
        "instant": pa.array(
            [dt.datetime(1960, 1, 1, tzinfo=UTC) + n * second for n in numbers],
            pa.timestamp("us", "UTC"),
        ),
        "local": pa.array(
            [dt.datetime(2020, 1, 1) + n * second for n in numbers], pa.timestamp("us")
        ),
        "small": pa.array([Decimal(n) / 100 for n in numbers], pa.decimal128(7, 2)),
        "large": pa.array([Decimal(n * 10**30) / 100 for n in numbers], pa.decimal128(38, 2)),
        "struct": nested,
        "list": pa.array([[n, None] if n % 3 else None for n in numbers], pa.list_(pa.int64())),
        "map": pa.array([[("x", n), ("y", None)] for n in numbers], pa.map_(pa.string(), "int32")),
        "deep": [[{"q": n, "w": [str(n)]}] for n in numbers],
    }
    return pa.table(columns)


@pytest.mark.long_cases("sql-partitioned", "rest-ranged")
@LAYOUTS
def test_the_table_has_the_rows_of_the_state(
    store: StateStore, catalog: Catalog, layout: str
) -> None:
    take(store, every_type(), layout=layout)
    done = publish(store, catalog)
    assert (done.rows, done.added_files, done.removed_files) == (200, done.files, 0)
    assert (done.checkpoint_id, done.replaced_checkpoint, done.is_current) == (1, None, False)
    table = load(catalog)
    assert repr(rows_of(table)) == repr(stored_rows(store))  # repr, because NaN differs from itself
    assert table.schema().column_names[:2] == ["key_group", "k"]
    assert str(table.schema().find_type("byte")) == "int"
    assert str(table.schema().find_type("instant")) == "timestamptz"


@LAYOUTS
def test_no_file_is_copied(store: StateStore, sql: Catalog, layout: str, tmp_path: Path) -> None:
    take(store, layout=layout)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    publish(store, sql)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before
    assert files_in(load(sql)) == {path.name for path in before}


@LAYOUTS
def test_a_filter_finds_its_rows_and_skips_files(
    store: StateStore, sql: Catalog, layout: str
) -> None:
    take(store, every_type(), layout=layout)
    publish(store, sql)
    table = load(sql)
    [row] = rows_of(table, row_filter="k = 17")
    expected = next(row for row in stored_rows(store) if row["k"] == 17)
    assert row["text"] == expected["text"]
    group = expected["key_group"]
    found = rows_of(table, row_filter=f"key_group = {group}")
    assert repr(found) == repr([row for row in rows_of(table) if row["key_group"] == group])
    assert [*table.scan(row_filter="k > 100000").plan_files()] == []
    if layout == "partitioned":
        assert len([*table.scan(row_filter=f"key_group = {group}").plan_files()]) == 1
    # No reader agrees with another one on the order of NaN.
    assert all(
        table.schema().find_field("float").field_id not in task.file.lower_bounds
        for task in table.scan().plan_files()
    )


def test_bounds_include_nulls_long_text_and_years_after_9999(
    store: StateStore, sql: Catalog
) -> None:
    late = pa.array([400_000_000_000 * 10**6, 0], pa.int64()).cast(pa.timestamp("us"))
    rows = pa.table({"k": ["a" * 5000, "b"], "window": late, "other": [None, None]})
    rows = rows.set_column(2, "other", pa.nulls(2, pa.int64()))
    rows = rows.append_column("v", [[1, 2]])
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed(
            "op", "totals", rows, key="k", namespace=["window", "other"], max_parallelism=2
        )
    publish(store, sql)
    table = load(sql)
    assert table.scan(row_filter="k = 'b'").to_arrow()["v"].to_pylist() == [2]
    assert table.scan(row_filter="other IS NULL").to_arrow().num_rows == 2
    local = table.scan(row_filter="window > '9000-01-01T00:00:00'", selected_fields=("v",))
    assert local.to_arrow()["v"].to_pylist() == [1]


def test_a_row_group_without_bounds_hides_no_rows(tmp_path: Path, sql: Catalog) -> None:
    """Parquet's writer has no bounds of long text; those of the other row groups are too narrow."""
    options = ParquetOptions(row_group_rows=1)
    store = StateStore.open(str(tmp_path / "other"), table_format="parquet", parquet=options)
    long_key = "z" * 5000
    rows = pa.table({"k": ["a", "b", long_key], "v": [1, 2, 3]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("op", "totals", rows, key="k", max_parallelism=1)
    publish(store, sql)
    found = load(sql).scan(row_filter=f"k = '{long_key}'").to_arrow()
    assert found["v"].to_pylist() == [3]


def test_an_operator_state_is_a_table_as_well(store: StateStore, sql: Catalog) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_split("op", "files", [[{"file": "a"}, {"file": "b"}], [{"file": "c"}]])
    publish(store, sql, "db.files", state="files")
    found = sql.load_table("db.files").scan().to_arrow().to_pylist()
    assert found == [
        {"subtask": 0, "position": 0, "file": "a"},
        {"subtask": 0, "position": 1, "file": "b"},
        {"subtask": 1, "position": 0, "file": "c"},
    ]


def test_the_next_checkpoint_replaces_the_rows_in_one_commit(
    store: StateStore, catalog: Catalog
) -> None:
    take(store, 100)
    publish(store, catalog)
    reader = load(catalog)
    take(store, 120)
    done = publish(store, catalog)
    assert (done.replaced_checkpoint, done.checkpoint_id) == (1, 2)
    table = load(catalog)
    assert rows_of(table) == stored_rows(store)
    assert len(table.metadata.snapshots) == 2
    assert rows_of(reader) == stored_rows(store, 1)
    older = reader.metadata.current_snapshot_id
    assert rows_of(table, snapshot_id=older) == stored_rows(store, 1)


@pytest.mark.long_cases("rest")
def test_publishing_again_does_nothing(store: StateStore, catalog: Catalog) -> None:
    take(store)
    first = publish(store, catalog)
    place = load(catalog).metadata_location
    again = publish(store, catalog)
    assert (again.is_current, again.snapshot, again.hold) == (True, None, first.hold)
    assert load(catalog).metadata_location == place
    assert len(store.maintenance.savepoints()) == 1


def test_a_carried_state_gets_only_a_new_hold(store: StateStore, sql: Catalog) -> None:
    take(store)
    publish(store, sql)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry("op", "totals")
    done = publish(store, sql, retain=1)
    assert (done.checkpoint_id, done.added_files, done.removed_files) == (2, 0, 0)
    assert [savepoint.checkpoint_id for savepoint in store.maintenance.savepoints()] == [2]
    assert rows_of(load(sql)) == stored_rows(store)


@pytest.mark.slow
@pytest.mark.long_cases("rest")
def test_the_layout_may_change(store: StateStore, catalog: Catalog) -> None:
    for number, layout in enumerate(("partitioned", "ranged", "partitioned", "ranged"), 1):
        take(store, 100 + number, layout=layout)
        publish(store, catalog)
        assert rows_of(load(catalog)) == stored_rows(store)


def test_the_files_stay_while_a_snapshot_needs_them(
    store: StateStore, catalog: Catalog, tmp_path: Path
) -> None:
    """I9: an expired checkpoint's files are kept for the table, and no longer."""
    take(store, 100)
    publish(store, catalog)
    reader, first = load(catalog), stored_rows(store)
    first_files = files_in(reader)
    take(store, 110)
    publish(store, catalog)
    take(store, 120)
    store.maintenance.expire(retain=1)
    collected = store.maintenance.gc(minimum_age="0ms")
    held = {one.checkpoint_id: one.by for one in collected.held}
    assert held.keys() == {1, 2}
    assert held[2].startswith("the Iceberg table 'lake.db.totals' (savepoint 'iceberg:lake.db.")
    assert rows_of(reader) == first
    assert len(rows_of(load(catalog))) == 110
    publish(store, catalog)  # the table's oldest snapshot goes
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0ms")
    assert first_files & data_files(tmp_path / "store") == set()
    table = load(catalog)
    assert [len(rows_of(table, snapshot_id=s.snapshot_id)) for s in table.metadata.snapshots] == [
        110,
        120,
    ]


@pytest.mark.long
def test_old_metadata_is_deleted_with_its_snapshots(
    store: StateStore, sql: Catalog, tmp_path: Path
) -> None:
    sizes = []
    for number in range(16):
        take(store, 100 + number, layout="partitioned")
        publish(store, sql)
        metadata = [*(tmp_path / "warehouse").rglob("*.*")]
        table = load(sql)
        sizes.append((len(metadata), len(table.metadata.current_snapshot().manifests(table.io))))  # type: ignore[union-attr]
    assert sizes[-1] == sizes[-2]
    assert sizes[-1][1] == 2  # the added files, and the removed ones


def test_a_tag_of_the_user_keeps_its_snapshot(store: StateStore, sql: Catalog) -> None:
    take(store, 100)
    publish(store, sql)
    table = load(sql)
    snapshot = table.metadata.current_snapshot_id
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot, "audit").commit()
    for number in (110, 120, 130):
        take(store, number)
        publish(store, sql, retain=1)
    store.maintenance.expire(retain=1)
    assert store.checkpoints() == (1, 4)
    store.maintenance.gc(minimum_age="0ms")
    table = load(sql)
    assert len(rows_of(table, snapshot_id=snapshot)) == 100
    assert sorted(s.checkpoint_id for s in store.maintenance.savepoints()) == [1, 4]


def test_a_dry_run_changes_nothing(store: StateStore, sql: Catalog, tmp_path: Path) -> None:
    take(store)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    done = publish(store, sql, dry_run=True)
    assert (done.dry_run, done.snapshot, done.hold) == (True, None, None)
    assert done.added_files == done.files > 0
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sql.list_namespaces() == []


def test_a_state_with_changes_needs_a_compaction(store: StateStore, sql: Catalog) -> None:
    take(store, 100, layout="ranged")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("op", "totals", pa.table({"k": [5, 1000], "v": [-1, -2]}))
    with pytest.raises(
        IncompatibleStateError, match=r"checkpoint 2 has changes .*'statestore compact"
    ):
        publish(store, sql)
    assert store.maintenance.savepoints() == ()
    store.maintenance.compact(operator="op", state="totals", everything=True)
    assert publish(store, sql).checkpoint_id == 3
    assert rows_of(load(sql)) == stored_rows(store)
    assert len(rows_of(load(sql))) == 101


def test_a_ttl_is_reported(store: StateStore, sql: Catalog) -> None:
    take(store, pa.table({"k": [1], "at": [5]}), ttl=TimeToLive("1s", "at"))
    assert publish(store, sql).ttl_ms == 1000


def test_columns_that_change_within_icebergs_rules_keep_old_snapshots_readable(
    store: StateStore, catalog: Catalog
) -> None:
    take(store, pa.table({"k": [1, 2], "a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]}))
    publish(store, catalog)
    reader = load(catalog)
    old = reader.metadata.current_snapshot_id
    before = rows_of(reader)
    rows = pa.table({"k": [1, 2], "a": pa.array([2**40, 2], pa.int64()), "c": [None, 1.5]})
    take(store, rows, dropped=["b"])
    done = publish(store, catalog)
    assert done.is_history_lost is False
    table = load(catalog)
    assert table.schema().column_names == ["key_group", "k", "a", "c"]
    assert str(table.schema().find_type("a")) == "long"
    assert rows_of(table) == stored_rows(store)
    assert rows_of(table, snapshot_id=old) == before


@pytest.mark.long_cases("rest")
def test_any_other_change_of_columns_ends_the_history(store: StateStore, catalog: Catalog) -> None:
    take(store, pa.table({"k": [1, 2], "s": [{"a": 1}, {"a": 2}], "z": [5, 6]}))
    publish(store, catalog)
    take(store, pa.table({"k": [1, 2], "s": [{"a": 1, "b": "x"}, None], "z": [7, 8]}))
    done = publish(store, catalog)
    assert done.is_history_lost is True
    table = load(catalog)
    assert len(table.metadata.snapshots) == 1
    assert [field.name for field in table.schema().fields] == ["key_group", "k", "s", "z"]
    assert rows_of(table) == stored_rows(store)
    assert [savepoint.checkpoint_id for savepoint in store.maintenance.savepoints()] == [2]
    take(store, pa.table({"k": [3], "s": [{"a": 1, "b": "x"}], "z": [7]}))
    assert publish(store, catalog).is_history_lost is False
    assert rows_of(load(catalog)) == stored_rows(store)


@pytest.mark.long_cases("rest")
def test_a_column_may_come_back_with_another_type(store: StateStore, catalog: Catalog) -> None:
    take(store, pa.table({"k": [1], "a": [1], "b": [2]}))
    publish(store, catalog)
    take(store, pa.table({"k": [1], "b": [3]}), dropped=["a"])
    publish(store, catalog)
    take(store, pa.table({"k": [1], "b": [4], "a": ["text"]}))
    publish(store, catalog)
    assert rows_of(load(catalog)) == stored_rows(store)


@pytest.mark.parametrize("name", ["_file", "_ROW_ID", "_partition"])
def test_a_name_that_iceberg_reserves_is_refused(
    store: StateStore, sql: Catalog, name: str
) -> None:
    take(store, pa.table({"k": [1], name: [1]}))
    with pytest.raises(UnsupportedTypeError, match=f"the column '{name}' has a name that Iceberg"):
        publish(store, sql)
    assert (sql.list_namespaces(), store.maintenance.savepoints()) == ([], ())


def test_names_that_iceberg_confuses_are_refused(store: StateStore, sql: Catalog) -> None:
    take(store, pa.table({"k": [1], "a.b": [1], "c": [2]}))
    publish(store, sql)
    assert rows_of(load(sql)) == stored_rows(store)
    take(store, pa.table({"k": [1], "a.b": [1], "c": [2], "a": [{"b": 3}]}))
    with pytest.raises(UnsupportedTypeError, match=r"have the path 'a\.b', which Iceberg"):
        publish(store, sql)


def test_a_damaged_footer_is_not_published(store: StateStore, sql: Catalog, tmp_path: Path) -> None:
    take(store)
    [file] = (tmp_path / "store").rglob("*.parquet")
    raw = bytearray(file.read_bytes())
    raw[-20] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DamagedFileError, match="has another footer"):
        publish(store, sql)
    assert (rows_of(load(sql)), store.maintenance.savepoints()) == ([], ())


def test_what_does_not_exist_is_named(store: StateStore, sql: Catalog) -> None:
    take(store)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 7"):
        publish(store, sql, checkpoint=7)
    with pytest.raises(StateNotFoundError, match="no state 'x' in operator 'op'"):
        publish(store, sql, state="x")
    with pytest.raises(InvalidArgumentError, match=r"write it as NAMESPACE\.NAME"):
        publish(store, sql, "totals")
    with pytest.raises(InvalidArgumentError, match="retain must be 1 or more, not 0"):
        publish(store, sql, retain=0)


def test_a_checkpoint_that_only_a_savepoint_keeps_is_refused(
    store: StateStore, sql: Catalog
) -> None:
    """I9: a second hold of an expired checkpoint could come too late."""
    take(store)
    store.maintenance.savepoint("old")
    take(store)
    # As an expiry does that began before the savepoint was put.
    store.parts.catalog().expire(1, tombstone(1, "0.2.0", 1))
    with pytest.raises(InvalidArgumentError, match="is kept only by savepoint 'old'"):
        publish(store, sql, checkpoint="old")


def test_an_older_checkpoint_can_be_shown_again(store: StateStore, sql: Catalog) -> None:
    take(store, 100)
    take(store, 110)
    publish(store, sql)
    done = publish(store, sql, checkpoint=1)
    assert (done.replaced_checkpoint, done.checkpoint_id) == (2, 1)
    assert rows_of(load(sql)) == stored_rows(store, 1)


def test_a_store_that_was_moved_is_published_at_its_new_place(
    store: StateStore, sql: Catalog, tmp_path: Path
) -> None:
    take(store)
    publish(store, sql)
    shutil.move(tmp_path / "store", tmp_path / "moved")
    moved = StateStore.open(str(tmp_path / "moved"))
    done = publish(moved, sql, retain=1)
    assert (done.added_files, done.removed_files) == (1, 1)
    assert rows_of(load(sql)) == stored_rows(moved)


def test_readers_may_know_the_store_by_another_url(
    store: StateStore, sql: Catalog, tmp_path: Path
) -> None:
    take(store)
    (tmp_path / "mounted").symlink_to(tmp_path / "store")
    publish(store, sql, store_url=f"file://{tmp_path}/mounted/")
    [task] = load(sql).scan().plan_files()
    assert task.file.file_path.startswith(f"file://{tmp_path}/mounted/operators/")
    assert rows_of(load(sql)) == stored_rows(store)
    for url in ("/data", f"file://{tmp_path}/a#b", "s3://key:secret@bucket"):
        with pytest.raises(InvalidArgumentError):
            publish(store, sql, store_url=url)


def test_a_purged_key_leaves_the_table_with_the_next_publication(
    store: StateStore, sql: Catalog
) -> None:
    take(store)
    publish(store, sql)
    purged = store.maintenance.forget(OperatorKey("op", 17), search=False)
    assert len(purged.replaced[0].savepoints) == 1
    done = publish(store, sql, retain=1)
    assert done.is_current is False
    assert 17 not in {row["k"] for row in rows_of(load(sql))}
    store.maintenance.gc(minimum_age="0ms")
    assert rows_of(load(sql)) == stored_rows(store)


def test_a_hold_names_the_table_and_fits_into_a_path() -> None:
    own = Publication("lake." + "é" * 300, "0" * 32, "1" * 16)
    parsed = publication_of(own.savepoint_name)
    assert parsed is not None
    assert own.table.startswith(parsed.table)
    assert (parsed.table_id, parsed.attempt) == (own.table_id, own.attempt)
    assert publication_of("iceberg:mine") is None
