"""Subtasks are connected as in Flink, and take over the same in-flight records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.jobgraph.partitioners import StateMapper, key_group_channel, old_subtasks, pointwise
from tests.support.vectors import cases

WIRINGS = cases("partitioners", "pointwise")
MAPPINGS = cases("partitioners", "state_mapper")

parallelisms = st.integers(1, 60)

# --- Flink's answers ------------------------------------------------------------------------------


def test_every_vector_is_tested() -> None:
    """Vectors about other subjects are in test_partitioners.py. There is one error."""
    operations = {case["in"]["op"] for case in cases("partitioners")}
    assert operations == {"channels", "pointwise", "state_mapper"}
    assert {case["error"] for case in MAPPINGS if "error" in case} == {"cannot_rescale"}
    assert not any("error" in case for case in WIRINGS)


@pytest.mark.parametrize("number", range(len(WIRINGS)))
def test_pointwise_edges_are_wired_as_in_flink(number: int) -> None:
    """Both the consumers of each producer and the subtask of each channel are compared."""
    case = WIRINGS[number]
    wired = pointwise(case["in"]["up"], case["in"]["down"])
    assert [list(consumed) for consumed in wired.consumes] == case["out"]["consumes"]
    assert [list(fed) for fed in wired.channels] == case["out"]["channels"]


def test_old_subtasks_are_flinks() -> None:
    """The old subtasks of each new subtask, or the error."""
    for mapping in MAPPINGS:
        asked = mapping["in"]
        mapper, old, new = asked["mapper"], asked["old"], asked["new"]
        if "error" in mapping:
            with pytest.raises(ParallelismError, match="savepoint"):
                old_subtasks(mapper, 0, old, new)
        else:
            got = [list(old_subtasks(mapper, subtask, old, new)) for subtask in range(new)]
            assert got == mapping["out"]


# --- Wiring ---------------------------------------------------------------------------------------


@given(up=st.integers(1, 200), down=st.integers(1, 200))
def test_both_ends_of_a_pointwise_edge_agree(up: int, down: int) -> None:
    """Every subtask has a peer, and the two tables agree."""
    wired = pointwise(up, down)
    assert len(wired.consumes) == down
    assert len(wired.channels) == up
    seen = {(u, d) for d, (a, b) in enumerate(wired.consumes) for u in range(a, b + 1)}
    assert seen == {(u, d) for u, fed in enumerate(wired.channels) for d in fed}
    assert {u for u, _ in seen} == set(range(up))
    assert {d for _, d in seen} == set(range(down))
    assert len(seen) == max(up, down)
    for fed in wired.channels:
        assert [d % len(fed) for d in fed] == list(range(len(fed)))


def test_the_largest_parallelism_is_wired() -> None:
    """The edge is one to one, up to the last subtask."""
    assert pointwise(32_768, 32_768).channels[-1] == (32_767,)


# --- In-flight records ----------------------------------------------------------------------------


@given(old=parallelisms, new=parallelisms, mapper=st.sampled_from(list(StateMapper)))
def test_every_old_subtask_is_taken_over(old: int, new: int, mapper: StateMapper) -> None:
    """No in-flight record is lost. Only FULL and RANGE assign an old subtask to several
    new ones.
    """
    if mapper is StateMapper.UNSUPPORTED:
        with pytest.raises(ParallelismError, match=f"parallelism {old} to {new}"):
            old_subtasks(mapper, new - 1, old, new)
        return
    taken = [old_subtasks(mapper, subtask, old, new) for subtask in range(new)]
    counts = Counter(subtask for each in taken for subtask in each)
    assert set(counts) == set(range(old))
    if mapper not in (StateMapper.FULL, StateMapper.RANGE):
        assert set(counts.values()) == {1}
    assert all(each == tuple(sorted(each)) for each in taken)


@given(old=parallelisms, new=parallelisms, data=st.data())
def test_a_range_includes_every_previous_owner_of_a_key(old: int, new: int, data: Any) -> None:
    """The old subtasks of a key's new owner include its old owner, at max parallelism 32768."""
    hashed = data.draw(st.integers(-(2**31), 2**31 - 1))
    before, after = (key_group_channel(hashed, 32_768, n) for n in (old, new))
    assert before in old_subtasks("RANGE", after, old, new)


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 32_769])
def test_numbers_out_of_bounds_are_refused(wrong: int) -> None:
    """Parallelism is in 1..32768 on either side, before and after. The message names the invalid
    value.
    """
    for up, down, side in ((wrong, 2, "upstream"), (2, wrong, "downstream")):
        with pytest.raises(InvalidArgumentError, match=f"^{side} .* not {wrong}"):
            pointwise(up, down)
    for old, new, which in ((wrong, 2, "old"), (2, wrong, "new")):
        with pytest.raises(InvalidArgumentError, match=f"{which} parallelism .* not {wrong}"):
            old_subtasks("FULL", 0, old, new)


@pytest.mark.parametrize("wrong", [True, 2.0, "2", None, -1, 2])
def test_a_subtask_that_does_not_exist_is_refused(wrong: Any) -> None:
    """A value that is not an integer is refused too, because True would silently become 1."""
    for mapper in ("FULL", "RANGE"):
        with pytest.raises(InvalidArgumentError, match="subtasks are 0 to 1"):
            old_subtasks(mapper, wrong, 4, 2)


def test_an_unknown_mapper_is_refused() -> None:
    """The message lists the available mappers."""
    with pytest.raises(InvalidArgumentError, match="'ROUND_ROBIN', 'ARBITRARY'"):
        old_subtasks("round", 0, 2, 2)
