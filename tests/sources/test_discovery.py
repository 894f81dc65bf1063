"""Stored offsets against live topics: every offset is kept, moved, retired or refused (I11)."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import IncompatibleStateError, InvalidArgumentError
from statestore.sources import discovery
from statestore.sources.discovery import (
    Case,
    Decision,
    LiveRange,
    LiveTopic,
    PartitionFinding,
    Policies,
    reconcile,
)
from statestore.sources.offsets import SourceOffset, per_subtask_offsets

LOW, HIGH = 100, 110
WORDS = {
    "new_partitions": get_args(discovery.NewPolicy),
    "removed_partitions": get_args(discovery.RemovedPolicy),
    "recreated_topics": get_args(discovery.RecreatedPolicy),
    "gap": get_args(discovery.GapPolicy),
    "rewind": get_args(discovery.RewindPolicy),
}
ALL_POLICIES = [
    Policies(**dict(zip(WORDS, words, strict=True))) for words in product(*WORDS.values())
]
LAX = Policies(removed_partitions="retire", recreated_topics="earliest", gap="earliest",
               rewind="latest")  # fmt: skip


def live(*numbers: int, low: int = LOW, high: int = HIGH, of: str | None = "new") -> Any:
    return {"t": LiveTopic("t", of, {number: LiveRange(low, high) for number in numbers})}


def at(offset: int, partition: int = 0, topic_id: str | None = "new") -> SourceOffset:
    return SourceOffset("t", partition, offset, topic_id)


def only(stored: list[SourceOffset], topics: Any, policies: Policies) -> PartitionFinding:
    (finding,) = reconcile(stored, topics, policies).report
    return finding


# --- One partition under each policy --------------------------------------------------------------

FAIL = (Decision.REFUSED, None)


@pytest.mark.parametrize(
    ("stored", "topics", "case", "policy", "outcomes"),
    [
        ([at(100)], live(0), Case.IN_RANGE, None, (Decision.KEPT, 100)),
        ([at(109)], live(0), Case.IN_RANGE, None, (Decision.KEPT, 109)),
        ([at(110)], live(0), Case.IDLE, None, (Decision.KEPT, 110)),
        ([at(0)], live(0, low=0, high=0), Case.IDLE, None, (Decision.KEPT, 0)),
        ([at(105, topic_id=None)], live(0), Case.IN_RANGE, None, (Decision.KEPT, 105)),
        ([at(105)], live(0, of=None), Case.IN_RANGE, None, (Decision.KEPT, 105)),
        (
            [],
            live(0),
            Case.NEW,
            "new_partitions",
            {"earliest": (Decision.ADDED, LOW), "latest": (Decision.ADDED, HIGH), "fail": FAIL},
        ),
        (
            [at(105)],
            {},
            Case.REMOVED,
            "removed_partitions",
            {"retire": (Decision.RETIRED, None), "fail": FAIL},
        ),
        (
            [at(105)],
            live(),
            Case.REMOVED,
            "removed_partitions",
            {"retire": (Decision.RETIRED, None), "fail": FAIL},
        ),
        *(
            (
                [at(offset, topic_id="old")],
                live(0),
                Case.RECREATED,
                "recreated_topics",
                {"earliest": (Decision.MOVED, LOW), "latest": (Decision.MOVED, HIGH), "fail": FAIL},
            )
            for offset in (0, 99, 105, 110, 111)  # whatever the decision would be in the old topic
        ),
        (
            [at(99)],
            live(0),
            Case.GAP,
            "gap",
            {"earliest": (Decision.MOVED, LOW), "fail": FAIL},
        ),
        (
            [at(111)],
            live(0),
            Case.REWIND,
            "rewind",
            {"earliest": (Decision.MOVED, LOW), "latest": (Decision.MOVED, HIGH), "fail": FAIL},
        ),
    ],
)
def test_each_case_follows_only_its_own_policy(
    stored: list[SourceOffset], topics: Any, case: Case, policy: str | None, outcomes: Any
) -> None:
    for policies in ALL_POLICIES:
        expected = outcomes if policy is None else outcomes[getattr(policies, policy)]
        found = only(stored, topics, policies)
        assert (found.case, (found.decision, found.offset)) == (case, expected)


def test_a_partition_that_a_recreated_topic_lacks_is_removed() -> None:
    for policies in ALL_POLICIES:
        found = only([at(105, topic_id="old")], live(), policies)
        if policies.recreated_topics == "fail":
            assert (found.case, found.decision) == (Case.RECREATED, Decision.REFUSED)
        else:
            retire = policies.removed_partitions == "retire"
            assert found.case is Case.REMOVED
            assert found.decision is (Decision.RETIRED if retire else Decision.REFUSED)


def test_a_doubtful_offset_is_refused_by_default() -> None:
    """The default policies never lose or repeat records."""
    topics = live(0, 1, 2, 3)
    stored = [at(99, 0), at(111, 1), at(105, 2, "old"), at(1, 7)]
    assert len(reconcile(stored, topics).refused) == 4
    assert reconcile([], topics).offsets == tuple(at(LOW, number) for number in range(4))


# --- The report -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "policies", "unread", "reason"),
    [
        ([at(97)], LAX, 3, "3 records deleted before they were read"),
        ([at(99)], LAX, 1, "1 record deleted before they were read"),
        ([at(97)], Policies(), 3, "3 records deleted before they were read"),
        ([], Policies(new_partitions="latest"), 10, "no offset is stored; 10 records not read"),
        ([], Policies(), 0, "no offset is stored"),
        ([at(110)], LAX, 0, "idle: nothing new to read"),
        ([at(105)], LAX, 0, "continues"),
        ([at(115)], LAX, 0, "the stored offset is 5 after the end"),
        (
            [at(115)],
            replace(LAX, rewind="earliest"),
            0,
            "the stored offset is 5 after the end; 10 records read again",
        ),
        ([at(5, topic_id="old")], LAX, 0, "the topic was recreated: its id is new, not old"),
        (
            [at(5, topic_id="old")],
            replace(LAX, recreated_topics="latest"),
            10,
            "the topic was recreated: its id is new, not old; 10 records not read",
        ),
    ],
)
def test_reasons_count_records(
    stored: list[SourceOffset], policies: Policies, unread: int, reason: str
) -> None:
    found = only(stored, live(0), policies)
    assert (found.unread, found.reason) == (unread, reason)


def test_a_refusal_names_every_partition_and_the_possible_policies() -> None:
    found = reconcile([at(97), at(111, 1), at(5, 2)], live(0, 1, 2, low=0, high=100))
    with pytest.raises(IncompatibleStateError) as refused:
        assert found.offsets
    assert str(refused.value) == (
        "the stored offsets do not fit the live topics: topic 't' partition 1: "
        "the stored offset is 11 after the end. "
        "Choose what to do with the settings rewind"
    )
    many = reconcile([at(1, number) for number in range(30)], {})
    with pytest.raises(IncompatibleStateError, match=r"partition 19: .*; and 10 more\. .*removed"):
        many.per_old_subtask([])


@pytest.mark.parametrize("policy", WORDS)
def test_an_unknown_policy_is_refused(policy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{policy} must be one of .*, not 'ignore'"):
        Policies(**{policy: "ignore"})  # type: ignore[arg-type]


@pytest.mark.parametrize(("low", "high"), [(-1, 3), (4, 3)])
def test_the_ends_of_a_range_must_be_ordered(low: int, high: int) -> None:
    with pytest.raises(InvalidArgumentError, match="invalid range"):
        LiveRange(low, high)


# --- Any stored offsets, any live topics ----------------------------------------------------------

# Few names and numbers, so that most examples have a partition on both sides.
names, numbers = st.sampled_from(["a", "b"]), st.integers(0, 2)
ids = st.sampled_from([None, "1", "2"])
ranges = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda r: LiveRange(*sorted(r)))
topics = st.dictionaries(
    names, st.tuples(ids, st.dictionaries(numbers, ranges, min_size=1)), min_size=1
).map(lambda found: {name: LiveTopic(name, *known) for name, known in found.items()})
offsets = st.dictionaries(
    st.tuples(names, numbers), st.tuples(st.integers(0, 12), ids), min_size=2
).map(lambda found: [SourceOffset(*place, *known) for place, known in found.items()])


@given(offsets, topics, st.sampled_from(ALL_POLICIES))
def test_nothing_is_dropped_and_nothing_is_out_of_range(
    stored: list[SourceOffset], live: dict[str, LiveTopic], policies: Policies
) -> None:
    """Each partition occurs once; a stored one is kept, moved, retired or refused."""
    found = reconcile(stored, live, policies)
    known = {(each.topic, each.partition): each for each in stored}
    ranges = {(t.name, n): r for t in live.values() for n, r in t.partitions.items()}
    places = [(each.topic, each.partition) for each in found.report]
    assert places == sorted(known.keys() | ranges.keys())
    for place, each in zip(places, found.report, strict=True):
        assert each.reason
        assert each.stored == known.get(place)
        assert each.live == ranges.get(place)
        assert (each.offset is None) is (each.decision in (Decision.RETIRED, Decision.REFUSED))
        if each.offset is not None:
            assert ranges[place].low <= each.offset <= ranges[place].high
            assert (each.decision is Decision.KEPT) is (each.case in (Case.IN_RANGE, Case.IDLE))
        if each.decision is Decision.KEPT:
            assert each.stored is not None
            assert each.offset == each.stored.offset
        if each.decision is Decision.RETIRED:
            assert place not in ranges
        if each.decision is Decision.ADDED:
            assert place not in known


@given(offsets, topics)
def test_reconciling_twice_changes_nothing(
    stored: list[SourceOffset], live: dict[str, LiveTopic]
) -> None:
    once = reconcile(stored, live, LAX).offsets
    again = reconcile(once, live)
    assert {each.decision for each in again.report} <= {Decision.KEPT}
    assert [asdict(offset) for offset in again.offsets] == [asdict(each) for each in once]


@given(
    offsets,
    topics,
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(["split", "union"]),
    st.data(),
)
def test_every_reconciled_offset_is_read_by_one_subtask(
    stored: list[SourceOffset],
    live: dict[str, LiveTopic],
    old: int,
    parallelism: int,
    mode: str,
    data: Any,
) -> None:
    """Also if some old subtasks had finished, and if several report the same offset."""
    lists: list[list[SourceOffset] | None] = [[] for _ in range(old)]
    for each in stored:
        for subtask in data.draw(st.sets(st.integers(0, old - 1), min_size=1)):
            lists[subtask].append(each)
    lists = [mine or data.draw(st.sampled_from([None, []])) for mine in lists]
    found = reconcile([each for mine in lists for each in mine or ()], live, LAX)
    dealt = per_subtask_offsets(found.per_old_subtask(lists), parallelism, mode=mode)
    assert sorted(each for mine in dealt for each in mine) == sorted(found.offsets)


def test_offsets_keep_their_subtask_and_new_partitions_go_to_the_shortest_list() -> None:
    old = [[at(105, 0), at(106, 1)], None, [at(107, 2)], []]
    found = reconcile([*(old[0] or ()), *(old[2] or ())], live(0, 1, 2, 3, 4, 5))
    lists = found.per_old_subtask(old)
    assert [None if mine is None else [each.partition for each in mine] for mine in lists] == [
        [0, 1],
        None,
        [2, 4],
        [3, 5],
    ]
    (all_finished,) = reconcile([], live(0)).per_old_subtask([None])
    assert all_finished == [at(LOW)]
