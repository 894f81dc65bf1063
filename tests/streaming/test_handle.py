"""The states of one key in memory: reads, and the writes that result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from statestore.errors import InvalidArgumentError
from statestore.format.state import StateKind
from statestore.streaming.handle import (
    Changed,
    Handle,
    ListState,
    MapState,
    ProcessorClock,
    ValueState,
    Variable,
    declared_by,
)

pytestmark = pytest.mark.spark

LONG = T.StructType([T.StructField("n", T.LongType())])
CLOCK = ProcessorClock("processingtime", now_ms=1000)


def parse(ddl: str) -> T.StructType:
    """Replace Spark's parser: only names matter here."""
    return T.StructType([T.StructField(one.split()[0], T.LongType()) for one in ddl.split(", ")])


def declare(init: Any, mode: str = "processingtime") -> Any:
    return declared_by(init, mode, parse)


def variable(kind: StateKind, ttl_ms: int | None = None) -> Variable:
    return Variable("s", kind, LONG, LONG if kind is StateKind.MAP else None, ttl_ms)


def test_states_declared_in_init_are_known() -> None:
    def init(handle: Handle) -> None:
        handle.getValueState("a", "x long, y long")
        handle.getListState("b", LONG, 5)
        handle.getMapState("c", "k long", "v long")
        handle.deleteIfExists("old")

    variables, deleted = declare(init)
    assert [(one.name, one.kind, one.value.names, one.ttl_ms) for one in variables] == [
        ("a", "value", ["x", "y"], None),
        ("b", "list", ["n"], 5),
        ("c", "map", ["v"], None),
    ]
    assert variables[2].entry is not None
    assert variables[2].entry.names == ["k"]
    assert deleted == ("old",)


@pytest.mark.parametrize(
    ("init", "mode", "message"),
    [
        (lambda h: [h.getValueState("a", LONG), h.getListState("a", LONG)], "none", "two states"),
        (lambda h: h.getValueState("a", LONG, 5), "eventtime", 'time_mode="ProcessingTime"'),
        (lambda h: h.getValueState("a", LONG, 0), "processingtime", "must be positive"),
        (lambda h: h.getValueState("a", T.StructType()), "none", "must have columns"),
        (lambda h: h.registerTimer(5), "eventtime", "which has no key"),
    ],
)
def test_an_invalid_declaration_is_refused(init: Any, mode: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        declare(init, mode)


def test_timers_need_a_time_mode() -> None:
    handle = Handle(ProcessorClock("none"), {})
    for call in (lambda: handle.registerTimer(5), lambda: handle.deleteTimer(5), handle.listTimers):
        with pytest.raises(InvalidArgumentError, match='time_mode="None"'):
            call()


def test_states_can_only_be_declared_in_init() -> None:
    handle = Handle(ProcessorClock("none"), {"a": Variable("a", StateKind.VALUE, LONG)})
    handle.getValueState("a", LONG)
    with pytest.raises(
        InvalidArgumentError, match="init\\(\\) must always declare the same states"
    ):
        handle.getListState("a", LONG)
    handle.is_open = False
    with pytest.raises(InvalidArgumentError, match=r"outside of init\(\)"):
        handle.getValueState("a", LONG)
    with pytest.raises(InvalidArgumentError, match=r"outside of init\(\)"):
        handle.deleteIfExists("a")


@pytest.mark.parametrize("given", [5, "text", (1, 2), (), None])
def test_values_that_do_not_fit_are_refused(given: Any) -> None:
    value = ValueState(variable(StateKind.VALUE), CLOCK)
    with pytest.raises(InvalidArgumentError, match=r"value state 's' .*its value is"):
        value.update(given)
    listed = ListState(variable(StateKind.LIST), CLOCK)
    with pytest.raises(InvalidArgumentError, match="its element is"):
        listed.appendValue(given)


def test_an_empty_list_is_not_put() -> None:
    listed = ListState(variable(StateKind.LIST), CLOCK)
    for call in (listed.put, listed.appendList):
        with pytest.raises(InvalidArgumentError, match="is updated with an empty list"):
            call([])


def test_a_value_expires_after_its_ttl() -> None:
    value = ValueState(variable(StateKind.VALUE, 50), CLOCK)
    for ends, alive in ((1000, None), (1001, (7,))):
        value.begin([(7, ends)])
        assert (value.get(), value.exists()) == (alive, alive is not None)
        assert value.changed() == Changed()
    value.update((np.int64(8),))
    assert value.get() == (8,)
    assert type((value.get() or (None,))[0]) is int
    assert value.changed() == Changed(upserts=((8, 1050),))
    value.clear()
    assert value.changed() == Changed(deletes=((),))


def test_a_list_is_appended_after_its_last_position() -> None:
    listed = ListState(variable(StateKind.LIST, 50), CLOCK)
    listed.begin([(9, 2, 5000), (4, 1, 900)])
    listed.appendValue((3,))
    assert list(listed.get()) == [(2,), (3,)]
    assert listed.changed() == Changed(upserts=((10, 3, 1050),))
    listed.put([(5,), (6,)])
    assert listed.changed() == Changed(upserts=((0, 5, 1050), (1, 6, 1050)), cleared=True)


def test_timers_up_to_the_clock_are_due() -> None:
    handle = Handle(ProcessorClock("eventtime", 5, 100), {})
    handle.begin({}, [(101,), (100,), (7,)])
    handle.registerTimer(50)
    assert handle.due() == [7, 50, 100]
    handle.deleteTimer(7)
    assert list(handle.listTimers()) == [50, 100, 101]
    assert handle.changed()[1] == Changed([(50,)], [(7,)])


KEYS = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 9)),
        st.tuples(st.just("remove"), KEYS),
        st.tuples(st.just("clear")),
    )
)


@given(st.dictionaries(KEYS, st.integers(0, 9)), STEPS)
def test_a_map_behaves_like_a_dictionary(stored: dict[int, int], steps: list[Any]) -> None:
    """Its written changes produce the same state in the store."""
    state = MapState(variable(StateKind.MAP), CLOCK)
    state.begin(list(stored.items()))
    model = dict(stored)
    for what, *values in steps:
        if what == "put":
            state.updateValue((values[0],), (values[1],))
            model[values[0]] = values[1]
        elif what == "remove":
            state.removeKey((values[0],))
            model.pop(values[0], None)
        else:
            state.clear()
            model.clear()
        assert dict(_entries(state)) == model
        assert state.exists() == bool(model)
    changed = state.changed()
    after = {} if changed.cleared else dict(stored)
    for (key,) in changed.deletes:
        del after[key]
    after.update(changed.upserts)
    assert after == model
    assert set(state.keys()) == {(key,) for key in model}
    assert all(state.getValue((key,)) == (value,) for key, value in model.items())


def _entries(state: MapState) -> Iterator[tuple[int, int]]:
    return ((key, value) for (key,), (value,) in state.iterator())


def test_nan_is_one_key_and_so_is_zero() -> None:
    state = MapState(variable(StateKind.MAP), CLOCK)
    state.updateValue((float("nan"),), (1,))
    state.updateValue((float("nan"),), (2,))
    state.updateValue((0.0,), (3,))
    state.updateValue((-0.0,), (4,))
    assert sorted(value for (value,) in state.values()) == [2, 4]
    assert state.getValue((float("nan"),)) == (2,)
