"""The states of each kind of operator in a compiled plan, and the accumulators of aggregates.

They follow from the classes that Flink 1.19 to 2.3 creates for a node: ``StreamExecJoin``,
``StreamExecGroupAggregate``, ``StreamExecGlobalGroupAggregate``, ``StreamExecDeduplicate``,
``StreamExecChangelogNormalize``, and ``StreamExecRank`` with the limits that extend it. The layout
of a state depends on the unique keys, time attributes and retractions in the plan. Operators of
other kinds that keep state are refused by name.

A group aggregate stores a row with the accumulators of its functions. ``COUNT`` keeps its count,
``SUM``, ``MIN`` and ``MAX`` their value, and ``AVG`` a sum and a count. ``SUM`` also keeps a count
if its input can retract rows. The class that Flink chooses for a function, and with it the types,
follow from the type of the argument (``AggFunctionFactory``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from statestore.durations import milliseconds_of
from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type
from statestore.interop.flink_plans.layouts import (
    Counter,
    ListOfRows,
    Pair,
    PlanColumn,
    PlanState,
    Row,
    RowField,
    Seen,
    ValueLayout,
    counter_column,
    name_columns,
    with_key,
)
from statestore.interop.flink_plans.plan_types import PlanField, PlanNode, field_types

ROW_COUNT = "row_count"
"""The name of the count of rows that Flink adds if the input can retract rows."""

_COUNT, _SUM0 = "$COUNT$1", "$$SUM0$1"
_SUM, _AVG, _MIN, _MAX = "$SUM$1", "$AVG$1", "$MIN$1", "$MAX$1"
_BIGINT, _REQUIRED = "BIGINT", "BIGINT NOT NULL"
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_NUMBERS = (*_WHOLE, "FLOAT", "DOUBLE", "DECIMAL")
_COMPARED = (
    *_NUMBERS, "BOOLEAN", "CHAR", "VARCHAR", "DATE", "TIMESTAMP_WITHOUT_TIME_ZONE",
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE",
)  # fmt: skip
_MOST_DIGITS = 38
_NOT_NULL = " NOT NULL"

Fields = list[PlanField]


def accumulator_fields(
    node: PlanNode, arguments: Sequence[PlanField], names: Sequence[str]
) -> tuple[PlanField, ...]:
    """Return the fields of a group aggregate's accumulator row.

    A field whose text says ``NOT NULL`` must have a value; its type in Flink is nullable all the
    same.

    Args:
        node: the aggregate.
        arguments: the row in which the functions find their arguments.
        names: the names of the functions' results.

    Returns:
        The fields, with the types that they have in Flink.

    Raises:
        UnsupportedTypeError: for a function whose accumulator has other values than these.
        CorruptionError: for a node with missing members.
    """
    calls = node.members("aggCalls")
    retracts = node.flags("aggCallNeedRetractions")
    if not len(calls) == len(retracts) == len(names):
        raise node.error(
            f"has {len(calls)} functions, {len(retracts)} retractions and {len(names)} results; "
            "the three numbers must be equal"
        )
    fields: Fields = []
    for call, name, is_retracted in zip(calls, names, retracts, strict=True):
        fields += _call_fields(call, arguments, name, is_retracted=is_retracted)
    if node.flag("needRetraction") and not _counts_rows(node, calls):
        fields.append(_required(ROW_COUNT, _BIGINT))
    return tuple(fields)


def _counts_rows(node: PlanNode, calls: Sequence[PlanNode]) -> bool:
    """Return whether one of the functions already counts the rows of a key."""
    return node.data.get("indexOfCountStar") is not None or any(map(_is_count_of_rows, calls))


def _is_count_of_rows(call: PlanNode) -> bool:
    return (
        call.data.get("internalName") == _COUNT
        and not call.numbers("argList")
        and call.value("filterArg", int) < 0
        and not call.flag("distinct")
        and not call.flag("approximate")
    )


def _call_fields(
    call: PlanNode, arguments: Sequence[PlanField], name: str, *, is_retracted: bool
) -> Fields:
    """Return the fields of one function."""
    function = call.data.get("internalName") or call.data.get("systemName")
    function = function or call.data.get("catalogName")
    if call.flag("distinct"):
        raise UnsupportedTypeError(
            f"the function {function} of {name!r} is DISTINCT, which is not supported: its "
            "accumulator has a map of all values"
        )
    own = call.select(arguments, call.numbers("argList"), "argList")
    if function == _COUNT:
        return [_required(name, _BIGINT)]
    make = _FUNCTIONS.get(str(function))
    if make is None or len(own) != 1:
        raise UnsupportedTypeError(
            f"the accumulator of the function {function} of {name!r} is not known; only "
            "COUNT, SUM, MIN, MAX and AVG are supported"
        )
    if is_retracted and function in (_MIN, _MAX):
        raise UnsupportedTypeError(
            f"the function {function} of {name!r} has rows that can be retracted, which is not "
            "supported: its accumulator has a map of all values"
        )
    (argument,) = field_types(own)
    fields = make(name, argument)
    if fields is None:
        raise UnsupportedTypeError(
            f"the accumulator of the function {function} of {name!r} is not known for the type "
            f"{own[0].text}"
        )
    if is_retracted and function == _SUM:
        fields.append(_required(f"{name}_count", _BIGINT))
    return fields


def _nullable(name: str, text: str) -> PlanField:
    return PlanField(name, text, key_logical_type(text))


def _required(name: str, text: str) -> PlanField:
    return PlanField(name, f"{text}{_NOT_NULL}", key_logical_type(text))


def _plain(argument: LogicalType) -> str:
    return argument.text.removesuffix(_NOT_NULL)


def _sum_type(argument: LogicalType) -> str | None:
    if argument.root == "DECIMAL":
        return f"DECIMAL({_MOST_DIGITS}, {argument.scale})"
    return _plain(argument) if argument.root in _NUMBERS else None


def _sum_fields(name: str, argument: LogicalType) -> Fields | None:
    text = _sum_type(argument)
    return None if text is None else [_nullable(name, text)]


def _sum0_fields(name: str, argument: LogicalType) -> Fields | None:
    text = _sum_type(argument)
    return None if text is None else [_required(name, text)]


def _average_fields(name: str, argument: LogicalType) -> Fields | None:
    if argument.root in _WHOLE:
        text: str | None = _BIGINT
    elif argument.root in ("FLOAT", "DOUBLE"):
        text = "DOUBLE"
    else:
        text = _sum_type(argument)
    if text is None:
        return None
    return [_required(f"{name}_sum", text), _required(f"{name}_count", _BIGINT)]


def _extreme_fields(name: str, argument: LogicalType) -> Fields | None:
    if argument.root not in _COMPARED:  # a TIME has another precision in Flink 1 and 2
        return None
    text = "STRING" if argument.root in ("CHAR", "VARCHAR") else _plain(argument)
    return [_nullable(name, text)]


_FUNCTIONS: Mapping[str, Callable[[str, LogicalType], Fields | None]] = {
    _SUM: _sum_fields,
    _SUM0: _sum0_fields,
    _AVG: _average_fields,
    _MIN: _extreme_fields,
    _MAX: _extreme_fields,
}


_MATCH_COUNT = "match_count"
_STATELESS = frozenset(
    f"stream-exec-{name}"
    for name in (
        *("async-calc", "async-correlate", "calc", "correlate", "drop-update-before", "exchange"),
        *("expand", "local-group-aggregate", "local-window-aggregate", "mini-batch-assigner"),
        *("python-async-calc", "python-calc", "python-correlate", "table-source-scan", "union"),
        *("values", "watermark-assigner"),
    )
)
"""Kinds of operators without keyed state.

