"""Translated offsets against a model of MirrorMaker that knows where each record was copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore.sources.mirror_translation import (
    MirrorCheckpoint,
    MirrorFacts,
    OffsetSync,
    Precision,
    Translation,
    translate,
)
from statestore.sources.offsets import SourceOffset


def facts(
    syncs: list[tuple[int, int]], checkpoints: list[tuple[str, int, int, int]] | None = None
) -> Any:
    """Return the facts of partition 0 of topic t; sync number n was written at n ms."""
    return MirrorFacts(
        [OffsetSync("t", 0, *pair, at_ms) for at_ms, pair in enumerate(syncs)],
        [
            MirrorCheckpoint(group, "A.t", 0, source, target, at_ms)
            for group, source, target, at_ms in checkpoints or []
        ],
    ).of("t", "A.t", 0)


def translated(offset: int, known: Any) -> Translation:
    return translate(SourceOffset("t", 0, offset), "A.t", known)


def outcome(offset: int, known: Any) -> tuple[str, int | None, int | None]:
    found = translated(offset, known)
    return found.precision.value, found.offset, found.read_again


# --- A model ----------------------------------------------------------------------------------


@dataclass
class Model:
    """MirrorMaker, and the logs of a partition in both clusters.

    ``copies`` has, for each position of the target, the offset of the copied source record; None
    for a marker or a record of another producer.
    """

    source: list[int] = field(default_factory=list)
    copies: list[int | None] = field(default_factory=list)
    syncs: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    next: int = 0
    must_sync: bool = True

    def produce(self, records: int, gap: int) -> None:
        self.end += gap
        self.source += range(self.end, self.end + records)
        self.end += records

    def copy(self, records: int, every: int) -> None:
        """Copy some records; each one of ``every`` gets a sync, and the first after a restart."""
        for offset in self.source[self.next : self.next + records]:
            if self.must_sync or len(self.copies) % every == 0:
                self.syncs.append((offset, len(self.copies)))
            self.must_sync = False
            self.copies.append(offset)
            self.next += 1

    def other(self, positions: int) -> None:
        self.copies += [None] * positions

    def restart(self, back: int) -> None:
        """Start again; the last records were not recorded as copied."""
        self.next, self.must_sync = max(0, self.next - back), True


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 9), st.integers(0, 4)),
        st.tuples(st.just("copy"), st.integers(1, 12), st.integers(1, 7)),
        st.tuples(st.just("other"), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.integers(0, 6)),
    ),
    max_size=14,
)


@given(STEPS, st.integers(0, 6))
@example([("produce", 9, 0), ("copy", 9, 7), ("restart", 3), ("copy", 9, 7)], 0)
@example([("produce", 9, 3), ("copy", 9, 7), ("other", 2), ("produce", 5, 4), ("copy", 5, 7)], 1)
def test_no_unread_record_is_missed_and_the_bound_holds(
    steps: list[tuple[Any, ...]], compacted: int
) -> None:
    model = Model()
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    kept = model.syncs[min(compacted, max(0, len(model.syncs) - 1)) :]
    known, latest = facts(kept), valid_syncs(kept)
    before = -1
    for offset in range(model.end + 3):
        found = translated(offset, known)
        expected = mirror_maker_position(offset, latest)
        if found.offset is None:
            assert expected is None
            assert found.precision is Precision.UNKNOWN
            continue
        assert found.offset == (0 if expected is None else expected)
        assert found.offset >= before, "a later offset never continues earlier"
        before = found.offset
        read = [each for each in model.copies[found.offset :] if each is not None]
        unread = [each for each in model.source[: model.next] if each >= offset]
        assert set(unread) <= set(read)
        assert found.read_again is not None
        assert sum(each < offset for each in read) <= found.read_again
        assert (found.precision is Precision.EXACT) is (found.read_again == 0)


def valid_syncs(syncs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the syncs since an offset went back, by comparing each with all later ones."""
    return [
        (source, target)
        for number, (source, target) in enumerate(syncs)
        if all(
            source < later or (source == later and target == position)
            for later, position in syncs[number + 1 :]
        )
        and all(
            earlier <= later
            for (earlier, _), (later, _) in zip(syncs[number:], syncs[number + 1 :], strict=False)
        )
    ]


