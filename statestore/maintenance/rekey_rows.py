"""Move the rows of a keyed state to other key groups: read once, spill by range, write in order.

The rows of a new key group can be anywhere in the old ones. So they are first divided into ranges
of new key groups on a local disk. Then each range is sorted and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from statestore.errors import (
    DamagedFileError,
)
from statestore.format.digest import combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import read_state
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.null_keys import NullKeys
from statestore.rows.sorting import sorted_pieces
from statestore.storage import Storage

__all__ = ["Spread", "ranges_for", "spill_rows", "write_range"]


_MOST_RANGES = 256
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Spread:
    """The spilled rows: files by range of new key groups, and the digest of all rows."""

    rows: int
    digest: int
    ranges: int


def spill_rows(
    storage: Storage,
    entry: KeyedEntry,
    state: KeyedState,
    folder: Path,
    progress: Progress,
    most_bytes: int,
) -> Spread:
    """Spill all rows of a stored state into ``folder``, by range of its new key groups.

    ``state`` has the new key groups, and a range takes about ``most_bytes`` in memory. Each file's
    SHA-256 is checked before it is read. ``progress`` is called with numbers of rows. Raises
    NullKeyError for rows whose new key is null, MissingFileError or DamagedFileError.
    """
    ranges = ranges_for(entry, state, most_bytes)
    every = KeyGroupRange.every(entry.state.max_parallelism)
    stored = arrow_schema(state.schema)
    rows = digest = 0
    nulls = NullKeys(state)
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        for batch in read_state(storage, entry, reads_of(entry, every), verify=True):
            own = batch.select(stored.names)
            if nulls.add(own):
                continue
            rows, digest = rows + own.num_rows, combine((digest, rows_digest(own)))
            for number, part in _by_range(own, state, ranges):
                if number not in writers:
                    path = str(_path(folder, number))
                    sink = stack.enter_context(pa.OSFile(path, "wb"))
                    writers[number] = stack.enter_context(pa.ipc.new_file(sink, part.schema))
                writers[number].write_batch(part)
            progress(own.num_rows)
    nulls.refuse()
    return Spread(rows, digest, ranges)


def write_range(folder: Path, number: int, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
    """Write one range of key groups from its spilled rows; return its files.

    A range that does not fit in ``ParquetOptions.memory_bytes`` is sorted on disk, because a large
    key group cannot be split into several ranges.

    Raises DuplicateKeyError for two rows with the same new key, InvalidArgumentError for a row that
    is too large, DamagedFileError for a truncated spill file, or StorageError.
    """
    path = _path(folder, number)
    if not path.exists():
        return ()
    with pa.OSFile(str(path)) as source:  # the pages of a memory map would count as used memory
        try:
            spilled = pa.ipc.open_file(source)
        except pa.ArrowInvalid as error:
            raise DamagedFileError(
                f"{path} is incomplete; choose an empty working folder"
            ) from error
        batches = (spilled.get_batch(number) for number in range(spilled.num_record_batches))
        return write_pieces(
            sorted_pieces(batches, target.state, target.options.memory_bytes), target
        )


def ranges_for(entry: KeyedEntry, state: KeyedState, most_bytes: int) -> int:
    """Return the number of ranges; rows take about four times their stored bytes in memory."""
    wanted = -(-4 * entry.size_bytes // most_bytes)
    return max(min(wanted, _MOST_RANGES, state.max_parallelism), 1)


def _by_range(
    rows: pa.RecordBatch, state: KeyedState, ranges: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    groups = key_groups_of(rows, state)
    schema = pa.schema([pa.field(KEY_GROUP, pa.int32()), *rows.schema])
    keyed = pa.RecordBatch.from_arrays([pa.array(groups, pa.int32()), *rows.columns], schema=schema)
    of_row = groups.astype(np.int64) * ranges // state.max_parallelism
    order = np.argsort(of_row, kind="stable")
    ordered = keyed.take(pa.array(order))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(of_row[order])) + 1, [len(order)]))
    for first, stop in pairwise(starts.tolist()):
        if first < stop:
            yield int(of_row[order[first]]), ordered.slice(first, stop - first)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.arrow"
