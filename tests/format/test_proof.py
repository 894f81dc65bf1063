"""A verification succeeds exactly if the subtasks have the stored rows."""

from __future__ import annotations

import pytest

from statestore.format.digest import RescaleProof, RowSet

STORED = RowSet(3, 5)


@pytest.mark.parametrize(
    ("subtasks", "holds"),
    [
        ((STORED,), True),
        ((RowSet(1, 2**64 - 1), RowSet(2, 6)), True),
        ((RowSet(0, 0), STORED, RowSet(0, 0)), True),
        ((RowSet(1, 1), RowSet(2, 5)), False),
        ((RowSet(1, 1), RowSet(1, 4)), False),
        ((STORED, STORED), False),
        ((), False),
    ],
)
def test_parts_sum_to_the_stored_rows(subtasks: tuple[RowSet, ...], holds: bool) -> None:
    """I7: rows and digests are summed modulo 2⁶⁴."""
    assert RescaleProof(STORED, subtasks).holds is holds


@pytest.mark.parametrize(
    ("subtasks", "holds"),
    [
        ((STORED, STORED), True),
        ((STORED, RowSet(3, 4)), False),
        ((RowSet(1, 1), RowSet(2, 4)), False),
    ],
)
def test_every_copy_equals_the_stored_rows(subtasks: tuple[RowSet, ...], holds: bool) -> None:
    """I7: this applies to union and broadcast state."""
    proof = RescaleProof(STORED, subtasks, copies=True)
    assert proof.holds is holds
    assert (proof.together == STORED) is holds