def mirror_maker_position(offset: int, syncs: list[tuple[int, int]]) -> int | None:
    """Return the position by MirrorMaker's own rule: the sync, or one after it."""
    earlier = [(source, target) for source, target in syncs if source <= offset]
    if not earlier:
        return None
    source, target = earlier[-1]
    return target if source == offset else target + 1


# --- Single cases -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (9, ("unknown", None, None)),
        (10, ("exact", 100, 0)),  # the record of a sync
        (11, ("exact", 101, 0)),  # the next one
        (12, ("earlier", 101, 1)),
        (19, ("earlier", 101, 8)),
        (20, ("exact", 110, 0)),
        (22, ("earlier", 111, 1)),
        (25, ("earlier", 111, 2)),  # only two records are in between
        (30, ("exact", 113, 0)),
        (31, ("exact", 114, 0)),
        (40, ("earlier", 114, 9)),  # after the last sync
        (0, ("exact", 0, 0)),  # nothing was read
    ],
)
def test_between_syncs(offset: int, expected: tuple[Any, ...]) -> None:
    assert outcome(offset, facts([(10, 100), (20, 110), (30, 113)])) == expected


def test_without_records_between_two_syncs_the_translation_is_exact() -> None:
    """Markers of transactions, or records that compaction removed."""
    known = facts([(10, 100), (20, 101)])
    assert {outcome(offset, known) for offset in range(11, 21)} == {("exact", 101, 0)}


def test_additional_records_at_the_target_raise_the_bound() -> None:
    assert outcome(12, facts([(10, 100), (20, 113)])) == ("earlier", 101, 4)
    assert outcome(19, facts([(10, 100), (20, 113)])) == ("earlier", 101, 11)
    assert outcome(19, facts([(10, 100), (20, 999)])) == ("earlier", 101, 897)


@pytest.mark.parametrize(
    ("syncs", "offset", "expected"),
    [
        ([(10, 100), (5, 110)], 12, ("earlier", 111, 6)),  # the source goes back
        ([(10, 100), (5, 110)], 4, ("unknown", None, None)),
        ([(10, 100), (20, 50)], 15, ("unknown", None, None)),  # the target goes back
        ([(10, 100), (20, 50)], 20, ("exact", 50, 0)),
        ([(10, 100), (20, 100)], 10, ("unknown", None, None)),
        ([(10, 100), (10, 120)], 10, ("exact", 120, 0)),  # copied again
        ([(10, 100), (10, 100)], 10, ("exact", 100, 0)),
        ([(10, 100), (10, 90)], 10, ("exact", 90, 0)),
        ([(5, 50), (10, 100), (10, 90)], 5, ("unknown", None, None)),
    ],
)
def test_offsets_that_go_back(
    syncs: list[tuple[int, int]], offset: int, expected: tuple[Any, ...]
) -> None:
    assert outcome(offset, facts(syncs)) == expected


def test_a_deleted_sync_deletes_what_is_known() -> None:
    syncs = [OffsetSync("t", 0, 1, 1, 1), OffsetSync("t", 0, 0, 0, 2, is_deleted=True)]
    known = MirrorFacts(syncs, [MirrorCheckpoint("g", "A.t", 0, 3, 3, 1)]).of("t", "A.t", 0)
    assert outcome(5, known) == ("unknown", None, None)
    assert translated(5, known).reason == "there is no offset sync of the partition"


