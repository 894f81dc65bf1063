"""A job graph as a JSON value and back: ``graph_from_json(Node(graph_to_json(g), …)) == g``.

It is stored in a checkpoint's manifest, so that a later job can say which of its operators the
stored ones were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.flink.graph import ChainingStrategy, Edge, Exchange, JobGraph, Node, Partitioner
from statestore.format.documents import Node as Place

__all__ = ["graph_from_json", "graph_to_json"]

V = TypeVar("V")
_OPTIONS = ("chaining", "chain_different_max", "auto_generate_uids")


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


def graph_from_json(place: Place) -> JobGraph:
    """Return the graph that a JSON object holds; members that are not known are passed over.

    Raises MalformedManifestError with the place of what is missing or wrong.
    """
    nodes = [_built(node, _node) for node in place.at("nodes").items()]
    edges = [_built(edge, _edge) for edge in place.at("edges").items()]
    options = {option: _flag(place.at(option)) for option in _OPTIONS}
    return _built(place, lambda _: JobGraph(tuple(nodes), tuple(edges), **options))


def _node(place: Place) -> Node:
    uid, uid_hash = place.maybe("uid"), place.maybe("uid_hash")
    highest = place.maybe("max_parallelism")
    return Node(
        place.at("name").text(),
        uid=uid.text() if uid else None,
        uid_hash=uid_hash.text() if uid_hash else None,
        parallelism=place.at("parallelism").number(),
        max_parallelism=highest.number() if highest else None,
        strategy=ChainingStrategy(place.at("strategy").text()),
        slot_group=place.at("slot_group").text(),
        source=_flag(place.at("source")),
        legacy_source=_flag(place.at("legacy_source")),
        yielding=_flag(place.at("yielding")),
    )


def _edge(place: Place) -> Edge:
    partitioner = place.maybe("partitioner")
    return Edge(
        place.at("source").text(),
        place.at("target").text(),
        partitioner=Partitioner(partitioner.text()) if partitioner else None,
        exchange=Exchange(place.at("exchange").text()),
        number=place.at("number").number(),
    )


def _flag(place: Place) -> bool:
    if not isinstance(place.value, bool):
        raise place.fail(f"expected true or false, found {place.value!r}")
    return place.value


def _built(place: Place, build: Callable[[Place], V]) -> V:
    """Build a part; what its class refuses becomes an error with the place."""
    try:
        return build(place)
    except (InvalidArgumentError, ParallelismError) as error:
        raise place.fail(str(error)) from error


def _check_encodable(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the {key} {text!r} has an unpaired surrogate and cannot be stored: change it"
        ) from error
