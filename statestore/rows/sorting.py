"""Sorts the rows of a state by key group and identity in bounded memory.

:func:`fit_or_stream` decides whether rows fit in memory.

Rows that fit the budget are sorted in memory. Otherwise an external merge sort is used: sorted runs
are written to a temporary folder as Arrow IPC streams, then merged. The folder is created with the
first run, and deleted at the end. If the process is killed, it is deleted later; see
:mod:`statestore.storage.locks`.

A *piece* is a table of bounded size. Pieces *ascend* if no row of a piece belongs after a row of
the next piece. Within a piece, rows may be in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.layers import are_changes
from statestore.format.names import KEY_GROUP, MARK
from statestore.format.state import KeyedState
from statestore.rows.digests import Places
from statestore.rows.equality import as_bytes, equal_rows, equal_values, leaf_columns
from statestore.rows.key_group_runs import (
    ONE_ARRAY_BYTES,
    check_groups,
    combine_chunks,
    key_groups_of,
    order_of,
    sort_groups,
    take_rows,
    wide_bytes,
)
from statestore.rows.python_values import display_rows
from statestore.storage.base import report_os_errors
from statestore.storage.locks import temporary_folder

MEMORY_BYTES = 256 * 2**20
"""The default memory in which one writer may sort rows."""

ROW_BYTES = 2**29
"""The maximum size of one row in bytes. Arrow's text arrays and Parquet's pages are limited to
2 GiB, and a reader must be able to hold two rows in one array."""

_COPIES = 4
"""The number of copies of sorted rows in memory: gathered rows, sort keys, and ordered rows."""

_FAN_IN = 64
"""The maximum number of runs in a merge: each one has an open file and a part of the budget."""


def key_group_pieces(
    rows: Iterable[pa.RecordBatch | pa.Table],
    state: KeyedState,
    run_bytes: int,
    memory_bytes: int = MEMORY_BYTES,
) -> Iterator[pa.Table]:
    """Gather rows that are in order of key group into pieces that ascend.

    Args:
        rows: batches or tables with a column ``key_group``. A key group may extend over several.
        state: the state whose identity columns order the rows of a key group.
        run_bytes: small key groups are gathered until they have this many bytes.
        memory_bytes: the memory to use. A key group that does not fit is sorted on disk.

    Yields:
        Whole key groups with rows in any order, or sorted pieces of large key groups.

    Raises:
        InvalidArgumentError: if a key group occurs again after a later one, or a row is too large.
        StorageError: if the temporary folder cannot be written.
    """
    with ExternalSort(state, memory_bytes) as sort:
        run_bytes, last = min(wide_bytes(run_bytes, state, sort.limit), sort.limit), -1
        for table, size in _split_tables(rows, sort.limit, state):
            groups = np.asarray(table.column(KEY_GROUP))
            _refuse_disorder(groups, last)
            begins, last = int(groups[-1]) != last, int(groups[-1])
            if begins and (sort.size or sort.spilled) and sort.total + size >= run_bytes:
                border = int(np.searchsorted(groups, last))
                if border:
                    before, table = table.slice(0, border), table.slice(border)
                    sort.add(before, before.nbytes)
                    size = table.nbytes
                yield from sort.finish()
            sort.add(table, size)
        yield from sort.finish()


def sorted_pieces(
    rows: Iterable[pa.RecordBatch | pa.Table], state: KeyedState, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.Table]:
    """Yield rows that arrive in any order, with a column ``key_group``, as sorted pieces.

    Raises InvalidArgumentError for a row that is too large, and StorageError if the temporary
    folder cannot be written.
    """
    with ExternalSort(state, memory_bytes) as sort:
        for table, size in _split_tables(rows, sort.limit, state):
            sort.add(table, size)
        is_sorted = sort.spilled
        for piece in sort.finish():
            yield piece if is_sorted else sort_groups(piece, state)


class ExternalSort:
    """Sorts the rows of a state within a memory budget; use it in a ``with`` block."""

    def __init__(self, state: KeyedState, memory_bytes: int) -> None:
        """Use about ``memory_bytes`` of memory."""
        self.limit = min(max(memory_bytes // _COPIES, 1), ONE_ARRAY_BYTES)
        # While a piece is merged, the previous one is still being written.
        self._merged_bytes = self.limit // 3
        self._state = state
        self._held: list[pa.Table] = []
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._runs: list[_Run] = []
        self._written = 0
        self.size = 0
        self.total = 0

    def __enter__(self) -> ExternalSort:
        """Return the sort itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the temporary folder."""
        self._stack.close()

    @property
    def spilled(self) -> bool:
        """Whether rows are on disk."""
        return bool(self._runs)

    def add(self, rows: pa.Table, size_bytes: int) -> None:
        """Add rows in any order; the caller knows their size, which costs time for each column."""
        if self._held and self.size + size_bytes > self.limit:
            self._spill()
        self._held.append(rows)
        self.size += size_bytes
        self.total += size_bytes

    def finish(self) -> Iterator[pa.Table]:
        """Yield all added rows as ascending pieces; rows can be added again afterwards.

        Rows that are not on disk are one piece, not sorted yet.
        """
        if not self._runs:
            if self._held:
                piece = pa.concat_tables(self._held)
                self._clear()
                yield piece
            return
        if self._held:
            self._spill()
        self._clear()
        runs, self._runs = self._runs, []
        while len(merged := self._mergeable_runs(runs)) < len(runs):
            runs = [*runs[len(merged) :], self._write_run(self._merge_runs(merged))]
        yield from self._whole_entries(self._merge_runs(runs))

    def _clear(self) -> None:
        self._held, self.size, self.total = [], 0, 0

    def _spill(self) -> None:
        rows = combine_chunks(pa.concat_tables(self._held))
        self._held, self.size = [], 0
        self._runs.append(self._write_run(_sorted_slices(rows, self._state, self._merged_bytes)))

    def _write_run(self, pieces: Iterable[pa.Table]) -> _Run:
        """Write sorted rows as a run, in batches small enough to hold one of each merged run."""
        if self._folder is None:
            self._folder = self._stack.enter_context(temporary_folder("sort"))
        path = self._folder / f"{self._written}.arrow"
        self._written += 1
        return _Run.write(path, pieces, max(self._merged_bytes // _FAN_IN, 1))

    def _mergeable_runs(self, runs: Sequence[_Run]) -> Sequence[_Run]:
        """Return the first runs whose largest batches fit in the memory budget; at least two."""
        sizes = np.cumsum([run.batch_bytes for run in runs])
        fitting = int(np.searchsorted(sizes, self.limit, side="right"))
        return runs[: max(min(fitting, _FAN_IN), 2)]

    def _merge_runs(self, runs: Sequence[_Run]) -> Iterator[pa.Table]:
        """Yield the rows of sorted runs, sorted, and delete the runs."""
        with ExitStack() as stack:
            tables = [stack.enter_context(run.reading()) for run in runs]
            for rows, places in merge_steps(tables, self._state, self._merged_bytes):
                yield take_rows(rows, places)

    def _whole_entries(self, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Keep all changes of one entry in one piece: its deletes and its upsert."""
        if not are_changes(self._state):
            yield from pieces
            return
        names = [KEY_GROUP, *(name for name in self._state.identity if name != MARK)]
        yield from keep_together(pieces, names)


