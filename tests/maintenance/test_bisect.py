"""The first checkpoint in which a predicate holds, against dictionaries and by counted reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MissingFileError,
    QueryStoppedError,
    StateNotFoundError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.state import TimeToLive
from statestore.maintenance.bisect import Bisection, halve
from statestore.testing.faults import CountingStorage
from tests.support.forms import Checkpoints, in_both_layouts
from tests.support.retimed import START_MS, retime
from tests.support.stores import opened, uncompacted

GROUPS = 8


def put(store: StateStore, rows: Any, offset: int = 0, **options: Any) -> int:
    """Take a checkpoint of one keyed state, and of the offsets after its events."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=GROUPS, **options)
        offsets = [{"topic": "t", "partition": p, "offset": offset + p} for p in range(2)]
        checkpoint.write_union("source", "offsets", [offsets[:1], offsets[1:]])
        checkpoint.carry_rest()
    return checkpoint.id


def summary(found: Bisection) -> tuple[int | None, int | None]:
    """Return the ids of the checkpoint before the change and of the first one after it."""
    before, first = (
        None if side is None else side.checkpoint_id for side in (found.before, found.first)
    )
    return before, first


def answers(found: Bisection) -> dict[int, bool | None]:
    return {probe.checkpoint_id: probe.holds for probe in found.probes}


@given(st.lists(st.sampled_from([True, False, None]), max_size=200), st.booleans())
def test_halving_ends_at_a_change_of_the_answer(known: list[bool | None], is_lasting: bool) -> None:
    """It is the only one if the predicate stays true, and found with log2 of the questions."""
    if is_lasting:
        known.sort(key=lambda answer: answer is True)
        count = known.count(True)
        known = [False if answer is True else answer for answer in known]
        known[len(known) - count :] = [True] * count
    asked: list[int] = []

    def holds(place: int) -> bool | None:
        asked.append(place)
        return known[place]

    low, high = halve(len(known), holds)
    assert len(asked) == len({*asked})
    assert low == -1 or known[low] is False
    assert high == len(known) or known[high] is True
    assert {known[place] for place in range(low + 1, high)} <= {None}
    if is_lasting:
        assert high == next((p for p, answer in enumerate(known) if answer), len(known))
    if None not in known:
        assert len(asked) <= len(known).bit_length() + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "at"), [(60, 43), pytest.param(1000, 617, marks=pytest.mark.long)]
)
def test_few_checkpoints_are_read(tmp_path: Path, count: int, at: int) -> None:
    """Of many checkpoints of changes: the files of a few, and of these only the needed columns."""
    store = opened(tmp_path)
    rows = {"k": [f"k{n}" for n in range(500)], "v": range(500), "text": ["x" * 50] * 500}
    put(store, pa.table(rows))
    for number in range(2, count + 1):
        with store.snapshot(parallelism=1) as checkpoint:
            value = -number if number >= at else number
            checkpoint.write_changes("u", "s", [{"k": "k7", "v": value, "text": "y"}])
            offsets = [{"topic": "t", "partition": 0, "offset": number}]
            checkpoint.write_union("source", "offsets", [offsets])
    storage = CountingStorage(str(tmp_path))
    found = StateStore.open(storage).inspect.bisect("v < 0", "u", "s")
    assert summary(found) == (at - 1, at)
    assert found.checkpoints == count
    assert len(found.probes) <= count.bit_length() + 1
    manifests = [name for name in storage.opened if name.startswith("checkpoints/")]
    assert len(manifests) <= len(found.probes)
    [example] = found.changes.examples if found.changes else ()
    assert (dict(example.identity), example.a, example.b) == (
        {"k": "k7"},
        {"k": "k7", "v": at - 1, "text": "y"},
        {"k": "k7", "v": -at, "text": "y"},
    )
    assert [(part.topic, part.partition, part.start, part.stop) for part in found.replay] == [
        ("t", 0, at - 1, at)
    ]


@pytest.mark.slow
@in_both_layouts
def test_every_checkpoint_of_a_history(taken: Checkpoints) -> None:
    """In each form: the answer at each checkpoint, and the rows that changed."""
    for where, holds in (
        ("v >= 3000", lambda k, m, v: v >= 3000),
        ("k = 'new-2' AND m = 0", lambda k, m, v: k == "new-2"),
        ("key_group < 4 AND v = 2", None),
        ("true", lambda k, m, v: True),
        ("k IS NULL", lambda k, m, v: False),
    ):
        every = taken.store.inspect.bisect(where, "u", "s", every=True)
        assert [*answers(every)] == [*taken.taken]
        if holds is not None:
            expected = {
                number: any(holds(*entry, value) for entry, value in rows.items())
                for number, rows in taken.taken.items()
            }
            assert answers(every) == expected
            assert [probe.checkpoint_id for probe in every.transitions] == [
                number for number in taken.taken if expected[number] != expected.get(number - 1)
            ]
        before, first = summary(every)
        if first is None or before is None:
            continue
        assert every.changes is not None
        [whole] = taken.store.inspect.diff(before, first, operator="u", state="s").states
        assert (every.changes.added, every.changes.removed, every.changes.changed) == (
            whole.added,
            whole.removed,
            whole.changed,
        )
        example = every.changes.examples[0]
        assert holds is None or (example.b and holds(*example.b.values()))


