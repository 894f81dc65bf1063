"""The forms of one history, which many tests use, are stored as their names say."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.format.layers import live_rows
from statestore.keys.groups import KeyGroupRange
from tests.support.forms import FORMS, GROUPS, history, names_of, rows_of, state_of

EVERY = KeyGroupRange(0, GROUPS - 1)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ranged", "partitioned"])
def test_each_form_is_stored_as_described_with_the_same_rows(tmp_path: Path, layout: str) -> None:
    made = {form: history(tmp_path / form, form, layout) for form in FORMS}
    states = {
        form: [state_of(one.store, number) for number in one.taken] for form, one in made.items()
    }
    for one in made.values():
        assert one.taken == made["plain"].taken
        assert [rows_of(one.store, number) for number in one.taken] == [*one.taken.values()]

    assert [len(state.layers) for state in states["plain"]] == [0] * 5
    assert not names_of(made["plain"].store, 4) & names_of(made["plain"].store)

    assert [len(state.layers) for state in states["layered"]] == [0, 1, 2, 3, 4]
    assert len({state.handles for state in states["layered"]}) == 1

    newest = states["compacted"][-1]
    assert 0 < len(newest.layers) < 4
    assert any(layer.depth for layer in newest.layers), "changes were merged"
    assert any(live_rows(layer, EVERY) < layer.entry.rows for layer in newest.layers)
    first = states["compacted"][0].handles
    assert {*newest.handles} - {*first}, "changes were folded into the base"
