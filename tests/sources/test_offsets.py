"""Assign source offsets to subtasks: exactly one subtask reads each partition (I11)."""

from __future__ import annotations

import json
from collections import Counter, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.sources.offsets import (
    SourceOffset,
    assign_partitions,
    offset_elements,
    per_subtask_offsets,
    source_offset,
    source_offsets,
    starting_offsets_json,
    subtask_of_partition,
)

OLD = [
    [{"topic": "orders", "partition": p, "offset": offset} for p, offset in reported.items()]
    for reported in ({0: 1000, 1: 1500}, {2: 2000, 3: 2200})
]

parallelisms = st.integers(1, 40)
partitions = st.lists(st.tuples(st.text(min_size=1), st.integers(0, 300)), max_size=40)
known_offsets = st.dictionaries(
    st.tuples(st.text(min_size=1, max_size=4), st.integers(0, 20)),
    st.integers(0, (1 << 63) - 1),
    max_size=30,
).map(lambda found: sorted(SourceOffset(*key, offset) for key, offset in found.items()))


def _dealt_over(offsets: list[SourceOffset], subtasks: int) -> list[list[SourceOffset]]:
    return [offsets[i::subtasks] for i in range(subtasks)]


# --- Assignment of partitions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "parallelism", "start"),
    [
        # "a".hashCode() = 97: 97 * 31 = 3007
        ("a", 10, 7),
        # "ab" = 3105: 96255
        ("ab", 7, 96255 % 7),
        # "polygenelubricants" has the hash -2^31: times 31 is -2^31 again, masked to 0
        ("polygenelubricants", 5, 0),
        # "orders" = -1008770331: times 31 wraps to -1207109189, masked to 940374459
        ("orders", 4, 940374459 % 4),
    ],
)
def test_the_topics_hash_decides_the_subtask_of_partition_0(
    topic: str, parallelism: int, start: int
) -> None:
    """Flink's rule: ((hash * 31) & 0x7FFFFFFF) % parallelism, in Java's 32-bit arithmetic."""
    assert subtask_of_partition(topic, 0, parallelism) == start


@given(st.text(min_size=1), st.integers(0, 1000), parallelisms)
def test_neighboring_partitions_go_to_neighboring_subtasks(
    topic: str, partition: int, parallelism: int
) -> None:
    """A topic's partitions are assigned round robin, so loads differ by at most one."""
    here, after = (subtask_of_partition(topic, p, parallelism) for p in (partition, partition + 1))
    assert after == (here + 1) % parallelism


@given(partitions, parallelisms)
def test_each_partition_is_assigned_exactly_once(
    wanted: list[tuple[str, int]], parallelism: int
) -> None:
    """I11: none twice and none missing, even if one is listed several times."""
    assigned = assign_partitions(wanted, parallelism)
    assert len(assigned) == parallelism
    assert Counter(p for mine in assigned for p in mine) == Counter(set(wanted))


@given(partitions.flatmap(lambda p: st.tuples(st.just(p), st.permutations(p))), parallelisms)
def test_the_assignment_does_not_depend_on_list_order(
    orders: tuple[list[tuple[str, int]], list[tuple[str, int]]], parallelism: int
) -> None:
    """I11: two subtasks that see the partitions in different orders agree."""
    assert assign_partitions(orders[0], parallelism) == assign_partitions(orders[1], parallelism)


@given(partitions, partitions, parallelisms)
def test_a_partition_stays_with_its_subtask_when_others_appear(
    known: list[tuple[str, int]], new: list[tuple[str, int]], parallelism: int
) -> None:
    """I11: discovering partitions moves none of the known ones."""
    before = assign_partitions(known, parallelism)
    after = assign_partitions(known + new, parallelism)
    assert all(set(mine) <= set(then) for mine, then in zip(before, after, strict=True))


@pytest.mark.parametrize("parallelism", [0, -3, 32_769])
def test_no_partition_is_assigned_at_a_parallelism_out_of_bounds(parallelism: Any) -> None:
    """The parallelism must be in 1..32768, even if there is no partition to assign."""
    with pytest.raises(InvalidArgumentError, match=r"1\.\.32768"):
        assign_partitions([], parallelism)


@pytest.mark.parametrize("wanted", [("", 0), ("orders", -1), ("orders", "0"), (None, 0)])
def test_an_invalid_partition_is_not_assigned(wanted: Any) -> None:
    """A topic is a non-empty string; a partition is a non-negative number."""
    with pytest.raises(InvalidArgumentError, match="topic"):
        assign_partitions([("orders", 1), wanted], 2)


# --- Elements and offsets -------------------------------------------------------------------------