KEYED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "value": ({"k": "a", "v": 1}, {"k": "a", "v": -1}, {}),
    "reducing": ({"k": "a", "v": 1}, {"k": "a", "v": -1}, {"kind": "reducing"}),
    "aggregating": ({"k": "a", "v": 1}, {"k": "a", "v": -1}, {"kind": "aggregating"}),
    "map": (
        {"k": "a", "m": 1, "v": 1},
        {"k": "a", "m": 2, "v": -1},
        {"kind": "map", "entry": "m"},
    ),
    "list": (
        {"k": "a", "at": 0, "v": 1},
        {"k": "a", "at": 0, "v": -1},
        {"kind": "list", "entry": "at"},
    ),
    "timers": (
        {"k": "a", "v": 1},
        {"k": "a", "v": -1},
        {"kind": "timers", "entry": "v", "time_domain": "event"},
    ),
}


@pytest.mark.parametrize("kind", KEYED)
def test_every_kind_of_keyed_state(tmp_path: Path, kind: str) -> None:
    store = opened(tmp_path)
    old, new, options = KEYED[kind]
    for row in (old, old, new, new):
        put(store, [row, old | {"k": "other", "v": 5}], **options)
    found = store.inspect.bisect("v < 0", "u", "s")
    assert summary(found) == (2, 3)
    assert found.changes is not None
    assert new in [dict(example.b) for example in found.changes.examples if example.b]
    assert all(example.identity["k"] == "a" for example in found.changes.examples)


@pytest.mark.parametrize("mode", ["split", "union", "broadcast"])
def test_every_kind_of_operator_state(tmp_path: Path, mode: str) -> None:
    store = opened(tmp_path)
    for value in (1, 2, 3, 4):
        with store.snapshot(parallelism=1) as checkpoint:
            elements: Any = [{"v": value}] if mode == "broadcast" else [[{"v": value}]]
            getattr(checkpoint, f"write_{mode}")("u", "s", elements)
    found = store.inspect.bisect("v > 2 AND subtask = 0", "u", "s")
    assert summary(found) == (2, 3)
    assert found.changes is not None
    assert [(e.a, e.b) for e in found.changes.examples] == [({"v": 2}, {"v": 3})]
    assert found.no_replay == "no operator state has the columns topic, partition and offset"


def test_keys_that_satisfy_the_predicate_come_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    keys = [f"k{n}" for n in range(100)]
    put(store, [{"k": key, "v": 1} for key in keys])
    put(store, [{"k": key, "v": -1 if key == "k77" else 2} for key in keys])
    found = store.inspect.bisect("v < 0", "u", "s", keys=3)
    assert found.changes is not None
    assert found.changes.changed == 100
    assert found.changes.examples[0].identity["k"] == "k77"
    assert len({e.identity["k"] for e in found.changes.examples}) == 3
    none = store.inspect.bisect("v < 0", "u", "s", keys=0).changes
    assert none is not None
    assert (none.changed, none.examples) == (100, ())


