"""Edit one state of a checkpoint offline: only the requested change happens."""

from __future__ import annotations

import importlib
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    DuplicateKeyError,
    InvalidArgumentError,
    MissingDependencyError,
    NullKeyError,
    SchemaMismatchError,
    StateNotFoundError,
)
from statestore.maintenance.edit_keys import MOST_EXAMPLES, RowUpdate
from tests.support.damage import change_unread_byte, files_of, fill
from tests.support.examples import examples
from tests.support.forms import (
    RANGED_IN_EACH_RUN,
    Checkpoints,
    Entries,
    break_file,
    change,
    data_in,
    in_both_layouts,
    in_layers,
    names_of,
    newest_file,
    rows_of,
    state_of,
    table,
)
from tests.support.stores import values_in

pytestmark = pytest.mark.slow

ROWS = {f"u{i}": i for i in range(40)}
LAYOUTS = ("partitioned", "ranged")

content = partial(values_in, state="n")


def make(path: Path, layout: str) -> StateStore:
    store = StateStore.open(str(path), table_format="parquet")
    with store.snapshot(parallelism=2) as checkpoint:
        rows = pa.table({"k": [*ROWS], "v": [*ROWS.values()]})
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=8, layout=layout)
        checkpoint.write_keyed("u", "other", rows, key="k", layout=layout)
        checkpoint.write_split("s", "files", [[{"f": "a"}], []])
    return store


@pytest.fixture(params=RANGED_IN_EACH_RUN)
def store(request: Any, tmp_path: Path) -> StateStore:
    return make(tmp_path / "store", request.param)


def is_whole(store: StateStore) -> bool:
    report = store.maintenance.verify("all", deep=True)
    return report.is_intact and not report.strays


def test_keys_are_deleted_and_rows_put_in_a_new_checkpoint(store: StateStore) -> None:
    before = store.checkpoint().manifest.keyed_entry("u", "n")
    done = store.maintenance.edit(
        "u", "n", delete=["u1", "nobody"], put=[{"k": "u2", "v": 7}, {"k": "new"}]
    )
    assert (done.checkpoint_id, done.new_checkpoint_id) == (1, 2)
    assert content(store) == {k: v for k, v in ROWS.items() if k != "u1"} | {"u2": 7, "new": None}
    assert content(store, checkpoint=1) == ROWS
    assert content(store, state="other") == ROWS
    assert (done.rows_before, done.rows_after, done.deleted, done.put) == (40, 40, 1, 2)
    assert is_whole(store)
    after = store.checkpoint().manifest.keyed_entry("u", "n")
    new = {*after.handles} - {*before.handles}
    assert (len(new), sum(file.size_bytes for file in new)) == (done.files, done.size_bytes)
    assert all(any(g in file.key_groups for g in done.key_groups) for file in new)
    assert (store.checkpoint().manifest.origin or {})["command"] == "edit"


def test_other_files_are_carried(tmp_path: Path) -> None:
    """In the partitioned layout only the file of the key's group is new."""
    store = make(tmp_path / "store", "partitioned")
    before = store.checkpoint().manifest
    done = store.maintenance.edit("u", "n", delete=["u1"])
    after = store.checkpoint().manifest
    (group,) = done.key_groups
    kept = {file for file in before.keyed_entry("u", "n").handles if group not in file.key_groups}
    assert kept == {f for f in after.keyed_entry("u", "n").handles if group not in f.key_groups}
    assert after.keyed_entry("u", "other") == before.keyed_entry("u", "other")
    assert after.operator_entry("s", "files") == before.operator_entry("s", "files")


def test_the_manifest_contains_no_key_and_no_sql_text(store: StateStore) -> None:
    store.maintenance.edit("u", "n", delete=["u17"])
    store.maintenance.edit("u", "n", sql="SELECT * FROM state WHERE k <> 'u18'")
    for path in Path(store.url, "checkpoints").iterdir():
        assert b"u17" not in path.read_bytes()
        assert b"u18" not in path.read_bytes()


