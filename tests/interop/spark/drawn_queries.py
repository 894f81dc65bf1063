"""Queries of drawn expressions: aggregations, deduplications, joins, and processors with states.

The rows that a query emits depend on no undefined order, as in :mod:`queries`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Literal, get_args

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.interop.spark.processors import DAY, WAIT, milliseconds
from tests.interop.spark.queries import BOTH, DELAY, NO_DATA_BATCHES, QUERIES, Query

__all__ = [
    "EVENT_TIME",
    "FAMILIES",
    "FIELDS",
    "FIXED",
    "GROUPS",
    "JOINS",
    "KEYS",
    "ORDERED",
    "ORDERLESS",
    "USER_KEYS",
    "VARIABLES",
    "DrawnQuery",
    "Family",
    "Variable",
]

Join = Literal["inner", "leftOuter", "rightOuter", "fullOuter", "leftSemi"]
Fixed = Literal["nested", "fmgws", "fmgws_t", "limit"]
Family = (
    Literal["aggregation", "window", "session", "dedup", "dedup within watermark", "chain"]
    | Join
    | Literal["transform", "transform with TTL"]
    | Fixed
)
VariableKind = Literal["value", "list", "map"]

JOINS: tuple[Join, ...] = get_args(Join)
FIXED: tuple[Fixed, ...] = get_args(Fixed)
"""Families of one query of :mod:`queries`, of which only the settings and the input are drawn."""
FAMILIES: tuple[Family, ...] = (
    *("aggregation", "window", "session", "dedup", "dedup within watermark", "chain"),
    *JOINS,
    *("transform", "transform with TTL"),
    *FIXED,
)
KEYS = (
    *("k", "id % 7", "small", "day", "price", "blob", "date_trunc('minute', t)", "v % 3 = 0"),
    *("cast(id % 5 as double)", "cast(id % 3 as float)", "cast(id % 9 as byte)"),
    *("cast(t as timestamp_ntz)", "make_dt_interval(0, id % 3)", "cast(price as decimal(30, 4))"),
    "struct(k, small)",
    "struct(day, struct(id % 2 as a, nullif(small, 1) as b) as c)",
    "array(small, 1)",
)
"""Keys of groups, deduplications and joins. None is a copy of the event time: Spark stops a query
with two columns of event time.
"""
EVENT_TIME = "t"
"""Another key of deduplications. The watermark removes its state."""
ORDERLESS = (
    *(
        "count(*)",
        "sum(v)",
        "sum(price)",
        "avg(v)",
        "avg(price)",
        "min(k)",
        "max(blob)",
        "min(day)",
    ),
    *("max(t)", "max(struct(v, t, id))", "min(struct(struct(small, k), array(id)))"),
    *("sort_array(collect_set(small))", "approx_count_distinct(id)", "bool_or(v > 5)"),
    *(
        "bit_xor(v)",
        "max_by(small, struct(v, id, small))",
        "count_if(small > 0)",
        "max(id % 3 = 0)",
    ),
)
"""Aggregates whose buffers do not depend on the order of the rows."""
ORDERED = (
    *("collect_list(v)", "collect_list(struct(id, blob))", "first(k)", "last(price)", "stddev(v)"),
    *("approx_percentile(v, 0.5)", "first(map('x', v, 'y', null))", "last(struct(array(k), day))"),
)
VARIABLES: tuple[VariableKind, ...] = get_args(VariableKind)
FIELDS = (
    *("n long", "i int", "s string", "d double", "b boolean", "raw binary", "day date"),
    *("at timestamp", "price decimal(10,2)", "pair struct<a:int,b:string>", "many array<long>"),
    "table map<string,long>",
)
"""The fields of a variable's values."""
USER_KEYS = ("i int", "s string", "day date", "pair struct<a:int,b:string>")
"""The fields of the keys in a map variable."""
GROUPS = (
    "k",
    "id % 4",
    "coalesce(cast(small as int), 7)",
    "day",
    "v % 3 = 0",
    "price",
    "cast(id % 5 as double)",
)
"""Keys of a processor. Spark's Avro encoding does not support bytes and shorts.

No integer is null: pandas makes the integers beside it floats, for which Spark 4.2 stores null.
"""
LIFE = 10 * DAY