@dataclass(frozen=True)
class _Run:
    """A file of sorted rows; ``batch_bytes`` is the size of its largest batch."""

    path: Path
    batch_bytes: int

    @classmethod
    def write(cls, path: Path, pieces: Iterable[pa.Table], batch_bytes: int) -> _Run:
        """Write sorted pieces in batches of about ``batch_bytes``; StorageError if that fails."""
        largest = 1
        with ExitStack() as stack:
            stack.enter_context(report_os_errors("write", path))
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
            sink = stack.enter_context(pa.OSFile(str(path), "wb"))
            stream: pa.RecordBatchStreamWriter | None = None
            for piece in pieces:
                if stream is None:
                    stream = pa.ipc.new_stream(sink, piece.schema, options=options)
                    stack.callback(stream.close)
                for part in slices_of(piece, batch_bytes):
                    for batch in part.to_batches():
                        largest = max(largest, batch.nbytes)
                        stream.write_batch(batch)
        return cls(path, largest)

    @contextmanager
    def reading(self) -> Iterator[Iterator[pa.Table]]:
        """Yield the rows of the run; the file is deleted at the end."""
        with pa.OSFile(str(self.path), "rb") as file, pa.ipc.open_stream(file) as batches:
            yield self._tables(batches)
        self.path.unlink()

    def _tables(self, batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
        while True:
            with report_os_errors("read", self.path):
                batch = next(batches, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])