def test_a_missing_key_makes_no_checkpoint(store: StateStore) -> None:
    done = store.maintenance.edit("u", "n", delete=["nobody"])
    assert (done.new_checkpoint_id, done.files, done.deleted) == (None, 0, 0)
    assert store.checkpoints() == (1,)


@pytest.mark.parametrize("dry_run", [True, False])
def test_keys_to_delete_without_a_row_are_named(store: StateStore, dry_run: bool) -> None:
    """They are counted, and the first five are named, whether or not other keys have rows."""
    keys = [*"abcdefg"]
    alone = store.maintenance.edit("u", "n", delete=keys, dry_run=dry_run)
    assert (alone.missing, alone.deleted, alone.new_checkpoint_id) == (7, 0, None)
    assert alone.missing_keys == tuple({"k": key} for key in "abcde")
    mixed = store.maintenance.edit("u", "n", delete=["a", "u1", "b"], dry_run=dry_run)
    assert (mixed.missing, mixed.missing_keys, mixed.deleted) == (2, ({"k": "a"}, {"k": "b"}), 1)
    none = store.maintenance.edit("u", "n", delete=["u2"], dry_run=dry_run)
    assert (none.missing, none.missing_keys) == (0, ())


def test_a_state_may_lose_its_last_row_and_get_one_again(store: StateStore) -> None:
    store.maintenance.edit("u", "n", delete=[*ROWS])
    assert content(store) == {}
    assert store.checkpoint().manifest.keyed_entry("u", "n").handles == ()
    store.maintenance.edit("u", "n", put=[{"k": "x", "v": 1}])
    assert content(store) == {"x": 1}
    assert is_whole(store)


@pytest.mark.slow
@given(
    delete=st.lists(st.sampled_from([*ROWS, "no", "nobody"]), unique=True),
    put=st.dictionaries(st.sampled_from([*ROWS, *(f"new{i}" for i in range(30))]), st.integers(0)),
    layout=st.sampled_from(LAYOUTS),
)
@examples(25)
def test_an_edit_has_the_same_effect_on_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, delete: list[str], put: dict[str, int], layout: str
) -> None:
    assume(delete or put)
    put = {key: value % 2**62 for key, value in put.items()}
    store = make(tmp_path_factory.mktemp("edit") / "store", layout)
    store.maintenance.edit("u", "n", delete=delete, put=[{"k": k, "v": v} for k, v in put.items()])
    assert content(store) == {k: v for k, v in ROWS.items() if k not in delete} | put
    assert is_whole(store)


@pytest.mark.parametrize("name", ["value", "map", "list", "timers"])
def test_every_kind_of_state_can_be_edited(tmp_path: Path, name: str) -> None:
    """A row replaces the row with its entry columns, and a deleted key loses all its rows."""
    store = fill(tmp_path / "store", max_parallelism=8)
    before = store.restore(parallelism=1).keyed("job", name).get("user-3")
    done = store.maintenance.edit("job", name, delete=["user-4"], put=[before[0]])
    assert (done.deleted, done.put) == (len(before), 1)
    assert done.rows_after == done.rows_before - len(before)
    keyed = store.restore(parallelism=1).keyed("job", name)
    assert keyed.get("user-3") == before
    assert keyed.get("user-4") == []
    assert is_whole(store)


def test_all_rows_can_be_replaced(store: StateStore) -> None:
    for rows in (
        pa.table({"v": [1, 2], "k": ["a", "b"]}),
        [{"k": "a", "v": 1}, {"k": "b", "v": 2}],
    ):
        store.maintenance.edit("u", "n", rows=rows)
        assert content(store) == {"a": 1, "b": 2}
        assert content(store, state="other") == ROWS
    assert is_whole(store)


