"""Write operator state of a store to a savepoint: lists element by element, broadcast maps whole.

Each subtask has a stream: i32 5, the list states, the broadcast states, and then all elements
(``OperatorBackendSerializationProxy``). The positions of the elements are in ``_metadata``. The
elements of a split state are distributed like in a restore with this parallelism. Each element of a
union state is written by one subtask. A broadcast state is the same in all subtasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.digest import RowSet, combine
from statestore.interop.flink.exporting.export_types import OperatorExport, OperatorStatePlan
from statestore.interop.flink.exporting.flink_versions import migrate_elements
from statestore.interop.flink.exporting.kafka_source import move_splits
from statestore.interop.flink.metadata.handles import InlineHandle, OperatorHandle, OperatorPart
from statestore.interop.flink.metadata.java_binary import i16, i32
from statestore.interop.flink.read.canonical import state_info_bytes
from statestore.interop.flink.read.operator_state import SOURCE_READER_STATE, SubtaskElements
from statestore.interop.flink.types.column_bytes import refuse_repeated
from statestore.interop.flink.write import SavepointWriter
from statestore.jobgraph.redistribution import RedistributionMode, RedistributionPlan
from statestore.restore.plan import redistribution_of
from statestore.restore.restored import RestoredCheckpoint, RestoredOperatorState
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest

_VERSION = 5
_SMALL = 20 * 2**10
"""Streams with fewer bytes are stored in ``_metadata``, as Flink does."""

Elements = list[dict[str, Any]]


@dataclass(frozen=True)
class SubtaskLists:
    """The elements of an operator state, by new subtask.

    ``coordinator`` is the new state of the operator's coordinator; None if it does not change.
    """

    plan: OperatorStatePlan
    lists: tuple[pa.Table, ...]
    coordinator: bytes | None = None

    @property
    def contents(self) -> RowSet:
        """The number and digest of all elements; for a broadcast state, of one copy."""
        lists = self.lists[:1] if self.plan.mode == "broadcast" else self.lists
        return element_set(pa.concat_tables(lists))

    def encode(self, subtask: int) -> list[bytes]:
        """Return the bytes of each element that a subtask gets."""
        if self.plan.mode == "broadcast":
            return self._broadcast_copy
        return _encode_elements(self.plan, self.lists[subtask])

    @cached_property
    def _broadcast_copy(self) -> list[bytes]:
        """The bytes of a broadcast map, which are the same for all subtasks."""
        return _encode_elements(self.plan, self.lists[0])


def element_set(rows: pa.Table) -> RowSet:
    """Return the number and the digest of elements."""
    return RowSet(len(rows), rows_digest(rows))


def redistribute_lists(
    restored: RestoredCheckpoint, plan: OperatorExport
) -> tuple[SubtaskLists, ...]:
    """Return the elements of an operator's states, by new subtask."""
    redistribution = redistribution_of(restored.manifest, plan.uid, plan.share.parallelism)
    offsets = None
    if plan.offsets is not None:
        offsets = restored.operator_state(plan.uid, plan.offsets).per_old_subtask()
    return tuple(
        _redistribute(
            restored.operator_state(plan.uid, state_plan.state.name),
            state_plan,
            redistribution,
            plan,
            offsets,
        )
        for state_plan in plan.operator
    )


