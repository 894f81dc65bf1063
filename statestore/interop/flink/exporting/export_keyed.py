"""Read keyed states from a store as entries of a savepoint's stream, and verify the written ones.

In the stream, a key group has the entries of all states, one state after another. So rows are read
in chunks of key groups, state by state, and the entries of one chunk are in memory. Rows become
entries column by column. A key group that is larger than a chunk is read in parts. If rows change
their key groups, the entries of all states are sorted, on disk if they do not fit in memory.

The written savepoint is read back and compared with the rows of the checkpoint. Its entries are
decoded like the entries of any other savepoint, and converted to columns of the store. For each
state, the number and the digest of the rows must match the rows that were read from the store. Each
row must be in the key group that follows from its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from heapq import merge

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import CorruptionError, InvalidArgumentError, UnsupportedTypeError
from statestore.format.digest import RowSet, combine
from statestore.format.names import KEY_GROUP
from statestore.format.state import StateKind
from statestore.interop.flink.columns.state_columns import (
    FLINK_KEY_GROUP,
    find_begins,
    replace_column,
)
from statestore.interop.flink.exporting.export_operator import SubtaskLists, element_set, read_back
from statestore.interop.flink.exporting.export_types import KeyedExport, OperatorExport
from statestore.interop.flink.exporting.flink_versions import migrate_rows
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.keyed_states import Encoding, PartWriter, StateEntries
from statestore.interop.flink.read.savepoint import FlinkOperator
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import BYTES, Cursor, Spans, join_parts
from statestore.interop.flink.types.key_hash import HashCodes, groups_of_hashes
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.write import (
    PIECE_BYTES,
    EntryRun,
    EntrySort,
    Groups,
    join_entries,
    prefixes,
    split_runs,
)
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import sorted_tables
from statestore.layers.expiry import hides_expired
from statestore.restore.restored import RestoredCheckpoint
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.python_values import display_rows
from statestore.rows.sorting import gather_batches, keep_together


@dataclass(frozen=True, kw_only=True)
class HashedKey:
    """A key and the result of its ``hashCode()``, by which a user can check the recipe."""

    key: str
    hash_code: int


def hash_first_key(rows: pa.Table, plan: KeyedExport) -> HashedKey:
    """Return the first key of rows whose keys are a class of the job, with its hash."""
    first = rows.slice(0, 1)
    (key,) = display_rows(first.select(plan.state.key))
    (code,) = _hash_class_keys(first, plan).tolist()
    return HashedKey(key=str(key), hash_code=code)


def _hash_class_keys(rows: pa.Table | pa.RecordBatch, plan: KeyedExport) -> HashCodes:
    assert plan.flink.recipe is not None, "the hash of a class has a recipe"
    return recipe_hash_codes(plan.flink.recipe, plan.flink.key, plan.columns.key.values(rows))


def row_set(rows: pa.Table, plan: KeyedExport) -> RowSet:
    """Return the number and the digest of rows of a state."""
    return RowSet(len(rows), rows_digest(rows.select(plan.state.schema.names)))


def normalize_rows(rows: pa.Table, plan: KeyedExport) -> pa.Table:
    """Return rows in the form that a savepoint can represent.

    Values that are migrated have the form of the new version of Flink.
    """
    if plan.is_migrated:
        rows = migrate_rows(rows, plan)
    if plan.has_flink_groups:
        rows = replace_column(rows, FLINK_KEY_GROUP, rows.column(KEY_GROUP))
    if plan.planned is not None and plan.planned.most_rows is not None and len(rows):
        _refuse_more_rows(rows, plan, plan.planned.most_rows)
    return plan.columns.normalized(rows)


def _refuse_more_rows(rows: pa.Table, plan: KeyedExport, most: int) -> None:
    """Refuse a key with more rows than a top-N keeps; all rows of a key are adjacent."""
    keys = rows.select(list(plan.state.key)).combine_chunks()
    begins = find_begins(keys.to_batches()[0])
    counts = np.diff(np.append(begins, len(rows)))
    if counts.max() > most:
        key = keys.slice(int(begins[counts.argmax()]), 1).to_pylist()[0]
        raise InvalidArgumentError(
            f"{plan.state} has {counts.max()} rows of the key {key}, but the job keeps the best "
            f"{most}: bootstrap the state with these rows alone"
        )


def encode_rows(rows: pa.Table, plan: KeyedExport, max_parallelism: int) -> tuple[pa.Array, Groups]:
    """Encode rows as entries.

    Args:
        rows: rows from :func:`normalize_rows` with their new key groups. The elements of each list
            must be adjacent.
        plan: the export plan of the state.
        max_parallelism: the number of all key groups.

    Returns:
        The entries, and their key groups.

    Raises:
        UnsupportedTypeError: for a value that Flink cannot represent, such as a null number, with
            the state and its columns.
    """
    groups = rows.column(KEY_GROUP).to_numpy().astype(np.int32)
    with _state_in_errors(plan):
        entries, begins = plan.columns.rows(rows)
    groups = groups if begins is None else groups[begins]
    prefix = prefixes(groups, max_parallelism)
    state, write = plan.flink, _make_part_writer(plan)
    if plan.is_bytes:
        keys = join_parts(prefix, entries.key.cast(BYTES))
    else:
        keys = state.encode_keys(entries, prefix, write)
    if entries.value is not None and (plan.is_bytes or plan.columns.form.has_value_bytes):
        values = entries.value.cast(BYTES)
    else:
        values = state.encode_values(entries.value, len(entries), write)
    return join_entries(keys, values), groups


def _make_part_writer(plan: KeyedExport) -> PartWriter:
    """Return a function whose UnsupportedTypeError has the state, and the columns of the part."""

    def write(part: str, array: pa.Array, flink_type: FlinkType, encode: Encoding) -> pa.Array:
        try:
            return encode(array, flink_type)
        except InvalidArgumentError as error:
            names = ", ".join(plan.columns.names.get(part, ()))
            raise UnsupportedTypeError(
                f"{plan.state}: the column {names} cannot be written as "
                f"{flink_type.java_name}: {error}"
            ) from error

    return write


@contextmanager
def _state_in_errors(plan: KeyedExport) -> Iterator[None]:
    """Add the operator and state to the error for a value that Flink's type cannot hold."""
    try:
        yield
    except InvalidArgumentError as error:
        place = f"{plan.state}: "
        raise UnsupportedTypeError(f"{place}{str(error).removeprefix(place)}") from error


