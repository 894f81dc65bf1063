"""The model of the protocol: nothing is wrong in it, and what is put back is found."""

from __future__ import annotations

import pytest

from tests.protocol.model import FAULTS, State, steps
from tests.protocol.run import SMALL, explore, main

pytestmark = pytest.mark.slow


def test_nothing_is_wrong_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    """I4, I6, I9; `make protocol` has more actors at once."""
    assert main(["--small"]) == 0
    said = capsys.readouterr().out
    assert said.count("nothing is wrong") == len(SMALL)


@pytest.mark.parametrize("fault", FAULTS)
def test_it_finds(fault: str) -> None:
    found = (explore(first, frozenset({fault})) for first in SMALL)
    broken, way = next((broken, way) for _, broken, way in found if broken is not None)
    assert broken
    assert way


def _stores(first: State, *, tidy: bool) -> set[State]:
    """Return all stores that actors can come to, without what the actors know."""
    known, waiting = {first}, [first]
    while waiting:
        new = {after for _, after in steps(waiting.pop(), frozenset(), tidy=tidy)} - known
        known |= new
        waiting += new
    seen = set()
    for state in known:
        named = state.files_of(state.visible | state.held)
        young, old = state.young & named, state.old & named
        seen.add(state._replace(actors=(), young=young | old, old=frozenset(), ages=0))
    return seen


@pytest.mark.parametrize("first", [one for one in SMALL if len(one.actors) < 4])
def test_of_states_that_go_on_alike_one_is_enough(first: State) -> None:
    """Every store is come to, whether or not the others are left out."""
    assert _stores(first, tidy=True) == _stores(first, tidy=False)


def test_the_command_prints_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", "--fault", "no second look"]) == 1
    assert "is held, and has lost" in capsys.readouterr().out