@dataclass(frozen=True)
class Variable:
    """A state of a processor. Only a map has ``user_keys``, the fields of its keys."""

    kind: VariableKind
    fields: tuple[str, ...]
    user_keys: tuple[str, ...]


@dataclass(frozen=True)
class DrawnQuery:
    """A query of a family. A family ignores the attributes that it does not need."""

    family: Family
    mode: str
    keys: tuple[str, ...]
    functions: tuple[str, ...]
    variables: tuple[Variable, ...]

    @property
    def settings_group(self) -> Literal["aggregation", "join", "transform", "other"]:
        """The kind of operator that Spark has settings for."""
        if self.is_transform:
            return "transform"
        if self.family in JOINS:
            return "join"
        if self.family in ("aggregation", "window", "session", "chain", "nested"):
            return "aggregation"
        return "other"

    @property
    def is_transform(self) -> bool:
        """Whether it has a processor."""
        return bool(self.variables)

    @property
    def is_in_processing_time(self) -> bool:
        """Whether it always has another micro-batch, and clocks determine some of its state."""
        return self.family == "transform with TTL"

    def features(self) -> Iterator[str]:
        """Yield the names of its parts."""
        yield from (f"key {key}" for key in self.keys)
        yield from self.functions
        for variable in self.variables:
            yield from (f"{variable.kind} {field}" for field in variable.fields)
            if variable.kind == "map":
                yield from (f"user key {field}" for field in variable.user_keys)

    def query(self) -> Query:
        """Return the query."""
        if self.family in FIXED:
            return QUERIES[self.family]
        in_rocksdb_only = self.is_transform
        # With processing time there is always one more micro-batch, unless each requires data.
        conf = {NO_DATA_BATCHES: "false"} if self.is_in_processing_time else {}
        providers = ("rocksdb",) if in_rocksdb_only else BOTH
        return Query(self.family, self.mode, self._build, providers, conf)

    def _build(self, rows: DataFrame) -> DataFrame:
        if self.family in JOINS:
            return _join(rows, self.keys, self.family)
        keys = [F.expr(key).alias(f"k{number}") for number, key in enumerate(self.keys)]
        if self.is_transform:
            return self._transform(rows, keys)
        if self.family == "aggregation":
            return self._aggregate(rows.groupBy(*keys))
        timed = rows.withWatermark("t", DELAY)
        if self.family == "window":
            return self._aggregate(timed.groupBy(F.window("t", "5 minutes"), *keys))
        if self.family == "session":
            return self._aggregate(timed.groupBy(F.session_window("t", "1 minute"), *keys))
        # A copy of the event time would be a second column of event time.
        names = {
            key if key == EVENT_TIME else f"k{number}": F.expr(key)
            for number, key in enumerate(self.keys)
        }
        with_keys = timed.withColumns(names)
        if self.family == "dedup":
            return with_keys.dropDuplicates([*names])
        unique = with_keys.dropDuplicatesWithinWatermark([*names])
        if self.family == "dedup within watermark":
            return unique
        return self._aggregate(unique.groupBy(F.window("t", "5 minutes"), "small"))

    def _aggregate(self, groups: Any) -> DataFrame:
        functions = enumerate(self.functions)
        frame: DataFrame = groups.agg(*(F.expr(text).alias(f"f{n}") for n, text in functions))
        return frame

    def _transform(self, rows: DataFrame, keys: list[Any]) -> DataFrame:
        columns = [f"k{number}" for number in range(len(keys))]
        timed = rows.withWatermark("t", DELAY).select("id", "v", "t", *keys)
        has_ttl = self.family == "transform with TTL"
        return timed.groupBy(*columns).transformWithStateInPandas(
            Drawn(self.variables, has_ttl),
            "k string, what string, has string",
            "Update",
            "ProcessingTime" if has_ttl else "EventTime",
        )


