"""Call every public method of the package with arguments that are mostly valid."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import statestore
from statestore import StateOptions, StateStore, TimeToLive, jobgraph
from statestore.keys.groups import default_max_parallelism, effective_max_parallelism
from statestore.rows.dataframes import RowStream
from statestore.snapshot.state_spec import Changes
from statestore.snapshot.subtask_writer import KeyedWriter
from tests.fuzz.hostile import draw_hostile, draw_rows

__all__ = ["Call", "draw_call", "made_store"]

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
ROWS = pa.table({"user": ["ann", "bob"], "n": [1, 2]}, schema=SCHEMA)
OFFSETS = [[{"topic": "t", "partition": 0, "offset": 3}], []]


def made_store(folder: Path) -> StateStore:
    """Return a store with two checkpoints, which contain keyed state, changes to it, and union
    state.
    """
    store = StateStore.open(str(folder), table_format="parquet")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("op", "totals", ROWS, key="user", max_parallelism=4)
        checkpoint.write_union("op", "offsets", OFFSETS)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("op", "totals", ROWS.slice(1), key="user")
        checkpoint.write_union("op", "offsets", OFFSETS)
    return store


@dataclass(frozen=True)
class Call:
    """A method with its arguments, ready to be called. ``text`` describes the call."""

    text: str
    run: Callable[[], Any]


# Valid arguments by parameter name.
GOOD: dict[str, Any] = {
    "operator": "op",
    "state": "totals",
    "key": "ann",
    "keys": pa.table({"user": ["ann"]}),
    "checkpoint": "latest",
    "checkpoint_id": 3,
    "a": 1,
    "b": 2,
    "sql": "SELECT * FROM totals",
    "subtask": 0,
    "parallelism": 2,
    "max_parallelism": 4,
    "key_groups": statestore.KeyGroupRange(0, 3),
    "lease": "1s",
    "token": "t",
    "retain": 1,
    "parallelisms": [1, 2],
    "hosts": {"a": 2},
    "rows": ROWS,
    "elements": OFFSETS,
    "previous": "latest",
    "upserts": ROWS,
    "deletes": [{"user": "ann"}],
    "where": {"partition": [0]},
    "delete": ["ann"],
    "put": [{"user": "ann", "n": 1}],
    "time_domain": "event",
    "columns": {"user": "ann"},
    "operator_max_parallelism": 4,
    "kind": "value",
    "hash_scheme": "java",
    "key_type": None,
    "ttl": TimeToLive("1s", "n"),
    "duration_ms": 5,
    "column": "n",
    "first": 0,
    "last": 3,
    "inputs": [],
    "value": 1,
    "text": "",
    "mode": "split",
    "new_parallelism": 2,
}
SKIPPED = {"add_listener", "remove_listener", "on_progress", "listeners", "spark", "dataframe"}


def draw_call(store: StateStore, folder: Path, draw: Random) -> Call:
    """Return a call of a random public method. Two of three arguments are valid or omitted."""
    kind = draw.choice(("store", "store", "store", "restored", "writer", "writer", "functions"))
    if kind == "writer":
        return _writing(store, draw)
    if kind == "functions":
        function = draw.choice(_functions())
        return _call(function.__name__, function, draw)
    if kind == "restored":
        target, name = draw.choice(_restored(store))
        return _call(f"{type(target).__name__}.{name}", getattr(target, name), draw)
    target = draw.choice((store, store.inspect, store.maintenance))
    name = draw.choice([n for n in _public(target) if n not in ("snapshot", "fork", "copy")])
    to = str(folder / f"to{draw.randrange(10**9)}")
    return _call(f"{type(target).__name__}.{name}", getattr(target, name), draw, to=to)


def _public(target: Any) -> list[str]:
    return [
        name
        for name in dir(type(target))
        if not name.startswith("_")
        and name not in SKIPPED
        and callable(getattr(type(target), name))
        and not isinstance(inspect.getattr_static(type(target), name), classmethod)
    ]


def _functions() -> list[Callable[..., Any]]:
    names = (
        "key_group_of",
        "KeyGroupAssignment",
        "KeyGroupRange",
        "TimeToLive",
        "choose_batch_parallelism",
    )
    found: list[Callable[..., Any]] = [getattr(statestore, name) for name in names]
    found += [jobgraph.operator_id, jobgraph.redistribute, jobgraph.JobGraph.from_toml]
    return [*found, default_max_parallelism, effective_max_parallelism, StateStore.open]


def _restored(store: StateStore) -> list[tuple[Any, str]]:
    restored = store.restore(parallelism=2)
    keyed = restored.keyed("op", "totals")
    targets = [restored, keyed, keyed.lazy(0), restored.operator_state("op", "offsets")]
    return [
        (target, name)
        for target in targets
        for name in _public(target)
        if name not in ("rows_of", "contents")
    ]


def _call(text: str, function: Callable[..., Any], draw: Random, **good: Any) -> Call:
    try:
        parameters: Iterable[inspect.Parameter] = inspect.signature(function).parameters.values()
    except ValueError:
        parameters = ()
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in chain.from_iterable(map(_spelled, parameters)):
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name in SKIPPED:
            continue
        optional = parameter.default is not parameter.empty
        choice = draw.random()
        if choice < 0.35:
            value = draw_hostile(draw)
        elif optional and choice < 0.8:
            continue
        else:
            known = {**GOOD, "directory": good.get("to"), **good}
            value = known.get(parameter.name, parameter.default if optional else "a")
        if parameter.kind is parameter.KEYWORD_ONLY or optional or named:
            named[parameter.name] = value
        else:
            positional.append(value)
    said = [*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())]

    def run() -> Any:
        found = function(*positional, **named)
        return found.read_all() if isinstance(found, pa.RecordBatchReader | RowStream) else found

    return Call(f"{text}({', '.join(said)})", run)


def _spelled(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return a parameter, or the keywords that describe a keyed state in its place."""
    if parameter.annotation != "Unpack[StateOptions]":
        return [parameter]
    named, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    return [
        inspect.Parameter(name, named, default=empty if name == "key" else None)
        for name in StateOptions.__annotations__
    ]


