"""When layers are merged and spans are folded: the bounds of the policy, over long histories."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.format.handles import GroupIndex, KeyedStateHandle
from statestore.format.layers import (
    CompactionRule,
    change_state,
    layers_to_merge,
    live_rows,
    live_without,
    overdue_layers,
    overdue_spans,
    spans_of,
    spans_to_fold,
)
from statestore.format.manifest import KeyedEntry, Layer, TableRef
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.groups import KeyGroupRange

GROUPS = 8
STATE = KeyedState(
    uid="u",
    name="s",
    kind=StateKind.VALUE,
    schema=Schema((Field("k", "string"), Field("v", "long"))),
    key=("k",),
    key_types=("String",),
    max_parallelism=GROUPS,
    hash_scheme="java",
    layout=Layout.RANGED,
)
EVERYTHING = KeyGroupRange(0, GROUPS - 1)
TABLE = TableRef("parquet", "operators/u/keyed/s")


def handle(first: int, rows: list[int]) -> KeyedStateHandle:
    """Return a file of some key groups, with these rows in each. A row has ten bytes."""
    return KeyedStateHandle(
        path=f"{first}.parquet",
        key_groups=KeyGroupRange(first, first + len(rows) - 1),
        rows=sum(rows),
        size_bytes=10 * sum(rows),
        row_groups=1,
        digest=0,
        sha256="0" * 64,
        index=GroupIndex.of(rows, [0] * len(rows)),
    )


def layer(number: int, rows: list[int], depth: int = 0) -> Layer:
    entry = KeyedEntry(change_state(STATE), TABLE, (handle(0, rows),) if any(rows) else ())
    return Layer(entry, number, depth, (EVERYTHING,))


def base(*files: tuple[int, list[int]]) -> KeyedEntry:
    return KeyedEntry(STATE, TABLE, tuple(handle(first, rows) for first, rows in files))


def merged(entry: KeyedEntry, count: int) -> KeyedEntry:
    """Merge the newest layers, as far as the policy considers them."""
    if not count:
        return entry
    old = entry.layers[-count:]
    one = replace(old[-1], depth=old[0].depth + 1)
    return replace(entry, layers=(*entry.layers[:-count], one))


def folded(entry: KeyedEntry, spans: tuple[KeyGroupRange, ...]) -> KeyedEntry:
    layers = (live_without(one, spans) for one in entry.layers)
    return replace(entry, layers=tuple(one for one in layers if one is not None))


@pytest.mark.parametrize("most", [2, 3, 4, 10])
def test_there_are_few_layers_after_many_checkpoints(most: int) -> None:
    """Each depth has fewer than merge_layers layers, and no depth exceeds the logarithm."""
    rule, entry = CompactionRule(merge_layers=most), base((0, [10**9] * GROUPS))
    written = 0
    for number in range(1, 501):
        entry = replace(entry, layers=(*entry.layers, layer(number, [1] * GROUPS)))
        count = layers_to_merge(entry, rule)
        entry, written = merged(entry, count), written + (count > 0)
        depths = [one.depth for one in entry.layers]
        assert depths == sorted(depths, reverse=True)
        assert all(depths.count(depth) < most for depth in depths)
        deepest = math.floor(math.log(number, most) + 1e-9)
        assert len(depths) <= (most - 1) * (deepest + 1)
        assert sum(most**depth for depth in depths) == number  # nothing is merged too early
    assert written <= 500 // most


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=GROUPS, max_size=GROUPS), max_size=5),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 400) | st.just(10_000),
)
def test_no_span_keeps_more_changes_than_the_greatest_share(
    changes: list[list[int]], share: float, more: float, most_bytes: int
) -> None:
    rule = CompactionRule(share=share, most_share=share + more, bytes_per_checkpoint=most_bytes)
    entry = base((1, [5, 7]), (3, [20]), (5, [2, 2]))
    entry = replace(entry, layers=tuple(layer(n, rows) for n, rows in enumerate(changes)))
    before = {span.key_groups: span for span in spans_of(entry)}
    chosen = spans_to_fold(entry, rule)
    assert list(chosen) == sorted(chosen, key=lambda one: one.first)
    assert all(before[one].share > 0.75 * rule.share for one in chosen)
    assert bool(chosen) == any(span.share > rule.share for span in before.values())
    left = spans_of(folded(entry, chosen))
    assert all(span.share <= rule.most_share for span in left)
    spent = sum(before[one].size_bytes for one in chosen if before[one].share <= rule.most_share)
    largest = max(span.size_bytes for span in before.values())
    assert spent <= rule.bytes_per_checkpoint + largest
    if most_bytes >= sum(span.size_bytes for span in before.values()):
        assert all(span.share <= rule.share for span in left)
    assert {one for one in before if before[one].changed_rows == 0}.isdisjoint(chosen)


def test_spans_that_are_nearly_due_are_folded_together_so_that_complete_layers_go() -> None:
    """If all keys change equally often, a restore reads few superseded rows."""
    rule, numbers = CompactionRule(), random.Random(7)
    entry, stored, counted = base(*((group, [1000]) for group in range(GROUPS))), 0, 0
    for number in range(1, 201):
        changed = [numbers.randint(5, 15) for _ in range(GROUPS)]
        entry = replace(entry, layers=(*entry.layers, layer(number, changed)))
        entry = folded(entry, spans_to_fold(entry, rule))
        stored += sum(one.entry.rows for one in entry.layers)
        counted += sum(span.changed_rows for span in spans_of(entry))
    assert counted <= stored < 1.1 * counted


def test_a_checkpoint_folds_overdue_spans_next_to_each_other() -> None:
    """Each pass over separate spans would read the same row groups of all layers again."""
    rule = CompactionRule(share=0.1, most_share=0.5)  # overdue above a share of 1
    changes = [11, 14, 12, 13, 9, 20, 15, 5]
    files = base(*((group, [10]) for group in range(GROUPS)))
    entry = replace(files, layers=(layer(2, changes),))

    def chosen(changed_rows: int) -> list[int]:
        return [span.first for span in overdue_spans(entry, rule, changed_rows)]

    assert chosen(1) == [5]  # most changes
    assert chosen(15) == [5, 6]
    assert chosen(20) == [4, 5, 6]  # 4 is overdue soon, and 7 is not
    assert chosen(26) == [3, 4, 5, 6]
    assert chosen(1_000) == [0, 1, 2, 3, 4, 5, 6]
    many = replace(files, layers=(layer(2, [0, 0, 30, 0, 0, 0, 0, 0]),))
    assert overdue_spans(many, rule, 1, is_compacting=True) == ()  # 30 changes of 10 rows
    more = replace(many, layers=(*many.layers, layer(3, [0, 0, 1, 0, 0, 0, 0, 0])))
    assert [span.first for span in overdue_spans(more, rule, 1, is_compacting=True)] == [2]
    quiet = replace(files, layers=(layer(2, [9] * GROUPS),))
    assert overdue_spans(quiet, rule, 1_000) == ()


def test_more_layers_may_wait_while_a_compaction_is_under_way() -> None:
    rule, entry = CompactionRule(merge_layers=2), base((0, [10**9] * GROUPS))
    large = [2**20 // GROUPS] * GROUPS
    waiting = tuple(layer(number, large) for number in range(1, 36))

    def overdue(count: int, compacting: int | None = None) -> int:
        return overdue_layers(replace(entry, layers=waiting[:count]), rule, compacting)

    assert [overdue(count) for count in (7, 8, 31)] == [0, 8, 31]
    # The three oldest layers are part of the compaction.
    assert [overdue(count, 3) for count in (8, 34, 35)] == [0, 0, 32]


def test_a_checkpoint_merges_small_layers_early() -> None:
    """They cost a restore more than their rows do, so they do not wait for a compaction."""
    rule, entry = CompactionRule(merge_layers=2), base((0, [10**9] * GROUPS))
    small = tuple(layer(number, [1] * GROUPS) for number in range(1, 9))

    def overdue(layers: tuple[Layer, ...], compacting: int | None = None) -> int:
        return overdue_layers(replace(entry, layers=layers), rule, compacting)

    assert [overdue(small[:count]) for count in (3, 4, 5)] == [0, 4, 5]
    assert [overdue(small[:count], 3) for count in (4, 6, 7, 8)] == [0, 0, 4, 5]
    rows = 4 * 2**20 // 10 - 3 * GROUPS  # four layers of 4 MiB together, then of one row more
    largest = [
        layer(9, [rows // GROUPS] * (GROUPS - 1) + [rows - rows // GROUPS * 7 + more])
        for more in (0, 1)
    ]
    assert [overdue((*small[:3], one)) for one in largest] == [4, 0]
    merged_before = [replace(one, depth=1) for one in (small[0], largest[0])]
    assert [overdue((one, *small[:4])) for one in merged_before] == [5, 4]  # not the large one


@pytest.mark.parametrize("checkpoints", [100, 1000])
def test_small_layers_stay_few_while_a_compaction_never_ends(checkpoints: int) -> None:
    rule, entry = CompactionRule(), base((0, [10**9] * GROUPS))
    for number in range(1, checkpoints + 1):
        entry = replace(entry, layers=(*entry.layers, layer(number, [1] * GROUPS)))
        entry = merged(entry, overdue_layers(entry, rule, 3))
    most = (rule.merge_layers - 1) * math.log(checkpoints, rule.merge_layers)
    assert len(entry.layers) <= 3 + 2 * rule.merge_layers + most


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=GROUPS, max_size=GROUPS), max_size=5),
    st.sets(st.integers(0, GROUPS - 1)),
)
def test_spans_count_the_live_rows_of_all_layers(changes: list[list[int]], gone: set[int]) -> None:
    entry = base((1, [5, 7]), (3, [20]), (5, [2, 2]))
    entry = replace(entry, layers=tuple(layer(n, rows) for n, rows in enumerate(changes)))
    entry = folded(entry, tuple(KeyGroupRange(group, group) for group in sorted(gone)))
    for span in spans_of(entry):
        assert span.changed_rows == sum(live_rows(one, span.key_groups) for one in entry.layers)


def test_the_spans_cover_each_key_group_once() -> None:
    entry = base((1, [5, 7]), (3, [20]), (5, [2, 2]))
    assert [str(span.key_groups) for span in spans_of(entry)] == ["0..2", "3..4", "5..7"]
    (span,) = spans_of(base())
    assert (span.key_groups, span.rows) == (EVERYTHING, 0)


def test_a_folded_span_counts_no_changes_of_older_layers() -> None:
    entry = replace(base((0, [4] * 4), (4, [4] * 4)), layers=(layer(1, [1] * GROUPS),))
    after = folded(entry, (KeyGroupRange(0, 3),))
    assert [span.changed_rows for span in spans_of(after)] == [0, 4]
    assert folded(after, (KeyGroupRange(4, 7),)).layers == ()


@pytest.mark.parametrize(
    "bad",
    [
        {"merge_layers": 1},
        {"merge_layers": True},
        {"share": -0.1},
        {"share": 0.6},
        {"share": float("nan")},
        {"bytes_per_checkpoint": -1},
        {"bytes_per_checkpoint": 1.5},
    ],
)
def test_a_rule_out_of_bounds_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=str(next(iter(bad)))):
        CompactionRule(**bad)  # type: ignore[arg-type]
