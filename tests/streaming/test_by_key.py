"""Updates that are written for one key at a time."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.streaming import MicroBatch, by_key
from tests.streaming.world import EVENTS, World

pytestmark = pytest.mark.spark


def test_by_key_gets_a_keys_events_and_rows(world: World) -> None:
    """In pandas: what is returned is what the key has; nothing means that the key goes."""

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        import pandas as pd

        n = len(events) + int(state["n"].sum())
        total = int(events["amount"].sum()) + int(state["total"].sum())
        row = {"user": key[0], "n": n, "total": total}
        return pd.DataFrame([row] if n != 3 else [], columns=["user", "n", "total"])

    query = world.query(update=by_key("user", update))
    for number, users in enumerate(("aab", "abc", "ab")):
        query.process(world.frame(*users), MicroBatch("q", number))
    assert world.state() == {"a": (1, 1), "c": (1, 1)}


def test_by_key_with_a_list_of_rows(world: World) -> None:
    """A list state, the last three ids of a user: what falls out of it is deleted."""

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        import pandas as pd

        ids = [*state.sort_values("position")["id"], *sorted(events["id"])]
        kept = ids[-3:] if key[0] != "b" or len(ids) < 4 else ids[-1:]
        rows = {"user": key[0], "position": range(len(kept)), "id": kept}
        return pd.DataFrame(rows)

    query = world.query(
        schema="user string, position int, id long",
        update=by_key("user", update, entry="position"),
        options={"kind": "list", "entry": "position", "max_parallelism": 8},
    )
    for number in range(4):
        rows = [(10 * number + i, user, 1) for i, user in enumerate("abab" if number else "ab")]
        query.process(world.spark.createDataFrame(rows, EVENTS), MicroBatch("q", number))
    restored = world.store.restore(parallelism=1).keyed("totals", "per-user")
    found: dict[str, list[int]] = {"a": [], "b": []}
    for row in sorted(
        restored.to_arrow(0).read_all().to_pylist(), key=lambda r: int(r["position"])
    ):
        found[row["user"]].append(row["id"])
    assert found == {"a": [22, 30, 32], "b": [23, 31, 33]}


def test_by_key_with_lists_for_keys_and_entries(world: World) -> None:
    """A map state by list, of keys that are lists; what is not returned goes."""

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        import pandas as pd

        known = {tuple(entry): n for entry, n in zip(state["entry"], state["n"], strict=True)}
        for amount in events["amount"]:
            entry = (str(amount), None)
            known[entry] = known.get(entry, 0) + 1
        kept = {entry: n for entry, n in known.items() if n < 3}
        rows = {"users": [key[0]] * len(kept), "entry": [*kept], "n": [*kept.values()]}
        return pd.DataFrame(rows, columns=["users", "entry", "n"])

    query = world.query(
        key="users",
        schema="users array<string>, entry array<string>, n long",
        update=by_key("users", update, entry="entry"),
        options={"kind": "map", "entry": "entry", "max_parallelism": 8},
    )
    for number, amounts in enumerate(([1, 1, 2], [1, 3], [2, 2, 4])):
        rows = [(["a", None], amount) for amount in amounts] + [([], 7)]
        frame = world.spark.createDataFrame(rows, "users array<string>, amount long")
        query.process(frame, MicroBatch("q", number))
    restored = world.store.restore(parallelism=1).keyed("totals", "per-user")
    found = [
        (row["users"], row["entry"], row["n"])
        for row in restored.to_arrow(0).read_all().to_pylist()
    ]
    assert sorted(found, key=repr) == [(["a", None], ["3", None], 1), (["a", None], ["4", None], 1)]
