"""Preferred hosts of subtasks: the host with most of their bytes, and no host gets too many."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateHandle
from statestore.jobgraph.slots import PreviousAllocation, place_subtasks
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.restore.placement import preferred_hosts, previous_allocations
from tests.support.examples import examples

# A multiple of every number of key groups used here, so that no score is rounded.
EXACT = lcm(*range(1, 61))


def handle(first: int, host: str, last: int | None = None, size: int = 600) -> KeyedStateHandle:
    groups = KeyGroupRange(first, first if last is None else last)
    return KeyedStateHandle(f"{first}.parquet", groups, 1, size, 1, 0, "", host)


def handles(*hosts: str, size: int = 600) -> list[KeyedStateHandle]:
    """One file per key group, on the host at the same position."""
    return [handle(first, host, size=size) for first, host in enumerate(hosts)]


def assigned(maximum: int, parallelism: int) -> KeyGroupAssignment:
    return KeyGroupAssignment(max_parallelism=maximum, parallelism=parallelism)


# --- The ranges of each host ----------------------------------------------------------------------


def test_a_hosts_ranges_are_split_at_the_new_subtasks() -> None:
    """One range and the sum of its bytes per host and subtask, each in a slot of its host."""
    found = previous_allocations(handles(*"aaaabbaa"), assigned(8, 2))
    assert (found.hosts, found.per_host, found.slots) == (("a", "b"), 1, range(2))
    assert found.previous == (
        PreviousAllocation(0, KeyGroupRange(0, 3), 2400),
        PreviousAllocation(0, KeyGroupRange(6, 7), 1200),
        PreviousAllocation(1, KeyGroupRange(4, 5), 1200),
    )


def test_a_file_of_several_subtasks_is_divided_among_them() -> None:
    found = previous_allocations([handle(1, "a", last=6, size=600)], assigned(8, 4))
    ranges = [(one.key_groups.first, one.key_groups.last, one.size_bytes) for one in found.previous]
    assert sorted(ranges) == [(1, 1, 100), (2, 3, 200), (4, 5, 200), (6, 6, 100)]


def test_a_range_includes_gaps_that_its_host_does_not_have() -> None:
    found = previous_allocations(handles(*"abab"), assigned(4, 1))
    assert [one.key_groups for one in found.previous] == [KeyGroupRange(0, 2), KeyGroupRange(1, 3)]
    assert [found.host_of(one.slot) for one in found.previous] == ["a", "b"]


def test_files_without_a_host_are_left_out() -> None:
    found = previous_allocations(handles("", "a", "", ""), assigned(4, 2))
    assert found.hosts == ("a",)
    assert found.previous == (PreviousAllocation(0, KeyGroupRange(1, 1), 600),)
    nothing = previous_allocations(handles("", ""), assigned(4, 2))
    assert (nothing.hosts, nothing.per_host, nothing.slots) == ((), 0, range(0))
    assert previous_allocations([], assigned(4, 2)) == nothing


def test_a_key_group_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="key group 4"):
        previous_allocations([handle(4, "a")], assigned(4, 2))


# --- Preferred hosts ------------------------------------------------------------------------------


def test_at_the_same_parallelism_subtasks_return_to_their_hosts() -> None:
    assert preferred_hosts(handles(*"bbaaccbb"), assigned(8, 4)) == ("b", "a", "c", "b")


def test_most_bytes_decide_when_ranges_change() -> None:
    """Three old subtasks on three hosts, four new ones: the inner two have bytes on two hosts."""
    hosts = "a" * 43 + "b" * 43 + "c" * 42
    assert preferred_hosts(handles(*hosts), assigned(128, 4)) == ("a", "b", "b", "c")
    assert preferred_hosts(handles(*hosts), assigned(128, 1)) == ("a",)
    assert Counter(preferred_hosts(handles(*hosts), assigned(128, 128))) == Counter(hosts)


def test_bytes_decide_and_not_the_number_of_files() -> None:
    small, large = handles("a", "a", size=10), [handle(2, "b", size=21)]
    assert preferred_hosts([*small, *large], assigned(3, 1)) == ("b",)


def test_a_host_keeps_its_share_with_the_largest_subtasks() -> None:
    """Two hosts, four subtasks: two each, also if one host holds three of them."""
    held = [handle(i, "aaab"[i], size=size) for i, size in enumerate([1, 3, 2, 1])]
    assert preferred_hosts(held, assigned(4, 4)) == ("", "a", "a", "b")


def test_a_subtask_without_a_slot_moves_to_the_host_of_its_other_files() -> None:
    """Host a has most bytes of subtask 0 but no slot left; host b has the other bytes."""
    held = [
        *(handle(0, "a", size=50), handle(1, "b", size=20)),
        *(handle(2, "a", size=60), handle(3, "a", size=60)),
    ]
    assert preferred_hosts(held, assigned(4, 2)) == ("b", "a")


def test_a_subtask_without_copies_has_no_preferred_host() -> None:
    assert preferred_hosts(handles("", "", "b", "b"), assigned(4, 2)) == ("", "b")
    assert preferred_hosts(handles("", "a", "", ""), assigned(4, 4)) == ("", "a", "", "")


def test_without_hosts_there_is_no_preference() -> None:
    assert preferred_hosts(handles("", ""), assigned(2, 2)) == ()
    assert preferred_hosts([], assigned(2, 2)) == ()


@st.composite
def states(draw: st.DrawFn) -> tuple[list[KeyedStateHandle], KeyGroupAssignment]:
    """Runs of key groups on up to five hosts or without a host; some key groups are empty."""
    maximum = draw(st.integers(1, 60))
    ends = [*accumulate(draw(st.lists(st.integers(1, 20), max_size=8)))]
    hosts = draw(st.lists(st.sampled_from([*"abcde", ""]), min_size=len(ends) + 1, max_size=20))
    empty = draw(st.sets(st.integers(0, maximum - 1), max_size=10))
    sizes = st.integers(1, 100).map(EXACT.__mul__)
    held = [
        handle(group, hosts[sum(end <= group for end in ends)], size=draw(sizes))
        for group in range(maximum)
        if group not in empty
    ]
    return held, assigned(maximum, draw(st.integers(1, maximum)))


def held_bytes(held: list[KeyedStateHandle], assignment: KeyGroupAssignment) -> list[Counter[str]]:
    """Per subtask, the number of its bytes on each host."""
    per_subtask = [Counter[str]() for _ in range(assignment.parallelism)]
    for one in held:
        if one.host:
            subtask = assignment.subtask_of(one.key_groups.first)
            per_subtask[subtask][one.host] += one.size_bytes
    return per_subtask


@pytest.mark.slow
@examples(100)
@given(states())
def test_preferred_hosts_follow_the_placement(
    state: tuple[list[KeyedStateHandle], KeyGroupAssignment],
) -> None:
    """Each subtask names the host of its slot, or none if that host has none of its bytes."""
    held, assignment = state
    offered, per_subtask = previous_allocations(*state), held_bytes(held, assignment)
    found = preferred_hosts(held, assignment)
    if not any(per_subtask):
        assert found == ()
        return
    placed = place_subtasks(assignment, offered.previous, offered.slots)
    for subtask, (slot, host) in enumerate(zip(placed, found, strict=True)):
        wanted = offered.host_of(slot)
        assert host == (wanted if per_subtask[subtask][wanted] else "")
    share = -(-assignment.parallelism // len(offered.hosts))
    assert max(Counter(filter(None, found)).values(), default=0) <= share
    assert sum(one.size_bytes for one in offered.previous) == sum(map(Counter.total, per_subtask))


@examples(100)
@given(states())
def test_with_enough_slots_each_subtask_runs_where_most_of_its_bytes_are(
    state: tuple[list[KeyedStateHandle], KeyGroupAssignment],
) -> None:
    """The result is the same as if every slot of a host had all files of the host."""
    per_subtask, offered = held_bytes(*state), previous_allocations(*state)
    best = [max(each.values(), default=0) for each in per_subtask]
    wishes = Counter(
        host
        for most, each in zip(best, per_subtask, strict=True)
        for host, size in each.items()
        if size == most
    )
    if wishes and max(wishes.values()) <= offered.per_host:
        found = zip(per_subtask, preferred_hosts(*state), strict=True)
        assert [each[host] for each, host in found] == best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "parallelism"),
    [
        *((1, 7), (2, 1000), (100, 1), (100, 32_768)),
        *(
            pytest.param(hosts, parallelism, marks=pytest.mark.long)
            for hosts, parallelism in (
                *((1, 1), (1, 1000), (1, 32_768), (2, 1), (2, 7), (2, 32_768)),
                *((100, 7), (100, 1000)),
            )
        ),
    ],
)
def test_the_largest_state_is_placed(parallelism: int, hosts: int) -> None:
    """32,768 files, neighbors on different hosts: nearly all subtasks run near theirs."""
    held = handles(*(f"host-{group % hosts}" for group in range(32_768)))
    found = preferred_hosts(held, assigned(32_768, parallelism))
    assert len(found) == parallelism
    assert found.count("") < parallelism / 8