def test_sql_replaces_the_state_by_its_result(store: StateStore) -> None:
    sql = "SELECT v * 2 AS v, k FROM state WHERE v >= (SELECT avg(v) FROM state)"
    done = store.maintenance.edit("u", "n", sql=sql)
    assert content(store) == {k: 2 * v for k, v in ROWS.items() if v >= 20}
    assert (done.rows_before, done.rows_after) == (40, 20)
    assert is_whole(store)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sql_writes_only_the_files_of_changed_key_groups(tmp_path: Path, layout: str) -> None:
    store = make(tmp_path / "store", layout)
    before = store.checkpoint().manifest.keyed_entry("u", "n")
    sql = "SELECT k, CASE k WHEN 'u3' THEN -3 ELSE v END AS v FROM state WHERE k <> 'u4'"
    planned = store.maintenance.edit("u", "n", sql=sql, dry_run=True)
    done = store.maintenance.edit("u", "n", sql=sql)
    after = store.checkpoint().manifest.keyed_entry("u", "n")
    expected = {k: -3 if k == "u3" else v for k, v in ROWS.items() if k != "u4"}
    assert content(store) == expected
    new = [*{*after.handles}.difference(before.handles)]
    assert (done.files, len(new)) == (len(new), len({*before.handles}.difference(after.handles)))
    assert done.key_groups == planned.key_groups
    assert len(done.key_groups) <= 2
    assert all(any(group in one.key_groups for group in done.key_groups) for one in new)
    assert (done.deleted, done.put, done.rows_after) == (1, 1, 39)
    assert planned.examples == done.examples
    rows = {example.change: (example.a, example.b) for example in done.examples}
    assert rows == {
        "changed": ({"k": "u3", "v": 3}, {"k": "u3", "v": -3}),
        "removed": ({"k": "u4", "v": 4}, None),
    }
    assert is_whole(store)


def test_sql_that_changes_nothing_writes_no_file(store: StateStore) -> None:
    done = store.maintenance.edit("u", "n", sql="SELECT v, k FROM state ORDER BY v DESC")
    assert (done.files, done.key_groups, done.examples) == (0, (), ())
    assert content(store) == ROWS


@given(st.dictionaries(st.sampled_from([*ROWS, "x", "y"]), st.integers(0, 3), max_size=6))
@examples(15)
def test_sql_has_the_effect_of_its_result(
    tmp_path_factory: pytest.TempPathFactory, new: dict[str, int]
) -> None:
    """Over small states in both layouts, whatever key groups become empty or new."""
    for layout in LAYOUTS:
        store = make(tmp_path_factory.mktemp("sql") / "store", layout)
        values = ", ".join(f"('{key}', {value})" for key, value in new.items())
        rows = f"SELECT * FROM (VALUES {values}) AS t(k, v)" if new else "SELECT * FROM state"
        sql = f"{rows} WHERE v < 3" if new else f"{rows} WHERE false"
        done = store.maintenance.edit("u", "n", sql=sql)
        expected = {key: value for key, value in new.items() if value < 3}
        assert content(store) == expected
        assert (
            done.rows_after
            == len(expected)
            == store.checkpoint().manifest.keyed_entry("u", "n").rows
        )
        assert store.maintenance.verify("all", deep=True).is_intact


