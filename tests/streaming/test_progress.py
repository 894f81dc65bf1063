"""Spark's plan of a micro-batch, and a checkpoint's progress: positions, offsets, clock."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from statestore import StateStore, TimeToLive
from statestore.errors import InvalidArgumentError, LeftOutStateError, StateNotFoundError
from statestore.streaming import MicroBatch, Progress, starting_offsets
from statestore.streaming.progress import same_ends
from tests.streaming.world import World

pytestmark = pytest.mark.spark


def test_kafkas_end_offsets_are_stored_by_partition(world: World) -> None:
    """As union state, and in the format that Spark's source accepts for a successor query."""
    kafka = '{"orders":{"1":7,"0":12,"10":3}}'
    batch = MicroBatch("q", 0, (kafka, '{"logOffset":4}'))
    world.query(parallelism=3).process(world.frame("a"), batch)
    restored = world.store.restore(parallelism=2)
    elements = restored.operator_state("source", "offsets").subtask(1, where={"partition": [10]})
    assert elements == [{"topic": "orders", "partition": 10, "offset": 3}]
    assert json.loads(starting_offsets(restored)) == json.loads(kafka)


def test_lost_offsets_are_an_error(store: StateStore) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        lost = pa.table({"topic": ["t"], "partition": [0], "offset": [7]}).slice(1)
        checkpoint.write_union("source", "offsets", lost)
    with pytest.raises(StateNotFoundError, match="unknown where the query ended"):
        starting_offsets(store.restore())


def test_starting_offsets_are_those_of_kafka(store: StateStore) -> None:
    """They can be in several subtasks; what Kafka does not have is refused."""
    first, second = ({"topic": "t", "partition": number, "offset": 7} for number in range(2))
    for lists in (
        [[first], [second]],
        [[first, {**first, "offset": 8}]],
        [[{**first, "offset": -1}]],
    ):
        with store.snapshot(parallelism=len(lists)) as checkpoint:
            checkpoint.write_union("source", "offsets", lists)
    restored = [store.restore(checkpoint=number) for number in (1, 2, 3)]
    assert starting_offsets(restored[0]) == '{"t":{"0":7,"1":7}}'
    with pytest.raises(InvalidArgumentError, match="has two offsets, 7 and 8"):
        starting_offsets(restored[1])
    with pytest.raises(InvalidArgumentError, match="offset must be an integer"):
        starting_offsets(restored[2])


def test_a_query_does_not_undo_changed_offsets(world: World) -> None:
    """Spark would continue at the old positions of its location. A successor can use the new."""
    query, first = world.query(parallelism=1), MicroBatch("q", 0, ('{"orders":{"0":12}}',))
    second = MicroBatch("q", 1, ('{"orders":{"0":20}}',), before=first)
    query.process(world.frame("a"), first)
    elements = query.store.restore().operator_state("source", "offsets").subtask(0)
    with query.store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("source", "offsets", [[{**elements[0], "offset": 3}]])
        checkpoint.carry_rest()
    with pytest.raises(InvalidArgumentError, match=r"'offsets' .* was changed after micro-batch 0"):
        query.process(world.frame("a"), second)
    with query.store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("source", "offsets", [elements])
        checkpoint.carry_rest()
    query.process(world.frame("a"), second)
    assert Progress.of(query.store.restore(), "source").queries == (("q", 1),)


STATE = "state 'totals' of operator 'u'"


@pytest.mark.parametrize(
    ("known", "has_state", "query", "number", "succeeds", "message"),
    [
        ((), False, "q", 0, False, None),
        ((), False, "q", 4, False, "neither its progress nor its state"),
        ((), True, "q", 0, False, "but not the progress of a query"),
        ((), True, "q", 4, False, "but not the progress of a query"),
        ((), True, "new", 0, True, None),
        ((("q", 3),), True, "q", 3, False, None),
        ((("q", 3),), True, "q", 4, False, None),
        ((("q", 3),), True, "q", 5, False, "continues with 5"),
        ((("q", 3),), False, "q", 4, False, f"lacks {STATE}, which contains those events"),
        ((("q", 3),), False, "new", 0, True, f"lacks {STATE}, which contains those events"),
        ((("q", 3),), True, "new", 0, False, "succeeds=True"),
        ((("q", 3),), True, "new", 0, True, None),
        ((("q", 3),), True, "q", 2, False, "Spark runs micro-batch 2 again"),
        ((("q", 3), ("new", 0)), True, "q", 4, True, "query new has updated the state"),
        ((("q", 3), ("new", 0)), True, "q", 3, True, "query new has updated the state"),
    ],
)
def test_valid_next_micro_batches(
    known: tuple[tuple[str, int], ...],
    has_state: bool,
    query: str,
    number: int,
    succeeds: bool,
    message: str | None,
) -> None:
    """Without both state and progress it is unknown which events were counted."""
    progress, batch = Progress(known), MicroBatch(query, number)
    if message is None:
        progress.check(batch, STATE, has_state=has_state, succeeds=succeeds)
        return
    with pytest.raises(InvalidArgumentError) as caught:
        progress.check(batch, STATE, has_state=has_state, succeeds=succeeds)
    assert message in str(caught.value)


A, B, C = '{"t":{"0":7,"1":3}}', '{"t": {"1": 3, "0": 7}}', '{"t":{"0":9,"1":3}}'
FILE, OTHER = ((0, "aa"),), ((0, "bb"),)


