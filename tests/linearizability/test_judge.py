"""The checker accepts what the consistency model permits, and objects to each violation of it."""

from __future__ import annotations

import pytest

from tests.linearizability.history import History, commit, list_ids, read
from tests.linearizability.judge import violations

pytestmark = pytest.mark.slow

LINEARIZABLE: dict[str, History] = {
    "nothing happens": [],
    "one after the other": [
        commit(0, 0, 1, 1, "a", "done"),
        list_ids(1, 2, 3, [1]),
        commit(0, 4, 5, 2, "b", "done"),
        list_ids(1, 6, 7, [1, 2]),
        read(1, 8, 9, 2, "b"),
    ],
    "a lower id becomes visible later": [
        commit(0, 0, 1, 5, "a", "done"),
        list_ids(1, 2, 3, [5]),
        commit(2, 4, 5, 3, "b", "done"),
        list_ids(1, 6, 7, [3, 5]),
    ],
    "a list during a commit does not have it yet": [
        commit(0, 0, 9, 1, "a", "done"),
        list_ids(1, 2, 3, []),
        list_ids(1, 4, 5, [1]),
    ],
    "a writer that died may have committed": [
        commit(0, 0, None, 1, "a", "unknown"),
        list_ids(1, 2, 3, []),
        list_ids(1, 4, 5, [1]),
    ],
    "a writer that died may not have committed": [
        commit(0, 0, None, 1, "a", "unknown"),
        commit(1, 2, 3, 1, "b", "done"),
        read(2, 4, 5, 1, "b"),
    ],
    "a loser is refused": [
        commit(0, 0, 3, 1, "a", "done"),
        commit(1, 1, 4, 1, "b", "refused"),
        read(2, 5, 6, 1, "a"),
    ],
}

VIOLATIONS: dict[str, tuple[list[str], History]] = {
    "two writers win": (
        ["register", "list"],
        [commit(0, 0, 3, 1, "a", "done"), commit(1, 1, 4, 1, "b", "done")],
    ),
    "a refused checkpoint is visible": (
        ["register", "list"],
        [
            commit(0, 0, 1, 1, "a", "refused"),
            list_ids(1, 2, 3, [1]),
            read(1, 4, 5, 1, "a"),
        ],
    ),
    "a list goes back in time": (
        ["list"],
        [
            commit(0, 0, 9, 1, "a", "done"),
            list_ids(1, 2, 3, [1]),
            list_ids(2, 4, 5, []),
        ],
    ),
    "a commit that was reported is not listed": (
        ["list"],
        [commit(0, 0, 1, 1, "a", "done"), list_ids(1, 2, 3, [])],
    ),
    "two readers see two commits in different orders": (
        ["list"],
        [
            commit(0, 0, 9, 1, "a", "done"),
            commit(1, 0, 9, 2, "b", "done"),
            list_ids(2, 1, 2, [1]),
            list_ids(3, 1, 2, [2]),
        ],
    ),
    "a checkpoint has the contents of another writer": (
        ["register"],
        [commit(0, 0, 1, 1, "a", "done"), read(1, 2, 3, 1, "b")],
    ),
    "a checkpoint changes": (
        ["register"],
        [
            commit(0, 0, None, 1, "a", "unknown"),
            commit(1, 0, None, 1, "b", "unknown"),
            read(2, 1, 2, 1, "a"),
            read(2, 3, 4, 1, "b"),
        ],
    ),
}


@pytest.mark.parametrize("name", LINEARIZABLE)
def test_a_permitted_history_is_accepted(name: str) -> None:
    assert violations([LINEARIZABLE[name]]) == [[]]


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_found(name: str) -> None:
    violated, history = VIOLATIONS[name]
    assert violations([history]) == [violated]


def test_histories_are_judged_one_by_one() -> None:
    (_, wrong), right = VIOLATIONS["two writers win"], LINEARIZABLE["one after the other"]
    assert violations([right, wrong, right]) == [[], ["register", "list"], []]
