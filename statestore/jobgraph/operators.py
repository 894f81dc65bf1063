"""Operator ids: 128 bits that identify an operator across jobs.

They follow Flink's ``StreamGraphHasherV2``.

If there is a uid, the id is the MurmurHash3 x64 128 hash with seed 0 of the uid's UTF-8 bytes,
each 64-bit half printed little-endian. The id depends only on the uid: not on the job, the
operator's name, its position in the graph or its parallelism. So state finds its operator again
after a job has changed, and so the uid must stay the same.

Without a uid, the id is generated from the number of operators visited before it, the number of
its chainable out-edges, and the ids of its inputs. If an earlier operator is added, removed or
moved, or chaining changes, the id changes. Names and code do not matter.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.chaining import chainable_edges
from statestore.jobgraph.graph import JobGraph

__all__ = ["operator_id", "operator_ids"]


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
        raise InvalidArgumentError("an operator uid must not be empty; pass a name")
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
    """Encode text as Java's ``String.getBytes(UTF_8)`` does.

    A surrogate pair becomes one character, and an unpaired surrogate becomes ``?``.
    """
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
