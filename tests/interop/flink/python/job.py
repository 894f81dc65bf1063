# mypy: ignore-errors
"""A PyFlink job with states of all declared types; it runs in a Python that has apache-flink.

::

    python job.py write SAVEPOINT ROWS      # runs for some seconds, stops with a savepoint
    python job.py read SAVEPOINT ROWS MOST  # continues from a savepoint, with MOST key groups

Each processed element appends the state of its key to files next to ROWS. At the end ROWS has the
last line of each key, which is the expected content of the savepoint.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import sys
import time
from pathlib import Path

from pyflink.common import Configuration, Row, Time, Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import (
    AggregateFunction,
    KeyedProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

DAY = dt.date(2026, 2, 28)
SECONDS = 25
KEYS = 20
NAMES = ("", "a", "ü", "🦊", "x" * 150)


def name_of(n: int) -> str:
    return NAMES[n % len(NAMES)] + str(n)


VALUES = {
    "string": (Types.STRING(), name_of),
    "byte": (Types.BYTE(), lambda n: n % 256 - 128),
    "boolean": (Types.BOOLEAN(), lambda n: n % 2 == 0),
    "short": (Types.SHORT(), lambda n: -n),
    "int": (Types.INT(), lambda n: -n * 1000),
    "long": (Types.LONG(), lambda n: n * 10**14),
    "big_int": (Types.BIG_INT(), lambda n: -n),
    "float": (Types.FLOAT(), lambda n: n / 4),
    "double": (Types.DOUBLE(), lambda n: n / 3),
    "decimal": (Types.BIG_DEC(), lambda n: decimal.Decimal(n).scaleb(-(n % 7))),
    "date": (Types.SQL_DATE(), lambda n: DAY - dt.timedelta(n * 10)),
    "time": (Types.SQL_TIME(), lambda n: dt.time(n % 24, n % 60, 59, n % 1000 * 1000)),
    "timestamp": (
        Types.SQL_TIMESTAMP(),
        lambda n: dt.datetime(2026, 2, 28, n % 24, 1, 2, n % 1000 * 1000),
    ),
    "pickled": (Types.PICKLED_BYTE_ARRAY(), lambda n: {"n": n}),
    "tuple": (Types.TUPLE([Types.STRING(), Types.LONG()]), lambda n: (name_of(n), n)),
    "row": (
        Types.ROW_NAMED(
            ["name", "n", "inner"],
            [Types.STRING(), Types.INT(), Types.ROW([Types.DOUBLE(), Types.BIG_DEC()])],
        ),
        lambda n: Row(
            name=None if n % 3 else name_of(n),
            n=n,
            inner=None if n % 2 else Row(n / 8, decimal.Decimal(n)),
        ),
    ),
    "wide": (
        Types.ROW([Types.INT()] * 9),
        lambda n: Row(*(n if n >> at & 1 else None for at in range(9))),
    ),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), lambda n: bytes(range(n % 9))),
    "ints": (Types.PRIMITIVE_ARRAY(Types.INT()), lambda n: list(range(n % 4))),
    "texts": (Types.BASIC_ARRAY(Types.STRING()), lambda n: [name_of(n), None][: n % 3]),
    "rows": (
        Types.OBJECT_ARRAY(Types.TUPLE([Types.INT(), Types.BOOLEAN()])),
        lambda n: [(n, True)],
    ),
    "list": (Types.LIST(Types.LONG()), lambda n: [n, None, -n][: n % 4]),
    "map": (
        Types.MAP(Types.STRING(), Types.LONG()),
        lambda n: {"a": n, "b": None} if n % 5 else {},
    ),
}


class Sum(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0.0

    def add(self, value, accumulator):
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def shown(value):
    """Return a value as JSON: rows as lists after their kind, and other values as text."""
    if isinstance(value, Row):
        return {"row": [shown(one) for one in value], "kind": value.get_row_kind().value}
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return sorted(([shown(key), shown(one)] for key, one in value.items()), key=str)
    if isinstance(value, dt.date | dt.time | decimal.Decimal):
        return str(value)
    return value


class States(KeyedProcessFunction):
    """Sets each state of a key from its latest number, and writes the states' content to
    the files.
    """

    def __init__(self, operator: str, rows: str, writes: bool) -> None:
        self.operator, self.rows, self.writes = operator, rows, writes

    def open(self, context: RuntimeContext) -> None:
        lives = StateTtlConfig.new_builder(Time.days(900)).build()
        self.values = {
            name: context.get_state(ValueStateDescriptor(name, kind))
            for name, (kind, _) in VALUES.items()
        }
        lived = ValueStateDescriptor("ttl_value", Types.LONG())
        lived.enable_time_to_live(lives)
        self.lived = context.get_state(lived)
        self.lists = {
            "list_string": context.get_list_state(
                ListStateDescriptor("list_string", Types.STRING())
            ),
            "list_tuple": context.get_list_state(
                ListStateDescriptor("list_tuple", Types.TUPLE([Types.LONG(), Types.STRING()]))
            ),
        }
        self.maps = {
            "map_string_long": context.get_map_state(
                MapStateDescriptor("map_string_long", Types.STRING(), Types.LONG())
            ),
            "map_int_row": context.get_map_state(
                MapStateDescriptor(
                    "map_int_row", Types.INT(), Types.ROW([Types.STRING(), Types.LONG()])
                )
            ),
        }
        lived_map = MapStateDescriptor("ttl_map", Types.LONG(), Types.STRING())
        lived_map.enable_time_to_live(lives)
        self.maps["ttl_map"] = context.get_map_state(lived_map)
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", Sum(), Types.LONG()))
        self.mean = context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.INT(), Types.DOUBLE()]))
        )
        self.file = Path(f"{self.rows}.{self.operator}.{os.getpid()}.{id(self)}")

    def process_element(self, value, ctx):
        n = value[0]
        if self.writes:
            self.write(n)
            ctx.timer_service().register_event_time_timer(n * 1000)
        with self.file.open("a") as file:
            file.write(json.dumps(self.said(ctx.get_current_key())) + "\n")
        return []

    def write(self, n: int) -> None:
        for name, (_, make) in VALUES.items():
            self.values[name].update(make(n))
        self.lived.update(n)
        self.lists["list_string"].add(name_of(n))
        self.lists["list_tuple"].add_all([(n, "first"), (-n, "second")])
        self.maps["map_string_long"].put(name_of(n), n)
        self.maps["map_int_row"].put(n, Row(None, n))
        self.maps["ttl_map"].put(n, name_of(n))
        self.sum.add(n)
        self.mean.add(float(n))

    def said(self, key):
        found = {name: shown(state.value()) for name, state in self.values.items()}
        found["ttl_value"] = self.lived.value()
        found |= {name: [shown(one) for one in state.get()] for name, state in self.lists.items()}
        found |= {name: shown(dict(state.items())) for name, state in self.maps.items()}
        found |= {"sum": self.sum.get(), "mean": shown(self.mean.get())}
        return {"operator": self.operator, "key": shown(key), "at": time.time_ns(), "states": found}


KEY_TYPES = {
    "by_string": (lambda row: name_of(row[0] % KEYS), Types.STRING()),
    "by_long": (lambda row: row[0] % KEYS - 10, Types.LONG()),
    "by_tuple": (
        lambda row: (name_of(row[0] % KEYS), row[0] % 3),
        Types.TUPLE([Types.STRING(), Types.INT()]),
    ),
    "by_row": (
        lambda row: Row(name_of(row[0] % KEYS), row[0] % 3),
        Types.ROW([Types.STRING(), Types.INT()]),
    ),
    "by_decimal": (lambda row: decimal.Decimal(row[0] % KEYS).scaleb(-2), Types.BIG_DEC()),
    "by_bytes": (lambda row: row[0] % KEYS, None),
}


def main(what: str, savepoint: str, rows: str, most: str = "128") -> None:
    config = Configuration()
    config.set_string("rest.port", "0")
    config.set_string("rest.bind-port", "0")
    config.set_string("python.executable", sys.executable)
    config.set_string("python.client.executable", sys.executable)
    config.set_string("python.fn-execution.bundle.size", "3")
    config.set_string("python.fn-execution.bundle.time", "50")
    if what == "read":
        config.set_string("execution.state-recovery.path", savepoint)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_parallelism(2)
    env.set_max_parallelism(int(most))
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        "CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '12',"
        " 'fields.n.min' = '0', 'fields.n.max' = '9999')"
    )
    numbers = tables.to_data_stream(tables.from_path("numbers"))
    for name, (key, kind) in KEY_TYPES.items():
        keyed = numbers.key_by(key) if kind is None else numbers.key_by(key, key_type=kind)
        keyed.process(States(name, rows, what == "write"), output_type=Types.LONG()).name(name).uid(
            name
        ).print()
    client = env.execute_async("states")
    time.sleep(SECONDS)
    if what == "write":
        jobs = get_gateway().jvm.org.apache.flink.core.execution
        done = client._j_job_client.stopWithSavepoint(
            False, str(Path(savepoint).parent), jobs.SavepointFormatType.CANONICAL
        ).get()
        Path(done.removeprefix("file:")).rename(savepoint)
    else:
        client.cancel().result()
    newest = {}
    for file in Path(rows).parent.glob(f"{Path(rows).name}.*"):
        for line in file.read_text().splitlines():
            one = json.loads(line)
            place = one["operator"], json.dumps(one["key"])
            if place not in newest or newest[place]["at"] < one["at"]:
                newest[place] = one
        file.unlink()
    lines = [
        json.dumps({name: one[name] for name in ("operator", "key", "states")}, sort_keys=True)
        for _, one in sorted(newest.items())
    ]
    Path(rows).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