def compute_flink_groups(
    rows: pa.RecordBatch, plan: KeyedExport, max_parallelism: int
) -> npt.NDArray[np.int32]:
    """Return the key group of each row in Flink.

    Imported rows whose key group the store cannot compute have a column with it. For another max
    parallelism, or if there is a recipe for their hash, their keys are decoded.

    Raises:
        UnsupportedTypeError: if the hash of the key type is not known, or a row has no key group.
    """
    if plan.has_class_keys:
        hashes = _hash_class_keys(rows, plan)
        return groups_of_hashes(hashes)(max_parallelism)
    if not plan.has_flink_groups:
        return key_groups_of(rows, plan.state, max_parallelism)
    stored = rows.column(FLINK_KEY_GROUP)
    is_moved = plan.is_rekeyed or max_parallelism != plan.state.max_parallelism
    if plan.flink.recipe is not None or is_moved:
        spans = _stored_keys(rows, plan)
        starts = spans.starts + (plan.flink.before_key if plan.is_bytes else 0)
        return plan.flink.key_groups(Cursor(spans, starts, spans.ends))(max_parallelism)
    if stored.null_count:
        raise UnsupportedTypeError(
            f"{plan.state} has {stored.null_count} rows without {FLINK_KEY_GROUP}: only the job "
            "can compute the key group of a new key. Add rows of keys that the state has, or give "
            "the hash to the import (--key-hash, key_hash=)"
        )
    groups: npt.NDArray[np.int32] = stored.to_numpy()
    return groups


