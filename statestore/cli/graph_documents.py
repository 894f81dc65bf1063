"""A job graph, and which operator of it finds which state, as JSON; ``documents.py`` lists all."""

from __future__ import annotations

from typing import Any

from statestore.flink.chaining import job_vertices
from statestore.flink.graph import JobGraph
from statestore.flink.matching import Matching, StoredOperator
from statestore.flink.operators import label_of, operator_ids
from statestore.format.manifest import Manifest
from statestore.restore.plan import ParallelismChoice

__all__ = ["choices_document", "graph_document", "matching_document"]

Document = dict[str, Any]


def graph_document(manifest: Manifest, graph: JobGraph) -> Document:
    """Return the job vertices with their operators, and the edges between them."""
    ids = operator_ids(graph)
    vertices = job_vertices(graph, ids)
    return {
        "vertices": [
            {
                "id": vertex.id,
                "parallelism": vertex.parallelism,
                "max_parallelism": vertex.max_parallelism,
                "operators": [
                    {
                        "name": name,
                        "uid": graph.node(name).uid,
                        "uid_hash": graph.node(name).uid_hash,
                        "operator_id": ids[name],
                        "states": [
                            entry.state.name
                            for entry in manifest.entries
                            if entry.state.uid == label_of(graph.node(name))
                        ],
                    }
                    for name in vertex.in_order
                ],
            }
            for vertex in vertices
        ],
        "edges": [
            {"from": edge.source, "to": edge.target, "partitioner": graph.partitioner(edge).value}
            for edge in graph.edges
        ],
    }


def matching_document(matching: Matching | None) -> Document | None:
    """Return what each operator finds, what is dropped and how to keep it; None without a graph."""
    if matching is None:
        return None
    return {
        "operators": [
            {
                "name": found.node.name,
                "operator_id": found.operator_id,
                "outcome": found.outcome.value,
                "found_by": found.found_by and found.found_by.value,
                "stored": found.stored and _stored(found.stored),
            }
            for found in matching.nodes
        ],
        "dropped": [_stored(stored) for stored in matching.dropped],
        "ignored": [_stored(stored) for stored in matching.ignored],
        "hints": [
            {
                "operator": hint.node,
                "uid": hint.uid,
                "uid_hash": hint.uid_hash,
                "stored": _stored(hint.stored),
                "reason": hint.reason.value,
            }
            for hint in matching.hints
        ],
    }


def choices_document(choices: tuple[ParallelismChoice, ...]) -> list[Document]:
    """Return how each operator's parallelism was chosen; none when it was given."""
    return [
        {
            "uid": choice.uid,
            "total_bytes": choice.decision.total_bytes,
            "first_guess": choice.decision.first_guess,
            "ranges_at_limit": choice.decision.ranges_at_limit,
            "parallelism": choice.decision.parallelism,
            "largest_subtask_bytes": choice.decision.largest_by_number,
            "largest_byte_range_bytes": choice.decision.largest_by_bytes,
        }
        for choice in choices
    ]


def _stored(stored: StoredOperator) -> Document:
    return {
        "operator_id": stored.operator_id,
        "uid": stored.uid,
        "name": stored.name,
        "states": list(stored.states),
        "rows": stored.rows,
        "size_bytes": stored.size_bytes,
    }
