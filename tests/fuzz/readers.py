"""Every way to read a checkpoint without a JVM, compared with the model.

A reader is a function of a world, a checkpoint's number and a ``Random`` that selects its options.
It raises AssertionError with the observed rows.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore import KeyGroupRange
from tests.fuzz.givers import plain_table, rows_of
from tests.fuzz.history import Column, Row
from tests.fuzz.kinds import canonical, plain
from tests.fuzz.model import Identity, Known, key_group, range_of
from tests.fuzz.world import NAME, UID, World

__all__ = ["READERS", "looked_up", "same", "some_keys", "with_groups"]

GROUP = Column("key_group", "integer")
Reader = Callable[[World, int, Random], None]


def same(found: Iterable[Row], wanted: Iterable[Row], columns: Iterable[Column], who: str) -> None:
    """Assert that rows are the same, in any order."""
    columns = tuple(columns)

    def counted(rows: Iterable[Row]) -> Counter[Any]:
        return Counter(tuple(canonical(row[c.name], c.kind) for c in columns) for row in rows)

    one, other = counted(found), counted(wanted)
    assert one == other, (
        f"{who}: {list((one - other).elements())[:3]} came, and "
        f"{list((other - one).elements())[:3]} are missing"
    )


def with_groups(
    world: World, known: Known, table: Any, most: int, groups: range, who: str
) -> list[Row]:
    """Return the rows of a table with key groups, after a check of the key groups."""
    rows = rows_of(table, (GROUP, *known.columns))
    keys = world.shape.key
    for row in rows:
        group = row["key_group"]
        assert group in groups, f"{who}: a row of key group {group} in {groups}"
        identity = world.model.identity_of(row, len(keys))
        seen = world.groups.setdefault((most, identity), group)
        assert seen == group, f"{who}: {identity} in key group {group}, and {seen} before"
        if world.shape.scheme == "java" and len(keys) == 1:
            right = key_group(row[keys[0].name], keys[0].kind, most)
            assert right in (None, group), f"{who}: {identity} in key group {group}, not {right}"
    return rows


def _restored(world: World, number: int, draw: Random, **options: Any) -> Any:
    most = min(world.model.known[number].max_parallelism, 6)
    return world.store.restore(
        checkpoint=number,
        parallelism=draw.randint(1, most),
        now_ms=world.model.now_ms,
        verify=draw.random() < 0.2,
        **options,
    )


def subtasks(world: World, number: int, draw: Random) -> None:
    """Each subtask has the rows of its range, in order of key group."""
    known = world.model.known[number]
    restored = _restored(world, number, draw)
    keyed, found = restored.keyed(UID, NAME), []
    for subtask in range(restored.parallelism):
        own = range_of(subtask, restored.parallelism, known.max_parallelism)
        table = keyed.to_arrow(subtask)
        rows = with_groups(world, known, table, known.max_parallelism, own, "subtask")
        groups = [row["key_group"] for row in rows]
        assert groups == sorted(groups), f"subtask: key groups {groups}"
        seen = [key for key, _ in groupby(world.key_identity(row) for row in rows)]
        assert len(seen) == len(set(seen)), "subtask: the rows of a key lie apart"
        found += rows
    same(found, world.model.visible(known).values(), known.columns, "subtask")


def balanced(world: World, number: int, draw: Random) -> None:
    """Ranges that are balanced by rows or bytes return the same rows."""
    known = world.model.known[number]
    restored = _restored(world, number, draw, balance=draw.choice(("rows", "bytes")))
    keyed = restored.keyed(UID, NAME)
    every = range(known.max_parallelism)
    found = [
        row
        for subtask in range(restored.parallelism)
        for row in with_groups(
            world,
            known,
            keyed.to_arrow(subtask),
            known.max_parallelism,
            every,
            "balanced",
        )
    ]
    same(found, world.model.visible(known).values(), known.columns, "balanced")


def other_ceiling(world: World, number: int, draw: Random) -> None:
    """More or fewer key groups return the same rows."""
    known = world.model.known[number]
    stored = known.max_parallelism
    divisors = [part for part in range(1, stored + 1) if stored % part == 0]
    most = draw.choice([*divisors, 2 * stored, 3 * stored])
    restored = world.store.restore(
        checkpoint=number,
        parallelism=draw.randint(1, min(most, 5)),
        max_parallelism=most,
        now_ms=world.model.now_ms,
    )
    keyed, found = restored.keyed(UID, NAME), []
    for subtask in range(restored.parallelism):
        own = range_of(subtask, restored.parallelism, most)
        table = keyed.to_arrow(subtask)
        found += with_groups(world, known, table, most, own, "ceiling")
    same(found, world.model.visible(known).values(), known.columns, "ceiling")


def some_groups(world: World, number: int, draw: Random) -> None:
    """The requested key groups are returned, for any owner."""
    known = world.model.known[number]
    keyed = _restored(world, number, draw).keyed(UID, NAME)
    first = draw.randrange(known.max_parallelism)
    last = draw.randrange(first, known.max_parallelism)
    found = []
    for one in (KeyGroupRange(0, first), KeyGroupRange(first, last)):
        table = keyed.key_groups(one).read_all()
        groups = range(one.first, one.last + 1)
        found.append(with_groups(world, known, table, known.max_parallelism, groups, "key_groups"))
    rest = [row for row in found[1] if row["key_group"] != first]
    if last + 1 < known.max_parallelism:
        table = keyed.key_groups(KeyGroupRange(last + 1, known.max_parallelism - 1)).read_all()
        rest += rows_of(table, (GROUP, *known.columns))
    same(found[0] + rest, world.model.visible(known).values(), known.columns, "key_groups")


def _by_key(world: World, known: Known) -> dict[Identity, list[Row]]:
    """Return the rows of every key that the world has seen, or [] for a key without rows."""
    keys = len(world.shape.key)
    found: dict[Identity, list[Row]] = {}
    for one in world.model.known.values():
        found |= {identity[:keys]: [] for identity in one.rows}
    for identity, row in world.model.visible(known).items():
        found[identity[:keys]].append(row)
    return found


def some_keys(world: World, known: Known, draw: Random) -> list[tuple[Any, Identity, list[Row]]]:
    """Return some keys in the form that ``get`` accepts, and the rows of each."""
    keys = len(world.shape.key)
    samples = {
        identity[:keys]: world.key_of(row)
        for one in world.model.known.values()
        for identity, row in one.rows.items()
    }
    every = [(samples[one], one, rows) for one, rows in _by_key(world, known).items()]
    return draw.sample(every, min(len(every), 4))


def get(world: World, number: int, draw: Random) -> None:
    """Look up single keys, by value, tuple or dictionary."""
    known = world.model.known[number]
    keyed = _restored(world, number, draw).keyed(UID, NAME)
    for key, _, rows in some_keys(world, known, draw):
        names = [column.name for column in world.shape.key]
        if draw.random() < 0.3:
            key = dict(zip(names, key if len(names) > 1 else (key,), strict=True))
        same(looked_up(keyed.get(key), known), rows, known.columns, f"get({key!r})")


def lazy(world: World, number: int, draw: Random) -> None:
    """Look up single keys in the subtask that owns them, one key group at a time."""
    known = world.model.known[number]
    restored = _restored(world, number, draw)
    keyed = restored.keyed(UID, NAME)
    limit = draw.choice((1, 10_000))
    parts = [keyed.lazy(i, limit_bytes=limit) for i in range(restored.parallelism)]
    for key, identity, rows in some_keys(world, known, draw):
        group = world.groups.get((known.max_parallelism, identity))
        if group is not None:
            owner = group * restored.parallelism // known.max_parallelism
            found = looked_up(parts[owner].get(key), known)
            same(found, rows, known.columns, f"lazy.get({key!r})")


def keys(world: World, number: int, draw: Random) -> None:
    """Look up many keys together."""
    known = world.model.known[number]
    keyed = _restored(world, number, draw).keyed(UID, NAME)
    some = some_keys(world, known, draw)
    names = world.shape.key
    several = len(names) > 1
    asked = [
        dict(zip([c.name for c in names], key if several else (key,), strict=True))
        for key, _, _ in some
    ]
    table = keyed.lookup(plain_table(asked, names))
    every = range(known.max_parallelism)
    found = with_groups(world, known, table, known.max_parallelism, every, "keys")
    same(found, [row for _, _, rows in some for row in rows], known.columns, "keys")


def key_of_store(world: World, number: int, draw: Random) -> None:
    """``store.key`` finds one key in all states."""
    known = world.model.known[number]
    for key, _, rows in some_keys(world, known, draw)[:2]:
        states = world.store.inspect.key(
            key, number, operator=UID, state=NAME, now_ms=world.model.now_ms
        )
        (state,) = states.states
        same(looked_up(state.rows, known), rows, known.columns, f"key({key!r})")


def query(world: World, number: int, draw: Random) -> None:
    """SQL returns the state's rows."""
    known = world.model.known[number]
    now_ms = world.model.now_ms
    table = world.store.query(f'SELECT * FROM "{NAME}"', number, now_ms=now_ms).read_all()
    every = range(known.max_parallelism)
    found = with_groups(world, known, table, known.max_parallelism, every, "query")
    wanted = world.model.visible(known)
    same(found, wanted.values(), known.columns, "query")
    group = draw.randrange(known.max_parallelism)
    sql = f'SELECT count(*) AS n FROM "{NAME}" WHERE key_group <= {group}'
    (counted,) = world.store.query(sql, number, now_ms=now_ms).read_all().to_pylist()
    assert counted["n"] == sum(row["key_group"] <= group for row in found), f"query: {counted}"


