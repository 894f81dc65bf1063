"""The checker accepts what the consistency model permits, and objects to each violation of it."""

from __future__ import annotations

import pytest

from tests.linearizability.history import (
    History,
    commit,
    expire,
    hold,
    latest,
    list_ids,
    look_up,
    read,
    release,
)
from tests.linearizability.judge import violations

pytestmark = [pytest.mark.slow, pytest.mark.search_program]

TWO = [commit(0, 0, 1, 1, "a", "done"), commit(0, 2, 3, 2, "b", "done")]
HELD = hold(0, 0, 1, "name", 1, "done")

LINEARIZABLE: dict[str, History] = {
    "nothing happens": [],
    "a read before the first commit": [latest(1, 0, 1, 0), commit(0, 2, 3, 1, "a", "done")],
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
        latest(1, 8, 9, 5),
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
    "a checkpoint expires": [
        *TWO,
        read(1, 4, 5, 1, "a"),
        expire(0, 6, 7, 1, "done"),
        list_ids(1, 8, 9, [2]),
        read(1, 10, 11, 1, ""),
    ],
    "a list during an expiry still has the checkpoint": [
        *TWO,
        expire(0, 4, 9, 1, "done"),
        list_ids(1, 5, 6, [1, 2]),
        list_ids(1, 7, 8, [2]),
    ],
    "a client that died may have expired a checkpoint": [
        *TWO,
        expire(0, 4, None, 1, "unknown"),
        list_ids(1, 5, 6, [1, 2]),
        list_ids(1, 7, 8, [2]),
    ],
    "a client that died may not have expired a checkpoint": [
        *TWO,
        expire(0, 4, None, 1, "unknown"),
        list_ids(1, 5, 6, [1, 2]),
        list_ids(1, 7, 8, [1, 2]),
    ],
    "two clients expire one checkpoint": [
        *TWO,
        expire(0, 4, 5, 1, "done"),
        expire(1, 4, 7, 1, "done"),
        list_ids(1, 8, 9, [2]),
    ],
    "a savepoint is created and deleted": [
        look_up(1, -2, -1, "name", 0),
        HELD,
        look_up(1, 2, 3, "name", 1),
        look_up(1, 2, 3, "other", 0),
        release(0, 4, 7, "name", "done"),
        look_up(1, 5, 6, "name", 1),
        look_up(1, 8, 9, "name", 0),
    ],
    "a savepoint moves to another checkpoint": [
        HELD,
        release(2, 2, 6, "name", "done"),
        hold(2, 3, 6, "name", 5, "done"),
        look_up(1, 2, 5, "name", 0),
        look_up(1, 7, 8, "name", 5),
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
    "a reader gets an old checkpoint as the newest": (
        ["list"],
        [*TWO, latest(1, 4, 5, 1)],
    ),
    "a reader of the newest checkpoint finds none": (
        ["list"],
        [*TWO, latest(1, 4, 5, 0)],
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
    "a checkpoint is gone that nobody expires": (
        ["register", "list"],
        [*TWO, read(1, 4, 5, 1, ""), list_ids(1, 6, 7, [2])],
    ),
    "a checkpoint is gone before its expiry begins": (
        ["register", "list"],
        [*TWO, list_ids(1, 4, 5, [2]), read(1, 6, 7, 1, ""), expire(0, 8, 9, 1, "done")],
    ),
    "an expired checkpoint returns": (
        ["register", "list"],
        [
            *TWO,
            expire(0, 4, 9, 1, "done"),
            list_ids(1, 5, 6, [2]),
            list_ids(1, 7, 8, [1, 2]),
            read(2, 5, 6, 1, ""),
            read(2, 7, 8, 1, "a"),
        ],
    ),
    "an expiry that was reported did not happen": (
        ["register", "list"],
        [*TWO, expire(0, 4, 5, 1, "done"), read(1, 6, 7, 1, "a"), list_ids(1, 8, 9, [1, 2])],
    ),
    "the newest checkpoint expires": (
        ["list"],
        [*TWO, expire(0, 4, 5, 2, "done")],
    ),
    "an id is used again": (
        ["register", "list"],
        [*TWO, expire(0, 4, 5, 1, "done"), commit(0, 6, 7, 1, "c", "done")],
    ),
    "a savepoint is gone before its deletion begins": (
        ["savepoint"],
        [HELD, look_up(1, 2, 3, "name", 0), release(0, 4, 5, "name", "done")],
    ),
    "a savepoint has another checkpoint": (
        ["savepoint"],
        [HELD, look_up(1, 2, 3, "name", 2)],
    ),
    "a deleted savepoint returns": (
        ["savepoint"],
        [HELD, release(0, 2, 3, "name", "done"), look_up(1, 4, 5, "name", 1)],
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
