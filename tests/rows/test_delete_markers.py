"""Markers of changes: a file stores how many columns a delete names. In memory a marker also says
whether the delete clears an identity.
"""

from __future__ import annotations

import pyarrow as pa

from statestore.format.layers import are_changes, change_state
from statestore.format.names import MARK
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, StateKind
from statestore.rows import delete_markers as marks
from statestore.rows.delete_markers import Deletion, mark_of
from tests.syntax import modules

STATE = KeyedState(
    uid="u",
    name="s",
    kind=StateKind.MAP,
    schema=Schema((Field("k", "long"), Field("m", "long"), Field("v", "string"))),
    key=("k",),
    key_types=("Long",),
    max_parallelism=4,
    hash_scheme="java",
    entry=("m",),
)
HOW = [None, Deletion(1), Deletion(2), Deletion(1, cleared=True), Deletion(2, cleared=True)]
CHANGES = pa.table(
    {
        "k": range(5),
        "m": range(5),
        MARK: pa.array(map(mark_of, HOW), pa.int64()),
        "v": list("abcde"),
    }
)


def keys(changes: pa.Table) -> list[int]:
    return [*changes.column("k").to_pylist()]


def test_a_change_is_an_upsert_or_a_delete_of_named_columns() -> None:
    assert marks.are_upserts(CHANGES).tolist() == [True, False, False, False, False]
    assert keys(marks.upserts_of(CHANGES)) == [0]
    assert keys(marks.deletes_of(CHANGES)) == [1, 2, 3, 4]
    assert keys(marks.deletes_of(CHANGES, cleared=False)) == [1, 2]
    assert marks.widths_of(CHANGES, STATE).tolist() == [2, 1, 2, 1, 2]
    named = [[*marks.named_columns(how, STATE)] for how in HOW]
    assert named == [["k", "m", "v"], ["k"], ["k", "m"], ["k"], ["k", "m"]]


def test_the_stored_marker_is_a_width() -> None:
    """These numbers are part of the format: docs/FORMAT.md."""
    stored = marks.store_cleared(CHANGES)
    assert stored.column(MARK).to_pylist() == [0, 1, 2, 1, 2]
    cleared = marks.clear_deletes(stored)
    assert marks.clear_deletes(cleared).equals(cleared)
    assert keys(marks.deletes_of(cleared, cleared=False)) == []
    assert marks.store_cleared(cleared).equals(stored)


def test_an_expired_row_clears_its_identity() -> None:
    gone = marks.replace_upserts(CHANGES, marks.are_upserts(CHANGES), STATE)
    assert gone.column("v").to_pylist() == [None, *"bcde"]
    assert marks.widths_of(gone, STATE).tolist() == [2, 1, 2, 1, 2]
    assert keys(marks.deletes_of(gone, cleared=False)) == [1, 2]


def test_invalid_stored_markers_are_counted() -> None:
    changes = change_state(STATE)
    assert are_changes(changes)
    assert not are_changes(STATE)
    (stored,) = marks.store_cleared(CHANGES).to_batches()
    assert marks.count_invalid_marks(stored, changes) == 0
    strange = pa.record_batch({MARK: pa.array([0, 3, -1, None], pa.int64())})
    assert marks.count_invalid_marks(strange, changes) == 3
    assert marks.are_upserts(strange).tolist() == [True, False, False, False]


def test_no_other_module_reads_a_marker() -> None:
    readers = [module.name for module in modules("statestore") if "column(MARK)" in module.text]
    assert readers == [marks.__name__]
