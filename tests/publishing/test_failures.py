"""Crashes, two publishers, and other programs: the table stays readable, and no hold is lost.

The failures happen in a real catalog, whose requests are interrupted before or after they work.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitStateUnknownException

from statestore import IcebergTable, StateStore
from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    MissingDependencyError,
    MissingFileError,
    NotFoundError,
    StorageError,
)
from tests.publishing.interrupted import InterruptedCatalog, Killed, interrupted_client, stop
from tests.publishing.tables import TABLE, load, publish, rows_of, stored_rows, take, unpublish

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

HOURS = 3_600_000


@pytest.fixture
def interrupted(sql: Catalog) -> InterruptedCatalog:
    """A second client of the same catalog."""
    return interrupted_client(sql)


def held(store: StateStore) -> list[int]:
    """Return the checkpoints that savepoints keep."""
    return sorted(savepoint.checkpoint_id for savepoint in store.maintenance.savepoints())


def later(store: StateStore, hours: int) -> StateStore:
    """Return the store with a clock that is ahead."""
    now_ms = store.parts.now_ms() + hours * HOURS
    return StateStore(replace(store.parts, now_ms=lambda: now_ms))


def collect(store: StateStore) -> None:
    """Delete everything that no hold keeps."""
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0ms")


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_a_crash_before_the_commit_leaves_the_table_as_it_was(
    store: StateStore, sql: Catalog, interrupted: InterruptedCatalog, is_first: bool
) -> None:
    if not is_first:
        take(store, 100)
        publish(store, sql)
    before = stored_rows(store) if not is_first else []
    take(store, 110)
    interrupted.before = stop(Killed())
    with pytest.raises(Killed):
        publish(store, interrupted)
    assert held(store) == list(store.checkpoints())
    assert rows_of(load(sql)) == before
    publish(store, sql)
    assert rows_of(load(sql)) == stored_rows(store)


def test_a_crash_after_the_commit_leaves_all_holds(
    store: StateStore, sql: Catalog, interrupted: InterruptedCatalog
) -> None:
    take(store, 100)
    publish(store, sql)
    take(store, 110)
    interrupted.after = stop(Killed())
    with pytest.raises(Killed):
        publish(store, interrupted, retain=1)
    assert held(store) == [1, 2]
    assert rows_of(load(sql)) == stored_rows(store)
    collect(store)
    assert rows_of(load(sql)) == stored_rows(store)
    assert publish(store, sql).is_current
    take(store, 120)
    publish(store, sql, retain=1)
    assert held(store) == [1, 3]  # too young to be called abandoned
    take(store, 130)
    publish(later(store, 25), sql, retain=1)
    assert held(store) == [4]


def test_a_lost_answer_is_found_by_the_next_run(
    store: StateStore, sql: Catalog, interrupted: InterruptedCatalog
) -> None:
    take(store, 100)
    publish(store, sql)
    take(store, 110)
    interrupted.after = stop(CommitStateUnknownException("no answer"))
    with pytest.raises(StorageError, match=r"did not confirm the change of lake\.db\.totals"):
        publish(store, interrupted)
    collect(store)
    assert publish(store, sql).is_current
    assert rows_of(load(sql)) == stored_rows(store)


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_publishers_one_wins(
    store: StateStore, sql: Catalog, interrupted: InterruptedCatalog, is_first: bool
) -> None:
    take(store, 100)
    if not is_first:
        publish(store, sql)
    take(store, 110)

    def other() -> None:
        interrupted.before = lambda: None
        take(store, 120)
        publish(store, sql)

    interrupted.before = other
    with pytest.raises(CommitConflictError, match="was changed by another program"):
        publish(store, interrupted)
    assert rows_of(load(sql)) == stored_rows(store, 3)
    assert held(store) == ([3] if is_first else [1, 3])
    collect(store)
    assert rows_of(load(sql)) == stored_rows(store)


def test_a_failed_read_of_a_footer_leaves_no_hold(
    store: StateStore, sql: Catalog, tmp_path: Path
) -> None:
    take(store, 100)
    publish(store, sql)
    take(store, 110)
    for file in (tmp_path / "store").rglob("0000000002-*.parquet"):
        file.unlink()
    with pytest.raises(MissingFileError, match="is missing"):
        publish(store, sql)
    assert held(store) == [1]
    assert rows_of(load(sql)) == stored_rows(store, 1)


def test_rows_of_others_are_refused_and_replaced_on_request(
    store: StateStore, sql: Catalog
) -> None:
    take(store, 100, layout="ranged")
    publish(store, sql)
    extra = pa.table({"key_group": pa.array([1], pa.int32()), "k": [-1], "v": [-1]})
    load(sql).append(extra)
    take(store, 110, layout="ranged")
    with pytest.raises(CommitConflictError, match=r"of another program \(operation append\)"):
        publish(store, sql)
    assert held(store) == [1]
    publish(store, sql, replace=True)
    assert rows_of(load(sql)) == stored_rows(store)
    assert publish(store, sql).is_current


def test_rows_that_others_deleted_come_back_on_request(store: StateStore, sql: Catalog) -> None:
    take(store, 100, layout="ranged")
    publish(store, sql)
    load(sql).delete("k = 17")
    assert len(rows_of(load(sql))) == 99
    done = publish(store, sql, replace=True)
    assert (done.added_files, done.removed_files) == (1, 1)
    assert rows_of(load(sql)) == stored_rows(store)


def test_a_table_of_others_is_refused(store: StateStore, sql: Catalog) -> None:
    take(store)
    sql.create_namespace("db")
    sql.create_table(TABLE, pa.schema([("x", pa.int64())]))
    for is_replaced in (False, True):
        with pytest.raises(InvalidArgumentError, match="was not made by statestore"):
            publish(store, sql, replace=is_replaced)
    with pytest.raises(InvalidArgumentError, match="another program's data, not a state of"):
        unpublish(store, sql)


def test_a_table_of_another_state_or_store_is_refused(
    store: StateStore, sql: Catalog, tmp_path: Path
) -> None:
    take(store)
    publish(store, sql)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.carry("op", "totals")
        checkpoint.write_broadcast("op", "rules", [{"rule": "a"}])
    with pytest.raises(InvalidArgumentError, match="shows state 'totals' of operator 'op' in"):
        publish(store, sql, state="rules")
    other = StateStore.open(str(tmp_path / "other"), table_format="parquet")
    take(other)
    with pytest.raises(InvalidArgumentError, match=r"choose another name, or remove that table"):
        publish(other, sql)
    with pytest.raises(InvalidArgumentError, match="name the table's own store"):
        unpublish(other, sql)


@pytest.mark.long
def test_unpublishing_removes_the_table_and_releases_its_checkpoints(
    store: StateStore, catalog: Catalog, tmp_path: Path
) -> None:
    take(store, 100)
    publish(store, catalog)
    take(store, 110)
    publish(store, catalog)
    planned = unpublish(store, catalog, dry_run=True)
    assert (len(planned.released), held(store)) == (2, [1, 2])
    done = unpublish(store, catalog)
    assert (done.released, done.is_missing) == (planned.released, False)
    assert (catalog.list_tables("db"), held(store)) == ([], [])
    assert len(stored_rows(store, 1)) == 100  # no data file was deleted
    with pytest.raises(NotFoundError, match=r"no Iceberg table lake\.db\.totals, and .* has no"):
        unpublish(store, catalog)


@pytest.mark.long_cases("rest")
def test_a_table_that_the_user_dropped_leaves_holds_until_it_is_unpublished(
    store: StateStore, catalog: Catalog
) -> None:
    take(store)
    publish(store, catalog)
    catalog.drop_table(TABLE)
    assert held(store) == [1]
    done = unpublish(store, catalog)
    assert (done.is_missing, len(done.released), held(store)) == (True, 1, [])


def test_holds_of_a_dropped_table_are_shown_with_the_next_one(
    store: StateStore, sql: Catalog
) -> None:
    take(store, 100)
    old = publish(store, sql)
    assert old.other_holds == ()
    sql.drop_table(TABLE)
    take(store, 110)
    done = publish(store, sql)
    assert (done.other_holds, done.released) == ((old.hold,), ())
    assert rows_of(load(sql)) == stored_rows(store)
    assert publish(store, sql, dry_run=True).other_holds == (old.hold,)
    assert held(store) == [1, 2]


def test_a_changed_table_is_removed_only_on_request(store: StateStore, sql: Catalog) -> None:
    take(store)
    publish(store, sql)
    load(sql).append(pa.table({"key_group": pa.array([1], pa.int32()), "k": [-1], "v": [-1]}))
    with pytest.raises(CommitConflictError, match="pass replace"):
        unpublish(store, sql)
    unpublish(store, sql, replace=True)
    assert (sql.list_tables("db"), held(store)) == ([], [])


def test_a_table_that_is_dropped_during_a_publication_leaves_no_hold_of_it(
    store: StateStore, sql: Catalog, interrupted: InterruptedCatalog
) -> None:
    take(store, 100)
    publish(store, sql)
    take(store, 110)
    interrupted.before = lambda: sql.drop_table(TABLE)
    with pytest.raises((NotFoundError, CommitConflictError)):
        publish(store, interrupted)
    assert held(store) == [1]


def test_properties_that_protect_the_files_are_set_again(store: StateStore, sql: Catalog) -> None:
    take(store, 100)
    publish(store, sql)
    names = ("gc.enabled", "commit.retry.num-retries")
    load(sql).transaction().remove_properties(*names).commit_transaction()
    take(store, 110)
    publish(store, sql)
    properties = load(sql).properties
    assert [properties[name] for name in names] == ["false", "0"]


def test_two_publishers_conflict_even_if_retries_were_enabled(
    store: StateStore, sql: Catalog, interrupted: InterruptedCatalog
) -> None:
    take(store, 100)
    publish(store, sql)
    load(sql).transaction().remove_properties("commit.retry.num-retries").commit_transaction()
    take(store, 110)

    def other() -> None:
        interrupted.before = lambda: None
        take(store, 120)
        publish(store, sql)

    interrupted.before = other
    with pytest.raises(CommitConflictError):
        publish(store, interrupted)
    assert rows_of(load(sql)) == stored_rows(store, 3)
    assert held(store) == [1, 3]


def test_a_warehouse_inside_the_store_is_refused(store: StateStore, tmp_path: Path) -> None:
    take(store)
    options = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/store/lake"}
    with pytest.raises(InvalidArgumentError, match="which is inside the store; choose another"):
        publish(store, load_catalog("lake", type="sql", **options))
    assert held(store) == []


@pytest.mark.long
@pytest.mark.services
@pytest.mark.slow
def test_a_server_that_purges_the_table_keeps_the_files(
    store: StateStore, rest_server: Any, tmp_path: Path
) -> None:
    """The property ``gc.enabled`` tells it that the files are not the table's own."""
    catalog = load_catalog("lake", **rest_server.options)
    take(store)
    publish(store, catalog, "db.purged")
    catalog.purge_table("db.purged")
    assert not catalog.table_exists("db.purged")
    assert store.maintenance.verify(deep=True).is_intact


def test_catalogs_that_cannot_be_used_are_named(store: StateStore, tmp_path: Path) -> None:
    take(store)

    def attempt(catalog: Any, **options: str) -> None:
        table = IcebergTable(TABLE, catalog=catalog, catalog_options=options)
        store.maintenance.publish_iceberg("op", "totals", table)

    with pytest.raises(InvalidArgumentError, match=r"PYICEBERG_CATALOG__NOWHERE__URI"):
        attempt("nowhere")
    with pytest.raises(InvalidArgumentError, match="must be the name of an Iceberg catalog"):
        attempt(7)
    with pytest.raises(StorageError, match=r"catalog failed for catalog 'lake'"):
        attempt("lake", type="rest", uri="http://127.0.0.1:1")
    with pytest.raises(StorageError, match="catalog failed for"):
        attempt("lake", type="sql", uri=f"sqlite:///{tmp_path}/no/such/folder.db")
    with pytest.raises(MissingDependencyError, match="install it, or the extra 'iceberg'"):
        attempt("lake", type="glue", uri="x")
