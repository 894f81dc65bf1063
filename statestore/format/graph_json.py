"""A job graph as a JSON value and back: ``graph_from_json(graph_to_json(g), …) == g``.

It is stored in a checkpoint's manifest, so that a later job can say which of its operators the
stored ones were.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msgspec import Struct

from statestore.errors import InvalidArgumentError
from statestore.flink.graph import ChainingStrategy, Exchange, JobGraph, Partitioner
from statestore.format.documents import Count, converted

__all__ = ["graph_from_json", "graph_to_json"]

_OPTIONS = ("chaining", "chain_different_max", "auto_generate_uids")


class _Node(Struct, frozen=True):
    name: str
    parallelism: Count
    strategy: ChainingStrategy
    slot_group: str
    source: bool
    legacy_source: bool
    yielding: bool
    uid: str | None = None
    uid_hash: str | None = None
    max_parallelism: Count | None = None


class _Edge(Struct, frozen=True):
    source: str
    target: str
    exchange: Exchange
    number: Count
    partitioner: Partitioner | None = None


class _Graph(Struct, frozen=True):
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    chaining: bool
    chain_different_max: bool
    auto_generate_uids: bool


def graph_to_json(graph: JobGraph) -> dict[str, Any]:
    """Return a graph as a JSON object: its options, ``nodes`` and ``edges``, nothing left out.

    Raises InvalidArgumentError for a text with an unpaired surrogate, which UTF-8 cannot hold.
    """
    nodes = [asdict(node) for node in graph.nodes]
    edges = [asdict(edge) for edge in graph.edges]
    for member in (*nodes, *edges):
        for key, value in member.items():
            if isinstance(value, str):
                _check_encodable(key, value)
                member[key] = str(value)  # a StrEnum is written as its word
    return {option: getattr(graph, option) for option in _OPTIONS} | {
        "nodes": nodes,
        "edges": edges,
    }


def graph_from_json(value: Any, name: str, place: str) -> JobGraph:
    """Return the graph that a JSON object holds, at ``place`` of the document called ``name``;
    members that are not known are passed over.

    Raises MalformedManifestError with the place of what is missing or wrong.
    """
    return converted(converted(value, _Graph, name, place), JobGraph, name, place)


def _check_encodable(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the {key} {text!r} has an unpaired surrogate and cannot be stored: change it"
        ) from error
