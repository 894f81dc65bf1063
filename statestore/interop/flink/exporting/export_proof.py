"""Verify a written savepoint: read it back, and compare it with the rows of the checkpoint.

Its entries are decoded like the entries of any other savepoint, and converted to columns of the
store. For each state, the number and the digest of the rows must match the rows that were read from
the store. Each row must be in the key group that follows from its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import CorruptionError
from statestore.format.digest import combine
from statestore.format.rescale_proof import RowSet
from statestore.format.state import StateKind
from statestore.interop.flink.columns.state_columns import FLINK_KEY_GROUP
from statestore.interop.flink.columns.store_types import from_millis
from statestore.interop.flink.exporting.export_operator import SubtaskLists, element_set, read_back
from statestore.interop.flink.exporting.export_rows import compute_flink_groups, row_set
from statestore.interop.flink.exporting.export_types import KeyedExport, OperatorExport
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.composite import KeyLayout, split_keys
from statestore.interop.flink.read.savepoint import FlinkOperator, StateEntries, state_rows
from statestore.interop.flink.types.byte_slices import Spans
from statestore.interop.flink.types.decode import decode_list, decode_map_values, decode_values
from statestore.interop.flink.types.flink_types import ListType, MapType
from statestore.interop.flink.write.entries import PIECE_BYTES
from statestore.rows.key_group_runs import key_groups_of

_ROWS = 1 << 17
Groups: TypeAlias = npt.NDArray[np.int32]
Counts: TypeAlias = npt.NDArray[np.int64]


def verify_keyed(written: FlinkOperator, plan: OperatorExport, expected: Sequence[RowSet]) -> None:
    """Compare the written keyed states of an operator with the rows of the store.

    Args:
        written: the operator, as it was read back.
        plan: its export plan.
        expected: the expected number and digest of the rows of each keyed state of ``plan``.

    Raises:
        CorruptionError: if the rows differ, or rows are in wrong key groups.
    """
    if written.problem is not None:
        raise CorruptionError(f"cannot read back operator {plan.uid!r}: {written.problem}")
    for state, rows in zip(plan.keyed, expected, strict=True):
        actual = RowSet(0, 0)
        names = [written_state.name for written_state in written.states]
        pieces = written.entries(state.flink.name) if state.flink.name in names else iter(())
        for groups, keys, values in _combine_entries(pieces):
            table = _rebuild_rows(keys, values, state, plan.share.max_parallelism, groups)
            more = row_set(table, state)
            actual = RowSet(actual.rows + more.rows, combine((actual.digest, more.digest)))
        if actual != rows:
            raise CorruptionError(
                f"verification of {state.state} failed: {actual.rows} rows were read back, but "
                f"{rows.rows} were written, or the values differ; no savepoint was made"
            )


def _combine_entries(
    entries: Iterator[StateEntries],
) -> Iterator[tuple[Groups, Spans, Spans]]:
    """Yield key groups, keys and values of entries in large batches."""
    pending: list[StateEntries] = []
    rows = size = 0
    for entry in entries:
        pending.append(entry)
        rows += len(entry.keys)
        size += len(entry.keys.data)
        if rows >= _ROWS or size >= PIECE_BYTES:
            yield _combine_batch(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield _combine_batch(pending)


def _combine_batch(
    pending: list[StateEntries],
) -> tuple[Groups, Spans, Spans]:
    counts = [len(entry.keys) for entry in pending]
    groups = np.repeat(np.array([entry.key_group for entry in pending], np.int32), counts)
    return (
        groups,
        _concatenate([entry.keys for entry in pending]),
        _concatenate([entry.values for entry in pending]),
    )


def _concatenate(pieces: list[Spans]) -> Spans:
    whole = pa.concat_arrays([piece.arrow().cast(pa.large_binary()) for piece in pieces])
    _, offsets, content = whole.buffers()
    edges = np.frombuffer(offsets, np.int64, len(whole) + 1)
    data = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
    return Spans(data, edges[:-1], edges[1:], pieces[0].name)


def _rebuild_rows(
    keys: Spans,
    values: Spans,
    plan: KeyedExport,
    max_parallelism: int,
    groups: Groups,
) -> pa.Table:
    """Convert entries to rows of the store; CorruptionError for a row in a wrong key group."""
    if plan.columns is not None:
        return _rebuild_imported_rows(keys, values, plan, max_parallelism, groups)
    columns, counts = _rebuild_columns(keys, values, plan, prefix_bytes(max_parallelism))
    schema = plan.stored
    rows = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    if counts is not None:
        groups = np.repeat(groups, counts)
    return _check_key_groups(rows, plan, max_parallelism, groups)


def _check_key_groups(
    rows: pa.Table, plan: KeyedExport, max_parallelism: int, groups: Groups
) -> pa.Table:
    if plan.has_class_keys:
        batches = rows.combine_chunks().to_batches()
        expected = [compute_flink_groups(batch, plan, max_parallelism) for batch in batches]
        actual_groups = np.concatenate([np.empty(0, np.int32), *expected])
    else:
        actual_groups = key_groups_of(rows, plan.state, max_parallelism)
    wrong = int((actual_groups != groups).sum())
    if wrong:
        raise CorruptionError(
            f"verification of {plan.state} failed: {wrong} rows were written to wrong key groups; "
            "no savepoint was made"
        )
    return rows


def _rebuild_imported_rows(
    keys: Spans, values: Spans, plan: KeyedExport, max_parallelism: int, groups: Groups
) -> pa.Table:
    """Convert entries to the rows that an import makes."""
    columns, prefix = plan.columns, prefix_bytes(max_parallelism)
    assert columns is not None, "the state was imported"
    entries = StateEntries(plan.flink, 0, keys, values)
    if plan.is_bytes:
        rows = columns.table_of_bytes(entries, prefix)
        index = rows.schema.get_field_index(FLINK_KEY_GROUP)
        return rows.set_column(index, FLINK_KEY_GROUP, pa.array(groups))
    as_bytes = columns.form.has_value_bytes
    decoded_rows = state_rows(entries, prefix, as_bytes=as_bytes)
    if plan.flink.kind == "list" and not as_bytes:
        assert decoded_rows.value is not None, "a list must have elements"
        edges = decoded_rows.value.offsets.to_numpy(zero_copy_only=False)
        groups = np.repeat(groups, np.diff(edges))
    rows = columns.table(decoded_rows)
    if plan.has_flink_groups:
        index = rows.schema.get_field_index(FLINK_KEY_GROUP)
        return rows.set_column(index, FLINK_KEY_GROUP, pa.array(groups))
    return _check_key_groups(rows, plan, max_parallelism, groups)


def _rebuild_columns(
    keys: Spans, values: Spans, plan: KeyedExport, prefix: int
) -> tuple[dict[str, pa.Array], Counts | None]:
    """Return the columns of entries by name and, for lists, the number of rows per entry."""
    value_type, state = plan.flink.value, plan.state
    if plan.flink.kind == "timers":
        timers = Spans(keys.data, keys.starts + prefix, keys.ends, keys.name)
        time, key, namespace = decode_values(value_type, timers).flatten()
        name = state.entry[0]
        times = {name: from_millis(time, plan.stored.field(name).type)}
        return times | plan.key.from_flink(key) | plan.namespace.from_flink(namespace), None
    parts = split_keys(keys, KeyLayout.from_state(plan.flink), prefix)
    columns = plan.key.from_flink(parts.key) | plan.namespace.from_flink(parts.namespace)
    if plan.flink.kind == "list" and isinstance(value_type, ListType):
        lists = decode_list(value_type.element, values)
        columns, counts = _repeat_per_element(columns, lists, plan)
        return columns | _rebuild_value_columns(lists.flatten(), plan), counts
    if isinstance(value_type, MapType) and plan.flink.kind == "map":
        columns |= plan.map_key.from_flink(parts.map_key)
        decoded = decode_map_values(value_type.value, values)
        if state.kind is StateKind.LIST:
            return _rebuild_lists(columns, decoded, plan)
        return columns | _rebuild_value_columns(decoded, plan), None
    return columns | _rebuild_value_columns(decode_values(value_type, values), plan), None


def _repeat_per_element(
    columns: dict[str, pa.Array], lists: pa.Array, plan: KeyedExport
) -> tuple[dict[str, pa.Array], Counts]:
    """Return the columns of lists once per element, with its position, and the lengths of lists."""
    edges = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.diff(edges)
    owner = np.repeat(np.arange(len(counts)), counts)
    repeated = {name: column.take(pa.array(owner)) for name, column in columns.items()}
    name = plan.state.entry[0]
    places = pa.array(np.arange(len(owner)) - (edges[:-1] - edges[0])[owner])
    repeated[name] = places.cast(plan.stored.field(name).type)
    return repeated, counts


def _rebuild_lists(
    columns: dict[str, pa.Array], lists: pa.Array, plan: KeyedExport
) -> tuple[dict[str, pa.Array], Counts]:
    """Return the columns of a map of lists once per element, and the lengths of the lists."""
    ttl = plan.state.ttl
    if ttl is not None:
        times, lists = lists.flatten()
        columns[ttl.column] = from_millis(times, plan.stored.field(ttl.column).type)
    columns, counts = _repeat_per_element(columns, lists, plan)
    return columns | plan.value.from_flink(lists.flatten()), counts


def _rebuild_value_columns(values: pa.Array, plan: KeyedExport) -> dict[str, pa.Array]:
    ttl = plan.state.ttl
    if ttl is None:
        return plan.value.from_flink(values)
    times, inner = values.flatten()
    time_type = plan.stored.field(ttl.column).type
    return {ttl.column: from_millis(times, time_type)} | plan.value.from_flink(inner)


def verify_operator(written: FlinkOperator, expected: Sequence[SubtaskLists]) -> None:
    """Compare the written operator states of an operator with the elements of the store.

    Args:
        written: the operator, as it was read back.
        expected: the expected elements of each subtask.

    Raises:
        CorruptionError: if the elements of a subtask differ.
    """
    written_elements = {
        (subtask_elements.info.name, subtask_elements.subtask): subtask_elements
        for subtask_elements in written.operator_state()
    }
    for state in expected:
        proven = b""
        for subtask, rows in enumerate(state.lists):
            elements = written_elements.get((state.plan.name, subtask))
            if elements is not None and state.plan.mode == "broadcast":
                if proven and proven == elements.raw.data.tobytes():
                    continue
                proven = elements.raw.data.tobytes()
            written_rows = rows.slice(0, 0) if elements is None else read_back(elements, state.plan)
            if element_set(written_rows) != element_set(rows):
                raise CorruptionError(
                    f"verification of {state.plan.state} failed: subtask {subtask} has "
                    f"{len(written_rows)} elements instead of {len(rows)}, or the elements differ; "
                    "no savepoint was made"
                )
