"""Import the operator state of a savepoint into a store, by subtask.

Each element of a list becomes a row, in the columns of its type or as bytes. A broadcast map is the
same in all subtasks; it is stored once, with a row for each entry. The splits of a Kafka source
stay bytes. In addition, the store gets the state ``offsets`` with the next offset of each
partition, in the form that a ``StatefulQuery`` uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.format.names import RESERVED_ELEMENT_COLUMNS
from statestore.interop.flink.columns.part_columns import UNDECODED, part_columns
from statestore.interop.flink.columns.state_columns import EntryForm, first_free
from statestore.interop.flink.columns.store_types import Part
from statestore.interop.flink.importing.import_record import ImportedState
from statestore.interop.flink.importing.probes import describe_kryo_parts
from statestore.interop.flink.metadata.handles import Mode
from statestore.interop.flink.read.operator_state import (
    SOURCE_READER_STATE,
    OperatorStateInfo,
    SubtaskElements,
    kafka_splits,
)
from statestore.interop.flink.read.savepoint import FlinkOperator
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.kryo import find_kryo_part, set_kryo
from statestore.rows.digests import rows_digest
from statestore.snapshot.writer import CheckpointWriter

_OFFSETS = "offsets"


def operator_states(
    checkpoint: CheckpointWriter,
    uid: str,
    operator: FlinkOperator,
    taken: Iterable[str],
    dropped: Collection[str],
    *,
    kryo: int | None,
    is_strict: bool,
) -> Iterator[ImportedState]:
    """Write the operator states of an operator, and yield the record of each.

    Args:
        checkpoint: the checkpoint to write to.
        uid: the operator's name in the store.
        operator: the operator.
        taken: names of its keyed states, which cannot be used again.
        dropped: names of operator states to leave out.
        kryo: the version of Kryo that wrote them; None if it is unknown.
        is_strict: whether a state without columns is refused.

    Yields:
        The states.

    Raises:
        UnsupportedTypeError: for a state without columns, if ``is_strict``.
        DamagedFileError or MissingFileError: if a file is damaged or missing.
    """
    names = list(taken)
    elements = sorted(
        _skip_copies(operator.operator_state(dropped)), key=lambda element: element.info.name
    )
    for _, group in groupby(elements, key=lambda element: element.info.name):
        parts = list(group)
        info = parts[0].info
        state = first_free(info.name, names)
        names.append(state)
        try:
            typed, columns, table = _build_typed_table(parts, kryo)
            form, why = EntryForm.COLUMNS, None
        except UnsupportedTypeError as error:
            if is_strict:
                error.add_note(f"state {info.name!r} of operator {uid}")
                raise
            typed, (columns, table) = info, _build_bytes_table(parts)
            form, why = EntryForm.BYTES, str(error)
        _write_state(checkpoint, uid, state, info.mode, table)
        yield _build_record(uid, state, typed, table, form, why, columns)
        if info.name == SOURCE_READER_STATE:
            offsets = first_free(_OFFSETS, names)
            _write_kafka_offsets(checkpoint, uid, offsets, operator, parts)


def element_columns(
    value: FlinkType | None, key: FlinkType | None, names: dict[str, tuple[str, ...]] | None = None
) -> dict[str, Part]:
    """Return the columns of an element: of its value and, for a broadcast map, of its key.

    Args:
        value: the type of the value, None for bytes.
        key: the type of a broadcast map's key, None for a list.
        names: the column names by part, as in the import record.

    Returns:
        The columns by part, ``map_key`` and ``value``.

    Raises:
        UnsupportedTypeError: for a type without a column type.
    """
    parts = {} if key is None else {"map_key": part_columns(key)}
    parts["value"] = part_columns(value, flat=key is None)
    taken = list(RESERVED_ELEMENT_COLUMNS)
    named_columns = {}
    for part, columns in parts.items():
        if not columns.types:
            raise UnsupportedTypeError("a type without columns cannot be an element")
        named: list[str] = []
        prefix = "" if part == "value" else f"{part}_"
        default = "value_bytes" if columns.flink_type == UNDECODED else part
        for field in columns.fields:
            wanted = f"{prefix}{field.name}" if columns.is_flat else default
            named.append(first_free(wanted, taken))
            taken.append(named[-1])
        part_names = tuple(named) if names is None else names[part]
        named_columns[part] = columns.with_names(part_names)
    return named_columns


def _skip_copies(elements: Iterable[SubtaskElements]) -> Iterator[SubtaskElements]:
    """Yield the elements of all subtasks, but only the first copy of a broadcast state."""
    copied: set[str] = set()
    for element in elements:
        if element.info.name not in copied:
            yield element
        if element.info.mode == "broadcast":
            copied.add(element.info.name)


def _build_typed_table(
    parts: list[SubtaskElements], kryo: int | None
) -> tuple[OperatorStateInfo, dict[str, Part], pa.Table]:
    """Return the elements in columns, with the columns and the types that fit them.

    Raises UnsupportedTypeError if no types fit.
    """
    info = parts[0].info
    try:
        return (info, *_read_elements(parts))
    except UnsupportedTypeError as error:
        if kryo is None or find_kryo_part((info.key, info.value)) is None:
            raise
        of_kryo = replace(info, key=set_kryo(info.key, kryo), value=set_kryo(info.value, kryo))
        try:
            return (of_kryo, *_read_elements([replace(part, info=of_kryo) for part in parts]))
        except DamagedFileError:  # the job may have another serializer for such a class
            raise error from None


def _read_elements(parts: list[SubtaskElements]) -> tuple[dict[str, Part], pa.Table]:
    info = parts[0].info
    columns = element_columns(info.value, info.key)
    tables = []
    for part in parts:
        values = part.values()
        if info.key is None:
            arrays = columns["value"].split(values)
        else:
            arrays = [
                *columns["map_key"].split(values.field(0)),
                *columns["value"].split(values.field(1)),
            ]
        tables.append(_build_table(columns, arrays, part, len(values)))
    return columns, pa.concat_tables(tables)


def _build_bytes_table(parts: list[SubtaskElements]) -> tuple[dict[str, Part], pa.Table]:
    columns = element_columns(None, None)
    tables = [_build_table(columns, [part.raw.arrow()], part, len(part.raw)) for part in parts]
    return columns, pa.concat_tables(tables)


def _build_table(
    columns: dict[str, Part], arrays: list[pa.Array], elements: SubtaskElements, count: int
) -> pa.Table:
    names = [name for part in columns.values() for name in part.names]
    if elements.info.mode != "broadcast":
        arrays = [*arrays, pa.array(np.full(count, elements.subtask, np.int64))]
        names = [*names, "subtask"]
    return pa.Table.from_arrays(arrays, names)


def _write_state(
    checkpoint: CheckpointWriter, uid: str, name: str, mode: Mode, table: pa.Table
) -> None:
    match mode:
        case "split":
            checkpoint.write_split(uid, name, table)
        case "union":
            checkpoint.write_union(uid, name, table)
        case "broadcast":
            checkpoint.write_broadcast(uid, name, table)


def _build_record(
    uid: str,
    state: str,
    info: OperatorStateInfo,
    table: pa.Table,
    form: EntryForm,
    why: str | None,
    columns: dict[str, Part],
) -> ImportedState:
    # The digest is without the subtasks, so that elements can be compared at another parallelism.
    elements = [name for part in columns.values() for name in part.names]
    raw = {name: snapshot.raw for name, snapshot in info.header.serializers.items()}
    return ImportedState(
        operator=uid,
        state=state,
        name=info.name,
        sort=info.mode,
        kind="",
        form=form,
        why=why,
        names={part: mapped.names for part, mapped in columns.items()},
        options=dict(info.header.options),
        key_serializer=raw.get("KEY_SERIALIZER"),
        namespace_serializer=None,
        value_serializer=raw["VALUE_SERIALIZER"],
        rows=len(table),
        digest=rows_digest(table.select(elements)),
        value_class=describe_kryo_parts((info.key, info.value)),
    )


def _write_kafka_offsets(
    checkpoint: CheckpointWriter,
    uid: str,
    name: str,
    operator: FlinkOperator,
    parts: list[SubtaskElements],
) -> None:
    """Write the offsets of a Kafka source; splits of other sources cannot be decoded."""
    rows = []
    for part in parts:
        try:
            splits = kafka_splits(part.values(), f"{name} of {operator.title}")
        except UnsupportedTypeError:
            return
        rows += [
            {
                "topic": split.topic,
                "partition": split.partition,
                "offset": split.offset,
                "subtask": part.subtask,
            }
            for split in splits
            if split.offset >= 0  # a negative number is a starting position, such as the earliest
        ]
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    schema = pa.schema(types | {"subtask": pa.int64()})
    if rows:
        checkpoint.write_union(uid, name, pa.Table.from_pylist(rows, schema))