@pytest.mark.parametrize(
    ("checkpoints", "offset", "expected"),
    [
        ([("g", 30, 20, 1)], 29, ("unknown", None, None)),
        ([("g", 30, 20, 1)], 30, ("earlier", 20, 30)),  # at most what was read
        ([("g", 30, 20, 1)], 99, ("earlier", 20, 70)),  # at most up to the first sync
        ([("g", 30, 20, 1), ("h", 40, 35, 2)], 41, ("earlier", 35, 41)),
        ([("g", 30, 20, 1), ("h", 40, 35, 2)], 39, ("earlier", 20, 39)),
        ([("g", 30, 20, 1), ("g", 40, 35, 2)], 39, ("unknown", None, None)),  # the newest counts
        ([("g", 30, 20, 1), ("h", 40, 15, 2)], 39, ("unknown", None, None)),  # it is contradicted
        ([("g", 30, 20, 1), ("h", 40, 15, 2)], 40, ("earlier", 15, 40)),
        ([("g", 40, 15, 1), ("h", 30, 20, 2)], 45, ("earlier", 20, 45)),
        ([("g", 30, 91, 1)], 50, ("unknown", None, None)),  # the first sync contradicts it
        ([("g", 30, 90, 1)], 50, ("exact", 90, 0)),
        ([("g", 120, 110, 1)], 100, ("exact", 90, 0)),
    ],
)
def test_checkpoints_of_groups_before_the_first_sync(
    checkpoints: list[tuple[str, int, int, int]], offset: int, expected: tuple[Any, ...]
) -> None:
    assert outcome(offset, facts([(100, 90)], checkpoints)) == expected


def test_the_sync_next_to_the_offset_is_known() -> None:
    """Records are compared from there."""
    known = facts([(10, 100), (20, 110)], [("g", 5, 95, 9)])
    nearest = {4: (10, 100), 6: (10, 100), 10: (10, 100), 15: (10, 100), 25: (20, 110)}
    for offset, sync in nearest.items():
        assert translated(offset, known).sync == sync
    assert translated(4, facts([])).sync is None
    assert translated(6, facts([], [("g", 5, 95, 9)])).sync is None
    proven = translated(15, known).proven(104)
    assert (proven.precision, proven.offset, proven.read_again) == (Precision.EXACT, 104, 0)
    assert proven.reason == "the records next to the offset sync at 10 are equal"


def test_checkpoints_suffice_without_any_sync() -> None:
    assert outcome(50, facts([], [("g", 30, 20, 1)])) == ("earlier", 20, 50)


def test_checkpoints_from_before_an_offset_went_back_do_not_count() -> None:
    syncs = [(10, 10), (90, 90), (70, 95)]
    assert outcome(50, facts(syncs, [("g", 40, 41, 1)])) == ("unknown", None, None)
    assert outcome(50, facts(syncs, [("g", 40, 41, 2)])) == ("earlier", 41, 50)


def test_a_deleted_checkpoint() -> None:
    checkpoints = [
        MirrorCheckpoint("g", "A.t", 0, 30, 20, 1),
        MirrorCheckpoint("g", "A.t", 0, 0, 0, 2, is_deleted=True),
        MirrorCheckpoint("h", "A.t", 0, 0, 0, 2, is_deleted=True),
    ]
    known = MirrorFacts([], checkpoints).of("t", "A.t", 0)
    assert outcome(50, known) == ("unknown", None, None)


def test_partitions_and_topics_are_apart() -> None:
    every = MirrorFacts(
        [OffsetSync("t", 1, 5, 6, 0), OffsetSync("u", 0, 5, 7, 0), OffsetSync("A.t", 0, 5, 8, 0)],
        [MirrorCheckpoint("g", "t", 0, 1, 1, 0), MirrorCheckpoint("g", "A.t", 1, 1, 1, 0)],
    )
    assert outcome(5, every.of("t", "A.t", 0)) == ("unknown", None, None)
    assert outcome(5, every.of("t", "A.t", 1)) == ("exact", 6, 0)
    assert outcome(2, every.of("t", "A.t", 1)) == ("earlier", 1, 2)
    assert outcome(5, every.of("u", "A.u", 0)) == ("exact", 7, 0)


def test_an_offset_is_found_by_timestamp() -> None:
    unknown = translated(5, facts([(9, 9)]))
    assert unknown.reason == "no offset sync is at or before it: the first one is at 9"
    found = unknown.by_timestamp(1_000, (40, 2_500), 60)
    assert (found.precision, found.offset, found.gap_ms) == (Precision.BY_TIMESTAMP, 40, 1_500)
    assert found.reason == "by timestamp: the next record is 1.5 s after the source's"
    late = unknown.by_timestamp(1_000, None, 60)
    assert (late.offset, late.gap_ms, late.read_again) == (60, None, None)
    assert unknown.at_end(60).offset == 60
    assert "no record left to read" in unknown.at_end(60).reason
