"""Generated savepoints with one keyed state, for cases that no golden covers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from statestore.interop.flink.metadata.handles import OperatorHandles, SavepointMetadata, Subtask
from statestore.interop.flink.read.canonical import KeyedHeader, StateInfo
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Cursor, Spans
from statestore.interop.flink.types.column_bytes import encode_list
from statestore.interop.flink.types.java_types import ListType, Scalar
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from statestore.interop.flink.write import SavepointWriter
from statestore.jobgraph.operators import operator_id
from statestore.storage import open_storage
from tests.interop.flink.entries import key_group_bytes

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
    form: str = "VALUE",
    number: int = 1,
    groups: list[int] | None = None,
    other: tuple[FlinkType, pa.Array] | None = None,
) -> Path:
    """Write a state ``count`` of operator ``big``; return the savepoint's folder.

    Each key is in Flink's key group, or in the given one. ``form`` is Flink's name of the state's
    kind. ``other`` are the type and the values of a second state ``other`` with the same keys.
    """
    raw_keys = key.write(keys).to_pylist()
    stored = pa.array(values, pa.int64()) if isinstance(values, list) else values
    states = [("count", value_type, stored), *([("other", *other)] if other else [])]
    if groups is None:
        spans = Spans.from_values(raw_keys, "keys")
        found = key.key_groups(Cursor(spans, spans.starts, spans.ends))(GROUPS)
        groups = found.tolist()
    by_group: dict[int, list[tuple[int, list[tuple[bytes, bytes]]]]] = {}
    for number_of_state, (_, kind, column) in enumerate(states):
        entries: dict[int, list[tuple[bytes, bytes]]] = {}
        written = kind.write(column)
        if form == "LIST" and isinstance(kind, ListType):
            written = encode_list(column, kind.element)
        raw_values = written.to_pylist()
        for group, raw, value in zip(groups, raw_keys, raw_values, strict=True):
            entry = (bytes([group]) + raw + b"\0", value)  # the namespace is one byte
            entries.setdefault(group, []).append(entry)
        for group, of_group in entries.items():
            by_group.setdefault(group, []).append((number_of_state, of_group))
    infos = tuple(_state_info(name, kind, form) for name, kind, _ in states)
    header = KeyedHeader(False, SerializerSnapshot(key, key.snapshot()), infos)
    writer = SavepointWriter(open_storage(str(folder)))
    subtasks = []
    for index, first in enumerate((0, GROUPS // 2)):
        each = [
            [key_group_bytes(by_group[group])] if group in by_group else []
            for group in range(first, first + GROUPS // 2)
        ]
        subtasks.append(Subtask(index, keyed=writer.write_keyed(header, first, each)))
    operator = OperatorHandles(
        operator_id("big"), len(subtasks), GROUPS, tuple(subtasks), name="big", uid="big"
    )
    writer.finish(SavepointMetadata(3, number, (operator,)))
    return folder


def _state_info(name: str, value_type: FlinkType, form: str) -> StateInfo:
    types = {"NAMESPACE_SERIALIZER": Scalar("VoidNamespace"), "VALUE_SERIALIZER": value_type}
    snapshots = {part: SerializerSnapshot(kind, kind.snapshot()) for part, kind in types.items()}
    return StateInfo(name, "keyed", {"KEYED_STATE_TYPE": form}, snapshots)
