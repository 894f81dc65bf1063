"""Merge the RocksDB files of a state: the live keys and their values.

The newest version of a key is valid, according to its sequence number (``MergingIterator``,
``DBIter``). Merge operands are joined with commas, which is the format of Flink's lists. One key
group is in memory at a time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError
from statestore.interop.flink.read.rocksdb import RocksTable, Tombstone
from statestore.interop.flink.read.rocksdb_blocks import DELETE, SINGLE_DELETE, VALUE, Versions
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, Spans
from statestore.keys.groups import KeyGroupRange

_COMMA = pa.scalar(b",", BYTES)
_Rows = npt.NDArray[np.bool_]


def live_key_groups(
    tables: Iterable[RocksTable], prefix: int, key_groups: KeyGroupRange
) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield each key group with its sorted keys and their values, merged from all files of a state.

    Args:
        tables: the files.
        prefix: how many bytes of a key are its key group.
        key_groups: the key groups to read. After a rescale a file can contain others too.

    Yields:
        A key group that has keys, its keys and its values.

    Raises:
        DamagedFileError or UnsupportedTypeError: as ``RocksTable.versions``.
    """
    files = tuple(tables)
    tombstones = _make_disjoint([tombstone for table in files for tombstone in table.tombstones])
    sources = [_group_versions(table, prefix, key_groups) for table in files]
    heads = [next(source, None) for source in sources]
    for key_group in key_groups:
        parts = []
        for index, head in enumerate(heads):
            if head is not None and head[0] == key_group:
                parts.append(head[1])
                heads[index] = next(sources[index], None)
        if not parts:
            continue
        versions = Versions.concat(parts)
        keys, values = _find_live(
            versions, len(parts) > 1, _select_tombstones(tombstones, key_group, prefix)
        )
        if len(keys):
            yield key_group, keys, values


def _make_disjoint(tombstones: Sequence[Tombstone]) -> list[Tombstone]:
    """Return equivalent range deletes that are sorted and do not overlap.

    Then a key is in at most one range, regardless of the number of range deletes.
    """
    waiting = sorted(tombstones, key=lambda tombstone: tombstone.first, reverse=True)
    edges = sorted({edge for tombstone in tombstones for edge in (tombstone.first, tombstone.stop)})
    newest: list[tuple[int, bytes]] = []  # a heap by negative sequence number
    disjoint = []
    for first, stop in pairwise(edges):
        while waiting and waiting[-1].first <= first:
            tombstone = waiting.pop()
            heappush(newest, (-tombstone.sequence, tombstone.stop))
        while newest and newest[0][1] <= first:
            heappop(newest)
        if newest:
            disjoint.append(Tombstone(first, stop, -newest[0][0]))
    return disjoint


def _select_tombstones(tombstones: list[Tombstone], key_group: int, prefix: int) -> list[Tombstone]:
    """Return the disjoint range deletes that can affect keys of a key group."""
    begin, after = key_group.to_bytes(prefix, "big"), key_group + 1
    first = bisect_right(tombstones, begin, key=lambda tombstone: tombstone.stop)
    if after >= 1 << 8 * prefix:
        return tombstones[first:]
    end = after.to_bytes(prefix, "big")
    return tombstones[first : bisect_left(tombstones, end, key=lambda tombstone: tombstone.first)]


def _group_versions(
    table: RocksTable, prefix: int, key_groups: KeyGroupRange
) -> Iterator[tuple[int, Versions]]:
    """Yield the entries of a file, grouped by key group, for the given key groups."""
    first, after = key_groups.first.to_bytes(prefix, "big"), key_groups.last + 1
    stop = after.to_bytes(prefix, "big") if after < 1 << 8 * prefix else None
    last, pending = -1, list[Versions]()
    for versions in table.versions(first, stop):
        numbers = _read_key_groups(versions, prefix, table.source.name)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(edges):
            if start == end:
                continue
            number = int(numbers[start])
            if number < last:
                raise DamagedFileError(
                    f"{table.source.name} is damaged: keys of key group {number} follow keys "
                    f"of {last}"
                )
            if number != last:
                if pending and last in key_groups:
                    yield last, Versions.concat(pending)
                last, pending = number, []
            pending.append(versions.slice(start, end))
    if pending and last in key_groups:
        yield last, Versions.concat(pending)


def _read_key_groups(versions: Versions, prefix: int, name: str) -> npt.NDArray[np.int64]:
    keys = Spans.from_array(versions.keys, name)
    dtype = ">u1" if prefix == 1 else ">u2"
    return Cursor(keys, keys.starts, keys.ends).numbers(dtype).astype(np.int64)


def _find_live(
    versions: Versions, is_mixed: bool, tombstones: Sequence[Tombstone]
) -> tuple[pa.Array, pa.Array]:
    """Return the live keys of a key group, and their merged values."""
    if is_mixed:
        columns = {"key": versions.keys, "packed": versions.packed}
        order = [("key", "ascending"), ("packed", "descending")]
        rows = pc.sort_indices(pa.table(columns), sort_keys=order)
        versions = versions.take(rows.to_numpy().astype(np.int64))
    keys, kinds = versions.keys, versions.kinds
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(False)
    is_gone = (kinds == DELETE) | (kinds == SINGLE_DELETE) | _find_deleted(versions, tombstones)
    # Versions older than a put or a delete of the same key have no effect.
    ends = is_gone | (kinds == VALUE)
    before = np.cumsum(ends) - ends
    counts = ~is_gone & (before == np.repeat(before[begins], _run_lengths(begins)))
    used = np.flatnonzero(counts)
    first = np.ones(len(used), np.bool_)
    number = np.cumsum(begins)[used]
    first[1:] = number[1:] != number[:-1]
    if bool(first.all()):
        if len(used) == len(keys):
            return keys, versions.values
        live = versions.take(used)
        return live.keys, live.values
    return keys.take(pa.array(used[first])), _merge_operands(versions.values, used, first)


def _run_lengths(begins: _Rows) -> npt.NDArray[np.int64]:
    places = np.flatnonzero(begins)
    return np.diff(np.append(places, len(begins)))


def _merge_operands(values: pa.Array, used: npt.NDArray[np.int64], first: _Rows) -> pa.Array:
    """Join the values of each key from the oldest to the newest; the input is newest first."""
    lengths = _run_lengths(first)
    ends = np.cumsum(lengths)
    backwards = np.repeat(2 * ends - lengths - 1, lengths) - np.arange(len(used))
    offsets = pa.array(np.append(0, ends), pa.int64())
    operands = values.take(pa.array(used[backwards]))
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, operands), _COMMA)


def _find_deleted(versions: Versions, tombstones: Sequence[Tombstone]) -> _Rows:
    """Return which entries, sorted by key, are older than a range delete that covers their key.

    The range deletes are disjoint.
    """
    is_deleted, keys, sequences = (
        np.zeros(len(versions), np.bool_),
        versions.keys,
        versions.sequences,
    )
    rows = range(len(keys))
    for tombstone in tombstones:
        first = bisect_left(rows, tombstone.first, key=lambda row: keys[row].as_py())
        stop = bisect_left(rows, tombstone.stop, lo=first, key=lambda row: keys[row].as_py())
        is_deleted[first:stop] = sequences[first:stop] < tombstone.sequence
    return is_deleted
