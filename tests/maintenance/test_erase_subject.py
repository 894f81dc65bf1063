"""A subject is removed from all states, and is reported as gone only if every file was searched."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from statestore import OperatorKey, StateStore
from statestore.errors import InvalidArgumentError, StateNotFoundError, StorageError
from statestore.jobgraph import JobGraph
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of
from tests.support.stores import opened

pytestmark = pytest.mark.slow

MAIL = "ann.lee@example.org"


def graph(*names: str) -> JobGraph:
    """Return a job in which only the source has a uid, and the other names are labels."""
    operators = "".join(
        f'{{name="{name}", inputs=[{{from="src", partitioner="hash"}}], max_parallelism=16}},'
        for name in names
    )
    return JobGraph.from_toml(
        f'job.parallelism=1\noperator=[{{name="src", uid="src"}},{operators}]'
    )


def keep(store: StateStore, rows: pa.Table, uid: str = "o", **options: Any) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed(uid, "s", rows, **{"key": "k"} | options)


def rows_of(
    store: StateStore, checkpoint: int | str, uid: str = "o", name: str = "s"
) -> list[dict[str, Any]]:
    keyed = store.restore(checkpoint=checkpoint, parallelism=1).keyed(uid, name)
    rows = keyed.to_arrow(0).drop(["key_group"]).to_pylist()
    return sorted(rows, key=lambda row: str(sorted(row.items())))


@pytest.mark.parametrize("form", ["full", "carried"])
def test_a_renamed_operator_is_purged_under_both_labels(store: StateStore, form: str) -> None:
    """Its operator id and the identity of its state are unchanged."""
    rows = pa.table({"k": [4711, 12], "v": [1, 2]})
    with store.snapshot(graph=graph("x")) as checkpoint:
        checkpoint.write_keyed("x", "s", rows, key="k")
    store.maintenance.savepoint("first", 1)
    with store.snapshot(graph=graph("y")) as checkpoint:
        if form == "carried":
            checkpoint.carry("y", "s")
        else:
            checkpoint.write_keyed("y", "s", rows, key="k")
    assert len(store.maintenance.find_subject(OperatorKey("y", 4711)).found) == (
        2 if form == "full" else 1
    )
    done = store.maintenance.forget(OperatorKey("y", 4711), search=False)
    assert [one.checkpoint_id for one in done.replaced] == [1, 2]
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("y", 4711)).is_gone
    first, second = store.checkpoints()
    assert rows_of(store, first, "x") == rows_of(store, second, "y") == [{"k": 12, "v": 2}]
    assert rows_of(store, "first", "x") == [{"k": 12, "v": 2}]


def test_a_state_in_the_folder_of_a_former_label_is_searched(store: StateStore) -> None:
    with store.snapshot(graph=graph("x")) as checkpoint:
        checkpoint.write_keyed("x", "s", pa.table({"k": [4711, 12], "v": [1, 2]}), key="k")
    with store.snapshot(graph=graph("y")) as checkpoint:
        checkpoint.carry("y", "s")
    store.maintenance.expire(retain=1)
    search = store.maintenance.find_subject(OperatorKey("y", 4711))
    assert [(one.file.split("/")[1], one.rows) for one in search.found] == [("x", 1)]
    assert search.problem is not None


def test_a_new_operator_of_an_old_label_keeps_its_rows(store: StateStore) -> None:
    rows = pa.table({"k": [4711, 12], "v": [1, 2]})
    with store.snapshot(graph=graph("x")) as checkpoint:
        checkpoint.write_keyed("x", "s", rows, key="k")
    store.maintenance.savepoint("first", 1)
    with store.snapshot(graph=graph("y", "other")) as checkpoint:
        checkpoint.write_keyed("y", "s", rows, key="k")
        checkpoint.write_keyed("other", "s", rows, key="k")
    store.maintenance.forget(OperatorKey("y", 4711), search=False)
    assert rows_of(store, "latest", "y") == rows_of(store, "first", "x") == [{"k": 12, "v": 2}]
    assert len(rows_of(store, "latest", "other")) == 2


def rekeyed(path: Path, **options: Any) -> StateStore:
    store = opened(path / "store", **options)
    rows = pa.table({"customer": [4711, 12, 5], "account": [1, 2, 3], "v": [1, 2, 3]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("o", "s", rows, key="customer", layout="ranged")
    store.maintenance.rekey("o", state="s", key="account")
    return store


def test_a_search_uses_every_former_key_of_the_state(tmp_path: Path) -> None:
    store = rekeyed(tmp_path)
    assert (
        sum(one.rows or 0 for one in store.maintenance.find_subject(OperatorKey("o", 4711)).found)
        == 2
    )
    planned = store.maintenance.forget(OperatorKey("o", 4711), search=False, dry_run=True)
    states = [state for one in planned.replaced for state in one.states]
    assert [(state.rows, state.keys) for state in states] == [
        (1, (("customer",), ("account",)))
    ] * 2
    store.maintenance.forget(OperatorKey("o", 4711), search=False)
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("o", 4711)).is_gone
    for number in store.checkpoints():
        assert [row["customer"] for row in rows_of(store, number)] == [12, 5]


def test_a_former_key_is_removed_from_changes_and_no_older_row_returns(tmp_path: Path) -> None:
    """The newest row of account 2, which is the subject's, is removed completely. Account 1 now
    belongs to another subject.
    """
    store = rekeyed(tmp_path, compaction=None)
    changes = [
        {"customer": 4711, "account": 2, "v": 9},
        {"customer": 7, "account": 1, "v": 8},
    ]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("o", "s", changes, key="account", layout="ranged")
    assert store.checkpoint().manifest.keyed[0].layers
    done = store.maintenance.forget({"customer": 4711}, gc=True)
    assert done.problem is None
    assert rows_of(store, "latest") == [
        {"customer": 7, "account": 1, "v": 8},
        {"customer": 5, "account": 3, "v": 3},
    ]
    assert store.maintenance.verify("all", deep=True).is_intact


KEYS = [
    pa.array([MAIL, "bob"]),
    pa.array(["ann", "bob"]),
    pa.array([1, 2]),
    pa.array([dt.date(1970, 5, 17), dt.date(2020, 1, 1)]),
    pa.array([Decimal("2.50"), Decimal("7.00")], pa.decimal128(10, 2)),
    pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, 5, dt.UTC), dt.datetime(2021, 1, 1, tzinfo=dt.UTC)]),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: f"{keys.type} {keys[0]}")
def test_a_key_in_the_bounds_of_expired_entries_is_removed(tmp_path: Path, keys: pa.Array) -> None:
    """The log gets a checkpoint and loses older entries, and readers find the same rows."""
    store = opened(tmp_path / "store", table_format="delta")
    gone, stays = keys.to_pylist()
    for kept in (keys, keys.slice(1), keys.slice(1)):
        keep(store, pa.table({"k": kept, "v": [1] * len(kept)}))
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    assert {one.what for one in store.maintenance.find_subject(OperatorKey("o", gone)).found} == {
        "statistics of a Delta log"
    }
    planned = store.maintenance.forget(OperatorKey("o", gone), search=False, dry_run=True)
    assert not store.maintenance.find_subject(OperatorKey("o", gone)).is_gone
    done = store.maintenance.forget(OperatorKey("o", gone), search=False)
    assert planned.cut_logs == done.cut_logs == ("operators/o/keyed/s",)
    assert store.maintenance.find_subject(OperatorKey("o", gone)).is_gone
    folder = Path(store.url, "operators/o/keyed/s")
    table = DeltaTable(folder)
    assert table.version() == store.checkpoint().manifest.keyed[0].table.version
    assert table.to_pyarrow_table().column("k").to_pylist() == [stays]
    assert not (folder / "_delta_log/00000000000000000000.json").exists()
    keep(store, pa.table({"k": keys.slice(1), "v": [7]}))
    assert DeltaTable(folder).to_pyarrow_table().column("v").to_pylist() == [7]
    assert store.maintenance.verify("all", deep=True).is_intact
    assert store.maintenance.forget(OperatorKey("o", gone), search=False).cut_logs == ()


def versions_of(folder: Path) -> list[int]:
    """Return the readable versions, after a reader has found the rows of each."""
    found = []
    for version in range(DeltaTable(folder).version() + 1):
        try:
            rows = DeltaTable(folder, version=version).to_pyarrow_table()
        except DeltaError:
            continue
        assert "bob" in rows.column("k").to_pylist()
        found.append(version)
    return found


@pytest.mark.parametrize(("gone_in", "left"), [((0,), [1, 2, 3]), ((1,), [3])])
def test_versions_of_kept_checkpoints_stay_if_possible(
    tmp_path: Path, gone_in: tuple[int, ...], left: list[int]
) -> None:
    """If the key is between kept versions, only the newest version can stay."""
    store = opened(tmp_path / "store", table_format="delta")
    for number in range(4):
        keys = [MAIL, "bob"] if number in gone_in else ["bob"]
        keep(store, pa.table({"k": keys, "v": [number] * len(keys)}))
    if 0 not in gone_in:
        store.maintenance.savepoint("first", 1)
    store.maintenance.expire(retain=2 if gone_in == (1,) else 3)
    store.maintenance.gc(minimum_age="0")
    assert not store.maintenance.find_subject(OperatorKey("o", MAIL)).is_gone
    store.maintenance.forget(OperatorKey("o", MAIL), search=False)
    assert store.maintenance.find_subject(OperatorKey("o", MAIL)).is_gone
    assert versions_of(Path(store.url, "operators/o/keyed/s")) == left
    assert store.maintenance.verify("all", deep=True).is_intact
    for number in store.checkpoints():
        assert [row["k"] for row in rows_of(store, number)] == ["bob"]


@pytest.mark.long_cases("FaultKind.ANSWER_LOST")
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.ANSWER_LOST])
def test_a_purge_of_a_log_can_be_run_again(tmp_path: Path, kind: FaultKind) -> None:
    """I10: at every moment readers find the newest version."""
    store = opened(tmp_path / "store", table_format="delta")
    for keys in ([MAIL, "bob"], ["bob"], ["bob"]):
        keep(store, pa.table({"k": keys, "v": [1] * len(keys)}))
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")

    def purge(storage: Any) -> None:
        StateStore.open(storage).maintenance.forget(OperatorKey("o", MAIL), search=False)

    counted = copy_of(Path(store.url), tmp_path / "counted")
    calls = calls_of(LocalStorage(str(counted)), purge)
    changing = [c.number for c in calls if c.operation in ("put_if_absent", "delete")]
    assert len(changing) >= 4
    for number in changing:
        copy = copy_of(Path(store.url), tmp_path / f"at-{number}")
        with pytest.raises(StorageError):
            purge(FaultyStorage(LocalStorage(str(copy)), Fault(number, kind)))
        folder = copy / "operators/o/keyed/s"
        assert DeltaTable(folder).to_pyarrow_table().column("k").to_pylist() == ["bob"]
        again = StateStore.open(str(copy))
        again.maintenance.forget(OperatorKey("o", MAIL), search=False)
        assert again.maintenance.find_subject(OperatorKey("o", MAIL)).is_gone
        assert DeltaTable(folder).to_pyarrow_table().column("k").to_pylist() == ["bob"]
        keep(again, pa.table({"k": ["bob", "cy"], "v": [1, 2]}))
        assert len(DeltaTable(folder).to_pyarrow_table()) == 2


def test_the_log_of_a_state_without_a_checkpoint_is_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", table_format="delta")
    keep(store, pa.table({"k": [MAIL, "bob"], "v": [1, 2]}))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("o", "other", pa.table({"k": ["bob"]}), key="k")
        checkpoint.drop("o", "s")
    store.maintenance.expire(retain=1)
    done = store.maintenance.forget(OperatorKey("o", MAIL), search=False)
    assert done.logs == ("operators/o/keyed/s",)
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("o", MAIL)).is_gone


def test_a_number_in_bounds_of_other_columns_is_not_a_match(tmp_path: Path) -> None:
    """127 is the greatest key group, a namespace, and part of the bounds of live files."""
    store = opened(tmp_path / "store", table_format="delta", layout="ranged")
    rows = {"k": [*range(100, 400)], "window": [127] * 300, "v": [1] * 300}
    keep(store, pa.table(rows), namespace="window")
    assert (
        max(handle.key_groups.last for handle in store.checkpoint().manifest.keyed[0].handles)
        == 127
    )
    assert not store.maintenance.find_subject(OperatorKey("o", 127)).is_gone
    store.maintenance.forget(OperatorKey("o", 127), search=False)
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("o", 127)).is_gone


def test_bounds_match_only_for_all_columns_of_the_key(tmp_path: Path) -> None:
    """The expired file has the bounds (1, 1) and (2, 8), so it may have contained (1, 8)."""
    store = opened(tmp_path / "store", table_format="delta")
    key = ["a", "b"]
    keep(store, pa.table({"a": [1, 2], "b": [1, 8]}), key=key, max_parallelism=1)
    keep(store, pa.table({"a": [1, 2], "b": [3, 8]}), key=key, max_parallelism=1)
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    found = {
        pair: store.maintenance.find_subject(OperatorKey("o", pair)).is_gone
        for pair in [(1, 1), (3, 1)]
    }
    assert found == {(1, 1): False, (3, 1): True}
    assert store.maintenance.find_subject(OperatorKey("o", (1, 8))).is_gone is False
    store.maintenance.forget(OperatorKey("o", (1, 1)), search=False)
    assert store.maintenance.find_subject(OperatorKey("o", (1, 1))).is_gone
    assert store.maintenance.find_subject(OperatorKey("o", (1, 8))).is_gone
    assert rows_of(store, "latest") == [{"a": 1, "b": 3}, {"a": 2, "b": 8}]


def test_a_folder_under_a_link_is_refused_or_searched(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    keep(store, pa.table({"k": ["ann", "bob"], "v": [1, 2]}))
    operator = Path(store.url, "operators/o")
    shutil.move(operator, tmp_path / "big")
    operator.symlink_to(tmp_path / "big")
    with pytest.raises(StorageError, match="operators/o is a symbolic link"):
        store.maintenance.find_subject(OperatorKey("o", "ann"))
    store = opened(tmp_path / "store", storage_options={"follow_links": True})
    assert [one.rows for one in store.maintenance.find_subject(OperatorKey("o", "ann")).found] == [
        1
    ]
    store.maintenance.forget(OperatorKey("o", "ann"), search=False)
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("o", "ann")).is_gone


@pytest.mark.parametrize("name", ["notes.txt", "operators/o/keyed/s/.x.parquet", "files/a.json"])
def test_an_undecodable_file_is_not_counted_as_searched(store: StateStore, name: str) -> None:
    keep(store, pa.table({"k": ["ann", "bob"], "v": [1, 2]}))
    assert store.maintenance.find_subject(OperatorKey("o", "nobody")).is_gone
    Path(store.url, name).parent.mkdir(exist_ok=True)
    Path(store.url, name).write_bytes(b"?")
    search = store.maintenance.find_subject(OperatorKey("o", "nobody"))
    assert [file.file for file in search.unsearched] == [name]
    assert search.found == ()
    assert not search.is_gone


def test_rows_of_orphan_files_are_searched(tmp_path: Path) -> None:
    """This includes integers and short text, under a former label, and after a rekey."""
    store = rekeyed(tmp_path)
    handle = store.checkpoint(1).manifest.keyed[0].handles[0]
    table = Path(store.url, "operators/o/keyed/s")
    files = [table / handle.path for handle in store.checkpoint(1).manifest.keyed[0].handles]
    raw = next(path.read_bytes() for path in files)
    assert handle.rows == 3
    store.maintenance.forget(OperatorKey("o", 4711), search=False)
    store.maintenance.gc(minimum_age="0")
    (table / "0000000099-00000-0123456789abcdef.parquet").write_bytes(raw)
    found = store.maintenance.find_subject(OperatorKey("o", 4711)).found
    assert [(Path(one.file).name[:10], one.rows) for one in found] == [("0000000099", 1)]


def test_text_in_documents_is_found_and_names_are_not(store: StateStore) -> None:
    keep(store, pa.table({"k": [MAIL, "s", "orders"], "v": [1, 2, 3]}), uid="orders")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("orders", "s", pa.table({"k": ["bob"], "v": [1]}), key="k")
    store.maintenance.savepoint(f"before {MAIL}")
    store.maintenance.pin("latest", lease="1h", holder="export for ann")
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    for key in ("s", "orders"):  # names of the state and of the operator
        assert store.maintenance.find_subject(OperatorKey("orders", key)).is_gone
    (found,) = store.maintenance.find_subject(OperatorKey("orders", MAIL)).found
    assert (found.file.split("/")[0], found.what) == ("savepoints", "text of a document")


def test_a_predicate_of_another_writer_is_found(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", table_format="delta")
    keep(store, pa.table({"k": [7, 8], "v": [1, 2]}))
    DeltaTable(Path(store.url, "operators/o/keyed/s")).delete("k = 7")
    keep(store, pa.table({"k": [8], "v": [2]}))
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    found = [one.file for one in store.maintenance.find_subject(OperatorKey("o", 7)).found]
    assert any(name.endswith("1.json") for name in found)
    store.maintenance.forget(OperatorKey("o", 7), search=False)
    assert store.maintenance.find_subject(OperatorKey("o", 7)).found == ()


# Forget: one subject in all operators.


@pytest.fixture(params=["parquet", "delta"])
def shop(request: Any, tmp_path: Path) -> StateStore:
    """A store with three checkpoints, in which customer 312 is a key, a map key, part of a key, a
    text, and a value.
    """
    store = opened(tmp_path / "store", table_format=request.param)
    for number in range(3):
        customers = [312, 313] if number else [313]
        count = len(customers)
        with store.snapshot(parallelism=2) as checkpoint:
            n = [number] * count
            checkpoint.write_keyed(
                "totals", "sum", pa.table({"customer": customers, "n": n}), key="customer"
            )
            checkpoint.write_keyed(
                "routes",
                "by",
                pa.table({"city": ["x"] * count, "customer": customers, "n": n}),
                kind="map",
                key="city",
                entry="customer",
            )
            checkpoint.write_keyed(
                "shops",
                "s",
                pa.table({"shop": [1] * count, "customer": customers, "n": n}),
                key=["shop", "customer"],
            )
            texts = [str(customer) for customer in customers]
            checkpoint.write_keyed(
                "text", "s", pa.table({"customer": texts, "n": n}), key="customer"
            )
            checkpoint.write_keyed(
                "orders", "s", pa.table({"id": [*range(count)], "customer": customers}), key="id"
            )
            checkpoint.write_split("source", "offsets", [[{"customer": number}], []])
    store.maintenance.savepoint("two", 2)
    return store


def customers_of(store: StateStore, checkpoint: int) -> dict[str, set[Any]]:
    return {
        entry.state.uid: {
            row["customer"] for row in rows_of(store, checkpoint, entry.state.uid, entry.state.name)
        }
        for entry in store.checkpoint(checkpoint).manifest.keyed
    }


def times(store: StateStore) -> list[tuple[int, int]]:
    manifests = [store.checkpoint(number).manifest for number in store.checkpoints()]
    return [(manifest.started_at_ms, manifest.created_at_ms) for manifest in manifests]


@pytest.mark.long_cases("parquet")
def test_one_command_forgets_a_subject_everywhere(shop: StateStore) -> None:
    before = times(shop)
    by_text = lambda kind: "312" if kind == "string" else 312  # noqa: E731
    planned = shop.maintenance.forget({"customer": by_text}, dry_run=True)
    assert shop.checkpoints() == (1, 2, 3)
    done = shop.maintenance.forget({"customer": by_text}, gc=True)
    states = [[(s.operator, s.rows) for s in one.states] for one in done.replaced]
    assert states == [[(s.operator, s.rows) for s in one.states] for one in planned.replaced]
    assert states == [[("routes", 1), ("shops", 1), ("text", 1), ("totals", 1)]] * 2
    assert (done.problem, times(shop)) == (None, before)
    assert done.search is not None
    assert done.search.is_gone
    for number in shop.checkpoints():
        found = customers_of(shop, number)
        assert found.pop("orders") == ({312, 313} if number > 1 else {313})
        assert found == {"totals": {313}, "routes": {313}, "shops": {313}, "text": {"313"}}
    (savepoint,) = shop.maintenance.savepoints()
    assert savepoint.checkpoint_id == shop.checkpoints()[1]
    origin: Mapping[str, Any] = shop.checkpoint().manifest.origin or {}
    assert (origin["command"], origin["checkpoint"]) == ("forget", 3)
    assert shop.maintenance.verify("all", deep=True).is_intact
    assert shop.maintenance.forget({"customer": by_text}).problem is None


def test_kept_occurrences_are_reported(shop: StateStore) -> None:
    others = shop.maintenance.forget({"customer": 312}, dry_run=True).others
    assert {(other.operator, other.reason) for other in others} == {
        ("orders", "'customer' is a value column there"),
        ("source", "elements of operator state contain 'customer'"),
        ("text", "its columns cannot hold the value (customer string)"),
    }


def test_without_a_collection_the_old_files_are_reported(shop: StateStore) -> None:
    done = shop.maintenance.forget({"customer": 312})
    assert done.search is not None
    assert len(done.search.found) >= 3
    assert "collect garbage" in str(done.problem)
    shop.maintenance.gc(minimum_age="0")
    assert shop.maintenance.find_subject({"customer": 312}).is_gone


def test_several_columns_form_one_subject(shop: StateStore) -> None:
    done = shop.maintenance.forget({"customer": 312, "shop": 1}, gc=True)
    assert {s.operator for one in done.replaced for s in one.states} == {"shops"}
    assert customers_of(shop, shop.checkpoints()[-1])["totals"] == {312, 313}
    assert done.problem is None


def test_a_subject_that_no_state_can_have_is_refused_and_nothing_is_written(
    shop: StateStore,
) -> None:
    with pytest.raises(StateNotFoundError, match="no keyed state has 'client'"):
        shop.maintenance.forget({"client": 312})
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        shop.maintenance.forget({})
    for act in (shop.maintenance.forget, shop.maintenance.find_subject):
        with pytest.raises(InvalidArgumentError, match=r"no state can have .* state '.*1\.5"):
            act({"customer": 1.5})  # it would be reported as gone from everywhere
    assert shop.checkpoints() == (1, 2, 3)