def merge_steps(
    streams: Sequence[Iterator[pa.Table]], state: KeyedState, memory_bytes: int
) -> Iterator[tuple[pa.Table, Places]]:
    """Merge streams of sorted tables; yield tables of rows, and the positions of the next rows.

    Rows of one key group and identity are in one step, except duplicates within a stream. About
    ``memory_bytes`` of rows are in memory, half of them for streams that wait for others. All
    streams are read ahead before a step, so that many streams need few steps. For few streams,
    :func:`statestore.layers.aligned_streams.align_streams` is more suitable.
    """
    share = memory_bytes // (2 * max(len(streams), 1))
    heads = [*map(_Head, streams)]
    while heads := [head for head in heads if head.fill(share)]:
        # If streams follow each other, as runs of ordered rows do, few of them have rows in a
        # step. Sorting the others as well would multiply the time by their number. These few may
        # read ahead further, but not beyond the memory: in each key group others may follow.
        overlapping = _overlapping_heads(heads, state)
        waiting = sum(head.held_bytes for head in heads if head not in overlapping)
        for head in overlapping:
            head.fill((memory_bytes - waiting) // len(overlapping))
        overlapping = _overlapping_heads(heads, state)
        rows = pa.concat_tables([head.rows for head in overlapping])
        order = order_of(rows, state)
        ends = np.cumsum([head.rows.num_rows for head in overlapping])
        # Rows after the last row of a head may belong after unread rows of its stream.
        unread = [end - 1 for end, head in zip(ends, overlapping, strict=True) if not head.at_end]
        stop = _end_of_first(rows, order, unread, state)
        order = order[:stop]
        of_head = np.searchsorted(ends, order, side="right")
        counts = np.bincount(of_head, minlength=len(overlapping)).tolist()
        for head, count in zip(overlapping, counts, strict=True):
            head.drop(count)
        yield rows, order


def _overlapping_heads(heads: Sequence[_Head], state: KeyedState) -> list[_Head]:
    """Return the heads that have rows in the next step.

    The step ends at the first last row of any head whose stream has more rows.
    """
    rows = pa.concat_tables([head.first_and_last(state) for head in heads]).combine_chunks()
    order = order_of(rows, state)
    unread = [2 * number + 1 for number, head in enumerate(heads) if not head.at_end]
    numbers = np.unique(order[: _end_of_first(rows, order, unread, state)] // 2)
    return [heads[number] for number in numbers.tolist()]


def _end_of_first(rows: pa.Table, order: Places, bounds: Sequence[int], state: KeyedState) -> int:
    """Return the number of sorted rows up to the first of some bounds, including equal rows.

    The bounds are positions of rows. Without bounds it is the number of all rows.
    """
    if not bounds:
        return len(order)
    place_of = np.empty(len(order), np.intp)
    place_of[order] = np.arange(len(order))
    last = int(place_of[bounds].min())
    return last + 1 + _count_equal_to_first(rows, order[last : last + 2 * _FAN_IN + 1], state)


def _count_equal_to_first(rows: pa.Table, places: Places, state: KeyedState) -> int:
    """Return the number of later rows that have the first row's key group and identity."""
    identities = rows.select([KEY_GROUP, *state.identity]).take(pa.array(places))
    first = identities.take(pa.array(np.zeros(identities.num_rows - 1, np.intp)))
    return int(np.logical_and.accumulate(equal_rows(identities.slice(1), first)).sum())


class _Head:
    """The next rows of a stream; ``at_end`` if they are its last ones.

    They and the rows before them, which are in the same memory, have ``held_bytes``.
    """

    def __init__(self, stream: Iterator[pa.Table]) -> None:
        self._stream = stream
        self.rows = pa.table({})
        self.held_bytes = 0
        self.at_end = False
        # Most streams wait in most steps, so their sizes and bounds are kept.
        self._filled_to = 0
        self._bounds: pa.Table | None = None

    def fill(self, most_bytes: int) -> bool:
        """Read more if less than half of ``most_bytes`` are buffered; False without any rows.

        All streams then have about as many rows, and most of them are in the next step.
        """
        if self.at_end or most_bytes <= self._filled_to:
            return bool(self.rows.num_rows)
        tables, size = ([self.rows], self.rows.nbytes) if self.rows.num_rows else ([], 0)
        while not self.at_end and (not tables or 2 * size < most_bytes):
            more = next(self._stream, None)
            if more is None:
                self.at_end = True
            else:
                tables.append(more)
                size += more.nbytes
        if len(tables) > 1:
            self._hold(combine_chunks(pa.concat_tables(tables)), size)
        elif tables and tables[0] is not self.rows:
            self._hold(tables[0], size)
        self._filled_to = most_bytes
        return bool(self.rows.num_rows)

    def first_and_last(self, state: KeyedState) -> pa.Table:
        """Return the identity of the first row and of the last row."""
        if self._bounds is None:
            identities = self.rows.select([KEY_GROUP, *state.identity])
            last = identities.slice(identities.num_rows - 1)
            self._bounds = combine_chunks(pa.concat_tables([identities.slice(0, 1), last]))
        return self._bounds

    def drop(self, count: int) -> None:
        """Remove the first rows."""
        if count:
            self.rows, self._bounds, self._filled_to = self.rows.slice(count), None, 0

    def _hold(self, rows: pa.Table, size: int) -> None:
        self.rows, self.held_bytes, self._bounds = rows, size, None


def _sorted_slices(rows: pa.Table, state: KeyedState, most_bytes: int) -> Iterator[pa.Table]:
    """Yield sorted copies of about ``most_bytes`` of the rows: a whole copy would be as large."""
    order = order_of(rows, state)
    step = max(rows.num_rows * most_bytes // max(rows.nbytes, 1), 1)
    for start in range(0, rows.num_rows, step):
        yield take_rows(rows, order[start : start + step])


def slices_of(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in slices of at most ``most_bytes``, or of one row."""
    if rows.num_rows <= 1 or rows.nbytes <= most_bytes:
        yield rows
        return
    step = max(rows.num_rows * most_bytes // rows.nbytes, 1)
    for start in range(0, rows.num_rows, step):
        part = rows.slice(start, step)
        if part.num_rows == 1 or part.nbytes <= 2 * most_bytes:
            yield part
        else:  # the rows differ in size
            half = part.num_rows // 2
            for piece in (part.slice(0, half), part.slice(half)):
                yield from slices_of(piece, most_bytes)


def gather_batches(batches: Iterable[pa.RecordBatch], table_bytes: int) -> Iterator[pa.Table]:
    """Gather batches into tables of about ``table_bytes``, or of one row; rows are not copied."""
    pieces: list[pa.Table] = []
    size = 0
    for batch in batches:
        for part in slices_of(pa.Table.from_batches([batch]), table_bytes):
            if pieces and size + part.nbytes > table_bytes:
                yield pa.concat_tables(pieces)
                pieces, size = [], 0
            if part.num_rows:
                pieces.append(part)
                size += part.nbytes
    if pieces:
        yield pa.concat_tables(pieces)


def _split_tables(
    rows: Iterable[pa.RecordBatch | pa.Table], limit: int, state: KeyedState
) -> Iterator[tuple[pa.Table, int]]:
    """Yield nonempty tables of at most ``limit`` bytes, or of one row, and their sizes."""
    for batch in rows:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if not table.num_rows:
            continue
        size = table.nbytes
        if size <= limit:
            yield table, size
            continue
        for part in slices_of(table, limit // 4 + 1):
            size = part.nbytes
            if size > ROW_BYTES and part.num_rows == 1:
                _refuse_row(part, size, state)
            yield part, size


def _refuse_row(row: pa.Table, size_bytes: int, state: KeyedState) -> None:
    [entry] = display_rows(row.select([name for name in state.identity if name != MARK]))
    raise InvalidArgumentError(
        f"the row {entry!s:.200} of {state} has {size_bytes} bytes, but the limit for a row "
        f"is {ROW_BYTES}; split its values over several rows, or store them elsewhere"
    )


def _refuse_disorder(groups: npt.NDArray[np.int32], last: int) -> None:
    if groups[0] >= last and (groups[1:] >= groups[:-1]).all():
        return
    index = int(np.diff(groups, prepend=last).argmin())
    before = groups[index - 1] if index else last
    raise InvalidArgumentError(
        f"rows of key group {groups[index]} follow rows of key group {before}; sort the rows by "
        "key group"
    )


def keep_together(tables: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """Regroup sorted tables so that rows with equal values in ``names`` are in one table."""
    pending: pa.Table | None = None
    for table in tables:
        rows = table if pending is None else pa.concat_tables([pending, table])
        same = _equal_leaves(rows.slice(0, rows.num_rows - 1), rows.slice(1), names)
        different = np.flatnonzero(~same)
        cut = int(different[-1]) + 1 if len(different) else 0
        if cut:
            yield rows.slice(0, cut)
        pending = rows.slice(cut)
    if pending is not None:
        yield pending


def _equal_leaves(left: pa.Table, right: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows equal the row at the same position of another table in some columns.

    A null struct equals a struct of nulls, as in the sort order.
    """
    same = np.ones(left.num_rows, np.bool_)
    for name in names:
        columns = (rows.column(name).combine_chunks() for rows in (left, right))
        for pair in zip(*map(leaf_columns, columns), strict=True):
            plain = (as_bytes(leaf) if pa.types.is_nested(leaf.type) else leaf for leaf in pair)
            same &= equal_values(*plain)
    return same


def add_key_groups(rows: pa.Table, state: KeyedState) -> pa.Table:
    """Return the stored columns of some rows, after the key group of each row's key.

    Raises InvalidArgumentError for a key that cannot be hashed, and for a column ``key_group``
    that contradicts the keys.
    """
    try:
        groups = key_groups_of(rows, state)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{state}: {error}") from error
    check_groups(rows, groups, state)
    return rows.select(state.schema.names).add_column(0, KEY_GROUP, pa.array(groups))


def gather_key_groups(
    rows: pa.Table, ends: npt.NDArray[np.int64], run_rows: int, most_rows: int
) -> Iterator[pa.Table]:
    """Yield rows in order of key group; the rows of a key group keep their order.

    Each row is gathered once, directly from the given rows. Rows that were copied before, in
    blocks, would need memory that takes longer to get than to fill.

    Args:
        rows: rows with their key groups.
        ends: the number of rows before each key group, then the number of all rows.
        run_rows: small key groups are yielded together until they have about as many rows.
        most_rows: the most rows of a large key group that are yielded at a time.
    """
    groups = np.asarray(rows.column(KEY_GROUP)).astype(np.uint16)
    order = None
    if (groups[:-1] > groups[1:]).any():
        # For small integers, numpy uses a radix sort, which is stable within each key group.
        order = np.argsort(groups, kind="stable")
        rows = rows.combine_chunks()  # otherwise each call would combine them
    first = 0
    while ends[first] < ends[-1]:
        stop = max(int(np.searchsorted(ends, ends[first] + run_rows, side="right")) - 1, first + 1)
        for begin in range(int(ends[first]), int(ends[stop]), most_rows):
            end = min(begin + most_rows, int(ends[stop]))
            yield (
                rows.slice(begin, end - begin)
                if order is None
                else rows.take(pa.array(order[begin:end]))
            )
        first = stop


def fit_or_stream(
    tables: Iterator[pa.Table], most_bytes: int
) -> list[pa.Table] | Iterator[pa.Table]:
    """Return all tables as a list if they have at most ``most_bytes``; otherwise an iterator.

    The iterator yields all tables, also those that were read to find out. A yielded table is not
    kept in memory.
    """
    held: deque[pa.Table] = deque()
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size > most_bytes:
            return chain(_drain(held), tables)
    return list(held)


def _drain(held: deque[pa.Table]) -> Iterator[pa.Table]:
    while held:
        yield held.popleft()