def _join(rows: DataFrame, keys: tuple[str, ...], how: Join) -> DataFrame:
    """Return rows joined with some of the rows that follow them within five minutes."""
    left = rows.withWatermark("t", DELAY).select(
        *(F.expr(key).alias(f"l{number}") for number, key in enumerate(keys)), "v", "blob", "t"
    )
    right = (
        rows.where("v % 3 = 0")
        .select(
            *(F.expr(key).alias(f"r{number}") for number, key in enumerate(keys)),
            F.col("id").alias("id2"),
            F.struct("day", F.array("price")).alias("more"),
            F.col("t").alias("t2"),
        )
        .withWatermark("t2", DELAY)
    )
    equal = " and ".join(f"l{number} = r{number}" for number in range(len(keys)))
    near = F.expr(f"{equal} and t2 > t and t2 <= t + interval 5 minutes")
    return left.join(right, near, how)


class Drawn(StatefulProcessor):
    """States of drawn types with or without a TTL, and a timer."""

    def __init__(self, variables: tuple[Variable, ...], has_ttl: bool) -> None:
        self.variables, self.has_ttl = variables, has_ttl

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self.handle = handle
        life = LIFE if self.has_ttl else None
        self.states: list[Any] = []
        for number, variable in enumerate(self.variables):
            name, schema = f"{variable.kind}{number}", ", ".join(variable.fields)
            if variable.kind == "value":
                self.states.append(handle.getValueState(name, schema, life))
            elif variable.kind == "list":
                self.states.append(handle.getListState(name, schema, life))
            else:
                user_key = ", ".join(variable.user_keys)
                self.states.append(handle.getMapState(name, user_key, schema, life))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a key, and set its timer."""
        last = 0
        for frame in rows:
            last = max(last, milliseconds(frame))
            for row in frame.itertuples():
                self._add(int(row.id), int(row.v))
        self._set_timer(last, timerValues)
        yield self._said(key, "events")

    def _add(self, number: int, value: int) -> None:
        for variable, state in zip(self.variables, self.states, strict=True):
            element = tuple(_value(field, number, value) for field in variable.fields)
            if variable.kind == "value":
                state.update(element)
            elif variable.kind == "list":
                state.appendValue(element)
            else:
                # No field of a map's key is null.
                user_key = tuple(_value(field, number, 1) for field in variable.user_keys)
                state.updateValue(user_key, element)

    def _set_timer(self, last: int, timer_values: Any) -> None:
        timers = list(self.handle.listTimers())
        if self.has_ttl:
            if not timers:
                # It fires after the end of every test.
                self.handle.registerTimer(timer_values.getCurrentProcessingTimeInMs() + 3 * LIFE)
            return
        for timer in timers:
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + WAIT)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        """Emit the states, and remove them."""
        yield self._said(key, f"timer {expiredTimerInfo.getExpiryTimeInMs()}")
        for state in self.states:
            state.clear()

    def close(self) -> None:
        """Nothing needs to be closed."""

    def _said(self, key: Any, what: str) -> pd.DataFrame:
        has: list[str] = []
        for variable, state in zip(self.variables, self.states, strict=True):
            if variable.kind == "map":
                has.append(str(sorted(map(str, state.iterator()))))
            else:
                has.append(str(state.get() if variable.kind == "value" else list(state.get())))
        return pd.DataFrame({"k": [str(key)], "what": [what], "has": ["; ".join(has)]})


def _value(field: str, number: int, value: int) -> Any:
    """Return the value of a field for the id and the value of an event; some are None.

    Spark's Avro encoding does not support null as an element of an array or a value of a map.
    """
    if value % 5 == 0:
        return None
    text = None if value % 7 == 0 else f"é{number}"
    day = date(2026, 1, 1) + timedelta(days=number % 1000)
    values = {
        "n long": value,
        "i int": number,
        "s string": f"{number % 9}\0🦊",
        "d double": value / 8,
        "b boolean": number % 2 == 0,
        "raw binary": bytes([number % 256] * (value % 3)),
        "day date": day,
        "at timestamp": pd.Timestamp(day).to_pydatetime() + timedelta(microseconds=value),
        "price decimal(10,2)": Decimal(number % 10_000_000).scaleb(-2),
        "pair struct<a:int,b:string>": (number, text),
        "many array<long>": [value, 7, number][: value % 4],
        "table map<string,long>": {"x": value, str(number % 3): 7},
    }
    return values[field]
