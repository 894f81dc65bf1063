"""A job graph as a JSON value and back: ``graph_from_json(graph_to_json(g), …) == g``.

It is stored in a checkpoint's manifest, so that a later job can match its operators to the stored
ones.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, ValidationError, to_builtins

from statestore.errors import InvalidArgumentError
from statestore.format.documents import Count, convert_json, convert_value
from statestore.jobgraph.graph import ChainingStrategy, EdgePartitioner, Exchange, JobGraph

__all__ = ["GraphDocument", "graph_from_json", "graph_to_json"]


class _Node(Struct, frozen=True, kw_only=True):
    name: str
    uid: str | None = None
    uid_hash: str | None = None
    parallelism: Count
    max_parallelism: Count | None = None
    strategy: ChainingStrategy
    slot_group: str
    source: bool
    legacy_source: bool
    yielding: bool


class _Edge(Struct, frozen=True, kw_only=True):
    source: str
    target: str
    partitioner: EdgePartitioner | None = None
    exchange: Exchange
    number: Count


class GraphDocument(Struct, frozen=True):
    """The members of a stored graph, in this order; only null members may be missing."""

    chaining: bool
    chain_different_max: bool
    auto_generate_uids: bool
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]


def graph_to_json(graph: JobGraph) -> dict[str, Any]:
    """Return a graph as a complete JSON object: its options, ``nodes`` and ``edges``.

    Raises InvalidArgumentError for a number that does not fit 64 bits, and for text with an
    unpaired surrogate, which UTF-8 cannot encode.
    """
    try:
        members = convert_value(graph, GraphDocument)
    except ValidationError as error:
        raise InvalidArgumentError(f"the job graph cannot be stored: {error}") from error
    document: dict[str, Any] = to_builtins(members)
    for member in (*document["nodes"], *document["edges"]):
        for key, value in member.items():
            if isinstance(value, str):
                _check_encodable(key, value)
    return document


def graph_from_json(value: Any, name: str, place: str) -> JobGraph:
    """Parse the graph at ``place`` of the document ``name``; unknown members are ignored.

    Raises MalformedManifestError with the place of a missing or invalid member.
    """
    return convert_json(convert_json(value, GraphDocument, name, place), JobGraph, name, place)


def _check_encodable(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the {key} {text!r} has an unpaired surrogate and cannot be stored: change it"
        ) from error
