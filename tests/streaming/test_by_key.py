"""Update functions that are called for one key at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.errors import ProcessorError
from statestore.streaming import MicroBatch, QueryState, StatefulQuery, by_key
from tests.interop.spark.queries import settings
from tests.streaming.every_type import every_type, ints
from tests.streaming.world import EVENTS, World
from tests.support.bits import bits

pytestmark = pytest.mark.spark


def test_by_key_gets_a_keys_events_and_rows(world: World) -> None:
    """In pandas: the returned rows replace the key's rows, and nothing deletes the key."""

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


@pytest.mark.long
def test_by_key_with_a_list_of_rows(world: World) -> None:
    """A list state with the last three ids of a user: older ids are deleted."""

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
    for row in sorted(restored.to_arrow(0).to_pylist(), key=lambda r: int(r["position"])):
        found[row["user"]].append(row["id"])
    assert found == {"a": [22, 30, 32], "b": [23, 31, 33]}


@pytest.mark.long
def test_by_key_with_lists_for_keys_and_entries(world: World) -> None:
    """A map state by list, with lists as keys; entries that are not returned are deleted."""

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
    found = [(row["users"], row["entry"], row["n"]) for row in restored.to_arrow(0).to_pylist()]
    assert sorted(found, key=repr) == [(["a", None], ["3", None], 1), (["a", None], ["4", None], 1)]


def of_pages(world: World, rows: pa.Table, function: Any, entry: str = "page") -> StatefulQuery:
    """Store rows as a map state of users, and return a query that continues with it."""
    options: dict[str, Any] = {"kind": "map", "entry": entry, "max_parallelism": 8}
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("totals", "per-user", rows, key="user", **options)
    state = QueryState(from_arrow_schema(rows.schema, prefer_timestamp_ntz=True), **options)
    update = by_key("user", function, entry=entry)
    return replace(world.query(update=update, succeeds=True), states={"per-user": state})


def stored(world: World, by: str = "page") -> pa.Table:
    """Return the rows of the newest checkpoint."""
    rows = world.store.restore(parallelism=1).keyed("totals", "per-user").to_arrow(0)
    return rows.sort_by(by)


@pytest.mark.long
def test_values_that_a_function_returns_unchanged_stay_the_same(world: World) -> None:
    """Bit for bit, for every type that a state can have, in any session time zone."""

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        return state.assign(n=state["n"] + len(events))

    rows = every_type()
    query = of_pages(world, rows, update)
    zones = ("Europe/Berlin", "America/St_Johns", "UTC")
    for number, zone in enumerate(zones):
        with settings(world.spark, {"spark.sql.session.timeZone": zone}):
            query.process(world.frame("ann"), MicroBatch("q", number))
    found = stored(world)
    assert found.column("n").to_pylist() == [1 + len(zones)] * 3
    for name in rows.schema.names:
        if name != "n":
            assert bits(found.column(name)) == bits(rows.column(name)), name


def test_entries_are_identified_by_times_that_python_cannot_represent(world: World) -> None:
    """Entries that a function does not return are deleted; entries that it adds are stored."""
    at = ints([2**63 - 1, 2**63 - 2, 0], pa.timestamp("us", "UTC"))
    rows = pa.table({"user": ["ann"] * 3, "at": at, "n": [1, 2, 3]})

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        return state[state["n"] != 2]

    of_pages(world, rows, update, entry="at").process(world.frame("ann"), MicroBatch("q", 0))
    assert stored(world, "n").column("n").to_pylist() == [1, 3]


NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
WHERE = r"the function of operator 'totals' failed for the key \('ann',\) of state 'per-user': "


def fails(key: Any, events: Any, state: Any) -> Any:
    raise ValueError("no such page")


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails, "ValueError: no such page"),
        (
            lambda key, events, state: state.assign(n=state["n"].astype("float64") + 2.0**60),
            r"row 0 .* 1\.15\S+ in the column 'n' of type long",
        ),
        pytest.param(
            lambda key, events, state: state.assign(n=1.5),
            r"1\.5 in the column 'n'.*long",
            id="a fraction",
        ),
        (lambda key, events, state: state.assign(m=1), r"columns \(user, page, n, m\)"),
        pytest.param(
            lambda key, events, state: state.drop(columns="n"),
            r"columns \(user, page\)",
            id="a column less",
        ),
        (lambda key, events, state: None, "DataFrame, not NoneType"),
    ],
)
def test_an_error_names_operator_state_key_column_and_value(
    world: World, function: Any, message: str
) -> None:
    """Nothing is committed, and the query can continue with a corrected function."""
    rows = pa.table({"user": ["ann", "ann"], "page": ["/a", "/b"], "n": [1, 2]})
    query = of_pages(world, rows, function)
    with pytest.raises(ProcessorError, match=WHERE + ".*" + message):
        query.process(world.frame("ann"), MicroBatch("q", 0))
    assert world.store.checkpoints() == (1,)


def test_a_function_gets_columns_with_arrow_types(world: World) -> None:
    """A long next to a null stays a long."""

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        import pandas as pd

        kinds = [str(kind) for kind in (*events.dtypes, *state.dtypes)]
        n = int(events["n"].sum()) if events["n"].isna().any() else -1
        rows = {"user": key[0], "n": n, "kinds": ",".join(kinds)}
        return pd.DataFrame([rows])

    query = world.query(schema="user string, n long, kinds string", update=by_key("user", update))
    rows = [("a", 2**62 + 1, NOON), ("a", None, None)]
    events = world.spark.createDataFrame(rows, "user string, n long, at timestamp")
    query.process(events, MicroBatch("q", 0))
    [found] = world.store.restore().keyed("totals", "per-user").get("a")
    text, long, instant = "string[pyarrow]", "int64[pyarrow]", "timestamp[us, tz=UTC][pyarrow]"
    assert found["n"] == 2**62 + 1
    assert found["kinds"] == ",".join([text, long, instant, text, long, text])
