"""The random parts of a history: commands with their arguments, and faults."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from statestore.testing.faults import Fault, FaultKind

__all__ = ["Care", "cares", "faults", "places"]

NAMES = ("before-upgrade", "audit")

crashes = [
    (FaultKind.DISCONNECTED, True),  # no later call arrives: the process is effectively dead
    (FaultKind.ERROR, False),
    (FaultKind.ANSWER_LOST, False),
]
faults = st.one_of(
    st.none(),
    st.builds(lambda at, how: Fault(at, *how), st.integers(1, 40), st.sampled_from(crashes)),
)
places = st.integers(0, 9)


@dataclass(frozen=True)
class Care:
    """A command that keeps, deletes or reads. Its verb determines which arguments it uses."""

    verb: str
    place: int = 0
    name: str = NAMES[0]
    hours: int = 1
    retain: int = 1
    by_age: bool = False
    at_once: bool = False


cares = st.builds(
    Care,
    st.sampled_from(
        ("savepoint", "delete savepoint", "pin", "unpin", "expire", "expire", "gc", "gc", "restore")
    ),
    place=places,
    name=st.sampled_from(NAMES),
    hours=st.integers(1, 48),
    retain=st.integers(1, 3),
    by_age=st.booleans(),
    at_once=st.booleans(),
)
