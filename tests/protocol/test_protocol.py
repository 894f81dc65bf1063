"""The protocol's model satisfies all invariants, and each restored defect violates one."""

from __future__ import annotations

import pytest

from tests.protocol import claims
from tests.protocol.model import FAULTS, State, steps
from tests.protocol.run import CLAIMS, SMALL, explore, main

pytestmark = pytest.mark.slow


@pytest.mark.search_program
def test_no_order_of_requests_violates_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    """I4, I6, I9; `make protocol` runs more actors at the same time."""
    assert main(["--small"]) == 0
    said = capsys.readouterr().out
    assert said.count("nothing is wrong") == len(SMALL) + len(CLAIMS)


SLOWLY_FOUND = {
    *("old files are named again", "young tombstones go", "an error deletes a shared name"),
    *("tombstones go first", "names are shared"),
}


@pytest.mark.search_program
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.long if fault in SLOWLY_FOUND else ())
        for fault in FAULTS
    ],
)
def test_each_restored_fault_is_found(fault: str) -> None:
    found = (explore(first, frozenset({fault})) for first in SMALL)
    broken, way = next((broken, way) for _, broken, way in found if broken is not None)
    assert broken
    assert way


@pytest.mark.parametrize("fault", claims.FAULTS)
def test_each_restored_fault_of_claims_is_found(fault: str) -> None:
    _, broken, way = explore(CLAIMS[0], frozenset({fault}))
    assert broken
    assert way[-1].startswith("w0")


def _stores(first: State, *, tidy: bool) -> set[State]:
    """Return all stores that the actors can reach, without the knowledge of the actors."""
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


@pytest.mark.search_program
@pytest.mark.parametrize("first", [one for one in SMALL if len(one.actors) < 4])
def test_merging_equivalent_states_reaches_every_store(first: State) -> None:
    """Every store is reached, with and without merging the states that continue alike."""
    assert _stores(first, tidy=True) == _stores(first, tidy=False)


@pytest.mark.search_program
def test_the_command_prints_the_steps_to_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", "--fault", "no second look"]) == 1
    assert "is held, and has lost" in capsys.readouterr().out
