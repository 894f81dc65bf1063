"""A job graph as TOML, converted to the arguments of its nodes, edges and options.

:meth:`JobGraph.from_toml` describes the document. This code checks its structure: the names of
tables and keys, and whether a value is a table, a list or a word. The classes check the values. A
place in an error has the form ``operator[1] ('totals')``, counted from 0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from statestore.errors import SettingsError
from statestore.parsing import parse_toml

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
    "sink": ("yielding",),  # a sink's writer yields its thread
}
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class GraphTables:
    """The arguments of every node and edge, with their places, and the graph's options."""

    nodes: tuple[tuple[str, Table], ...]
    edges: tuple[tuple[str, Table], ...]
    options: Table


def graph_tables(text: str) -> GraphTables:
    """Parse the TOML document of a job graph; SettingsError names the problem and the place."""
    if not isinstance(text, str):
        raise SettingsError(f"a job graph must be a string of TOML, not {type(text).__name__}")
    try:
        document = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the job graph is not valid TOML: {error}") from error
    except ValueError as error:
        raise SettingsError(f"the job graph: {error}") from error
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
        edges.extend((place, edge | {"target": table["name"]}) for place, edge in inputs)
    return GraphTables(
        tuple(nodes), tuple(edges), {key: job[key] for key in _OPTIONS if key in job}
    )


def close_match(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest name, or all known names."""
    names = list(known)
    close = get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = ", …" if len(names) > _LISTED else ""
    return f"known names are {', '.join(map(repr, names[:_LISTED])) or 'none'}{more}"


def _node(place: str, table: Table, *, has_inputs: bool) -> Table:
    node: Table = {key: table[key] for key in _PLAIN if key in table}
    if "chaining" in table:
        node["strategy"] = table["chaining"]
    kind_text = table.get("kind", "operator" if has_inputs else "source")
    word = re.sub("[-_]", " ", kind_text.strip().lower()) if isinstance(kind_text, str) else ""
    if word not in _KINDS:
        raise SettingsError(f"{place}: unknown kind {kind_text!r}: {close_match(word, _KINDS)}")
    return node | dict.fromkeys(_KINDS[word], True)


def _inputs(place: str, table: Table) -> list[tuple[str, Table]]:
    present = [key for key in _INPUTS if key in table]
    if len(present) > 1:
        raise SettingsError(f"{place} has both inputs and [[operator.input]]: use only one of them")
    edges = []
    for key in present:
        for index, value in enumerate(_list(f"{place}.{key}", table[key])):
            inner_place = f"{place}.{key}[{index}]"
            edge = {"from": value} if isinstance(value, str) else dict(_table(inner_place, value))
            _check_keys(inner_place, edge, _EDGE)
            if "from" not in edge:
                raise SettingsError(f"{inner_place}: the key 'from' is missing")
            edges.append((inner_place, edge | {"source": edge.pop("from")}))
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
