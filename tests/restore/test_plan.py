"""A plan contains the exact reads of each subtask, before any data file is read."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry, TableRef, Writer
from statestore.format.schema import Field, Schema
from statestore.format.slices import assignment_of, slices_of
from statestore.format.state import KeyedState, Layout, OperatorState, StateKind
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.restore.plan import plan_restore, redistribution_of
from tests.support.examples import examples
from tests.support.key_values import keyed_handles


def keyed(handles: tuple[KeyedStateHandle, ...], max_parallelism: int = 8, uid: str = "u") -> Any:
    state = KeyedState(
        uid=uid,
        name="keyed",
        kind=StateKind.VALUE,
        schema=Schema((Field("k", "long"),)),
        key=("k",),
        key_types=("Long",),
        max_parallelism=max_parallelism,
        hash_scheme="java",
    )
    return KeyedEntry(state, TableRef("parquet", "t"), handles)


def operator(mode: RedistributionMode, name: str, *counts: int) -> OperatorEntry:
    state = OperatorState(uid="u", name=name, mode=mode, schema=Schema((Field("a", "long"),)))
    handle = OperatorStateHandle("f", sum(counts), 10, 1, 0, "")
    return OperatorEntry(state, TableRef("parquet", "t"), counts, (handle,))


def handle(key_group: int, rows: int = 1) -> KeyedStateHandle:
    span = KeyGroupRange(key_group, key_group)
    return KeyedStateHandle(f"{key_group}", span, rows, rows * 100, 2, 0, "")


def manifest(*entries: KeyedEntry | OperatorEntry, parallelism: int = 2) -> Manifest:
    return Manifest(
        store_id="s",
        checkpoint_id=3,
        parallelism=parallelism,
        started_at_ms=0,
        created_at_ms=0,
        writer=Writer("", "", ""),
        keyed=tuple(entry for entry in entries if isinstance(entry, KeyedEntry)),
        operator=tuple(entry for entry in entries if isinstance(entry, OperatorEntry)),
    )


@examples(50)
@given(st.data(), st.sampled_from([1, 7, 128, 32_768]))
def test_a_subtask_plans_the_files_that_overlap_its_range(
    data: st.DataObject, max_parallelism: int
) -> None:
    """I8: all of these files and no others, by key group, with any ranges."""
    handles = data.draw(keyed_handles(max_parallelism, data.draw(st.sampled_from(Layout))))
    parallelism = data.draw(st.integers(1, min(max_parallelism, 20)))
    entry = keyed(handles, max_parallelism)
    for own in assignment_of(entry, parallelism).ranges():
        wanted = [(one, own_of) for one in handles if (own_of := one.key_groups.intersect(own))]
        found, ranges = entry.by_key_group
        cuts = ranges.cuts(own.first, own.last)
        assert [(found[at], common) for at, common in cuts] == wanted


@examples(50)
@given(st.data(), st.sampled_from([7, 128]), st.sampled_from(Layout))
def test_a_plan_has_the_numbers_of_its_slices(
    data: st.DataObject, max_parallelism: int, layout: Layout
) -> None:
    """The rows, bytes and files of a subtask are the ones that a restore then reads."""
    entry = keyed(data.draw(keyed_handles(max_parallelism, layout)), max_parallelism)
    parallelism = data.draw(st.integers(1, max_parallelism))
    (plan,) = plan_restore(manifest(entry), parallelism).operators
    for subtask in plan.subtasks:
        assert subtask.key_groups is not None
        parts = slices_of(entry, subtask.key_groups)
        assert subtask.rows == sum(part.rows for part in parts)
        assert subtask.size_bytes == sum(part.size_bytes for part in parts)
        assert subtask.files == len(parts)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 8])
def test_the_plan_adds_up(parallelism: int) -> None:
    """I7: if each key group has a file, each row, byte and file is in the plan of one subtask."""
    entry = keyed(tuple(handle(group, group + 1) for group in (0, 2, 3, 7)))
    plan = plan_restore(manifest(entry), parallelism)
    assert (plan.checkpoint_id, plan.old_parallelism, plan.parallelism) == (3, 2, parallelism)
    subtasks = plan.operators[0].subtasks
    assert [subtask.subtask for subtask in subtasks] == list(range(parallelism))
    assert sum(subtask.rows for subtask in subtasks) == entry.rows
    assert plan.size_bytes == entry.size_bytes
    assert plan.files == 4
    assert sum(subtask.requests for subtask in subtasks) == 4 * (2 + 2)
    ranges = KeyGroupAssignment(max_parallelism=8, parallelism=parallelism).ranges()
    assert tuple(subtask.key_groups for subtask in subtasks) == ranges


def test_the_largest_subtask_is_the_first_with_most_bytes() -> None:
    """A restore takes as long as this subtask."""
    plan = plan_restore(manifest(keyed((handle(0, 1), handle(3, 9), handle(7, 9)))), 8)
    assert plan.operators[0].largest.subtask == 3


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_elements_are_distributed_by_their_mode(parallelism: int) -> None:
    """I7, I11: split state once, union state in full, one broadcast copy."""
    split, union, broadcast = RedistributionMode
    entries = [operator(split, "s", 3, 2), operator(union, "n", 1, 1), operator(broadcast, "b", 4)]
    plan = plan_restore(manifest(*entries), parallelism)
    elements = [subtask.elements for subtask in plan.operators[0].subtasks]
    assert sum(elements) == 5 + parallelism * (2 + 4)
    assert plan.operators[0].max_parallelism is None
    dealt = redistribution_of(manifest(*entries), "u", parallelism)
    for subtask, planned in enumerate(elements):
        runs = [run for state in dealt.runs(subtask).values() for run in state]
        assert planned == sum(run.stop - run.first for run in runs)


def test_every_operator_is_planned() -> None:
    """Sorted by uid, each with its states."""
    plan = plan_restore(manifest(keyed((), uid="z"), keyed((), uid="a")), 2)
    assert [one.operator for one in plan.operators] == ["a", "z"]
    assert [one.states for one in plan.operators] == [("keyed",), ("keyed",)]


@pytest.mark.parametrize(
    "stored",
    [
        manifest(),
        manifest(keyed((handle(0),), 128)),
        manifest(operator(RedistributionMode.UNION, "n", 1, 1)),
    ],
    ids=["empty", "keyed", "operator"],
)
@pytest.mark.parametrize("parallelism", [0, -1, 32_769, True, 1.0, "2", None])
def test_a_parallelism_out_of_bounds_is_refused(stored: Manifest, parallelism: Any) -> None:
    """The check does not depend on the checkpoint."""
    with pytest.raises((ParallelismError, InvalidArgumentError), match="parallelism must be"):
        plan_restore(stored, parallelism)


def test_a_parallelism_above_the_stored_max_names_the_operator() -> None:
    """I3: key groups are not split."""
    with pytest.raises(ParallelismError, match="parallelism 9 is above the stored max") as caught:
        plan_restore(manifest(keyed((handle(0),), 8)), 9)
    assert caught.value.__notes__ == ["while planning state 'keyed' of operator 'u'"]


def test_another_max_parallelism_is_a_multiple_or_a_divisor() -> None:
    """I3: any other number requires a rewrite of the rows, and the message names the command."""
    stored = manifest(keyed((handle(0),), 8))
    assert plan_restore(stored, 2, 8) == plan_restore(stored, 2)
    for other in (1, 2, 4, 16, 24, 32768):
        assert plan_restore(stored, 1, other).operators[0].max_parallelism == other
    for other in (3, 7, 12, 100):
        with pytest.raises(ParallelismError, match=f"cannot be read as {other} without a rewrite"):
            plan_restore(stored, 2, other)


def test_a_plan_is_shown_with_one_line_per_subtask() -> None:
    """The output is the same as the command's."""
    union = operator(RedistributionMode.UNION, "n", 1, 1)
    other = replace(union, state=replace(union.state, uid="v"))
    text = str(plan_restore(manifest(keyed((handle(5, 3),)), other), 2))
    assert text.splitlines() == [
        "checkpoint 3: parallelism 2 -> 2",
        "u (keyed)",
        "  subtask 0: key groups 0..3, 0 rows, 0 bytes, 0 files, 0 requests, 0 elements",
        "  subtask 1: key groups 4..7, 3 rows, 300 bytes, 1 files, 4 requests, 0 elements",
        "v (n)",
        "  subtask 0: no keyed state, 0 rows, 10 bytes, 1 files, 3 requests, 2 elements",
        "  subtask 1: no keyed state, 0 rows, 10 bytes, 1 files, 3 requests, 2 elements",
    ]


def test_a_subtask_is_a_value() -> None:
    """It can be pickled, replaced and converted to a document."""
    (plan,) = plan_restore(manifest(keyed((handle(0), handle(5)))), 2).operators
    first = plan.subtasks[0]
    assert pickle.loads(pickle.dumps(plan.subtasks)) == tuple(plan.subtasks)
    assert replace(first, elements=3).elements == 3
    assert asdict(first)["key_groups"] == {"first": 0, "last": 3}
