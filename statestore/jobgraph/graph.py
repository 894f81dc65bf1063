"""The graph of a job: its operators in creation order, the edges between them, and its TOML form.

It contains the information of Flink's ``StreamGraph`` that determines operator ids
and tasks (``operators.py``). It contains nothing of the operators' code.

A graph can be written as TOML (:meth:`JobGraph.from_toml`)::

    [job]                         # all options are optional
    parallelism = 4               # default for operators without one; 1 if it is missing
    auto_generate_uids = false    # an operator without uid is an error

    [[operator]]                  # in the order in which the job creates them
    name = "orders"
    kind = "source"
    uid = "orders"

    [[operator]]
    name = "totals"
    uid = "totals"
    inputs = [{ from = "orders", partitioner = "hash" }]

Differences from Flink: names are unique; two operators with the same ``uid_hash`` are refused; a
``uid_hash`` does not count as a uid for ``auto_generate_uids``; and a slot group is not inherited
from the inputs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, TypeVar

from statestore.errors import InvalidArgumentError, ParallelismError, SettingsError, StateStoreError
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupAssignment
from statestore.parsing import parse_toml

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
    """Parse the TOML document of a job graph; SettingsError names the problem and the place.

    It checks the structure: the names of tables and keys, and whether a value is a table, a list or
    a word. :class:`Node`, :class:`Edge` and :class:`JobGraph` check the values. A place has the
    form ``operator[1] ('totals')``, counted from 0.
    """
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


V = TypeVar("V")


_HASH: Final = re.compile("[0-9a-fA-F]{32}")


class _Word(StrEnum):
    """An enum whose members may be written in any case, with spaces or hyphens."""

    @classmethod
    def _missing_(cls, value: object) -> _Word:
        word = re.sub("[ -]", "_", value.strip()).upper() if isinstance(value, str) else ""
        if word in cls.__members__:
            return cls[word]
        what = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        raise InvalidArgumentError(
            f"unknown {what} {value!r}: {close_match(word, cls.__members__)}"
        )


class ChainingStrategy(_Word):
    """Whether an operator may run in the task of its input (Flink's ``ChainingStrategy``)."""

    ALWAYS = "ALWAYS"
    NEVER = "NEVER"
    HEAD = "HEAD"
    HEAD_WITH_SOURCES = "HEAD_WITH_SOURCES"


class EdgePartitioner(_Word):
    """How an edge distributes records to subtasks, named like Flink's ``StreamPartitioner``."""

    FORWARD = "FORWARD"
    REBALANCE = "REBALANCE"
    RESCALE = "RESCALE"
    HASH = "HASH"
    SHUFFLE = "SHUFFLE"
    GLOBAL = "GLOBAL"
    BROADCAST = "BROADCAST"
    CUSTOM = "CUSTOM"


class Exchange(_Word):
    """When an edge's records can be read (Flink's ``StreamExchangeMode``); BATCH never chains."""

    PIPELINED = "PIPELINED"
    BATCH = "BATCH"
    UNDEFINED = "UNDEFINED"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of a job.

    ``uid`` is the name that the job's author gave to its state. ``uid_hash``, 32 hex digits
    (converted to lower case), is an operator id to look up first on restore (Flink's
    ``setUidHash``); new snapshots do not use it. ``max_parallelism`` None means that it is derived.
    ``source`` marks a source of the current API, ``legacy_source`` one of the old API. ``yielding``
    marks an operator that yields its thread while it waits (async wait, sink writer).

    Raises InvalidArgumentError for invalid values, such as a parallelism or max parallelism outside
    of 1..32768, and ParallelismError if parallelism is above max parallelism.
    """

    name: str
    _: KW_ONLY
    uid: str | None = None
    uid_hash: str | None = None
    parallelism: int = 1
    max_parallelism: int | None = None
    strategy: ChainingStrategy = ChainingStrategy.ALWAYS
    slot_group: str = "default"
    source: bool = False
    legacy_source: bool = False
    yielding: bool = False

    def __post_init__(self) -> None:
        """Check every field; the error names the operator."""
        _check_text("the name of an operator", self.name)
        if self.uid is not None:
            _check_text(f"the uid of {self}", self.uid)
        _check_text(f"the slot group of {self}", self.slot_group)
        for flag in ("source", "legacy_source", "yielding"):
            _check_bool(f"{flag} of {self}", getattr(self, flag))
        if self.source and self.legacy_source:
            raise InvalidArgumentError(f"{self} is both a source and a legacy source: choose one")
        if self.uid_hash is not None:
            if not _HASH.fullmatch(str(self.uid_hash)):
                raise InvalidArgumentError(
                    f"the uid_hash of {self} is {self.uid_hash!r}: it must be 32 hex digits, "
                    "like an operator id; to give the operator a name, set uid"
                )
            object.__setattr__(self, "uid_hash", self.uid_hash.lower())
        highest = MAX_PARALLELISM if self.max_parallelism is None else self.max_parallelism
        try:
            object.__setattr__(self, "strategy", ChainingStrategy(self.strategy))
            KeyGroupAssignment(max_parallelism=highest, parallelism=self.parallelism)
        except (InvalidArgumentError, ParallelismError) as error:
            raise type(error)(f"{self}: {error}") from error

    def __str__(self) -> str:
        """Return the operator's name in messages."""
        return f"operator {self.name!r}"


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge: the names of both operators, its partitioner, and the input that it feeds.

    ``partitioner`` None means forward if both operators have the same parallelism, and rebalance
    otherwise: see :meth:`JobGraph.partitioner`. ``number`` is the input of the target: 0 if it has
    only one input, and counted from 1 otherwise. Raises InvalidArgumentError.
    """

    source: str
    target: str
    _: KW_ONLY
    partitioner: EdgePartitioner | None = None
    exchange: Exchange = Exchange.UNDEFINED
    number: int = 0

    def __post_init__(self) -> None:
        """Check every field; the error names the edge."""
        _check_text("the source of an edge", self.source)
        _check_text("the target of an edge", self.target)
        try:
            if self.partitioner is not None:
                object.__setattr__(self, "partitioner", EdgePartitioner(self.partitioner))
            object.__setattr__(self, "exchange", Exchange(self.exchange))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self}: {error}") from error
        if type(self.number) is not int or self.number < 0:
            raise InvalidArgumentError(
                f"{self}: the input number is {self.number!r}: it must be 0 or more"
            )

    def __str__(self) -> str:
        """Return the edge's name in messages."""
        return f"edge {self.source!r} -> {self.target!r}"


@dataclass(frozen=True)
class JobGraph:
    """A whole job: ``nodes`` in creation order, ``edges`` in order of target, and its options.

    Edges may be given in any order. Edges of the same target keep their order, which is the order
    of its inputs. There may be several edges between the same operators. The job starts at the
    nodes without in-edges.

    Raises InvalidArgumentError for two operators with the same name, uid or uid_hash, and for a
    missing uid if ``auto_generate_uids`` is off. It is also raised for an edge from or to an
    unknown operator, a source with inputs, a cycle, and a forward edge between different
    parallelisms.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    _: KW_ONLY
    chaining: bool = True
    chain_different_max: bool = True
    auto_generate_uids: bool = True

    def __post_init__(self) -> None:
        """Sort the edges, and check the graph as a whole."""
        object.__setattr__(self, "nodes", tuple(self.nodes))
        for option in ("chaining", "chain_different_max", "auto_generate_uids"):
            _check_bool(option, getattr(self, option))
        self._check_nodes()
        edges = tuple(self.edges)
        for index, edge in enumerate(edges):
            self._check_edge(edge, index)
        # The sort is stable, so edges of the same target keep their order.
        in_order = sorted(edges, key=lambda edge: self._positions[edge.target])
        object.__setattr__(self, "edges", tuple(in_order))
        self.topological_order()

    @classmethod
    def from_toml(cls, text: str) -> JobGraph:
        """Parse a graph from a TOML document; the module's docstring has an example.

        ``[job]``: ``chaining``, ``chain_different_max``, ``auto_generate_uids``, and default values
        of ``parallelism`` and ``max_parallelism``. ``[[operator]]``: ``name``, ``uid``,
        ``uid_hash``, ``parallelism``, ``max_parallelism``, ``chaining`` (a strategy),
        ``slot_group``, ``kind`` and ``inputs``. ``kind`` is source, legacy source, operator,
        yielding operator or sink; its default is source for an operator without inputs, and
        operator otherwise. ``inputs`` is a list of names, or of tables with ``from``,
        ``partitioner``, ``exchange`` and ``number``. These tables can also be written as
        ``[[operator.input]]``.

        Raises SettingsError, InvalidArgumentError or ParallelismError; all of them name the place.
        """
        tables = graph_tables(text)
        nodes = tuple(_build(Node, place, table) for place, table in tables.nodes)
        edges = tuple(_build(Edge, place, table) for place, table in tables.edges)
        return cls(nodes, edges, **tables.options)

    def node(self, name: str) -> Node:
        """Return the operator called ``name``; InvalidArgumentError if it does not exist."""
        return self.nodes[self.position(name)]

    def position(self, name: str) -> int:
        """Return an operator's index in creation order, from 0; see :meth:`node` for errors."""
        if name not in self._positions:
            raise InvalidArgumentError(
                f"no operator {name!r}: {close_match(name, self._positions)}"
            )
        return self._positions[name]

    def in_edges(self, node: Node | str) -> tuple[Edge, ...]:
        """Return the edges into an operator, in the order of its inputs."""
        return self._in_edges[self.nodes[self.position(_name(node))].name]

    def out_edges(self, node: Node | str) -> tuple[Edge, ...]:
        """Return the edges out of an operator, in creation order of their targets."""
        return self._out_edges[self.nodes[self.position(_name(node))].name]

    def partitioner(self, edge: Edge) -> EdgePartitioner:
        """Return an edge's partitioner, or its default: forward or rebalance."""
        if edge.partitioner is not None:
            return edge.partitioner
        equal = self.node(edge.source).parallelism == self.node(edge.target).parallelism
        return EdgePartitioner.FORWARD if equal else EdgePartitioner.REBALANCE

    def topological_order(self) -> tuple[str, ...]:
        """Return the names in an order in which each follows its inputs; always the same order."""
        return self._topological_order

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {node.name: position for position, node in enumerate(self.nodes)}

    @cached_property
    def _in_edges(self) -> dict[str, tuple[Edge, ...]]:
        return self._group_edges((edge.target, edge) for edge in self.edges)

    @cached_property
    def _out_edges(self) -> dict[str, tuple[Edge, ...]]:
        return self._group_edges((edge.source, edge) for edge in self.edges)

    def _group_edges(self, pairs: Iterable[tuple[str, Edge]]) -> dict[str, tuple[Edge, ...]]:
        groups: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        for name, edge in pairs:
            groups[name].append(edge)
        return {name: tuple(edges) for name, edges in groups.items()}

    @cached_property
    def _topological_order(self) -> tuple[str, ...]:
        inputs = {name: [e.source for e in edges] for name, edges in self._in_edges.items()}
        try:
            return tuple(TopologicalSorter(inputs).static_order())
        except CycleError as error:
            path = " -> ".join(map(repr, error.args[1]))
            raise InvalidArgumentError(
                f"the job graph has a cycle: {path}; remove one of these edges"
            ) from error

    def _check_nodes(self) -> None:
        owners: dict[tuple[str, str], str] = {}
        for index, node in enumerate(self.nodes):
            if not isinstance(node, Node):
                raise InvalidArgumentError(
                    f"nodes[{index}] must be a Node, not {type(node).__name__}"
                )
            if not self.auto_generate_uids and node.uid is None:
                raise InvalidArgumentError(
                    f"{node} has no uid, and auto_generate_uids is off: give it a uid"
                )
            if ("name", node.name) in owners:
                raise InvalidArgumentError(f"two operators are named {node.name!r}: rename one")
            owners["name", node.name] = node.name
            for what, value in (("uid", node.uid), ("uid_hash", node.uid_hash)):
                if value is None:
                    continue
                other = owners.setdefault((what, value), node.name)
                if other != node.name:
                    raise InvalidArgumentError(
                        f"the operators {other!r} and {node.name!r} have the same {what} "
                        f"{value!r}: give each its own, otherwise both would claim the same state"
                    )

    def _check_edge(self, edge: Edge, index: int) -> None:
        if not isinstance(edge, Edge):
            raise InvalidArgumentError(f"edges[{index}] must be an Edge, not {type(edge).__name__}")
        for name in (edge.source, edge.target):
            if name not in self._positions:
                hint = close_match(name, self._positions)
                raise InvalidArgumentError(
                    f"{edge}: the job graph has no operator {name!r}; {hint}"
                )
        source, target = self.node(edge.source), self.node(edge.target)
        if target.source or target.legacy_source:
            raise InvalidArgumentError(
                f"{edge}: {target} is a source and has no inputs; remove the edge, or make "
                f"{target} an operator"
            )
        forward = edge.partitioner is EdgePartitioner.FORWARD
        if forward and source.parallelism != target.parallelism:
            raise InvalidArgumentError(
                f"{edge} is forward, but goes from parallelism {source.parallelism} to "
                f"{target.parallelism}: use rebalance or rescale, or make both parallelisms equal"
            )


def _name(node: Node | str) -> str:
    return node.name if isinstance(node, Node) else node


def _build(build: Callable[..., V], place: str, table: Table) -> V:
    """Build a node or an edge; an error gets the place in the document as a note."""
    try:
        return build(**table)
    except StateStoreError as error:
        error.add_note(f"in the job graph at {place}")
        raise


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{what} must be a non-empty string, not {value!r}")


def _check_bool(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{what} must be true or false, not {value!r}")