def _redistribute(
    state: RestoredOperatorState,
    state_plan: OperatorStatePlan,
    redistribution: RedistributionPlan,
    plan: OperatorExport,
    offsets: Sequence[Elements] | None,
) -> SubtaskLists:
    parallelism, coordinator = plan.share.parallelism, None
    schema = arrow_schema(state_plan.state.schema)
    old: Sequence[Elements] = state.per_old_subtask()
    known = state_plan.imported
    if state_plan.name == SOURCE_READER_STATE and offsets is not None and known is not None:
        splits = pa.Table.from_pylist([*chain.from_iterable(old)], schema)
        # Imports of older releases recorded the digest of the files.
        digests = (rows_digest(splits), combine(handle.digest for handle in state.entry.handles))
        is_changed = len(splits) != known.rows or known.digest not in digests
        old, coordinator = move_splits(
            old, offsets, state_plan, plan.imported, is_changed=is_changed
        )
    stored = RedistributionMode(state_plan.state.mode)  # the splits of a source may be a union
    lists: list[Elements] = [[] for _ in range(parallelism)]
    if stored is RedistributionMode.BROADCAST:
        lists = [old[0] if old else []]
    elif coordinator is not None:  # there are other splits than at the import
        for number, element in enumerate(chain.from_iterable(old)):
            lists[number % parallelism].append(element)
    elif stored is RedistributionMode.UNION:
        for number, elements in enumerate(old):
            lists[number % parallelism] += elements
    else:
        for number, elements in enumerate(lists):
            for run in redistribution.runs(number)[state_plan.state.name]:
                elements += old[run.subtask][run.first : run.stop]
    tables = [pa.Table.from_pylist(elements, schema) for elements in lists]
    if state_plan.is_migrated:
        tables = [migrate_elements(table, state_plan) for table in tables]
    if stored is RedistributionMode.BROADCAST:
        tables *= parallelism
    return SubtaskLists(state_plan, tuple(tables), coordinator)


def write_subtask(
    states: Sequence[SubtaskLists], subtask: int, writer: SavepointWriter
) -> tuple[OperatorHandle, int] | None:
    """Write the operator state of a subtask.

    Args:
        states: all operator states of its operator.
        subtask: its number.
        writer: the savepoint that is being written.

    Returns:
        Its handle and its size in bytes, None if it has no elements.

    Raises:
        UnsupportedTypeError: for an element that Flink cannot represent.
    """
    contents = [(state.plan, elements) for state in states if (elements := state.encode(subtask))]
    if not contents:
        return None
    head = [i32(_VERSION)]
    for is_broadcast in (False, True):
        infos = [plan.info for plan, _ in contents if (plan.mode == "broadcast") is is_broadcast]
        head += [i16(len(infos)), *map(state_info_bytes, infos)]
    data = bytearray(b"".join(head))
    parts = []
    for plan, elements in contents:
        offsets = []
        for element in elements:
            offsets.append(len(data))
            data += element
        parts.append(OperatorPart(plan.name, plan.mode, tuple(offsets)))
    if len(data) <= _SMALL:
        return OperatorHandle(tuple(parts), InlineHandle(f"subtask-{subtask}", bytes(data))), len(
            data
        )
    return OperatorHandle(tuple(parts), writer.write_file([bytes(data)])), len(data)


def _encode_elements(plan: OperatorStatePlan, rows: pa.Table) -> list[bytes]:
    """Return the bytes of each element; a broadcast map is one element with an entry count."""
    if plan.is_bytes:
        return list(rows.column(plan.value.names[0]).to_pylist())
    try:
        values = plan.value.flink_type.write(plan.value.values(rows)).to_pylist()
        if plan.key is None:
            return list(values)
        flink_keys = plan.key.values(rows)
        if not plan.key.flink_type.has_identity:
            whole = pa.ListArray.from_arrays([0, len(flink_keys)], flink_keys)
            refuse_repeated(whole, flink_keys, "a map has the key")
        keys = plan.key.flink_type.write(flink_keys).to_pylist()
    except InvalidArgumentError as error:
        raise UnsupportedTypeError(
            f"the elements of {plan.state} cannot be written as {plan.type_name}: {error}"
        ) from error
    entries = [key + value for key, value in zip(keys, values, strict=True)]
    return [b"".join([i32(len(entries)), *entries])]


def read_back(elements: SubtaskElements, plan: OperatorStatePlan) -> pa.Table:
    """Convert the elements of a savepoint's subtask back to the columns of the store."""
    values = elements.raw.arrow() if plan.is_bytes else elements.values()
    if plan.key is None:
        columns = plan.value.columns(values)
    else:
        key, value = values.flatten()
        columns = plan.key.columns(key) | plan.value.columns(value)
    schema = arrow_schema(plan.state.schema)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
