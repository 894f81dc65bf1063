"""Handles cut to the key groups of a subtask: all vectors of Flink, and the content of a
cut file.
"""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.format.digest import combine
from statestore.format.handles import (
    GroupIndex,
    KeyedStateHandle,
    KeyedStateSlice,
    assign,
    file_ranges,
    reassign,
)
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from tests.support.vectors import cases


def handle_of(tagged: dict[str, Any]) -> KeyedStateHandle:
    """Return a handle whose row counts are replaced by the start of each key group."""
    offsets = tagged.get("offsets")
    index = None if offsets is None else GroupIndex.of(offsets, offsets)
    name = json.dumps([tagged["id"], tagged["kind"]])
    return KeyedStateHandle(name, KeyGroupRange(*tagged["range"]), 1, 1, 1, 0, "", index=index)


def tagged(part: KeyedStateSlice) -> dict[str, Any]:
    name, kind = json.loads(part.handle.path)
    found = {
        "id": name,
        "kind": kind,
        "range": [part.key_groups.first, part.key_groups.last],
    }
    if part.handle.index is None:
        return found
    first = part.key_groups.first - part.handle.key_groups.first
    offsets = part.handle.index.row_counts()[first : first + len(part.key_groups)]
    return found | {"offsets": list(offsets)}


def test_every_subtask_gets_the_handles_that_flink_gives_it() -> None:
    known = cases("keyed_state")
    assert len(known) == 75
    for case in known:
        asked = case["in"]
        old = [[handle_of(one) for one in own or ()] for own in asked["old"]]
        if "error" in case:
            with pytest.raises((ParallelismError, InvalidArgumentError)):
                reassign(old, asked["max"], asked["new_p"])
        else:
            new = reassign(old, asked["max"], asked["new_p"])
            assert [[tagged(part) for part in own] for own in new] == case["out"], asked


@given(st.data())
def test_the_slices_of_all_subtasks_are_the_file(data: st.DataObject) -> None:
    """I2, I7: at any parallelism the rows and digests add up, and the slices are contiguous."""
    groups = data.draw(st.integers(1, 40))
    counts = data.draw(st.lists(st.integers(0, 1000), min_size=groups, max_size=groups))
    digests = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=groups, max_size=groups))
    parallelism = data.draw(st.integers(1, groups))
    handle = KeyedStateHandle(
        "f",
        KeyGroupRange(0, groups - 1),
        sum(counts),
        12_345,
        7,
        combine(digests),
        "",
        index=GroupIndex.of(counts, digests),
    )
    assignment = KeyGroupAssignment(max_parallelism=groups, parallelism=parallelism)
    parts = [part for key_groups in assignment.ranges() for part in assign([handle], key_groups)]
    assert [part.key_groups for part in parts] == list(assignment.ranges())
    at = 0
    for part in parts:
        assert part.first_row == at
        at += part.rows
    assert at == handle.rows
    assert combine(part.digest for part in parts) == handle.digest
    assert sum(part.size_bytes for part in parts) >= (handle.size_bytes if handle.rows else 0)
    assert handle.cut(KeyGroupRange(groups, groups)) is None


def test_a_cut_file_has_the_rows_of_its_key_groups_and_their_share_of_the_bytes() -> None:
    """The share is rounded up. A range that extends beyond the file is limited to the file."""
    index = GroupIndex.of([1, 0, 2], [10, 0, 30])
    handle = KeyedStateHandle("f", KeyGroupRange(4, 6), 3, 100, 1, 40, "", index=index)
    wanted = {(0, 4): (1, 34), (5, 5): (0, 0), (5, 9): (2, 67), (0, 9): (3, 100)}
    for (first, last), (rows, size_bytes) in wanted.items():
        part = handle.cut(KeyGroupRange(first, last))
        assert part is not None
        assert (part.rows, part.size_bytes) == (rows, size_bytes)


@given(st.lists(st.integers(0, 2**64 - 1) | st.just(2**64 - 1), max_size=140), st.data())
def test_the_digest_of_several_key_groups_is_their_sum(
    digests: list[int], data: st.DataObject
) -> None:
    """I7: for any number of key groups, and for any carry between them."""
    index = GroupIndex.of([0] * len(digests), digests)
    first = data.draw(st.integers(0, len(digests)))
    stop = data.draw(st.integers(first, len(digests)))
    assert index.digest_in(first, stop) == combine(digests[first:stop])
    assert index.digest_in(0, len(digests)) == combine(digests)


def test_equally_cut_files_are_computed_once() -> None:
    """All states of a job share the same ranges and the same cuts of them."""
    files = file_ranges((0, 4, 9), (3, 7, 9))
    assert file_ranges((0, 4, 9), (3, 7, 9)) is files
    cuts = files.cuts(2, 8)
    assert cuts == ((0, KeyGroupRange(2, 3)), (1, KeyGroupRange(4, 7)))
    assert cuts[1][1] is files.key_groups[1]
    assert files.cuts(2, 8) is cuts
    assert files.cuts(8, 8) == files.cuts(10, 12) == ()


@pytest.mark.slow
def test_cached_ranges_are_released_with_their_files() -> None:
    """A driver that plans for months holds only the ranges in use. A copy is the same object."""
    seen = []
    for last in range(200):
        files = file_ranges((0, last + 1), (last, 300))
        assert len(files.cuts(0, 300)) == 2
        assert pickle.loads(pickle.dumps(files)) is files
        seen.append(weakref.ref(files))
    del files
    gc.collect()
    assert sum(one() is not None for one in seen) < 100


def test_a_handle_is_a_value() -> None:
    """Its statistics do not affect equality, because manifests do not contain them."""
    handle = KeyedStateHandle(
        "f", KeyGroupRange(0, 1), 3, 100, 1, 40, "", index=GroupIndex(b"", b"")
    )
    told = replace(handle, statistics="{}")
    assert (told, hash(told), told.statistics) == (handle, hash(handle), "{}")
    assert replace(handle, rows=4) != handle
    assert handle != tuple(asdict(handle).values())
    assert pickle.loads(pickle.dumps(handle)) == copy.deepcopy(handle) == handle
    assert asdict(handle)["key_groups"] == {"first": 0, "last": 1}
    with pytest.raises(FrozenInstanceError):
        handle.rows = 4  # type: ignore[misc]