@given(known_offsets)
def test_offsets_survive_the_conversion_to_elements(offsets: list[SourceOffset]) -> None:
    """The two conversions are inverse, and elements can be written as JSON."""
    elements = offset_elements(offsets)
    assert source_offsets(elements) == tuple(offsets)
    assert json.loads(json.dumps(elements)) == list(elements)


def test_rows_and_mappings_can_contain_offsets() -> None:
    """Fields are found by name, in any order; other fields are ignored."""
    row = namedtuple("row", "offset leader partition topic")
    expected = SourceOffset("orders", 3, 42)
    assert source_offset(row(42, "b1", 3, "orders")) == expected
    assert source_offset({"offset": 42, "lag": 1, "partition": 3, "topic": "orders"}) == expected
    assert source_offset(expected) is expected


@pytest.mark.parametrize("missing", ["topic", "partition", "offset"])
def test_a_missing_field_is_named(missing: str) -> None:
    """An element without one of the three fields is refused."""
    element = {"topic": "orders", "partition": 0, "offset": 1}
    del element[missing]
    with pytest.raises(InvalidArgumentError, match=f"'{missing}'"):
        source_offset(element)


@pytest.mark.parametrize("element", ["orders-0", 7, None, ("orders", 0, 1), []])
def test_an_element_without_fields_is_refused(element: Any) -> None:
    """Fields are found by name, so a tuple or a string is not an offset."""
    with pytest.raises(InvalidArgumentError, match="requires the field"):
        source_offset(element)


@pytest.mark.parametrize("offset", [-1, -2, 1.0, "7", None, True, 1 << 63])
def test_an_offset_that_is_not_a_position_is_refused(offset: Any) -> None:
    """Spark's -1 and -2 (latest, earliest) are refused too; the message names the partition."""
    with pytest.raises(InvalidArgumentError, match="'orders' partition 3: offset"):
        source_offset({"topic": "orders", "partition": 3, "offset": offset})


@pytest.mark.parametrize("partition", [-1, 0.0, "0", None, False, 1 << 31])
def test_a_partition_that_is_not_a_number_is_refused(partition: Any) -> None:
    """The message names the topic."""
    with pytest.raises(InvalidArgumentError, match="'orders': partition"):
        source_offset({"topic": "orders", "partition": partition, "offset": 0})


@pytest.mark.parametrize("topic", ["", None, 5, b"orders"])
def test_an_invalid_topic_is_refused(topic: Any) -> None:
    """A topic is a non-empty string."""
    with pytest.raises(InvalidArgumentError, match="topic"):
        SourceOffset(topic, 0, 0)


def test_integers_of_other_libraries_become_python_ints() -> None:
    """An integer type such as numpy's is accepted, and then compares and prints as an int."""

    class Int64:
        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

    offset = SourceOffset("orders", Int64(1), Int64(2))  # type: ignore[arg-type]
    assert offset == SourceOffset("orders", 1, 2)
    assert starting_offsets_json([offset]) == '{"orders":{"1":2}}'


@pytest.mark.parametrize("convert", [source_offsets, starting_offsets_json])
def test_two_offsets_for_one_partition_are_refused(convert: Any) -> None:
    """Neither is known to be correct; the message names topic and partition."""
    with pytest.raises(InvalidArgumentError, match="'orders' partition 3 has two offsets, 5 and 6"):
        convert([SourceOffset("orders", 3, 5), SourceOffset("orders", 3, 6)])


# --- Spark's startingOffsets ----------------------------------------------------------------------


def test_starting_offsets_have_sparks_format() -> None:
    """Topics are sorted by name and partitions by number: 2 before 10."""
    offsets = [SourceOffset("b", 10, 7), SourceOffset("b", 2, 5), SourceOffset("a", 0, 23)]
    assert starting_offsets_json(offsets) == '{"a":{"0":23},"b":{"2":5,"10":7}}'


@given(known_offsets.flatmap(lambda o: st.tuples(st.just(o), st.permutations(o))))
def test_equal_offsets_give_equal_text(
    orders: tuple[list[SourceOffset], list[SourceOffset]],
) -> None:
    """The text does not depend on the order, and contains every offset."""
    text = starting_offsets_json(orders[0])
    assert text == starting_offsets_json(orders[1])
    assert {(t, int(p), o) for t, ps in json.loads(text).items() for p, o in ps.items()} == {
        (order.topic, order.partition, order.offset) for order in orders[0]
    }


# --- Start offsets of each new subtask ------------------------------------------------------------


