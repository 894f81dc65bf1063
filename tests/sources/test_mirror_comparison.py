"""Positions that a comparison of records proves, or refuses to prove."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.sources.mirror import (
    is_copy,
    position_after_sync,
    position_before_sync,
)
from statestore.sources.mirror_translation import KafkaRecord


def records(*pairs: tuple[int, str]) -> list[KafkaRecord]:
    return [KafkaRecord(offset, 7, b"k", text.encode()) for offset, text in pairs]


SOURCE = records((11, "a"), (12, "b"), (15, "c"), (16, "d"))
TARGET = records((101, "a"), (102, "b"), (103, "c"), (104, "d"))


@pytest.mark.parametrize(
    ("stored", "source", "target", "expected"),
    [
        (12, SOURCE, TARGET, 102),
        (13, SOURCE, TARGET, 103),  # a gap: the next record is c
        (15, SOURCE, TARGET, 103),
        (16, SOURCE, TARGET, 104),
        (17, SOURCE, TARGET, 105),  # all was read, and all was copied
        (17, SOURCE, TARGET[:3], None),  # d was read and is not copied yet
        (16, SOURCE, TARGET[:3], 104),  # d was not read and is not copied yet
        (17, SOURCE, [*TARGET, *records((105, "e"))], None),  # e is of somebody else
        (11, SOURCE, TARGET, 101),
        (11, SOURCE, TARGET[1:], None),
        (15, SOURCE[1:], TARGET, None),  # a was removed at the source
        (15, SOURCE, records((101, "a"), (102, "a"), (103, "b"), (104, "c")), None),  # copied twice
        (15, SOURCE, records((101, "a"), (102, "b"), (105, "x")), None),  # not the next one
        (15, SOURCE, records((101, "a"), (103, "b"), (106, "c")), 106),  # markers at the target
        (15, [], [], 101),
        (15, [], TARGET, None),
    ],
)
def test_the_position_after_a_sync(
    stored: int, source: list[KafkaRecord], target: list[KafkaRecord], expected: int | None
) -> None:
    assert position_after_sync(source, target, stored, 101, 1000) == expected


ALIKE = records(*((offset, "a") for offset in range(11, 21)))


@pytest.mark.parametrize("first", [102, 104])
def test_copies_that_were_removed_prove_nothing(first: int) -> None:
    """Compaction or retention at the target; with equal records each match is late."""
    copies = records(*((offset, "a") for offset in range(first, 111)))
    assert position_after_sync(ALIKE, copies, 15, 101, 1000) is None


def test_an_equal_record_that_is_not_copied_yet() -> None:
    """The copy of 11 was removed, so 102 is the copy of the unread 12."""
    assert position_after_sync(ALIKE[:2], records((102, "a")), 12, 101, 1000) is None


def test_too_many_offsets_are_lacking() -> None:
    copies = records((101, "a"), (104, "b"), (105, "c"))
    assert position_after_sync(SOURCE, copies, 15, 101, 2) == 105
    assert position_after_sync(SOURCE, copies, 15, 101, 1) is None


DENSE = records((11, "a"), (12, "b"), (13, "c"))


@pytest.mark.parametrize(
    ("stored", "source", "target", "expected"),
    [
        (11, DENSE, TARGET[:3], 101),
        (12, DENSE[1:], TARGET[:3], 102),
        (13, DENSE[2:], TARGET[:3], 103),
        (13, DENSE[2:], [], None),  # it was never copied, or is deleted
        (12, DENSE[1:], TARGET[:2], None),
        (12, DENSE[1:], records((101, "a"), (102, "b"), (104, "c")), 102),  # a marker in between
        (12, DENSE[1:], records((102, "b"), (103, "x"), (104, "c")), None),
        (12, DENSE[1:], records((102, "b"), (103, "b"), (104, "c")), 103),  # b copied twice
        (12, DENSE[2:], TARGET[:3], None),  # b was removed at the source
        (13, [], TARGET[:3], None),
    ],
)
def test_the_position_before_a_sync(
    stored: int, source: list[KafkaRecord], target: list[KafkaRecord], expected: int | None
) -> None:
    assert position_before_sync(source, target, stored, 14) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"offset": 999}, True),
        ({"key": None}, False),
        ({"key": b""}, False),
        ({"value": b"other"}, False),
        ({"headers": (("h", b""),)}, False),
        ({"timestamp_ms": 8}, False),
        ({"timestamp_ms": 8, "is_append_time": True}, True),
    ],
)
def test_what_a_copy_has(change: dict[str, Any], expected: bool) -> None:
    assert is_copy(SOURCE[0], replace(SOURCE[0], **change)) is expected


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab")), max_size=8),
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from("abx")), max_size=3),
    st.sets(st.integers(0, 10), max_size=3),
    st.integers(0, 8),
    st.integers(0, 40),
)
def test_no_unread_record_is_before_a_proven_position(
    steps: list[tuple[int, str]],
    others: list[tuple[int, str]],
    removed: set[int],
    copied: int,
    stored: int,
) -> None:
    """Records are so alike that they match by chance; the target has others, or lacks some.

    A record that the target lacks cannot be missed by a reader of the target.
    """
    source, offset = [], 10
    for step, text in steps:
        offset += step
        source += records((offset, text))
    logged: list[tuple[str, int | None]] = [
        ((record.value or b"").decode(), record.offset) for record in source[:copied]
    ]
    for place, text in others:
        logged.insert(place, (text, None))
    kept = [(place, each) for place, each in enumerate(logged) if place not in removed]
    target = records(*((101 + place, text) for place, (text, _) in kept))
    position = position_after_sync(source, target, stored, 101, 1000)
    if position is not None:
        before = [
            origin for place, (_, origin) in kept if place < position - 101 and origin is not None
        ]
        assert all(origin < stored for origin in before)
