"""Generated savepoints with one keyed state, for cases that no golden covers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from statestore.interop.flink_savepoints.metadata.handles import (
    OperatorHandles,
    SavepointMetadata,
    Subtask,
)
from statestore.interop.flink_savepoints.metadata.serializer_snapshots import (
    SerializerSnapshot,
)
from statestore.interop.flink_savepoints.read.canonical import KeyedHeader, StateInfo
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.byte_slices import Spans
from statestore.interop.flink_savepoints.types.flink_types import FlinkType, Scalar
from statestore.interop.flink_savepoints.write.canonical_writer import SavepointWriter
from statestore.jobgraph.operators import operator_id
from statestore.storage import open_storage
from tests.interop.flink_savepoints.entries import key_group_bytes

__all__ = ["written_savepoint"]

GROUPS = 128
LONG = Scalar("Long")


def written_savepoint(
    folder: Path,
    key: FlinkType,
    keys: pa.Array,
    values: list[int] | pa.Array,
    *,
    value_type: FlinkType = LONG,
    number: int = 1,
    groups: list[int] | None = None,
) -> Path:
    """Write a value state ``count`` of operator ``big``; return the savepoint's folder.

    Each key is in Flink's key group, or in the given one.
    """
    raw_keys = key.write(keys).to_pylist()
    stored = pa.array(values, pa.int64()) if isinstance(values, list) else values
    raw_values = value_type.write(stored).to_pylist()
    if groups is None:
        spans = Spans.from_values(raw_keys, "keys")
        found = key.key_groups(Cursor(spans, spans.starts, spans.ends))(GROUPS)
        groups = found.tolist()
    by_group: dict[int, list[tuple[bytes, bytes]]] = {}
    for group, raw, value in zip(groups, raw_keys, raw_values, strict=True):
        entry = (bytes([group]) + raw + b"\0", value)  # the namespace is one byte
        by_group.setdefault(group, []).append(entry)
    types = {"NAMESPACE_SERIALIZER": Scalar("VoidNamespace"), "VALUE_SERIALIZER": value_type}
    info = StateInfo(
        "count",
        "keyed",
        {"KEYED_STATE_TYPE": "VALUE"},
        {name: SerializerSnapshot(kind, kind.snapshot()) for name, kind in types.items()},
    )
    header = KeyedHeader(False, SerializerSnapshot(key, key.snapshot()), (info,))
    writer = SavepointWriter(open_storage(str(folder)))
    subtasks = []
    for index, first in enumerate((0, GROUPS // 2)):
        each = [
            [key_group_bytes([(0, by_group[group])])] if group in by_group else []
            for group in range(first, first + GROUPS // 2)
        ]
        subtasks.append(Subtask(index, keyed=writer.write_keyed(header, first, each)))
    operator = OperatorHandles(
        operator_id("big"), len(subtasks), GROUPS, tuple(subtasks), name="big", uid="big"
    )
    writer.finish(SavepointMetadata(3, number, (operator,)))
    return folder
