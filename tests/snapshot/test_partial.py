"""A partial restore: some key groups or keys, reading only the files that contain them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import key_group_of
from statestore.errors import InvalidArgumentError, NullKeyError, ParallelismError
from statestore.keys.groups import KeyGroupRange
from tests.support.forms import GROUPS, Checkpoints, entries_of, users


@pytest.fixture(params=["partitioned", "ranged"])
def layered(tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    made = Checkpoints(tmp_path, layout=request.param)
    made.full(users(80, 3))
    made.change({("u005", 9): 1, ("new", 0): 2}, entries=[("u006", 1)], cleared=["u007"])
    made.opened()
    return made


def with_groups(layered: Checkpoints, groups: set[int], most: int = GROUPS) -> set[str]:
    """Return the data files, base and changes, that have any of these stored key groups."""
    entry = layered.store.checkpoint().manifest.keyed[0]
    return {
        f"{part.table.path}/{handle.path}"
        for part in entry.parts
        for handle in part.handles
        if not groups.isdisjoint(handle.key_groups)
    }


@pytest.mark.parametrize("most", [GROUPS, 3 * GROUPS, GROUPS // 4])
def test_key_groups_return_exactly_their_rows(layered: Checkpoints, most: int) -> None:
    state = layered.store.restore(parallelism=3, max_parallelism=most).keyed("u", "s")
    dice = random.Random(most)
    for _ in range(5):
        first = dice.randrange(most)
        own = KeyGroupRange(first, dice.randrange(first, most))
        layered.opened()
        found = state.key_groups(own).read_all().to_pylist()
        opened = layered.opened()
        groups = [row["key_group"] for row in found]
        assert all(
            key_group_of(row["k"], max_parallelism=most) == row["key_group"] for row in found
        )
        assert most != GROUPS or groups == sorted(groups)
        assert entries_of(found) == {
            (k, m): v
            for (k, m), v in layered.rows.items()
            if key_group_of(k, max_parallelism=most) in own
        }
        stored = {g for g in range(GROUPS) for one in own if (g % most == one or one % GROUPS == g)}
        assert set(opened) <= with_groups(layered, stored)


def test_one_key_group_opens_its_files_once(tmp_path: Path) -> None:
    layered = Checkpoints(tmp_path, layout="partitioned")
    layered.full(users(200))
    state = layered.store.restore(parallelism=1).keyed("u", "s")
    layered.opened()
    state.key_groups(KeyGroupRange(3, 3)).read_all()
    assert layered.opened() == dict.fromkeys(with_groups(layered, {3}), 1)
    state.to_arrow(0)
    assert len(layered.opened()) == GROUPS


@pytest.mark.parametrize("most", [GROUPS, 3 * GROUPS, GROUPS // 4])
def test_keys_return_exactly_their_rows(layered: Checkpoints, most: int) -> None:
    state = layered.store.restore(parallelism=2, max_parallelism=most).keyed("u", "s")
    wanted = ["u005", "u006", "u007", "new", "nobody", "u005"]
    layered.opened()
    found = state.lookup([{"k": key} for key in wanted]).to_pylist()
    opened = layered.opened()
    assert entries_of(found) == {e: v for e, v in layered.rows.items() if e[0] in wanted}
    for row in found:
        assert row["key_group"] == key_group_of(row["k"], max_parallelism=most)
    groups = {key_group_of(key, max_parallelism=GROUPS) for key in wanted}
    assert set(opened) == with_groups(layered, groups)
    assert set(opened.values()) == {1}
    frame = pa.table({"k": wanted, "other": range(len(wanted))})
    assert entries_of(state.lookup(frame).to_pylist()) == entries_of(found)
    assert state.lookup(frame.slice(0, 0)).num_rows == 0
    assert layered.opened() == dict.fromkeys(opened, 1)  # only for the lookup before this one


def test_invalid_keys_and_key_groups_are_refused(layered: Checkpoints) -> None:
    state = layered.store.restore(parallelism=2).keyed("u", "s")
    with pytest.raises(ParallelismError, match=r"state 's' of operator 'u' has key groups 0\.\.15"):
        state.key_groups(KeyGroupRange(3, GROUPS))
    with pytest.raises(InvalidArgumentError, match="'k' is missing"):
        state.lookup([{"m": 1}])
    with pytest.raises(NullKeyError):
        state.lookup(pa.table({"k": pa.array([None], pa.string())}))
    assert layered.opened() == {}