def _stored_keys(rows: pa.RecordBatch, plan: KeyedExport) -> Spans:
    """Return the bytes of the keys of rows whose key group the store cannot compute."""
    with _state_in_errors(plan):
        keys = plan.columns.key.values(rows)
    whole = keys if plan.is_bytes else plan.flink.key.write(keys)
    return Spans.from_array(whole.cast(BYTES), f"a key of {plan.state}")


CHUNK_BYTES = 32 * 2**20
"""The approximate size of a chunk's entries in memory."""
_PARQUET = 4  # an estimate of how much larger rows are in memory than in Parquet
_NO_ROWS = RowSet(0, 0)


@dataclass(frozen=True, eq=False)
class _Entries:
    """Entries of a state, with the totals of their rows and the row count by key group."""

    place: int
    entries: pa.Array
    groups: Groups
    stored: RowSet
    normal: RowSet
    group_rows: Groups

    def runs(self) -> Iterator[EntryRun]:
        return split_runs(self.entries, self.groups, np.full(len(self.groups), self.place))


class ExportedKeyedStates:
    """The keyed states of an operator as runs of entries, with running totals of their rows."""

    def __init__(
        self,
        restored: RestoredCheckpoint,
        plan: OperatorExport,
        memory_bytes: int,
        report_rows: Callable[[int], None],
    ) -> None:
        """Open the states of a checkpoint; ``report_rows`` receives numbers of written rows."""
        self._plan, self._memory_bytes, self._report_rows = plan, memory_bytes, report_rows
        self._states = [
            restored.keyed(plan.uid, state_plan.state.name) for state_plan in plan.keyed
        ]
        self._max_parallelism = plan.share.max_parallelism
        self._stored = [_NO_ROWS] * len(self._states)
        self._normal = [_NO_ROWS] * len(self._states)
        self._group_rows = np.zeros(self._max_parallelism, np.int64)
        self._examples: list[HashedKey | None] = [None] * len(self._states)

    @property
    def hash_examples(self) -> tuple[HashedKey | None, ...]:
        """A key and its hash for each state whose keys are a class of the job."""
        return tuple(self._examples)

    def count_rows(self, part: KeyGroupRange) -> int:
        """Return the number of rows of a subtask, after all runs were consumed."""
        return int(self._group_rows[part.first : part.last + 1].sum())

    def runs(self, stack: ExitStack) -> Iterator[EntryRun]:
        """Return all entries, ordered by key group and state.

        Spilled files are deleted when ``stack`` is closed.
        """
        plans = self._plan.keyed
        if not any(
            plan.has_flink_groups
            or plan.has_class_keys
            or plan.state.max_parallelism != self._max_parallelism
            for plan in plans
        ):
            return self._stream_runs()
        sort = stack.enter_context(EntrySort(self._max_parallelism, self._memory_bytes))
        for place, plan in enumerate(plans):
            every = KeyGroupRange.every(plan.state.max_parallelism)
            for entry in self._read_entries(place, every):
                self._count(entry)
                sort.add(entry.entries, entry.groups, place)
        return sort.runs()

    def check_totals(self) -> tuple[RowSet, ...]:
        """Return the totals of each state; CorruptionError if they differ from the recorded ones.

        A state with a TTL is compared only if none of its rows can have expired.
        """
        for state, actual in zip(self._states, self._stored, strict=True):
            recorded = state.entry.contents
            if (
                recorded is not None
                and not hides_expired(state.entry.state, state.now_ms)
                and recorded != actual
            ):
                raise CorruptionError(
                    f"{state.entry.state}: {actual.rows} rows were read, but the manifest says "
                    f"{recorded.rows} rows, or the values differ; run 'statestore verify'"
                )
        return tuple(self._normal)

    def _count(self, state_entries: _Entries) -> None:
        place = state_entries.place
        self._stored[place] = _add_row_sets(self._stored[place], state_entries.stored)
        self._normal[place] = _add_row_sets(self._normal[place], state_entries.normal)
        self._group_rows += np.bincount(state_entries.group_rows, minlength=self._max_parallelism)
        self._report_rows(state_entries.normal.rows)

    def _stream_runs(self) -> Iterator[EntryRun]:
        """Yield the runs of rows that stay in their key groups."""
        size = _PARQUET * sum(state.entry.size_bytes for state in self._states)
        width = max(1, CHUNK_BYTES * self._max_parallelism // max(size, 1))
        for first in range(0, self._max_parallelism, width):
            yield from self._merge_runs(
                KeyGroupRange(first, min(first + width, self._max_parallelism) - 1)
            )

    def _merge_runs(self, chunk: KeyGroupRange) -> Iterator[EntryRun]:
        all_entries = (
            entry
            for place in range(len(self._states))
            for entry in self._read_entries(place, chunk)
        )
        if len(chunk) == 1:
            for state_entries in all_entries:
                self._count(state_entries)
                yield from state_entries.runs()
            return
        pending: list[_Entries] = []
        size = 0
        for state_entries in all_entries:
            pending.append(state_entries)
            size += state_entries.entries.nbytes
            if size > 2 * CHUNK_BYTES:  # these key groups are larger than the average
                half = chunk.first + len(chunk) // 2
                pending.clear()
                yield from self._merge_runs(KeyGroupRange(chunk.first, half - 1))
                yield from self._merge_runs(KeyGroupRange(half, chunk.last))
                return
        for state_entries in pending:
            self._count(state_entries)
        yield from merge(
            *(state_entries.runs() for state_entries in pending),
            key=lambda run: (run.key_group, run.state),
        )

    def _read_entries(self, place: int, key_groups: KeyGroupRange) -> Iterator[_Entries]:
        """Yield the entries of a state in some stored key groups, in parts."""
        plan = self._plan.keyed[place]
        for rows in self._read_rows(place, key_groups):
            is_moved = plan.state.max_parallelism != self._max_parallelism
            if is_moved or plan.has_flink_groups or plan.has_class_keys:
                rows = _assign_groups(rows, plan, self._max_parallelism)
            if plan.has_class_keys and self._examples[place] is None:
                self._examples[place] = hash_first_key(rows, plan)
            stored, normal = row_set(rows, plan), normalize_rows(rows, plan)
            changed = stored if normal is rows else row_set(normal, plan)
            group_rows = rows.column(KEY_GROUP).to_numpy()
            entries, groups = encode_rows(normal, plan, self._max_parallelism)
            yield _Entries(place, entries, groups, stored, changed, group_rows)

    def _read_rows(self, place: int, key_groups: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield stored rows in order, in tables that never split a list."""
        plan = self._plan.keyed[place]
        reader, state = self._states[place].key_groups(key_groups), plan.state
        if state.kind is not StateKind.LIST:
            return gather_batches(reader, PIECE_BYTES)
        tables = sorted_tables(reader, state, PIECE_BYTES)
        if plan.planned is None:
            return keep_together(tables, [KEY_GROUP, *state.key, *state.namespace])
        # All lists of a key are together, so that their rows can be counted.
        return keep_together(tables, [KEY_GROUP, *state.key])


def _assign_groups(rows: pa.Table, plan: KeyedExport, max_parallelism: int) -> pa.Table:
    """Return rows with their key groups for ``max_parallelism``."""
    [batch] = rows.combine_chunks().to_batches()
    groups = pa.array(compute_flink_groups(batch, plan, max_parallelism), pa.int32())
    index = rows.schema.get_field_index(KEY_GROUP)
    return pa.Table.from_batches([batch.set_column(index, batch.schema.field(index), groups)])


def _add_row_sets(first: RowSet, second: RowSet) -> RowSet:
    return RowSet(first.rows + second.rows, combine((first.digest, second.digest)))


_ROWS = 1 << 17


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