def _writing(store: StateStore, draw: Random) -> Call:
    """Return a call that writes rows of any kind with one of the writer's methods."""
    hows = ("keyed", "changes", "against", "subtask", "operator", "edit", "options", "keys")
    how, rows = draw.choice(hows), draw_rows(draw)
    uid, name = draw.choice((("op", "totals"), ("new", "state")))
    option = draw.choice(
        ("key", "namespace", "entry", "kind", "layout", "ttl", "renamed", "dropped", "hash_scheme",
         "max_parallelism", "time_domain")
    )  # fmt: skip
    bad = draw_hostile(draw)
    mode = draw.choice(("split", "union", "broadcast"))

    def run() -> Any:
        if how == "edit":
            return store.maintenance.edit("op", "totals", rows=rows)
        if how == "keys":
            return store.restore(parallelism=1).keyed("op", "totals").lookup(rows)
        with store.snapshot(parallelism=2) as checkpoint:
            others = {("op", "totals"), ("op", "offsets")}
            if how == "operator":
                getattr(checkpoint, f"write_{mode}")(uid, "offsets", rows)
                others.discard((uid, "offsets"))
            elif how == "options":
                options: dict[str, Any] = {"key": "user", "max_parallelism": 4, option: bad}
                checkpoint.write_keyed(uid, name, ROWS, **options)
                others.discard((uid, name))
            else:
                _keyed(checkpoint, how, uid, name, rows)
                others.discard((uid, name))
            _carry(checkpoint, store, others)
        return None

    said = f"{option}={bad!r}" if how == "options" else f"{type(rows).__name__} {rows!r:.200}"
    return Call(f"{how} {mode if how == 'operator' else ''} {uid}: {said}", run)


def _keyed(checkpoint: Any, how: str, uid: str, name: str, rows: Any) -> None:
    options: dict[str, Any] = {"key": "user", "max_parallelism": 4}
    if how == "keyed":
        checkpoint.write_keyed(uid, name, rows, **options)
    elif how == "changes":
        checkpoint.write_changes(uid, name, Changes(rows, deletes=rows), **options)
    elif how == "against":
        checkpoint.write_changes_against(uid, name, rows, **options)
    else:
        writer = checkpoint.declare_keyed(uid, name, SCHEMA, **options)
        assert isinstance(writer, KeyedWriter)
        for subtask in range(writer.parallelism):
            checkpoint.acknowledge(writer.subtask(subtask).write(rows))


def _carry(checkpoint: Any, store: StateStore, others: set[tuple[str, str]]) -> None:
    manifest = store.checkpoint().manifest
    for entry in manifest.entries:
        if (entry.state.uid, entry.state.name) in others:
            checkpoint.carry(entry.state.uid, entry.state.name)
