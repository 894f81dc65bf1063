"""Valid states: by themselves, and compared with the stored ones (I3)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import statestore.parquet.operator_elements as files_elements
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    ParallelismError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.format.state import StateKind, TimeDomain
from statestore.jobgraph.graph import Node
from statestore.store import StateStore

NAN = float("nan")
MAP = pa.map_(pa.string(), pa.int64())
ROWS = pa.table({"k": ["a", "b", "c"], "v": [1, 2, 3]})


def files(store: StateStore) -> list[str]:
    return sorted(p.name for p in Path(store.url, "operators").rglob("*") if p.is_file())


def take(store: StateStore, rows: Any = ROWS, parallelism: int = 2, **options: Any) -> Any:
    with store.snapshot(parallelism=parallelism) as checkpoint:
        return checkpoint.write_keyed("u", "n", rows, **{"key": "k"} | options)


# --- parallelism ----------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [0, -1, 32_769, True, 2.0, "2", None])
def test_a_parallelism_out_of_bounds_is_refused(store: StateStore, parallelism: Any) -> None:
    """Before a store is created."""
    says = "parallelism must be"
    with pytest.raises((ParallelismError, InvalidArgumentError), match=says):
        store.snapshot(parallelism=parallelism)


@pytest.mark.parametrize("max_parallelism", [0, -2, 32_769, True, 2.0, "2", 1])
def test_a_max_parallelism_that_does_not_fit_is_refused(
    store: StateStore, max_parallelism: Any
) -> None:
    """It is out of bounds, not an integer, or below the parallelism."""
    with pytest.raises((ParallelismError, InvalidArgumentError)) as caught:
        take(store, max_parallelism=max_parallelism)
    assert re.search("max.parallelism", str(caught.value))
    if isinstance(caught.value, ParallelismError):
        assert caught.value.__notes__ == ["for state 'n' of operator 'u'"]
    assert store.checkpoints() == ()


@pytest.mark.parametrize(("parallelism", "expected"), [(1, 128), (86, 256), (32_768, 32_768)])
def test_max_parallelism_is_flinks_default(
    store: StateStore, parallelism: int, expected: int
) -> None:
    """One and a half times the parallelism, as a power of two."""
    assert take(store, parallelism=parallelism).state.max_parallelism == expected


def test_max_parallelism_never_changes(store: StateStore) -> None:
    """I3: for an operator's state at any parallelism; all states of an operator share it."""
    assert take(store, max_parallelism=100).state.max_parallelism == 100
    assert take(store, parallelism=100).state.max_parallelism == 100
    with pytest.raises(ParallelismError, match="stored with max parallelism 100 but 128"):
        take(store, max_parallelism=128)
    with pytest.raises(ParallelismError, match="101 is above the stored max parallelism 100"):
        take(store, parallelism=101)
    with store.snapshot(parallelism=1) as checkpoint:
        assert checkpoint.write_keyed("u", "new", ROWS, key="k").state.max_parallelism == 100
        with pytest.raises(ParallelismError):
            checkpoint.write_keyed("u", "newer", ROWS, key="k", max_parallelism=50)
        other = checkpoint.write_keyed("v", "n", ROWS, key="k", max_parallelism=50)
        assert other.state.max_parallelism == 50
        checkpoint.carry_rest()


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ({"k": ["a", None, None]}, {}, NullKeyError, r"2 rows of state 'n' .*\(k\)"),
        ({"k": ["a", "b", "a"]}, {}, DuplicateKeyError, "{'k': 'a'}"),
        ({"k": [NAN, 1.0, -NAN]}, {}, DuplicateKeyError, "{'k': nan}"),
        ({"k": [-0.0, 0.0, -0.0]}, {}, DuplicateKeyError, "{'k': -0.0}"),
        ({"a": [NAN] * 3, "b": [1, 2, 1]}, {"key": ["a", "b"]}, DuplicateKeyError, "'b': 1"),
        ({"k": [1] * 2, "w": [5] * 2}, {"namespace": "w"}, DuplicateKeyError, "{'k': 1, 'w': 5}"),
        ({"k": [1]}, {"key": "nobody"}, InvalidArgumentError, "'n' .*: no column 'nobody'; the c"),
        ({"k": [1, 2], "i": [None, 3]}, {"key": ["k", "i"]}, NullKeyError, "k IS .* AND i IS NOT"),
        ({"k": [1]}, {"key": []}, InvalidArgumentError, "name at least one key column"),
        ({"k": [1]}, {"namespace": "k"}, InvalidArgumentError, "'k' has two roles"),
        ({"k": [1]}, {"key": ["k", "k"]}, InvalidArgumentError, "'k' has two roles"),
        ({"k": [1], "K": [1]}, {}, InvalidArgumentError, "two columns are named 'k' and 'K'"),
        ({"k": [1], "key_group": [1]}, {}, InvalidArgumentError, "has key_group 1, but"),
        ({"k": [1], "Key_Group": [1]}, {}, InvalidArgumentError, "'Key_Group' is reserved"),
        ({"k": [1], "": [1]}, {}, InvalidArgumentError, "empty name"),
        ({"k": pa.array([1], pa.uint64())}, {}, UnsupportedTypeError, "'k'.*uint64.*signed"),
        ({"k": [1], "v": [None]}, {}, UnsupportedTypeError, "'v' has Arrow type null"),
        ({"k": pa.array([1], pa.time64("us"))}, {}, UnsupportedTypeError, "time64"),
        ({"k": pa.array([1], pa.duration("s"))}, {}, UnsupportedTypeError, "duration"),
        ({"k": [b"x"]}, {}, UnsupportedTypeError, "binary cannot be a key in the hash scheme java"),
        ({"k": pa.array([{"a": 1}], MAP)}, {}, UnsupportedTypeError, "'k' has type map"),
        ({"k": [1], "w": pa.array([{}], MAP)}, {"namespace": "w"}, UnsupportedTypeError, "'w'"),
        ({"k": pa.array([1], pa.timestamp("ns"))}, {}, InvalidArgumentError, "its 1 ns; round it"),
        ({"k": [1]}, {"kind": "nonsense"}, InvalidArgumentError, "kind of keyed state 'nonsense'"),
        ({"k": [1]}, {"kind": "map"}, InvalidArgumentError, "map state requires a map_key column"),
        ({"k": [1]}, {"hash_scheme": "md5"}, InvalidArgumentError, "hash scheme 'md5'"),
    ],
)  # fmt: skip
def test_rows_that_could_not_be_restored_are_refused(
    store: StateStore,
    rows: dict[str, Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    """The message describes the rows; no file is left and nothing is visible."""
    with pytest.raises(error, match=message):
        take(store, pa.table(rows), **options)
    assert files(store) == []
    assert store.checkpoints() == ()


@pytest.mark.parametrize("rows", [1, "rows", [1], [[1]], {"k": [1]}])
def test_rows_that_are_not_a_table_are_refused(store: StateStore, rows: Any) -> None:
    """Rows are a table, a frame that supports Arrow's protocol, or dictionaries."""
    with pytest.raises(
        InvalidArgumentError, match="rows must be a Spark DataFrame, an Arrow table"
    ):
        take(store, rows)


def test_rows_can_be_dictionaries_batches_and_frames(store: StateStore) -> None:
    """All with the same state."""
    digest = take(store, ROWS).digest
    columns = ROWS.to_pydict()
    for rows in (
        ROWS.to_pylist(),
        ROWS.to_batches()[0],
        ROWS.to_reader(),
        pl.DataFrame(columns),
        pd.DataFrame(columns),
        ROWS.set_column(0, "k", ROWS.column("k").dictionary_encode()),
        pa.concat_tables([ROWS.slice(1), ROWS.slice(0, 1)]),
        ROWS.select(["v", "k"]),
    ):
        assert take(store, rows).digest == digest


@pytest.mark.parametrize(
    ("kind", "column", "values"),
    [("list", "position", [1, 1]), ("map", "m", ["x", "x"]), ("timers", "timestamp", [5, 5])],
)
def test_each_kind_refuses_a_duplicate_entry(
    store: StateStore, kind: str, column: str, values: list[Any]
) -> None:
    """It accepts entries that differ, and equal entries of different keys."""
    options: dict[str, Any] = {"key": "k", "kind": kind, "entry": column}
    options |= {"time_domain": "event"} if kind == "timers" else {}
    with store.snapshot(parallelism=1) as checkpoint:
        with pytest.raises(DuplicateKeyError, match=f"'{column}': {values[0]!r}"):
            checkpoint.write_keyed("u", "n", pa.table({"k": [1, 1], column: values}), **options)
        rows = pa.table({"k": [1, 2], column: values})
        entry = checkpoint.write_keyed("u", "n", rows, **options)
    assert entry.state.kind is StateKind(kind)
    assert entry.state.time_domain is (TimeDomain.EVENT if kind == "timers" else None)


def test_keys_of_any_length_and_script_are_stored(store: StateStore) -> None:
    """Empty, 10,000 characters, composed and decomposed; 0.0 and -0.0 are different keys."""
    keys = ["", "x" * 10_000, "é", "e\u0301", "日本", "😀", "\0", " "]
    entry = take(store, pa.table({"k": keys}))
    restored = store.restore(parallelism=1).keyed("u", "n")
    assert sorted(restored.to_arrow(0).column("k").to_pylist()) == sorted(keys)
    assert entry.rows == len(keys)
    with store.snapshot(parallelism=1) as checkpoint:
        assert checkpoint.write_keyed("u", "zeros", pa.table({"k": [0.0, -0.0]}), key="k").rows == 2
        checkpoint.carry("u", "n")


def test_columns_can_have_names_that_operator_state_reserves(store: StateStore) -> None:
    """Any other name that Parquet supports is also accepted."""
    names = ["subtask", "position", "a.b", "a b", "`", "é", ",;{}()\n\t="]
    take(store, pa.table({"k": [1], **{name: [2] for name in names}}))
    [row] = store.restore(parallelism=1).keyed("u", "n").to_arrow(0).to_pylist()
    assert {row[name] for name in names} == {2}


# --- Compared with the stored state ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "stored", "now"),
    [
        ({"k": pa.array([1], pa.int32()), "v": [1]}, {}, "(k long, v long)", "(k integer, v long)"),
        ({"k": ["a"], "v": [1]}, {}, "(Long)", "(String)"),
        ({"k": [1], "v": [1.0]}, {}, "v long", "v double"),
        ({"k": [1], "v": ["x"]}, {}, "(k long, v long)", "(k long, v string)"),
        ({"k": [1], "w": [1]}, {}, "(k long, v long)", "(k long, w long): 'v' is missing"),
        ({"k": [1], "v": [1]}, {"namespace": "v"}, "namespace ()", "(v)"),
        ({"k": [1.5], "v": ["x"]}, {}, "(k long, v long)", "(k double, v string)"),
        ({"k": [1], "v": [1]}, {"key": ["k", "v"]}, "key (k)", "(k, v)"),
        ({"k": [1], "v": [1]}, {"kind": "map", "entry": "v"}, "kind value", "map"),
        ({"k": [1], "v": [1]}, {"hash_scheme": "pyflink"}, "hash scheme java", "pyflink"),
    ],
)
def test_key_and_columns_of_a_stored_state_never_change(
    store: StateStore, rows: dict[str, Any], options: dict[str, Any], stored: str, now: str
) -> None:
    """I3: the message has both sides."""
    take(store, pa.table({"k": [1], "v": [1]}))
    with pytest.raises(SchemaMismatchError) as caught:
        take(store, pa.table(rows), **options)
    before, _, after = str(caught.value).partition("now has")
    assert stored in before
    assert now in after
    assert store.checkpoints() == (1,)


def test_columns_can_have_another_order(store: StateStore) -> None:
    """They are stored in the first order; the hash scheme need not be repeated."""
    rows = pa.table({"k": [1], "v": [1], "w": ["x"]})
    first = take(store, rows, hash_scheme="pyflink")
    assert take(store, rows.select(["w", "v", "k"])).state == first.state


def test_a_state_can_be_written_once_per_checkpoint(store: StateStore) -> None:
    """For keyed and operator state."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
        for again in (
            lambda: checkpoint.write_keyed("u", "n", ROWS, key="k"),
            lambda: checkpoint.write_union("u", "n", [[]]),
        ):
            with pytest.raises(InvalidArgumentError, match="is already in this checkpoint"):
                again()
        checkpoint.write_keyed("u", "other", ROWS, key="k")
        checkpoint.write_keyed("v", "n", ROWS, key="k")
    assert len(store.checkpoint().manifest.entries) == 3


@pytest.mark.parametrize(("uid", "name"), [("", "n"), ("u", ""), ("x" * 201, "n"), ("u", "\ud800")])
def test_a_name_that_is_not_a_valid_path_is_refused(store: StateStore, uid: str, name: str) -> None:
    """For keyed and operator state."""
    with store.snapshot(parallelism=1) as checkpoint:
        with pytest.raises(InvalidArgumentError, match=r"name|uid must not be empty"):
            checkpoint.write_keyed(uid, name, ROWS, key="k")
        with pytest.raises(InvalidArgumentError, match=r"name|uid must not be empty"):
            checkpoint.write_union(uid, name, [[{"a": 1}]])


# --- operator state -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["split", "union"])
@pytest.mark.parametrize("lists", [[], [[]], [[], [], []], None, 1, [{"a": 1}, {"a": 2}]])
def test_elements_are_one_list_per_subtask(store: StateStore, mode: str, lists: Any) -> None:
    """The message has the number of lists and the expected number."""
    with store.snapshot(parallelism=2) as checkpoint, pytest.raises(InvalidArgumentError):
        getattr(checkpoint, f"write_{mode}")("u", "n", lists)
    assert files(store) == []


@pytest.mark.parametrize(
    ("mode", "lists", "message"),
    [
        ("split", [[{"p": 1}], []], "stored as union state of .* now split state"),
        ("broadcast", [{"p": 1}], "stored as union state of .* now broadcast"),
        (
            "union",
            [[{"q": 1}], []],
            r"element 0 of subtask 0 of .* for 'q', but its columns are \(p long\)",
        ),
    ],
)
def test_mode_and_columns_of_stored_elements_never_change(
    store: StateStore, mode: str, lists: Any, message: str
) -> None:
    """I3: the message has both sides."""
    elements(store, "union", [[{"p": 1}], []])
    with pytest.raises(SchemaMismatchError, match=message):
        elements(store, mode, lists)


def test_elements_that_were_all_empty_can_get_columns_later(store: StateStore) -> None:
    """A source that has not started knows none; a source that is finished keeps them."""
    snapshots: list[list[list[Any]]] = [
        [[], []],
        [[{"p": 1}], []],
        [[], []],
        [[], [{"p": 2}]],
    ]
    for lists in snapshots:
        assert elements(store, "union", lists).counts == tuple(map(len, lists))
    assert store.restore().operator_state("u", "n").per_old_subtask() == [[], [{"p": 2}]]


@pytest.mark.parametrize(
    ("columns", "lists"),
    [
        ({"p": [1, 2, 3]}, [[1, 2], [3]]),
        ({"subtask": [1, 0, 1], "p": [1, 2, 3]}, [[2], [1, 3]]),
        ({"subtask": [1, 0, 1], "position": [1, 0, 0], "p": [1, 2, 3]}, [[2], [3, 1]]),
    ],
)
def test_elements_can_be_a_table(
    store: StateStore, columns: dict[str, list[int]], lists: list[list[int]]
) -> None:
    """Each element has a subtask and a position, or the elements are distributed in blocks."""
    elements(store, "split", pa.table(columns))
    stored = store.restore().operator_state("u", "n").per_old_subtask()
    assert [[element["p"] for element in one] for one in stored] == lists


@pytest.mark.parametrize(
    "columns",
    [
        {"subtask": [0, 2]},
        {"subtask": [0, -1]},
        {"subtask": [0, None]},
        {"subtask": ["a", "b"]},
        {"subtask": [0, 1], "position": [0, None]},
    ],
)
def test_elements_with_an_invalid_position_are_refused(
    store: StateStore, columns: dict[str, Any]
) -> None:
    """They are not assigned to any other subtask."""
    with pytest.raises(InvalidArgumentError, match=r"subtask|position"):
        elements(store, "union", pa.table({**columns, "p": [1, 2]}))


@pytest.mark.parametrize("is_table", [True, False])
def test_elements_that_cannot_be_stored_are_refused(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, is_table: bool
) -> None:
    rows = [{"p": at, "text": "x" * 100} for at in range(100)]
    given = pa.Table.from_pylist(rows) if is_table else [rows[:50], rows[50:]]
    monkeypatch.setattr(files_elements, "OPERATOR_STATE_BYTES", 13_000)
    elements(store, "split", given)
    monkeypatch.setattr(files_elements, "OPERATOR_STATE_BYTES", 10_000)
    with pytest.raises(InvalidArgumentError, match="split state 'n' of operator 'u' have 12"):
        elements(store, "split", given)
    assert store.restore().checkpoint_id == 1


def elements(store: StateStore, mode: str, given: Any) -> Any:
    with store.snapshot(parallelism=2) as checkpoint:
        return getattr(checkpoint, f"write_{mode}")("u", "n", given)


def test_a_dropped_state_keeps_its_key_groups(store: StateStore) -> None:
    """I3: a state that the newest checkpoint lacks still has its properties from an older one."""
    rows = pa.table({"user": ["a", "b"], "n": [1, 2]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("op", "state", rows, key="user", max_parallelism=16)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_union("source", "offsets", [[{"n": 1}], []])
        checkpoint.drop("op", "state")
    with store.snapshot(parallelism=2) as checkpoint:
        again = checkpoint.write_keyed("op", "state", rows, key="user")
        checkpoint.carry_rest()
    assert again.state.max_parallelism == 16
    with (
        pytest.raises(ParallelismError),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_keyed("op", "state", rows, key="user", max_parallelism=32)


def test_a_time_domain_can_be_text_and_requires_timers(store: StateStore) -> None:
    rows = [{"k": "a", "at": 5}]
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed(
            "u",
            "t",
            rows,
            key="k",
            kind="timers",
            entry="at",
            time_domain="event",
        )
        assert entry.state.time_domain is TimeDomain.EVENT
        for kind, domain in (("timers", None), ("value", "event"), ("timers", "lunar")):
            with pytest.raises(InvalidArgumentError, match="time domain"):
                checkpoint.write_keyed(
                    "u",
                    "x",
                    rows,
                    key="k",
                    kind=kind,
                    entry="at" if kind == "timers" else (),
                    time_domain=domain,
                )


@pytest.mark.parametrize("parallelism", [0, -1, 32_769, True, 2.0, "2"])
def test_an_invalid_parallelism_is_an_invalid_argument(store: StateStore, parallelism: Any) -> None:
    """Every call that has the argument uses exit code 2, as for any invalid argument."""
    take(store)
    for call in (
        lambda: store.plan(parallelism=parallelism),
        lambda: store.restore(parallelism=parallelism),
        lambda: store.restore(parallelism=parallelism, balance="rows"),
        lambda: store.inspect.compare([parallelism]),
        lambda: Node("n", parallelism=parallelism),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert caught.value.exit_code == 2


def test_an_error_about_the_stored_max_parallelism_names_the_argument(store: StateStore) -> None:
    take(store, max_parallelism=100)
    with pytest.raises(ParallelismError, match="or pass max_parallelism=300: a multiple"):
        store.restore(parallelism=201)
    assert store.restore(parallelism=201, max_parallelism=300).parallelism == 201
    with pytest.raises(ParallelismError, match="statestore rekey"):
        store.restore(parallelism=32_768)