@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize(
    ("stored", "stored_files", "ends", "files", "agree"),
    [
        ((A,), None, (A,), (), True),
        ((A,), None, (B,), (), True),  # the same offsets in another order
        ((A,), None, (C,), (), False),
        ((A,), None, (A, A), (), False),
        ((), None, (A,), (), False),  # lost in a salvage
        (("-",), None, ("-",), (), True),
        ((A,), FILE, (A,), FILE, True),
        ((A,), FILE, (A,), OTHER, False),
        ((A,), (), (A,), FILE, False),  # lost in a salvage
        ((A,), None, (A,), FILE, True),  # an older release did not store them
        ((A,), FILE, (A,), (), False),
    ],
)
def test_a_micro_batch_must_end_or_begin_at_the_stores_position(
    number: int,
    stored: tuple[str, ...],
    stored_files: tuple[tuple[int, str], ...] | None,
    ends: tuple[str, ...],
    files: tuple[tuple[int, str], ...],
    agree: bool,
) -> None:
    """The last one must end and the next one must begin there: numbers alone are not sufficient."""
    batch = MicroBatch("q", 3, ends, files=files)
    batch = batch if number == 3 else MicroBatch("q", 4, (C,), before=batch)
    progress = Progress((("q", 3),), stored, stored_files)
    if agree:
        progress.check(batch, STATE, has_state=True, succeeds=False)
        assert progress.has(batch) == (number == 3)
        return
    with pytest.raises(InvalidArgumentError, match="Restore the location"):
        progress.check(batch, STATE, has_state=True, succeeds=False)


def test_a_concurrent_snapshot_cannot_lose_the_progress(world: World) -> None:
    """It must be carried or dropped by name; if it was dropped, the query does not count again."""
    query = world.query()
    query.process(world.frame("a"), MicroBatch("q", 0))
    rows = [{"user": "a", "n": 1, "total": 1}]
    with (
        pytest.raises(LeftOutStateError, match="'progress' of operator 'source'"),
        world.store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_keyed("totals", "per-user", rows, key="user")
    with world.store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("totals", "per-user", rows, key="user")
        checkpoint.carry_rest()
    world.query().process(world.frame("a"), MicroBatch("q", 1))
    assert world.state() == {"a": (2, 2)}
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.drop("source", "progress")
        checkpoint.carry_rest()
    for batch in (MicroBatch("q", 2), MicroBatch("new", 0)):
        with pytest.raises(InvalidArgumentError, match="not the progress of a query"):
            world.query().process(world.frame("a"), batch)
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry("source", "progress", base=3)
        checkpoint.carry_rest()
    world.query().process(world.frame("a"), MicroBatch("q", 2))
    assert world.state() == {"a": (3, 3)}


@pytest.mark.long
def test_the_ttl_uses_the_time_of_the_micro_batch(world: World) -> None:
    """The machine's clock is not used, so that a repeated micro-batch has the same result."""
    ttl = TimeToLive("1s", "used")
    query = world.query(options={"max_parallelism": 8, "ttl": ttl})
    for number, (users, now_ms) in enumerate((("ab", 5000), ("a", 5600), ("ab", 6100))):
        query.process(world.frame(*users), MicroBatch("q", number, planned_at_ms=now_ms))
    rows = world.store.restore(parallelism=1, now_ms=6100).keyed("totals", "per-user")
    found = {row["user"]: row for row in rows.to_arrow(0).to_pylist()}
    assert {user: (row["n"], row["used"]) for user, row in found.items()} == {
        "a": (3, 6100),
        "b": (1, 6100),
    }


def test_the_plan_is_read_from_sparks_checkpoint_location(world: World) -> None:
    """This includes the time of the rows, which is in Spark's file."""
    world.add()
    ttl = TimeToLive("1000000s", "used")
    world.run(world.query(options={"max_parallelism": 8, "ttl": ttl}))
    metadata = (world.folder / "progress" / "offsets" / "0").read_text().splitlines()[1]
    (used,) = {
        row["used"]
        for row in world.store.restore(parallelism=1)
        .keyed("totals", "per-user")
        .to_arrow(0)
        .to_pylist()
    }
    assert used == json.loads(metadata)["batchTimestampMs"]


def test_positions_that_differ_in_a_digit_are_different() -> None:
    """A source may write any JSON, and as doubles these two numbers are equal."""
    assert same_ends(['{"at": 9007199254740992.0}'], ['{ "at": 9007199254740992.0 }'])
    assert not same_ends(['{"at": 9007199254740992.0}'], ['{"at": 9007199254740993.0}'])


ONE, TWO = '{"logOffset":1}', '{"logOffset":2}'


@pytest.mark.parametrize(
    ("names", "ends", "files", "same"),
    [
        (("x", "y"), (ONE, TWO), ((0, "f"), (1, "g")), True),
        (("y", "x"), (TWO, ONE), ((0, "g"), (1, "f")), True),
        (("y", "x"), (ONE, TWO), ((0, "f"), (1, "g")), False),
        (("x", "z"), (ONE, TWO), ((0, "f"), (1, "g")), False),
        (("x",), (ONE,), ((0, "f"),), False),
        (("y", "x"), (TWO, ONE), ((0, "f"), (1, "g")), False),
        ((), (ONE, TWO), ((0, "f"), (1, "g")), True),  # an older release did not store names
    ],
)
def test_end_positions_are_compared_by_name(
    names: tuple[str, ...],
    ends: tuple[str, ...],
    files: tuple[tuple[int, str], ...],
    same: bool,
) -> None:
    batch = MicroBatch("q", 3, (ONE, TWO), files=((0, "f"), (1, "g")), names=("x", "y"))
    stored = Progress((("q", 3),), ends, files, names=names)
    assert stored.ends_like(batch) is same
    if not same:
        with pytest.raises(InvalidArgumentError, match="x: "):
            stored.check(batch, "operator 'u'", has_state=True, succeeds=False)
