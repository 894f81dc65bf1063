"""Copy readable key groups from damaged files and older checkpoints into new files."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import (
    DamagedFileError,
)
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import KeyedEntry, OperatorEntry
from statestore.layers.intact_key_groups import Rows, group_digests, intact_elements
from statestore.layers.key_group_contents import (
    exact_groups,
    group_rows,
    intact_groups,
    read_groups,
)
from statestore.maintenance.verify_file import FileCheck, check_file
from statestore.parquet.keyed_reader import add_key_group, restored_schema
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.operator_elements import write_elements
from statestore.rows.matching import first_of_equals
from statestore.rows.python_values import display_rows
from statestore.rows.sorting import key_group_pieces
from statestore.storage import Storage

__all__ = [
    "WholeGroup",
    "are_elements_intact",
    "copy_groups",
    "is_whole",
    "readable_groups",
    "rewrite_elements",
    "whole_groups",
]


@dataclass(frozen=True)
class WholeGroup:
    """An intact key group of a checkpoint: its number of rows and keys, and some keys as examples.

    ``handle`` is the file that holds all of it; None if the key group has changes, or no rows.
    """

    group: int
    handle: KeyedStateHandle | None
    rows: int
    keys: int
    examples: tuple[dict[str, Any], ...]


def readable_groups(
    storage: Storage, entry: KeyedEntry, handle: KeyedStateHandle
) -> frozenset[int]:
    """Return the key groups of a damaged file that are still intact."""
    every = range(entry.state.max_parallelism)
    alone = replace(entry, handles=(handle,))
    return intact_groups(storage, alone, every)


def are_elements_intact(storage: Storage, entry: OperatorEntry) -> bool:
    """Return whether the elements of a state can be read although its file is damaged."""
    return intact_elements(storage, entry) is not None


def is_whole(storage: Storage, entry: KeyedEntry | OperatorEntry, handles: Collection[Any]) -> bool:
    """Return whether every byte of these files of a state is unchanged."""
    checks = []
    first_row = 0
    for handle in entry.handles:
        if handle in handles:
            checks.append(FileCheck(storage, entry, handle, first_row, deep=True))
        first_row += handle.rows
    return all(check_file(check) is None for check in checks)


def whole_groups(
    storage: Storage,
    entry: KeyedEntry,
    wanted: Collection[int],
    damaged: Collection[str],
    limit: int,
) -> Iterator[WholeGroup]:
    """Yield the wanted key groups that are intact in a checkpoint, including empty ones.

    Files named in ``damaged`` are skipped. ``limit`` bounds the number of example keys over all key
    groups together.
    """
    handles = {
        group: handle
        for handle in (() if entry.layers else entry.handles)
        for group, _, _ in group_digests(handle)
    }
    empty = set(wanted) - group_rows(entry).keys()
    groups = read_groups(storage, entry, wanted, damaged="skip", unread=damaged)
    for group, pieces in groupby(groups, key=itemgetter(0)):
        count, keys, examples = _keys((rows for _, rows in pieces), entry.state.key, limit)
        if not count:  # its changes deleted all rows
            empty.add(group)
            continue
        limit -= len(examples)
        yield WholeGroup(group, handles.get(group), count, keys, examples)
    for group in sorted(empty):
        yield WholeGroup(group, None, 0, 0, ())


def copy_groups(
    storage: Storage,
    sources: Sequence[tuple[KeyedEntry, Collection[int]]],
    entry: KeyedEntry,
    new: CheckpointFiles,
) -> tuple[KeyedStateHandle, ...]:
    """Write key groups of several states, merged with their changes, as new files of one state.

    Raises StorageError, or DamagedFileError if rows no longer match their digest.
    """
    streams = [exact_groups(storage, source, frozenset(own)) for source, own in sources]
    schema, options = restored_schema(entry.state.schema), new.options
    with ExitStack() as stack:
        for stream in streams:  # if writing fails, their files are closed here and now
            stack.callback(stream.close)
        merged = heapq.merge(*streams, key=itemgetter(0))
        rows = (add_key_group(rows, group, schema) for group, rows in merged)
        pieces = key_group_pieces(rows, entry.state, options.run_bytes, options.memory_bytes)
        return new.write(entry, pieces)


def rewrite_elements(
    storage: Storage, entry: OperatorEntry, checkpoint_id: int
) -> tuple[OperatorStateHandle, ...]:
    """Write the readable elements of a damaged file to a new file.

    Raises StorageError, or DamagedFileError if they can no longer be read.
    """
    elements = intact_elements(storage, entry)
    if elements is None:
        raise DamagedFileError(
            f"the elements of {entry.state} were readable a moment ago and no longer are; run "
            "salvage again"
        )
    return write_elements(elements, entry.state, storage, entry.table.path, checkpoint_id)


def _keys(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], limit: int
) -> tuple[int, int, tuple[dict[str, Any], ...]]:
    """Count the rows and keys in the sorted batches of a key group, and return its first keys."""
    rows, keys = 0, 0
    examples: list[dict[str, Any]] = []
    before: Rows = []
    for batch in batches:
        own = batch.select(list(key))
        begins = first_of_equals(pa.Table.from_batches([*before, own]))[len(before) :]
        places = np.flatnonzero(begins)
        examples += display_rows(own.take(pa.array(places[: max(limit - len(examples), 0)])))
        rows, keys = rows + batch.num_rows, keys + len(places)
        before = [own.slice(own.num_rows - 1)] if own.num_rows else before
    return rows, keys, tuple(examples)
