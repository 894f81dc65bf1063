"""The operators of a checkpoint: their ids, and their numbers of subtasks and key groups.

The store identifies an operator by a label, which is part of the path of its state. The label is
its uid, or its name for an operator of a job graph without a uid. Without a graph every label is
a uid, and all operators have the parallelism of the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.chaining import job_vertices
from statestore.jobgraph.graph import JobGraph, Node
from statestore.jobgraph.graph_toml import close_match
from statestore.jobgraph.operators import operator_id, operator_ids

__all__ = ["Operators", "label_of"]


def label_of(node: Node) -> str:
    """Return the label of an operator: its uid, or its name without one."""
    return node.name if node.uid is None else node.uid


@dataclass(frozen=True)
class Operators:
    """The operators of a job at ``parallelism``, with the details of its graph if there is one."""

    parallelism: int
    graph: JobGraph | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for two operators with the same label."""
        owners: dict[str, Node] = {}
        for node in self.graph.nodes if self.graph else ():
            other = owners.setdefault(label_of(node), node)
            if other is not node:
                raise InvalidArgumentError(
                    f"{other} and {node} would keep their state in the same place, "
                    f"{label_of(node)!r}: the uid of the first is the name of the second, "
                    "which has no uid; give the second a uid"
                )

    def parallelism_of(self, label: str) -> int:
        """Return the number of subtasks of an operator."""
        node = self._by_label.get(label)
        return self.parallelism if node is None else node.parallelism

    def max_parallelism_of(self, label: str) -> int | None:
        """Return the max parallelism of an operator in the graph; None if it is not set.

        It is the value of the head of the operator's chain, because a chain runs as one job vertex.
        """
        node = self._by_label.get(label)
        return None if node is None else self._max_parallelism.get(node.name)

    def has_uid(self, label: str) -> bool:
        """Return whether the label is a uid, from which the operator's id is computed."""
        node = self._by_label.get(label)
        return node is None or node.uid is not None

    def name_of(self, label: str) -> str | None:
        """Return the name of an operator in the graph; None without a graph."""
        node = self._by_label.get(label)
        return None if node is None else node.name

    def id_of(self, label: str) -> str:
        """Return the operator id: from the uid, or generated from the position in the graph."""
        node = self._by_label.get(label)
        return operator_id(label) if node is None else self._ids[node.name]

    def ids_of(self, label: str) -> frozenset[str]:
        """Return the ids that an operator's state may have: its own and its ``uid_hash``."""
        node = self._by_label.get(label)
        other = () if node is None or node.uid_hash is None else (node.uid_hash,)
        return frozenset({self.id_of(label), *other})

    def label_of_id(self, stored: str, label: str) -> str | None:
        """Return the label in this graph of an operator that is stored with an id and a label.

        None if the graph does not contain the operator.
        """
        if self.graph is None:
            return label
        return next((own for own in self._by_label if stored in self.ids_of(own)), None)

    def check(self, label: str) -> None:
        """Raise InvalidArgumentError if there is a graph without an operator with this label."""
        if self.graph is not None and label not in self._by_label:
            raise InvalidArgumentError(
                f"the job graph has no operator {label!r}: {close_match(label, self._by_label)}. "
                "State is stored under the operator's uid, or under its name if it has no uid"
            )

    @cached_property
    def _by_label(self) -> dict[str, Node]:
        return {label_of(node): node for node in self.graph.nodes} if self.graph else {}

    @cached_property
    def _ids(self) -> dict[str, str]:
        return operator_ids(self.graph) if self.graph else {}

    @cached_property
    def _max_parallelism(self) -> dict[str, int | None]:
        vertices = job_vertices(self.graph, self._ids) if self.graph else ()
        return {name: vertex.max_parallelism for vertex in vertices for name in vertex.nodes}
