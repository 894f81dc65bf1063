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
from statestore.format.digest import RowSet, combine
from statestore.interop.flink.exporting.export_keyed import compute_flink_groups, row_set
from statestore.interop.flink.exporting.export_operator import SubtaskLists, element_set, read_back
from statestore.interop.flink.exporting.export_types import KeyedExport, OperatorExport
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.keyed_states import StateEntries
from statestore.interop.flink.read.savepoint import FlinkOperator
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.write import PIECE_BYTES
from statestore.rows.key_group_runs import key_groups_of

_ROWS = 1 << 17
Groups: TypeAlias = npt.NDArray[np.int32]


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
    return Spans.from_array(whole, pieces[0].name)


def _rebuild_rows(
    keys: Spans,
    values: Spans,
    plan: KeyedExport,
    max_parallelism: int,
    groups: Groups,
) -> pa.Table:
    """Convert entries to rows of the store; CorruptionError for a row in a wrong key group."""
    columns, prefix = plan.columns, prefix_bytes(max_parallelism)
    entries = StateEntries(plan.flink, 0, keys, values)
    if plan.is_bytes:
        return columns.table_of_bytes(entries, prefix, groups)
    decoded = entries.rows(prefix, as_bytes=columns.form.has_value_bytes)
    rows, groups = columns.table(decoded, groups)
    if not plan.has_flink_groups:
        _check_key_groups(rows, plan, max_parallelism, groups)
    return rows


def _check_key_groups(
    rows: pa.Table, plan: KeyedExport, max_parallelism: int, groups: Groups
) -> None:
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
