"""The operators of a job: their 128-bit ids, and their numbers of subtasks and key groups."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.chaining import chainable_edges, job_vertices
from statestore.jobgraph.graph import JobGraph, Node, close_match

__all__ = [
    "Operators",
    "label_of",
    "operator_id",
    "operator_ids",
]


# Operator ids: 128 bits that identify an operator across jobs.
#
# They follow Flink's ``StreamGraphHasherV2``.
#
# If there is a uid, the id is the MurmurHash3 x64 128 hash with seed 0 of the uid's UTF-8 bytes,
# each 64-bit half printed little-endian. The id depends only on the uid: not on the job, the
# operator's name, its position in the graph or its parallelism. So state finds its operator again
# after a job has changed, and so the uid must stay the same.
#
# Without a uid, the id is generated from the number of operators visited before it, the number of
# its chainable out-edges, and the ids of its inputs. If an earlier operator is added, removed or
# moved, or chaining changes, the id changes. Names and code do not matter.


_U64 = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def operator_id(uid: str) -> str:
    """Return the operator id of ``uid``: 32 lowercase hex digits.

    Surrogate code units are treated as in Java: a pair is one character, and a single one, which
    cannot be encoded, becomes ``?``.

    Raises :class:`InvalidArgumentError` for an empty uid, which Flink hashes but refuses later, and
    for anything but a string.
    """
    if not isinstance(uid, str):
        raise InvalidArgumentError(f"an operator uid must be a string, not {type(uid).__name__}")
    if not uid:
        raise InvalidArgumentError("an operator uid must not be empty")
    return _hash_uid(uid)


# Cached, because a checkpoint needs the id of each operator many times.
@lru_cache(maxsize=1024)
def _hash_uid(uid: str) -> str:
    return _murmur3_128(_java_utf8(uid)).hex()


def operator_ids(graph: JobGraph) -> dict[str, str]:
    """Return the operator id of every operator of a job by its name, in creation order.

    Ids given as ``uid_hash`` are not included: they are looked up on restore, but never written.

    Raises :class:`InvalidArgumentError` if two uids have the same id (only possible for uids with
    unpaired surrogates).
    """
    chainable = {(edge.source, edge.target) for edge in chainable_edges(graph)}
    ids: dict[str, bytes] = {}
    owners: dict[bytes, str] = {}
    waiting = deque(node.name for node in graph.nodes if not graph.in_edges(node))
    visited = set(waiting)
    while waiting:
        name = waiting.popleft()
        uid = graph.node(name).uid
        inputs = [edge.source for edge in graph.in_edges(name)]
        targets = [edge.target for edge in graph.out_edges(name)]
        if uid is not None:
            own_id = bytes.fromhex(operator_id(uid))
        elif all(source in ids for source in inputs):
            chained = sum((name, target) in chainable for target in targets)
            own_id = _generate_id(len(ids), chained, [ids[source] for source in inputs])
        else:
            visited.discard(name)  # it is queued again by the last of its inputs
            continue
        if own_id in owners:
            raise InvalidArgumentError(
                f"the operators {owners[own_id]!r} and {name!r} have the same operator id "
                f"{own_id.hex()}: give one of them another uid"
            )
        ids[name], owners[own_id] = own_id, name
        for target in targets:
            if target not in visited:
                visited.add(target)
                waiting.append(target)
    return {node.name: ids[node.name].hex() for node in graph.nodes}


def _generate_id(before: int, chained: int, inputs: list[bytes]) -> bytes:
    """Return the id of an operator visited after ``before`` others, with ``chained`` outputs."""
    digest = _murmur3_128(before.to_bytes(4, "little") * (1 + chained))
    for other in inputs:
        digest = bytes((a * 37 & 0xFF) ^ b for a, b in zip(digest, other, strict=True))
    return digest


def _java_utf8(text: str) -> bytes:
    """Encode like Java's ``String.getBytes(UTF_8)``: surrogate pairs joined, single ones ``?``."""
    # Python strings can contain a pair as two code points; a round trip through UTF-16 joins it.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace")


def _murmur3_128(data: bytes) -> bytes:
    """Return MurmurHash3 x64 128 with seed 0: 16 bytes, both halves little-endian."""
    h1 = h2 = 0
    tail_at = len(data) - len(data) % 16
    for offset in range(0, tail_at, 16):
        h1 ^= _scramble_low(data[offset : offset + 8])
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _U64
        h2 ^= _scramble_high(data[offset + 8 : offset + 16])
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _U64
    # Missing bytes count as zero, and a zero block scrambles to zero, so no special case is needed.
    h1 ^= _scramble_low(data[tail_at : tail_at + 8]) ^ len(data)
    h2 ^= _scramble_high(data[tail_at + 8 :]) ^ len(data)
    h1 = (h1 + h2) & _U64
    h2 = (h2 + h1) & _U64
    h1, h2 = _finalise(h1), _finalise(h2)
    h1 = (h1 + h2) & _U64
    h2 = (h2 + h1) & _U64
    return h1.to_bytes(8, "little") + h2.to_bytes(8, "little")


def _scramble_low(block: bytes) -> int:
    return _rotate(int.from_bytes(block, "little") * _C1 & _U64, 31) * _C2 & _U64


def _scramble_high(block: bytes) -> int:
    return _rotate(int.from_bytes(block, "little") * _C2 & _U64, 33) * _C1 & _U64


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _U64


def _finalise(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & _U64
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & _U64
    return h ^ h >> 33


# The operators of a checkpoint: their ids, and their numbers of subtasks and key groups.
#
# The store identifies an operator by a label, which is part of the path of its state. The label is
# its uid, or its name for an operator of a job graph without a uid. Without a graph every label is
# a uid, and all operators have the parallelism of the job.


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