Rows that wait for an asynchronous call are no state that a table could have. A source begins where
its options say.
"""

_MATERIALIZE = "requireUpsertMaterialize"
_WITHOUT_MATERIALIZE = ("stream-exec-sink", "stream-exec-lookup-join")
_WINDOWS = "stream-exec-window-table-function"
_ALIGNED = ("TumblingWindow", "HoppingWindow", "CumulativeWindow")
"""Windows that follow from the time of a row alone, so that the function keeps no state."""

_OUTER = {"LEFT": (True, False), "RIGHT": (False, True), "FULL": (True, True)}
_OUTER |= {"INNER": (False, False), "SEMI": (True, False), "ANTI": (True, False)}
"""Whether the left and the right side count the rows of the other side that match, by join type."""


def is_stateless(node: PlanNode) -> bool:
    """Return whether an operator keeps no state that a table could have."""
    if node.name in _WITHOUT_MATERIALIZE:
        return not node.flag(_MATERIALIZE)
    if node.name == _WINDOWS:
        window = node.member("windowing").member("window").value("type", str)
        return window in _ALIGNED
    return node.name in _STATELESS


def has_known_states(node: PlanNode) -> bool:
    """Return whether the states of this kind of operator are known."""
    return node.name in _KINDS


def operator_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    """Return the states of an operator.

    Args:
        node: the operator in the plan.
        uid: its uid.

    Returns:
        Its states.

    Raises:
        UnsupportedTypeError: if its layout is not known, with the reason.
        CorruptionError: for a node with missing members.
    """
    derive = _KINDS.get(node.name)
    if derive is None:
        raise UnsupportedTypeError("the layout of its state is not known")
    if node.version != "1":
        raise UnsupportedTypeError(f"the layout of its version {node.version} is not known")
    return derive(node, uid)


def _join_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    spec = node.member("joinSpec")
    join_type = spec.value("joinType", str)
    if join_type not in _OUTER:
        raise UnsupportedTypeError(f"joins of the type {join_type} are not known")
    left_keys = spec.numbers("leftKeys")
    left_types = field_types(node.select(node.input(0), left_keys, "leftKeys"))
    sides = (
        ("left", left_keys, node.number_lists("leftUpsertKeys")),
        ("right", spec.numbers("rightKeys"), node.number_lists("rightUpsertKeys")),
    )
    lifetimes = _lifetimes(node, 2)
    return tuple(
        _join_side(
            node, uid, f"{side}-records", number, keys, unique, left_types, lifetimes[number]
        )
        for number, (side, keys, unique) in enumerate(sides)
    )


def _join_side(
    node: PlanNode,
    uid: str,
    state: str,
    number: int,
    keys: Sequence[int],
    unique_keys: Sequence[Sequence[int]],
    key_types: Sequence[LogicalType],
    ttl_ms: int,
) -> PlanState:
    """Return the state of one side of a join.

    If the join key contains a unique key of the side, each key has one row. If the side has another
    unique key, that is the key of a map of rows. Otherwise the row itself is the key of the map,
    and the value says how often the row occurs. An outer side also counts the matching rows.
    """
    is_outer = _OUTER[node.member("joinSpec").value("joinType", str)][number]
    fields, columns = _row_columns(node, node.input(number))
    key_fields = node.select(fields, keys, "the join key")
    if len(key_fields) != len(key_types):
        raise node.error("has different numbers of join keys for its sides")
    key, columns = _key(key_fields, columns, key_types)
    row, map_key = Row(fields), None
    extra: list[PlanColumn] = []
    contained = [unique for unique in unique_keys if set(unique) <= set(keys)]
    value: ValueLayout
    if contained:
        value = row
    elif unique_keys:
        smallest = min(unique_keys, key=len)
        own = node.select(fields, smallest, "the unique key")
        map_key, value = Row(own, is_projected=True), row
    else:
        map_key = row
        extra.append(counter_column(ROW_COUNT, 1, columns))
        value = Counter(extra[0].name)
    if is_outer:
        matches = counter_column(_MATCH_COUNT, 0, [*columns, *extra])
        extra.append(matches)
        value = Pair(value, Counter(matches.name))
    return PlanState(
        operator=uid,
        state=state,
        columns=(*columns, *extra),
        key=key,
        map_key=map_key,
        value=value,
        ttl_ms=ttl_ms,
        is_single=node.is_single,
    )


def _single_state(
    node: PlanNode,
    uid: str,
    state: str,
    key: Row,
    columns: tuple[PlanColumn, ...],
    value: ValueLayout,
) -> PlanState:
    """Return the only state of an operator with one input."""
    (ttl_ms,) = _lifetimes(node, 1)
    return PlanState(
        operator=uid,
        state=state,
        columns=columns,
        key=key,
        value=value,
        ttl_ms=ttl_ms,
        is_single=node.is_single,
    )


def _aggregate_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    """Return the state of a group aggregate: one row with the accumulators of its functions."""
    return _group_states(node, uid, node.input())


def _global_aggregate_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    """Return the state of the second phase of a group aggregate, which merges accumulators."""
    return _group_states(node, uid, node.row("localAggInputRowType"))


def _group_states(
    node: PlanNode, uid: str, arguments: Sequence[PlanField]
) -> tuple[PlanState, ...]:
    grouping = node.numbers("grouping")
    groups = node.select(node.input(), grouping, "grouping")
    results = [field.name for field in node.row("outputType")][len(groups) :]
    accumulators = accumulator_fields(node, arguments, results)
    key_fields, key_columns = _row_columns(node, groups)
    value_fields, value_columns = name_columns(
        accumulators, [column.name for column in key_columns]
    )
    key, columns = _key(key_fields, key_columns, field_types(groups))
    every = (*columns, *value_columns)
    return (_single_state(node, uid, "accState", key, every, Row(value_fields)),)


def _deduplicate_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    """Return the state of a deduplication: the kept row, or only a mark that the key was seen."""
    is_last, is_rowtime = node.flag("keepLastRow"), node.flag("isRowtime")
    if is_rowtime and not is_last and node.flag("outputInsertOnly"):
        raise UnsupportedTypeError(
            "it emits the first row by event time when the watermark has passed it: its rows wait "
            "for timers"
        )
    return _last_row_states(node, uid, is_row_kept=is_last or is_rowtime)


def _normalize_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    """Return the state that makes a changelog of upserts: the last row of each key."""
    return _last_row_states(node, uid, is_row_kept=True)


def _last_row_states(node: PlanNode, uid: str, *, is_row_kept: bool) -> tuple[PlanState, ...]:
    unique = node.numbers("uniqueKeys")
    key_types = field_types(node.select(node.input(), unique, "uniqueKeys"))
    if is_row_kept:
        fields, columns = _row_columns(node, node.input())
        key_fields = node.select(fields, unique, "uniqueKeys")
    else:
        key_fields, columns = _row_columns(node, node.select(node.input(), unique, "uniqueKeys"))
    key, columns = _key(key_fields, columns, key_types)
    value = Row(fields) if is_row_kept else Seen()
    return (_single_state(node, uid, "deduplicate-state", key, columns, value),)


def _rank_states(node: PlanNode, uid: str) -> tuple[PlanState, ...]:
    """Return the state of a top-N: the best row, the best rows by sort key, or their number."""
    most = _constant_rank_end(node)
    strategy = node.member("rankStrategy").value("type", str)
    is_first = node.member("rankRange").value("start", int) == most == 1
    if strategy == "AppendFast" and _is_by_arrival(node):
        return (_first_rows_state(node, uid, most),)
    if strategy in ("AppendFast", "UpdateFast") and is_first:
        return (_rank_state(node, uid, "Top1-Rank-State", None),)
    if strategy == "AppendFast":
        return (_rank_state(node, uid, "data-state-with-append", most),)
    raise UnsupportedTypeError(
        f"the layout of a top-N with the strategy {strategy} is not known, because its rows can "
        "be changed or retracted"
    )


def _constant_rank_end(node: PlanNode) -> int:
    rank_range = node.member("rankRange")
    range_type = rank_range.value("type", str)
    if range_type != "Constant":
        raise UnsupportedTypeError(f"the number of its rows is {range_type.lower()}, not constant")
    return rank_range.value("end", int)


def _partition(node: PlanNode) -> tuple[int, ...]:
    """Return the fields of the key; a limit has none."""
    return node.member("partition").numbers("fields")


def _sort_fields(node: PlanNode) -> tuple[PlanNode, ...]:
    """Return the fields of the order; a limit without an order has none."""
    return node.member("orderBy").members("fields")


def _is_by_arrival(node: PlanNode) -> bool:
    """Return whether the first rows by processing time are kept; then they are only counted."""
    orders = _sort_fields(node)
    fields = node.select(node.input(), [order.value("index", int) for order in orders], "orderBy")
    return len(fields) == 1 and fields[0].is_proctime and orders[0].flag("isAscending")


def _first_rows_state(node: PlanNode, uid: str, most: int) -> PlanState:
    groups = node.select(node.input(), _partition(node), "partition")
    fields, columns = _row_columns(node, groups)
    key, columns = _key(fields, columns, field_types(groups))
    count = counter_column(ROW_COUNT, 1, columns)
    value = Counter(count.name)
    return _single_state(node, uid, "counterState", key, (*columns, count), value)


def _rank_state(node: PlanNode, uid: str, state: str, most: int | None) -> PlanState:
    """Return the state of a top-1, or of a top-N: ``most`` rows in lists by sort key."""
    partition = _partition(node)
    fields, columns = _row_columns(node, node.input())
    groups = node.select(fields, partition, "partition")
    key, columns = _key(
        groups, columns, field_types(node.select(node.input(), partition, "partition"))
    )
    if most is None:
        return _single_state(node, uid, state, key, columns, Row(fields))
    indexes = [order.value("index", int) for order in _sort_fields(node)]
    sort_key = Row(node.select(fields, indexes, "orderBy"), is_projected=True)
    lists = _single_state(node, uid, state, key, columns, ListOfRows(Row(fields)))
    return replace(lists, map_key=sort_key, most_rows=most)


def _row_columns(
    node: PlanNode, fields: Sequence[PlanField]
) -> tuple[tuple[RowField, ...], tuple[PlanColumn, ...]]:
    field_types(fields)
    return name_columns(fields)


def _key(
    fields: Sequence[RowField], columns: Sequence[PlanColumn], types: Sequence[LogicalType]
) -> tuple[Row, tuple[PlanColumn, ...]]:
    if any(field.column is None for field in fields):
        raise UnsupportedTypeError("a key is a PROCTIME attribute, which has no value")
    return with_key(fields, columns, types)


def _lifetimes(node: PlanNode, count: int) -> tuple[int, ...]:
    """Return the TTLs of a node's inputs in milliseconds, in the order of the inputs."""
    states = node.members("state")
    by_index = {state.value("index", int): state.value("ttl", str) for state in states}
    if sorted(by_index) != list(range(count)) or len(states) != count:
        raise node.error(
            f"has {len(states)} entries of 'state' for {count} inputs; each input needs one"
        )
    return tuple(_milliseconds(by_index[index], node) for index in range(count))


def _milliseconds(text: str, node: PlanNode) -> int:
    try:
        return milliseconds_of(text)
    except InvalidArgumentError as error:
        raise node.error(f"has a state with the invalid TTL {text!r:.40}") from error


_KINDS: Mapping[str, Callable[[PlanNode, str], tuple[PlanState, ...]]] = {
    "stream-exec-changelog-normalize": _normalize_states,
    "stream-exec-deduplicate": _deduplicate_states,
    "stream-exec-global-group-aggregate": _global_aggregate_states,
    "stream-exec-group-aggregate": _aggregate_states,
    "stream-exec-join": _join_states,
    "stream-exec-limit": _rank_states,
    "stream-exec-rank": _rank_states,
    "stream-exec-sort-limit": _rank_states,
}
