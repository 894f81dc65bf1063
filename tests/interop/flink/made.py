"""A savepoint that is generated from values, without any bytes from Flink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from statestore.interop.flink.metadata.handles import OperatorHandles, SavepointMetadata, Subtask
from statestore.interop.flink.read.canonical import HeaderKind, KeyedHeader, StateInfo, prefix_bytes
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.column_bytes import encode_list
from statestore.interop.flink.types.internal_types import TimerType
from statestore.interop.flink.types.java_types import ListType, MapType, Scalar
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from statestore.interop.flink.write import SavepointWriter
from statestore.jobgraph.operators import operator_id
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.hashing import key_group_of
from statestore.storage import open_storage
from tests.interop.flink.entries import key_group_bytes

LONG, STRING, INTEGER, DOUBLE = (Scalar(name) for name in ("Long", "String", "Integer", "Double"))
NOTHING = Scalar("VoidNamespace")
TIMER = TimerType(LONG, NOTHING)
TEXTS = ("", "é", "\0", "🦊 and 東京", "x" * 200)


@dataclass(frozen=True)
class Values:
    """The values of one key."""

    last: int
    texts: list[str]
    sums: dict[int, float]
    time: int


def values(seed: int, keys: int) -> dict[int, Values]:
    """Return values for keys of every size."""
    random = Random(seed)
    return {
        random.randrange(-(1 << 63), 1 << 63) >> random.randrange(64): Values(
            random.randrange(-(1 << 63), 1 << 63),
            random.choices(TEXTS, k=random.randrange(1, 4)),
            {random.randrange(-(1 << 31), 1 << 31): random.gauss(0, 1e6) for _ in range(2)},
            random.randrange(-(1 << 40), 1 << 62),
        )
        for _ in range(keys)
    }


def write(found: dict[int, Values], target: str, *, most: int, parallelism: int) -> None:
    """Write a savepoint of the operator ``by_long`` with these values."""
    states = (
        _state("last", "keyed", LONG, "VALUE"),
        _state("texts", "keyed", ListType(STRING), "LIST"),
        _state("sums", "keyed", MapType(INTEGER, DOUBLE), "MAP"),
        _state("_timer_state/event_user-timers", "timers", TIMER),
    )
    header = KeyedHeader(False, _snapshot(LONG), states)
    writer = SavepointWriter(open_storage(target))
    subtasks = []
    shares = KeyGroupAssignment(max_parallelism=most, parallelism=parallelism).ranges()
    for index, share in enumerate(shares):
        groups = [
            {key: one for key, one in found.items() if _group(key, most) == number}
            for number in share
        ]
        written = (
            [_group_bytes(group, number, prefix_bytes(most))] if group else []
            for number, group in zip(share, groups, strict=True)
        )
        subtasks.append(Subtask(index, keyed=writer.write_keyed(header, share.first, written)))
    operator = OperatorHandles(operator_id("by_long"), parallelism, most, tuple(subtasks))
    writer.finish(SavepointMetadata(3, 1, (operator,)))


def rows(found: dict[int, Values], most: int) -> Iterator[dict[str, Any]]:
    """Yield the expected rows in the form of Flink's dump."""
    for key, one in found.items():
        about = {"operator": "by_long", "group": _group(key, most), "key": key, "namespace": None}
        yield about | {"state": "last", "value": one.last}
        yield about | {"state": "texts", "value": one.texts}
        yield about | {"state": "sums", "value": [[k, v] for k, v in one.sums.items()]}
        yield about | {"timer": "event", "time": one.time}


def _state(name: str, kind: HeaderKind, value: FlinkType, form: str | None = None) -> StateInfo:
    if form is None:
        return StateInfo(name, kind, {}, {"VALUE_SERIALIZER": _snapshot(value)})
    serializers = {
        "VALUE_SERIALIZER": _snapshot(value),
        "NAMESPACE_SERIALIZER": _snapshot(NOTHING),
    }
    return StateInfo(name, kind, {"KEYED_STATE_TYPE": form}, serializers)


def _snapshot(kind: FlinkType) -> SerializerSnapshot:
    return SerializerSnapshot(kind, kind.snapshot())


def _group(key: int, most: int) -> int:
    return key_group_of(key, max_parallelism=most)


def _group_bytes(found: dict[int, Values], number: int, prefix: int) -> bytes:
    entries: list[list[tuple[bytes, bytes]]] = [[], [], [], []]
    for key, one in found.items():
        group = number.to_bytes(prefix, "big")
        head = group + _one(key, LONG) + _one(None, NOTHING)
        entries[0].append((head, _one(one.last, LONG)))
        (texts,) = encode_list(pa.array([one.texts]), STRING).to_pylist()
        entries[1].append((head, texts))
        entries[2] += [
            (head + _one(k, INTEGER), b"\0" + _one(v, DOUBLE)) for k, v in one.sums.items()
        ]
        timer = pa.array([{"time": one.time, "key": key, "namespace": None}])
        (written,) = TIMER.write(timer).to_pylist()
        entries[3].append((group + written, b""))
    return key_group_bytes(list(enumerate(entries)))


def _one(value: Any, kind: FlinkType) -> bytes:
    types = {LONG: pa.int64(), INTEGER: pa.int32(), DOUBLE: pa.float64(), NOTHING: pa.null()}
    (found,) = kind.write(pa.array([value], types[Scalar(getattr(kind, "name", ""))])).to_pylist()
    return bytes(found)