def test_a_predicate_that_holds_nowhere_or_everywhere(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in range(5):
        put(store, [{"k": "a", "v": value}])
    nowhere = store.inspect.bisect("v > 99", "u", "s")
    assert summary(nowhere) == (None, None)
    assert answers(nowhere) == {5: False}  # one look is enough, if it stays true
    everywhere = store.inspect.bisect("v >= 0", "u", "s")
    assert summary(everywhere) == (None, 1)
    assert (everywhere.changes, everywhere.replay, everywhere.no_replay) == (None, (), None)


def test_a_predicate_that_does_not_stay_true_needs_each_checkpoint(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in (1, 0, 1, 1, 0, 0, 1):
        put(store, [{"k": "a", "v": value}])
    halved = store.inspect.bisect("v = 1", "u", "s")
    assert (halved.is_exhaustive, halved.transitions) == (False, ())
    every = store.inspect.bisect("v = 1", "u", "s", every=True)
    assert every.is_exhaustive
    changes = [(probe.checkpoint_id, probe.holds) for probe in every.transitions]
    assert changes == [(1, True), (2, False), (3, True), (5, False), (7, True)]
    until = store.inspect.bisect("v = 1", "u", "s", 6, every=True)
    assert [*answers(until)] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_only_a_savepoint_keeps_is_looked_at(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in range(1, 6):
        put(store, [{"k": "a", "v": value}], 10 * value)
        if value == 2:
            store.maintenance.savepoint("second")
    store.maintenance.expire(retain=1)
    found = store.inspect.bisect("v >= 2", "u", "s")
    assert (found.checkpoints, summary(found)) == (2, (None, 2))
    found = store.inspect.bisect("v >= 4", "u", "s")
    assert summary(found) == (2, 5)
    assert found.gaps == 2
    assert [(part.start, part.stop) for part in found.replay] == [(20, 50), (21, 51)]


def test_a_checkpoint_that_is_deleted_meanwhile_is_skipped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in range(1, 10):
        put(store, [{"k": "a", "v": value}])
    store.maintenance.savepoint("oldest", checkpoint=1)

    def delete(done: float, total: float) -> None:
        if done == 1:
            store.maintenance.expire(retain=3)
            store.maintenance.gc(minimum_age="0s")

    found = store.inspect.bisect("v >= 3", "u", "s", on_progress=delete)
    skipped = [probe for probe in found.probes if probe.holds is None]
    assert {probe.reason for probe in skipped} == {"it was deleted meanwhile"}
    assert summary(found) == (1, 7)
    assert found.between == tuple(probe.checkpoint_id for probe in skipped) == (2, 3, 4, 5, 6)


def test_a_missing_file_of_a_kept_checkpoint_is_an_error(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in range(1, 4):
        put(store, [{"k": "a", "v": value}])
    for path in (tmp_path / "operators/u").rglob("0000000003-*.parquet"):
        path.unlink()
    with pytest.raises(MissingFileError):
        store.inspect.bisect("v > 5", "u", "s")


@pytest.mark.parametrize(
    ("where", "message", "place"),
    [
        ("vv < 0", 'Referenced column "vv" not found', "vv < 0"),
        ("k = 'a'\n AND vv < 0", 'Referenced column "vv" not found', "LINE 2:  AND vv < 0"),
        ("v <", 'syntax error at or near "<"', None),
        ("", "is not an SQL expression, such as", None),
        ("v < 0) OR (v > 3", "syntax error at or near", None),
        ("sum(v) > 3", "cannot contain aggregates", None),
        ("random() < 0.5", "side effects", None),
        ("v < 0; SELECT 1", "holds more than one statement", None),
        ("v", "type int64 instead of bool", None),
        ("k || 'x'", "type string instead of bool", None),
        ("NULL", "type null instead of bool", None),
    ],
)
def test_a_wrong_predicate_is_refused_before_anything_is_read(
    tmp_path: Path, where: str, message: str, place: str | None
) -> None:
    put(opened(tmp_path), [{"k": "a", "v": 1}])
    storage = CountingStorage(str(tmp_path))
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        StateStore.open(storage).inspect.bisect(where, "u", "s")
    notes = "\n".join(getattr(caught.value, "__notes__", ()))
    assert place is None or (place in notes and "^" in notes)
    assert place is None or "the columns of state 's' of operator 'u' are key_group" in notes
    assert not [name for name in storage.opened if name.endswith(".parquet")]


def test_comments_and_subqueries_are_expressions(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in (1, 2):
        put(store, [{"k": "a", "v": value}])
    assert summary(store.inspect.bisect("v > 1 -- twice", "u", "s")) == (1, 2)
    where = '(SELECT max("offset") FROM offsets) >= 0 AND v = (SELECT max(v) FROM s) AND v > 1'
    assert summary(store.inspect.bisect(where, "u", "s")) == (1, 2)


def test_a_checkpoint_without_the_state_or_the_column(tmp_path: Path) -> None:
    """Without the state no row satisfies the predicate. Without the column it is unknown."""
    store = opened(tmp_path)
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": "a", "v": 1}]
        checkpoint.write_keyed("u", "other", rows, key="k", max_parallelism=GROUPS)
    put(store, [{"k": "a", "v": 1}])
    put(store, [{"k": "a", "v": 2, "w": -1}])
    found = store.inspect.bisect("w < 0", "u", "s", every=True)
    assert answers(found) == {1: False, 2: None, 3: True}
    assert found.probes[0].reason == "it has no such state"
    assert 'Referenced column "w" not found' in (found.probes[1].reason or "")
    assert (summary(found), found.between) == ((1, 3), (2,))
    assert found.changes is not None
    assert found.changes.only_in == "b"
    with pytest.raises(StateNotFoundError, match="no kept checkpoint has a state 'x'"):
        store.inspect.bisect("v < 0", "u", "x")
    with pytest.raises(CheckpointNotFoundError):
        store.inspect.bisect("v < 0", "u", "s", 9)


def test_halving_begins_with_the_newest_checkpoint_that_has_the_state(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for value in (1, 2, -3):
        put(store, [{"k": "a", "v": value}])
    for _ in range(2):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.drop("u", "s")
            checkpoint.carry_rest()
    found = store.inspect.bisect("v < 0", "u", "s")
    assert summary(found) == (2, 3)
    assert [probe.reason for probe in found.probes[-2:]] == ["it has no such state"] * 2
    every = store.inspect.bisect("v < 0", "u", "s", every=True)
    assert answers(every) == {1: False, 2: False, 3: True, 4: False, 5: False}


def test_a_predicate_that_fails_for_rows_of_some_checkpoint_is_unknown_there(
    tmp_path: Path,
) -> None:
    """A value that cannot be cast, and another state that an old checkpoint lacks."""
    store = opened(tmp_path)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a", "v": "1"}], key="k", max_parallelism=GROUPS)
    for value in ("2", "x", "-4"):
        put(store, [{"k": "a", "v": value}])
    found = store.inspect.bisect("CAST(v AS INT) < 0", "u", "s")
    assert (summary(found), found.between) == ((2, 4), (3,))
    assert "Could not convert string 'x'" in (found.probes[-2].reason or "")
    where = "v = '-4' AND (SELECT max(\"offset\") FROM source.offsets) >= 0"
    every = store.inspect.bisect(where, "u", "s", every=True)
    assert answers(every) == {1: None, 2: False, 3: False, 4: True}
    with pytest.raises(InvalidArgumentError, match="time limit must be more than 0"):
        store.inspect.bisect("v = 'x'", "u", "s", time_limit="0s")
    with pytest.raises(InvalidArgumentError, match="much"):
        store.inspect.bisect("v = 'x'", "u", "s", memory_limit="much")


def test_rows_that_satisfy_the_predicate_come_before_others_of_their_key(tmp_path: Path) -> None:
    store = opened(tmp_path)
    options: Any = {"kind": "map", "entry": "m"}
    put(store, [{"k": "a", "m": m, "v": 1} for m in range(50)], **options)
    put(store, [{"k": "a", "m": m, "v": -1 if m == 40 else 2} for m in range(50)], **options)
    found = store.inspect.bisect("v < 0", "u", "s", keys=3)
    assert found.changes is not None
    assert found.changes.examples[0].identity["m"] == 40
    assert len({example.identity["m"] for example in found.changes.examples}) == 3


def test_rows_that_had_expired_when_the_checkpoint_was_taken_do_not_count(tmp_path: Path) -> None:
    """An old checkpoint is read as of its own time, at which its rows had not expired."""
    store = uncompacted(tmp_path)
    ttl = TimeToLive("1d", "at")
    rows = pa.table({"k": ["a"], "v": [-1], "at": pa.array([START_MS], pa.timestamp("ms", "UTC"))})
    for _ in range(3):
        put(store, rows, ttl=ttl)
    retime(tmp_path, hours=[1, 2, 30])
    found = StateStore.open(str(tmp_path)).inspect.bisect("v < 0", "u", "s", every=True)
    assert answers(found) == {1: True, 2: True, 3: False}


def test_rows_that_a_checkpoint_lacks_leave_the_answer_unknown(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, [{"k": "a", "v": 1}])
    lost = LeftOutState(
        operator="u", state="s", reason="damaged", command="salvage", first=0, last=3
    )
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[lost])
        checkpoint.carry_rest()
    found = store.inspect.bisect("v < 0", "u", "s", every=True)
    assert answers(found) == {1: False, 2: None}
    assert "left out: u/s:0-3 (damaged)" in (found.probes[1].reason or "")
    assert answers(store.inspect.bisect("v = 1", "u", "s", every=True)) == {1: True, 2: True}


def test_a_look_can_be_limited(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, pa.table({"k": [f"k{n}" for n in range(3000)], "v": range(3000)}))
    slow = "v < 0 AND (SELECT sum(a.v * b.v * c.v) FROM s a, s b, s c) > 0"
    with pytest.raises(QueryStoppedError, match="time limit") as stopped:
        store.inspect.bisect(slow, "u", "s", time_limit="200ms")
    assert stopped.value.__notes__[-1] == "while looking at checkpoint 1"


def test_the_writer_and_the_command_are_named(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, [{"k": "a", "v": 1}])
    put(store, [{"k": "a", "v": 2}])
    store.maintenance.edit("u", "s", put=[{"k": "a", "v": -1}])
    found = store.inspect.bisect("v < 0", "u", "s")
    assert found.first is not None
    assert found.first.origin is not None
    assert (found.first.origin["command"], found.first.origin["checkpoint"]) == ("edit", 2)
    assert found.before is not None
    assert (found.before.origin, found.before.writer.generation) == (None, 1)
