"""Rows of a keyed state over other key groups: read once, spilled by range, written in order.

The rows of the new key groups lie anywhere among the old ones, so they are divided into ranges of
new key groups on a local disk first; a range is what fits in memory. Its files are written from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError
from statestore.files.arrow import by_key_group
from statestore.files.digest import rows_digest
from statestore.files.keyed import KeyedTarget, write_runs
from statestore.files.merge import read_reads
from statestore.files.runs import null_key_error, null_keys, runs_of
from statestore.files.types import arrow_schema
from statestore.format.digest import combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.arrow import key_groups
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage

__all__ = ["Spread", "spread", "write_range"]

_RANGE_BYTES = 128 * 2**20
_MOST_RANGES = 256
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Spread:
    """What was spilled: files by range of new key groups, and the digest of all rows."""

    rows: int
    digest: int
    ranges: int


def spread(
    storage: Storage, entry: KeyedEntry, state: KeyedState, folder: Path, progress: Progress
) -> Spread:
    """Spill all rows of a stored state into ``folder``, by range of the key groups of ``state``.

    What is read is checked by SHA-256 first. ``progress`` hears of rows. Raises NullKeyError for
    rows that have no key now, MissingFileError or DamagedFileError.
    """
    ranges = _ranges_for(entry, state)
    every = KeyGroupRange(0, entry.state.max_parallelism - 1)
    stored = arrow_schema(state.schema)
    rows = digest = nulls = 0
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        for batch in read_reads(storage, entry, reads_of(entry, every), verify=True):
            own = batch.select(stored.names)
            nulls += null_keys(own, state)
            if nulls:
                continue
            rows, digest = rows + own.num_rows, combine((digest, rows_digest(own)))
            for number, part in _by_range(own, state, ranges):
                if number not in writers:
                    path = str(_path(folder, number))
                    sink = stack.enter_context(pa.OSFile(path, "wb"))
                    writers[number] = stack.enter_context(pa.ipc.new_file(sink, part.schema))
                writers[number].write_batch(part)
            progress(own.num_rows)
    if nulls:
        raise null_key_error(state, nulls)
    return Spread(rows, digest, ranges)


def write_range(
    folder: Path, number: int, state: KeyedState, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write one range of key groups from what was spilled; return its files, none without rows.

    Raises DuplicateKeyError for two rows with one key now, DamagedFileError for what was not
    spilled to its end, or StorageError.
    """
    path = _path(folder, number)
    if not path.exists():
        return ()
    with pa.memory_map(str(path)) as source:
        try:
            rows = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid as error:
            raise DamagedFileError(
                f"{path} was not written to its end; give an empty working folder"
            ) from error
        return write_runs(runs_of(by_key_group(rows.combine_chunks()).to_batches()), target)


def _ranges_for(entry: KeyedEntry, state: KeyedState) -> int:
    """Return how many ranges there are: rows take about four times their bytes in memory."""
    wanted = -(-4 * entry.size_bytes // _RANGE_BYTES)
    return max(min(wanted, _MOST_RANGES, state.max_parallelism), 1)


def _by_range(
    rows: pa.RecordBatch, state: KeyedState, ranges: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    groups = key_groups(
        [rows.column(name) for name in state.key],
        max_parallelism=state.max_parallelism,
        hash_scheme=state.hash_scheme,
        key_types=state.key_types,
    )
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