def export(world: World, number: int, draw: Random) -> None:
    """``restore_to`` writes a folder of Parquet files."""
    known = world.model.known[number]
    parallelism = draw.randint(1, min(known.max_parallelism, 4))
    with tempfile.TemporaryDirectory(dir=world.folder) as folder:
        world.store.restore(
            checkpoint=number, parallelism=parallelism, now_ms=world.model.now_ms
        ).export(folder)
        files = sorted(Path(folder).glob(f"{UID}/{NAME}/subtask=*/*.parquet"))
        assert len(files) == parallelism, f"export: {files}"
        tables = [pq.ParquetFile(file).read() for file in files]
    every = range(known.max_parallelism)
    table = pa.concat_tables(tables)
    found = with_groups(world, known, table, known.max_parallelism, every, "export")
    same(found, world.model.visible(known).values(), known.columns, "export")


def elements(world: World, number: int, draw: Random) -> None:
    """Compare operator states as they were stored, and after redistribution."""
    known = world.model.known[number]
    restored = _restored(world, number, draw)
    parallelism = restored.parallelism
    for operator in world.shape.operators:
        lists = known.elements[operator.name]
        state = restored.operator_state(UID, operator.name)
        who = f"{operator.mode} state at {parallelism}"
        if any(lists):
            stored = [_elements(of, operator.columns) for of in state.per_old_subtask()]
            assert stored == [_elements(of, operator.columns) for of in lists], who
        dealt = [_elements(state.subtask(i), operator.columns) for i in range(parallelism)]
        joined = [element for of in lists for element in _elements(of, operator.columns)]
        if operator.mode != "split":
            assert dealt == [joined] * parallelism, who
            continue
        # The blocks of one state start at the subtask where those of the previous state ended.
        turned = ([*dealt[at:], *dealt[:at]] for at in range(parallelism))
        assert joined in [[one for of in each for one in of] for each in turned], who
        sizes = sorted(map(len, dealt))
        if parallelism == known.parallelism:
            assert [len(of) for of in dealt] == [len(of) for of in lists], who
        else:
            assert sizes[-1] - sizes[0] <= 1, f"{who}: {sizes}"


def _elements(rows: Iterable[Row], columns: tuple[Column, ...]) -> list[Any]:
    return [tuple(canonical(plain(row[c.name], c.kind), c.kind) for c in columns) for row in rows]


def looked_up(rows: Iterable[Row], known: Known) -> list[Row]:
    """Return the rows of a lookup as test values, without the optional key group."""
    found = []
    for row in rows:
        assert set(row) - {"key_group"} == set(known.names), f"columns {list(row)}"
        found.append({c.name: plain(row[c.name], c.kind) for c in known.columns})
    return found


READERS: dict[str, Reader] = {
    "subtasks": subtasks,
    "balanced": balanced,
    "other ceiling": other_ceiling,
    "key groups": some_groups,
    "get": get,
    "lazy": lazy,
    "keys": keys,
    "key": key_of_store,
    "query": query,
    "export": export,
    "elements": elements,
}
