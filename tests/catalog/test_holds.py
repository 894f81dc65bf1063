"""What an error of an unknown hold suggests, and when a hold ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statestore.catalog.holds import Holds, Pin, Savepoint
from statestore.errors import CheckpointNotFoundError
from statestore.storage import LocalStorage


@pytest.fixture
def holds(tmp_path: Path) -> Holds:
    return Holds(LocalStorage(str(tmp_path)))


def pin(holds: Holds, token: str) -> None:
    holds.put_pin(Pin(token, 1, "me", until_ms=1000), visible=lambda: None)


def save(holds: Holds, name: str) -> None:
    holds.put_savepoint(Savepoint(name, 2, 0), visible=lambda: None)


@pytest.mark.parametrize(
    ("put", "look"), [(pin, Holds.refuse_unknown_pin), (save, Holds.savepoint)]
)
def test_an_unknown_hold_names_the_nearest_one_or_ten_others(
    holds: Holds, put: Callable[[Holds, str], None], look: Callable[[Holds, str], object]
) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"existing (pins|savepoints): none($| \()"):
        look(holds, "xxx")
    names = [f"audit-{number:02}" for number in range(11)]
    for name in names:
        put(holds, name)
    look(holds, names[7])
    with pytest.raises(CheckpointNotFoundError, match=r": 'audit-03'($| \()"):
        look(holds, "audit-03x")
    with pytest.raises(CheckpointNotFoundError) as refused:
        look(holds, "xxx")
    assert [name for name in names if name in str(refused.value)] == names[:10]


def test_a_pin_holds_until_its_lease_ends_and_a_savepoint_always(holds: Holds) -> None:
    pin(holds, "t")
    save(holds, "s")
    assert holds.held(999) == {1: "a pin of me", 2: "savepoint 's'"}
    assert holds.held(1000) == {2: "savepoint 's'"}
    holds.delete_pin("t")
    holds.delete_pin("t")
    holds.delete_savepoint("s")
    assert (holds.held(999), holds.pins(), holds.savepoints()) == ({}, (), ())
