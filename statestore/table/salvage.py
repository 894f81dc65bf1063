"""Key groups that can still be read, out of damaged files and older ones, into new files."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError
from statestore.files.digest import row_hashes
from statestore.files.elements import write_elements
from statestore.files.key_groups import (
    Rows,
    exact_groups,
    group_digests,
    sound_elements,
    sound_groups,
    whole_in_all,
)
from statestore.files.keyed import KeyedTarget, write_grouped
from statestore.files.reader import placed, restored_schema
from statestore.files.values import shown
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import KeyedEntry, OperatorEntry
from statestore.storage import Storage
from statestore.table.verify import FileCheck, check_file

__all__ = [
    "WholeGroup",
    "are_elements_sound",
    "is_whole",
    "readable_groups",
    "rewrite_elements",
    "rewrite_groups",
    "whole_groups",
]


@dataclass(frozen=True)
class WholeGroup:
    """A key group of a checkpoint whose rows are what was written: how many, how many keys, and
    some. ``handle`` is the file that has all of it, None with changes, or without rows.
    """

    group: int
    handle: KeyedStateHandle | None
    rows: int
    keys: int
    examples: tuple[dict[str, Any], ...]


def readable_groups(
    storage: Storage, entry: KeyedEntry, handle: KeyedStateHandle
) -> frozenset[int]:
    """Return those key groups of a damaged file whose rows are what was written."""
    every = range(entry.state.max_parallelism)
    return frozenset(group for group, _ in sound_groups(storage, entry, handle, every))


def are_elements_sound(storage: Storage, entry: OperatorEntry) -> bool:
    """Return whether the elements of a state can be read, though its file is damaged."""
    return sound_elements(storage, entry) is not None


def is_whole(storage: Storage, entry: KeyedEntry | OperatorEntry, handles: Collection[Any]) -> bool:
    """Return whether these files of a state are what was written, every byte."""
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
    """Yield those of the wanted key groups that a checkpoint has whole, with their changes, or
    without rows.

    Files named in ``damaged`` are passed over. ``limit`` is how many keys are shown, of all of them
    together.
    """
    left = set(wanted)
    for group, handle, rows in _whole(storage, entry, left, damaged):
        keys, examples = _keys(rows, entry.state.key, limit)
        limit -= len(examples)
        yield WholeGroup(group, handle, sum(batch.num_rows for batch in rows), keys, examples)
    for group in sorted(left):
        yield WholeGroup(group, None, 0, 0, ())


def _whole(
    storage: Storage, entry: KeyedEntry, left: set[int], damaged: Collection[str]
) -> Iterator[tuple[int, KeyedStateHandle | None, Rows]]:
    """Yield those of the key groups that have rows and are whole; ``left`` are in the end those
    that have none.
    """
    if entry.layers:
        whole = whole_in_all(storage, entry, left, damaged)
        left &= whole
        for group, rows in exact_groups(storage, entry, whole):
            left.remove(group)
            yield group, None, rows
        return
    for handle in entry.handles:
        held = {group for group, _, _ in group_digests(handle)} & left
        left -= held
        if held and f"{entry.table.path}/{handle.path}" not in damaged:
            for group, rows in sound_groups(storage, entry, handle, held):
                yield group, handle, rows


def rewrite_groups(
    storage: Storage, sources: Sequence[tuple[KeyedEntry, Collection[int]]], target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write key groups of some states, each with its changes, as new files of one state.

    Raises DamagedFileError when rows are not what they were found to be, or StorageError; then none
    of the new files is left.
    """
    streams = [exact_groups(storage, one, frozenset(own)) for one, own in sources]
    schema = restored_schema(target.state.schema)
    with ExitStack() as stack:
        for stream in streams:  # when writing fails their files are closed here, and not later
            stack.callback(stream.close)
        merged = heapq.merge(*streams, key=itemgetter(0))
        batches = (placed(batch, group, schema) for group, rows in merged for batch in rows)
        return write_grouped(batches, target)


def rewrite_elements(
    storage: Storage, entry: OperatorEntry, checkpoint_id: int
) -> tuple[OperatorStateHandle, ...]:
    """Write the elements of a damaged file, which can be read, as a new one.

    Raises DamagedFileError when they no longer can be, or StorageError.
    """
    elements = sound_elements(storage, entry)
    if elements is None:
        raise DamagedFileError(
            f"the elements of {entry.state} can be read no more as they could a moment ago; "
            "salvage the checkpoint again"
        )
    return write_elements(elements, entry.state, storage, entry.table.path, checkpoint_id)


def _keys(rows: Rows, key: Sequence[str], limit: int) -> tuple[int, tuple[dict[str, Any], ...]]:
    """Return how many keys the rows have, and the first of them."""
    table = pa.Table.from_batches(rows).select(list(key))
    hashes = np.concatenate([row_hashes(batch) for batch in table.to_batches()])
    _, places = np.unique(hashes, return_index=True)
    first = np.sort(places)[: max(limit, 0)]
    return len(places), tuple(shown(table.take(pa.array(first))))
