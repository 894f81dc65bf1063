"""Updates that are written for one key at a time."""

from __future__ import annotations

from typing import Any

from statestore.streaming import MicroBatch, by_key
from tests.streaming.world import EVENTS, World


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
    for row in sorted(restored.subtask(0).read_all().to_pylist(), key=lambda r: int(r["position"])):
        found[row["user"]].append(row["id"])
    assert found == {"a": [22, 30, 32], "b": [23, 31, 33]}
