"""A job graph as TOML, read into the arguments of its nodes, edges and options.

:meth:`statestore.model.graph.JobGraph.from_toml` says what a document holds. Here its shape is
checked: names of tables and keys, and what is a table, a list or a word. Values are checked by the
classes that take them. A place is written as in ``operator[1] ('totals')``, counted from 0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from statestore.errors import SettingsError

__all__ = ["GraphTables", "Table", "close_match", "graph_tables"]

Table = dict[str, Any]

_OPTIONS: Final = ("chaining", "chain_different_max", "auto_generate_uids")
_DEFAULTS: Final = ("parallelism", "max_parallelism")
_PLAIN: Final = ("name", "uid", "uid_hash", "parallelism", "max_parallelism", "slot_group")
_INPUTS: Final = ("inputs", "input")
_OPERATOR: Final = (*_PLAIN, "chaining", "kind", *_INPUTS)
_EDGE: Final = ("from", "partitioner", "exchange", "number")
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "source": ("source",),
    "legacy source": ("legacy_source",),
    "operator": (),
    "yielding operator": ("yielding",),
    "sink": ("yielding",),  # a sink's writer yields
}
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class GraphTables:
    """The arguments of every node and edge, each with its place, and the graph's options."""

    nodes: tuple[tuple[str, Table], ...]
    edges: tuple[tuple[str, Table], ...]
    options: Table


def graph_tables(text: str) -> GraphTables:
    """Return what a TOML document says of a job graph; SettingsError names what is wrong, where."""
    if not isinstance(text, str):
        raise SettingsError(f"a job graph is a string of TOML, not {type(text).__name__}")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the job graph is not valid TOML: {error}") from error
    _check_keys("the job graph", document, ("job", "operator"))
    job = _table("job", document.get("job", {}))
    _check_keys("job", job, (*_OPTIONS, *_DEFAULTS))
    defaults = {key: job[key] for key in _DEFAULTS if key in job}
    nodes: list[tuple[str, Table]] = []
    edges: list[tuple[str, Table]] = []
    for index, value in enumerate(_list("operator", document.get("operator", []))):
        place = f"operator[{index}]"
        table = _table(place, value)
        if "name" not in table:
            raise SettingsError(f"{place}: the key 'name' is missing")
        place += f" ({table['name']!r})"
        _check_keys(place, table, _OPERATOR)
        inputs = _inputs(place, table)
        nodes.append((place, defaults | _node(place, table, has_inputs=bool(inputs))))
        edges.extend((at, edge | {"target": table["name"]}) for at, edge in inputs)
    return GraphTables(
        tuple(nodes), tuple(edges), {key: job[key] for key in _OPTIONS if key in job}
    )


def close_match(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about a name that is not known: the nearest, or what there is."""
    names = list(known)
    close = get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = ", …" if len(names) > _LISTED else ""
    return f"there is {', '.join(map(repr, names[:_LISTED])) or 'none'}{more}"


def _node(place: str, table: Table, *, has_inputs: bool) -> Table:
    node: Table = {key: table[key] for key in _PLAIN if key in table}
    if "chaining" in table:
        node["strategy"] = table["chaining"]
    kind = table.get("kind", "operator" if has_inputs else "source")
    word = re.sub("[-_]", " ", kind.strip().lower()) if isinstance(kind, str) else ""
    if word not in _KINDS:
        raise SettingsError(f"{place}: unknown kind {kind!r}: {close_match(word, _KINDS)}")
    return node | dict.fromkeys(_KINDS[word], True)


def _inputs(place: str, table: Table) -> list[tuple[str, Table]]:
    given = [key for key in _INPUTS if key in table]
    if len(given) > 1:
        raise SettingsError(f"{place} has inputs and [[operator.input]]: use one of them")
    edges = []
    for key in given:
        for index, value in enumerate(_list(f"{place}.{key}", table[key])):
            at = f"{place}.{key}[{index}]"
            edge = {"from": value} if isinstance(value, str) else dict(_table(at, value))
            _check_keys(at, edge, _EDGE)
            if "from" not in edge:
                raise SettingsError(f"{at}: the key 'from' is missing")
            edges.append((at, edge | {"source": edge.pop("from")}))
    return edges


def _check_keys(place: str, table: Table, known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            raise SettingsError(f"{place}: unknown key {key!r}: {close_match(key, known)}")


def _table(place: str, value: object) -> Table:
    if not isinstance(value, dict):
        raise SettingsError(f"{place} must be a table, not {value!r}")
    return value


def _list(place: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise SettingsError(f"{place} must be a list, not {value!r}")
    return value