def test_an_update_changes_only_what_it_names(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    big = 2**53 + 1
    rows = pa.table({"k": ["a", "a", "b"], "m": [1, 2, 1], "v": [big, 5, 6], "t": ["x", None, "z"]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=8, kind="map", entry="m")
    edit = store.maintenance.edit
    done = edit("u", "n", update=RowUpdate(keys=["a"], values={"t": "new"}))
    expected = [
        {"k": "a", "m": 1, "v": big, "t": "new"},
        {"k": "a", "m": 2, "v": 5, "t": "new"},
        {"k": "b", "m": 1, "v": 6, "t": "z"},
    ]

    def stored() -> list[dict[str, Any]]:
        keyed = store.restore(parallelism=1).keyed("u", "n").to_arrow(0)
        return sorted(keyed.select(rows.column_names).to_pylist(), key=lambda r: (r["k"], r["m"]))

    assert stored() == expected
    assert (done.put, len(done.key_groups)) == (2, 1)
    assert [example.identity for example in done.examples] == [
        {"k": "a", "m": 1},
        {"k": "a", "m": 2},
    ]
    edit("u", "n", update=RowUpdate(keys=["a"], values={"t": None, "v": 7}, where={"m": 2}))
    expected[1] |= {"t": None, "v": 7}
    assert stored() == expected
    again = edit("u", "n", update=RowUpdate(keys=["a"], values={"v": 7}, where={"m": 2}))
    assert (again.new_checkpoint_id, again.files) == (None, 0)


def test_the_examples_are_the_first_changed_rows(store: StateStore) -> None:
    put = [{"k": "u1", "v": 1}, {"k": "u2", "v": -2}, {"k": "new", "v": 5}]
    done = store.maintenance.edit("u", "n", put=put, delete=["u1", "u7"])
    rows = {example.identity["k"]: (example.a, example.b) for example in done.examples}
    assert rows == {
        "u2": ({"k": "u2", "v": 2}, {"k": "u2", "v": -2}),
        "u7": ({"k": "u7", "v": 7}, None),
        "new": (None, {"k": "new", "v": 5}),
    }
    many = store.maintenance.edit("u", "n", delete=[f"u{place}" for place in range(8, 40)])
    assert (many.deleted, len(many.examples)) == (32, MOST_EXAMPLES)


def test_sql_sees_only_the_state(store: StateStore, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("k,v\nx,1\n")
    secret = pa.table({"k": ["x"], "v": [1]})
    assert secret.num_rows == 1
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/rows.csv')",
        "SELECT * FROM secret",
        "DELETE FROM state",
        "SELECT 1; SELECT 2",
        "SELEC",
    ):
        with pytest.raises(InvalidArgumentError, match="state"):
            store.maintenance.edit("u", "n", sql=sql)
    assert store.checkpoints() == (1,)
    assert is_whole(store)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"put": [{"k": None, "v": 1}]}, NullKeyError),
        ({"put": [{"k": "a", "v": 1}, {"k": "a", "v": 2}]}, DuplicateKeyError),
        ({"put": [{"k": "a", "w": 1}]}, SchemaMismatchError),
        ({"put": [{"k": "a", "v": "x"}]}, InvalidArgumentError),
        ({"delete": [5]}, InvalidArgumentError),
        ({"rows": [{"k": None, "v": 1}]}, NullKeyError),
        ({"rows": [{"k": "a", "v": 1}, {"k": "a", "v": 2}]}, DuplicateKeyError),
        ({"rows": pa.table({"k": ["a"], "v": ["x"]})}, SchemaMismatchError),
        ({"rows": pa.table({"k": ["a"]})}, SchemaMismatchError),
        ({"sql": "SELECT k FROM state"}, SchemaMismatchError),
        ({"sql": "SELECT k, v, 1 AS w FROM state"}, SchemaMismatchError),
        ({"sql": "SELECT k, v + 0.5 AS v FROM state"}, SchemaMismatchError),
        ({"sql": "SELECT NULL::VARCHAR AS k, v FROM state"}, NullKeyError),
        ({"sql": "SELECT * FROM state UNION ALL SELECT * FROM state"}, DuplicateKeyError),
        ({}, InvalidArgumentError),
        ({"delete": ["u1"], "sql": "SELECT * FROM state"}, InvalidArgumentError),
    ],
)
def test_invalid_rows_change_nothing(
    store: StateStore, change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        store.maintenance.edit("u", "n", **change)
    assert store.checkpoints() == (1,)
    assert is_whole(store)


def test_missing_names(store: StateStore) -> None:
    with pytest.raises(StateNotFoundError, match="no state 'x' in operator 'u'"):
        store.maintenance.edit("u", "x", delete=["a"])
    with pytest.raises(StateNotFoundError, match="is operator state"):
        store.maintenance.edit("s", "files", delete=["a"])


def test_damage_is_not_copied(store: StateStore) -> None:
    """I5: a damaged byte that no reader uses is found before the file is rewritten."""
    for path in files_of(store, "n"):
        change_unread_byte(path)
    changes: list[dict[str, Any]] = [{"delete": ["u1"]}, {"sql": "SELECT * FROM state"}]
    for wanted in changes:
        with pytest.raises(DamagedFileError):
            store.maintenance.edit("u", "n", **wanted)
    assert store.checkpoints() == (1,)


@pytest.mark.parametrize(
    "change",
    [
        {"delete": ["u1"], "put": [{"k": "new", "v": 1}]},
        {"rows": [{"k": "a", "v": 1}]},
        {"sql": "SELECT * FROM state WHERE v < 10"},
    ],
)
def test_a_dry_run_reports_the_same_and_writes_nothing(
    store: StateStore, change: dict[str, Any]
) -> None:
    before = sorted(path for path in Path(store.url).rglob("*"))
    planned = store.maintenance.edit("u", "n", dry_run=True, **change)
    assert sorted(path for path in Path(store.url).rglob("*")) == before
    done = store.maintenance.edit("u", "n", **change)
    assert (planned.new_checkpoint_id, planned.rows_before) == (None, done.rows_before)
    told = ("rows_after", "deleted", "put")
    assert [getattr(planned, name) for name in told] == [getattr(done, name) for name in told]


def test_an_older_checkpoint_can_be_edited(store: StateStore) -> None:
    store.maintenance.edit("u", "n", delete=["u1"])
    done = store.maintenance.edit("u", "n", delete=["u2"], checkpoint=1, from_older=True)
    assert (done.checkpoint_id, done.new_checkpoint_id) == (1, 3)
    assert content(store) == {k: v for k, v in ROWS.items() if k != "u2"}


def test_without_duckdb_the_error_names_the_package(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def without(name: str) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingDependencyError, match="install the extra 'query': "):
        store.maintenance.edit("u", "n", sql="SELECT * FROM state")
    assert store.checkpoints() == (1,)


# --- every form of a state ------------------------------------------------------------------------


def row(user: str, entry: int, value: int) -> dict[str, Any]:
    return {"k": user, "m": entry, "v": value}


def user_of(taken: Checkpoints, place: int) -> str:
    """Return an existing user. Users of the last checkpoint are included."""
    return sorted({user for user, _ in taken.rows})[place]


@pytest.mark.long_cases("layered-partitioned")
@in_both_layouts
def test_single_keys_are_deleted_and_put_in_every_form(taken: Checkpoints) -> None:
    store, gone, changed = taken.store, user_of(taken, 5), user_of(taken, 9)
    newest = "new-4"  # in the layered form this row is only in the last layer
    before = data_in(store.url)
    put = [row(changed, 0, -1), row("nobody", 7, -2), row(newest, 5, -3)]
    planned = store.maintenance.edit("u", "s", delete=[gone], put=put, dry_run=True)
    assert data_in(store.url) == before
    done = store.maintenance.edit("u", "s", delete=[gone], put=put)
    rows = {entry: value for entry, value in taken.rows.items() if entry[0] != gone}
    expected = rows | {(changed, 0): -1, ("nobody", 7): -2, (newest, 5): -3}
    assert rows_of(store) == expected
    assert done.deleted == len(taken.rows) - len(rows)
    assert (planned.deleted, planned.put) == (done.deleted, done.put) == (done.deleted, 3)
    assert planned.rows_after == done.rows_after == state_of(store).rows
    assert data_in(store.url) == before | names_of(store)
    assert rows_of(store, 5) == taken.taken[5]
    assert store.maintenance.verify("all", deep=True).is_intact


@in_layers
def test_an_edit_of_single_keys_keeps_other_files_and_layers(taken: Checkpoints) -> None:
    store, before = taken.store, state_of(taken.store)
    store.maintenance.edit("u", "s", delete=[user_of(taken, 3)])
    after = state_of(store)
    assert len({*before.handles} & {*after.handles}) == len(before.handles) - 1
    assert [layer.entry for layer in after.layers] == [layer.entry for layer in before.layers]
    assert all(a.live != b.live for a, b in zip(before.layers, after.layers, strict=True))


def test_a_key_that_the_newest_checkpoint_deleted_is_missing(taken: Checkpoints) -> None:
    gone = user_of(taken, 2)
    number = taken.change(cleared=[gone])
    assert taken.store.maintenance.edit("u", "s", delete=[gone]).new_checkpoint_id is None
    assert taken.store.checkpoints()[-1] == number
    taken.store.maintenance.edit("u", "s", put=[row(gone, 1, 5)])
    assert rows_of(taken.store) == taken.rows | {(gone, 1): 5}


@in_both_layouts
def test_all_rows_replace_base_and_layers(taken: Checkpoints) -> None:
    store, rows = taken.store, {("only", 1): 2, ("other", 0): 3}
    before = data_in(store.url)
    planned = store.maintenance.edit("u", "s", rows=table(rows), dry_run=True)
    assert planned.files == len(names_of(store))
    done = store.maintenance.edit("u", "s", rows=table(rows))
    assert rows_of(store) == rows
    assert (done.rows_after, state_of(store).layers) == (2, ())
    assert data_in(store.url) == before | names_of(store)


@in_both_layouts
def test_sql_sees_the_rows_and_not_the_changes(taken: Checkpoints) -> None:
    store, before = taken.store, data_in(taken.store.url)
    sql = "SELECT k, m, v + 1 AS v FROM state WHERE m < 2"
    done = store.maintenance.edit("u", "s", sql=sql)
    expected: Entries = {e: v + 1 for e, v in taken.rows.items() if e[1] < 2}
    assert rows_of(store) == expected
    assert done.rows_after == len(expected)
    assert data_in(store.url) == before | names_of(store)


@in_layers
def test_sql_keeps_the_layers_of_unchanged_key_groups(taken: Checkpoints) -> None:
    store, before, user = taken.store, state_of(taken.store), user_of(taken, 3)
    sql = f"SELECT k, m, CASE k WHEN '{user}' THEN -1 ELSE v END AS v FROM state"
    done = store.maintenance.edit("u", "s", sql=sql)
    assert rows_of(store) == {e: -1 if e[0] == user else v for e, v in taken.rows.items()}
    after = state_of(store)
    assert len({*before.handles} & {*after.handles}) >= len(before.handles) - 1
    assert [layer.entry for layer in after.layers] == [layer.entry for layer in before.layers]
    assert done.rows_after == after.rows


@in_both_layouts
def test_a_damaged_file_is_not_edited(taken: Checkpoints) -> None:
    before = data_in(taken.store.url)
    break_file(taken.store, newest_file(taken.store))
    with pytest.raises(DamagedFileError):
        taken.store.maintenance.edit(
            "u", "s", put=[row(u, 0, 1) for u in {u for u, _ in taken.rows}]
        )
    assert data_in(taken.store.url) == before
    assert taken.store.checkpoints() == (1, 2, 3, 4, 5)


def test_an_edit_that_is_refused_leaves_nothing(taken: Checkpoints) -> None:
    before = data_in(taken.store.url)
    with pytest.raises(InvalidArgumentError):
        taken.store.maintenance.edit("u", "s", put=[row(user_of(taken, 1), 0, 1)] * 2)
    assert data_in(taken.store.url) == before


@in_both_layouts
def test_changes_continue_after_an_edit(taken: Checkpoints) -> None:
    taken.store.maintenance.edit("u", "s", delete=[user_of(taken, 4)], put=[row("nobody", 0, 1)])
    taken.rows = rows_of(taken.store)
    change(taken, 9, random.Random(2))
    assert rows_of(taken.store) == taken.rows
