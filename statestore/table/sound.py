"""Key groups of a state, with its changes, as far as they are what was written.

A key group of a state with layers of changes lies in several files. Only when all of them have what
was written is the key group whole: without a layer it would be an older state than it says, and
nobody would notice.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Generator, Iterator

from statestore.errors import DamagedFileError
from statestore.format.manifest import KeyedEntry
from statestore.storage import Storage
from statestore.table.groups import Rows, group_digests, sound_groups
from statestore.table.merged_groups import group_parts, read_merged_groups

__all__ = ["exact_groups", "group_rows", "live_parts", "whole_in_all"]


def live_parts(entry: KeyedEntry) -> Iterator[tuple[KeyedEntry, Container[int]]]:
    """Yield the base and each layer of a state, with those key groups whose rows in it count."""
    base, *_ = entry.parts
    yield base, range(entry.state.max_parallelism)
    for layer in entry.layers:
        yield layer.entry, frozenset(group for one in layer.live for group in one)


def group_rows(entry: KeyedEntry) -> dict[int, int]:
    """Return how many rows that count the files of a state have per key group, base and changes
    together; those of the state may be less.
    """
    return {group: sum(rows for rows, _ in found) for group, found in group_parts(entry).items()}


def whole_in_all(
    storage: Storage, entry: KeyedEntry, wanted: Collection[int], unread: Collection[str]
) -> frozenset[int]:
    """Return those of the wanted key groups of which base and changes are what was written.

    Files named in ``unread`` are taken for damaged. Raises StorageError when one could not be read.
    """
    left = set(wanted)
    for part, live in live_parts(entry):
        for handle in part.handles:
            held = {group for group, _, _ in group_digests(handle) if group in live} & left
            if held and f"{part.table.path}/{handle.path}" not in unread:
                held -= {group for group, _ in sound_groups(storage, part, handle, held)}
            left -= held
    return frozenset(left)


def exact_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int]
) -> Generator[tuple[int, Rows]]:
    """Yield the rows of each wanted key group that has some, in ascending order, as stored columns,
    with the changes put over them; every page and digest is checked.

    Raises DamagedFileError for rows that are not what was written, or StorageError.
    """
    yield from read_merged_groups(storage, entry, wanted, _part_groups)


def _part_groups(
    storage: Storage, part: KeyedEntry, wanted: Container[int]
) -> Generator[tuple[int, Rows]]:
    for handle in part.handles:
        held = {group for group, _, _ in group_digests(handle) if group in wanted}
        if not held:
            continue
        for group, rows in sound_groups(storage, part, handle, held.copy()):
            held.remove(group)
            yield group, rows
        if held:
            raise DamagedFileError(
                f"key group {min(held)} of {part.state} in {storage.url}/{part.table.path}/"
                f"{handle.path} can be read no more as it could a moment ago; salvage the "
                "checkpoint again"
            )