def test_split_offsets_of_two_subtasks_start_three() -> None:
    """The worked example: contiguous blocks; the first subtask gets the remainder."""
    started = per_subtask_offsets(OLD, 3, mode="split")
    assert [[(o.partition, o.offset) for o in mine] for mine in started] == [
        [(0, 1000), (1, 1500)],
        [(2, 2000)],
        [(3, 2200)],
    ]


def test_union_offsets_are_filtered_by_the_assignment() -> None:
    """Each subtask keeps its own partitions from the offsets of all old subtasks."""
    started = per_subtask_offsets(OLD, 3, mode="union")
    mine = [tuple((o.topic, o.partition) for o in subtask) for subtask in started]
    assert tuple(mine) == assign_partitions([("orders", p) for p in range(4)], 3)


@given(known_offsets, st.integers(1, 12), parallelisms, st.sampled_from(["split", "union"]))
def test_each_partition_starts_once_at_its_offset(
    offsets: list[SourceOffset], old_parallelism: int, parallelism: int, mode: str
) -> None:
    """I7, I11: at every parallelism, in both modes, no offset is lost, duplicated or rewound."""
    old = _dealt_over(offsets, old_parallelism)
    started = per_subtask_offsets(old, parallelism, mode=mode)
    assert len(started) == parallelism
    assert sorted(o for mine in started for o in mine) == offsets


@given(known_offsets, st.lists(parallelisms, min_size=1, max_size=4))
def test_offsets_do_not_grow_over_restores(offsets: list[SourceOffset], path: list[int]) -> None:
    """I7: even if every subtask reports all of its restored offsets, each partition starts once."""
    for parallelism in path:
        everybody_reports_all = [offsets] * parallelism
        started = per_subtask_offsets(everybody_reports_all, parallelism, mode="union")
        assert sorted(o for mine in started for o in mine) == offsets


@given(known_offsets, st.integers(1, 6), parallelisms)
def test_the_union_assignment_does_not_depend_on_who_reported(
    offsets: list[SourceOffset], old_parallelism: int, parallelism: int
) -> None:
    """I11: the distribution and order of the old lists do not matter."""
    started = per_subtask_offsets(_dealt_over(offsets, old_parallelism), parallelism, mode="union")
    assert started == per_subtask_offsets([None, offsets[::-1]], parallelism, mode="union")


@pytest.mark.parametrize("mode", ["split", "union"])
def test_a_partition_reported_twice_starts_once(mode: str) -> None:
    """Two old subtasks may report the same offset, but two readers would read it twice."""
    started = per_subtask_offsets([OLD[0], OLD[0], None], 2, mode=mode)
    assert sorted(o.partition for mine in started for o in mine) == [0, 1]


@pytest.mark.parametrize("mode", ["split", "union"])
def test_old_subtasks_that_disagree_are_refused(mode: str) -> None:
    """Choosing either offset would lose or repeat records; the message names the partition."""
    other = [{"topic": "orders", "partition": 1, "offset": 1400}]
    with pytest.raises(InvalidArgumentError, match=r"'orders' partition 1 .* 1500 and 1400"):
        per_subtask_offsets([OLD[0], other], 2, mode=mode)


@pytest.mark.parametrize("mode", ["split", "union"])
def test_without_any_offset_no_subtask_has_a_start_offset(mode: str) -> None:
    """If all old subtasks had finished, there is nothing to read."""
    assert per_subtask_offsets([None, None], 3, mode=mode) == ((), (), ())


def test_broadcast_offsets_are_refused() -> None:
    """Every subtask would read every partition."""
    with pytest.raises(InvalidArgumentError, match="broadcast"):
        per_subtask_offsets(OLD, 2, mode="BROADCAST")


# --- Topic ids ------------------------------------------------------------------------------------


def test_a_topic_id_stays_with_its_offset() -> None:
    element = {"topic": "orders", "partition": 3, "offset": 42, "topic_id": "uEPhhPlSTgyR"}
    offset = source_offset(element)
    assert offset.topic_id == "uEPhhPlSTgyR"
    assert offset_elements([offset]) == (element,)
    (dealt,) = per_subtask_offsets([[element]], 1, mode="union")
    assert dealt[0].topic_id == "uEPhhPlSTgyR"
    assert source_offset(element | {"topic_id": None}).topic_id is None


@pytest.mark.parametrize("topic_id", ["", 7, b"x"])
def test_an_invalid_topic_id_is_refused(topic_id: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'orders': topic_id"):
        SourceOffset("orders", 3, 42, topic_id)


def test_two_topic_ids_for_one_partition_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="partition 3 has two topic ids, a and b"):
        source_offsets([SourceOffset("orders", 3, 5, "a"), SourceOffset("orders", 3, 5, "b")])
