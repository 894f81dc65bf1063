"""Versions of queries, which read folders of two tiny files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tests.interop.spark.queries import EVOLUTION, PROVIDERS

SCHEMA = "k string, u string, v long, w int, t timestamp"
START = 1_767_225_600  # 2026-01-01
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB, HDFS = ({PROVIDER: PROVIDERS[name]} for name in ("rocksdb", "hdfs"))
AVRO = {**ROCKSDB, "spark.sql.streaming.stateStore.encodingFormat": "avro"}
CHECKPOINT_2 = {**ROCKSDB, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}
JOIN_3 = {**ROCKSDB, "spark.sql.streaming.join.stateFormatVersion": "3"}


@dataclass(frozen=True)
class Inputs:
    """The folders that a version reads."""

    spark: SparkSession
    root: Path

    def rows(self, folder: str = "a", name: str | None = None) -> DataFrame:
        """Return the rows of a folder as a stream, which has a name if the session wants one."""
        reader = self.spark.readStream.schema(SCHEMA)
        if self.spark.conf.get(EVOLUTION, "false") == "true":
            reader = reader.name(name or folder)
        return reader.json(str(self.root / folder))

    def write(self, number: int) -> None:
        """Write a file into each folder: four rows of two keys; ``c`` has only the second file."""
        for folder in ("a", "b", *(["c"] if number else [])):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            shift = 1 if folder == "b" else 0
            lines = [
                json.dumps(
                    {
                        "k": "xy"[row % 2],
                        "u": "xyz"[(row + 1 + shift) % 3],
                        "v": 10 * number + row + shift,
                        "w": row + 1,
                        "t": START + 600 * number + row,
                    }
                )
                for row in range(4)
            ]
            (self.root / folder / f"{number}.json").write_text("\n".join(lines) + "\n")


Build = Callable[[Inputs], DataFrame]


@dataclass(frozen=True)
class Version:
    """A version of a query: how it is built and started."""

    build: Build
    mode: str = "update"
    conf: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 2


def aggregate(*keys: str, **columns: str) -> Build:
    """Return an aggregation of the rows of folder ``a``; keys and columns are SQL."""
    return lambda inputs: (
        inputs.rows()
        .groupBy(*map(F.expr, keys))
        .agg(*(F.expr(sql).alias(name) for name, sql in columns.items()))
    )


def timed(inputs: Inputs, delay: str = "10 minutes", folder: str = "a") -> DataFrame:
    """Return the rows of a folder with a watermark."""
    return inputs.rows(folder).withWatermark("t", delay)


WINDOW = "window(t, '5 minutes')"


def windows(delay: str | None = "10 minutes", *keys: str) -> Build:
    """Return counts by a window of time and other keys."""

    def build(inputs: Inputs) -> DataFrame:
        rows = inputs.rows() if delay is None else timed(inputs, delay)
        return rows.groupBy(*map(F.expr, keys or (WINDOW, "k"))).count()

    return build


def sessions(gap: str, *keys: str) -> Build:
    """Return counts by a session of time and keys."""
    return lambda inputs: timed(inputs).groupBy(*keys, F.session_window("t", gap)).count()


def distinct(*keys: str, within: bool = False, delay: str | None = None) -> Build:
    """Return the rows without duplicates."""

    def build(inputs: Inputs) -> DataFrame:
        rows = inputs.rows() if delay is None else timed(inputs, delay)
        drop = rows.dropDuplicatesWithinWatermark if within else rows.dropDuplicates
        return drop(list(keys)).select("k")

    return build


def join(left: list[str], right: list[str], on: list[str] | None = None) -> Build:
    """Return an inner join of the folders ``a`` and ``b``; ``right`` are the columns of ``b``."""

    def build(inputs: Inputs) -> DataFrame:
        keys = on or ["k"]
        other = inputs.rows("b").selectExpr(*keys, *(f"{name} AS b_{name}" for name in right))
        return inputs.rows().selectExpr(*keys, *left).join(other, keys)

    return build


def union(*folders: str) -> Build:
    """Return counts of the rows of several folders."""

    def build(inputs: Inputs) -> DataFrame:
        first, *others = map(inputs.rows, folders)
        for rows in others:
            first = first.union(rows)
        return first.groupBy("k").count()

    return build


def groups(state: str, timeout: str = "NoTimeout") -> Build:
    """Return counts by key with ``applyInPandasWithState``."""
    width = state.count(",") + 1

    def update(
        key: Any, frames: Iterator[pd.DataFrame], kept: GroupState
    ) -> Iterator[pd.DataFrame]:
        n = sum(map(len, frames)) + (kept.get[0] if kept.exists else 0)
        kept.update((n, *([0] * (width - 1))))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    return lambda inputs: (
        inputs.rows()
        .groupBy("k")
        .applyInPandasWithState(update, "k string, n long", state, "update", timeout)
    )


VALUES = {"n": 1, "a": 1, "b": 10}


class Keeping(StatefulProcessor):
    """Keeps the number of rows of a key in the first of its variables, and yields it.

    A variable is its kind, its name, its columns, and its TTL in milliseconds.
    """

    def __init__(self, *variables: tuple[str, str, str, int | None]) -> None:
        """Take the variables."""
        self.variables = variables

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the variables."""
        self.states: list[Any] = []
        for kind, name, schema, ttl in self.variables:
            if kind == "map":
                key, value = schema.split("/")
                self.states.append(handle.getMapState(name, key, value, ttl))
            elif kind == "list":
                self.states.append(handle.getListState(name, schema, ttl))
            else:
                self.states.append(handle.getValueState(name, schema, ttl))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Count the rows."""
        count = sum(map(len, rows))
        (kind, _, schema, _), state = self.variables[0], self.states[0]
        if kind == "list":
            state.appendList([(1,)] * count)
            total = len(list(state.get()))
        elif kind == "map":
            user_key = ("1",) if "string" in schema.split("/")[0] else (1,)
            total = count + (state.getValue(user_key)[0] if state.containsKey(user_key) else 0)
            state.updateValue(user_key, (total,))
        else:
            columns = [column.split() for column in schema.split(",")]
            at = next(at for at, (name, _) in enumerate(columns) if name in ("n", "a"))
            before = state.get()
            total = count + int((before[at] if before else 0) or 0)
            state.update(
                tuple(
                    str(total) if type_name == "string" else total * VALUES.get(name, 0)
                    for name, type_name in columns
                )
            )
        yield pd.DataFrame({"k": [str(key[0])], "n": [total]})

    def close(self) -> None:
        """Nothing needs to be closed."""


def keeping(
    *variables: Any, key: str = "k", mode: str = "Update", time: str = "None", **conf: str
) -> Version:
    """Return a version with a processor; a variable is ``kind name columns [ttl]``."""
    full = [(*variable, None)[:4] for variable in variables]

    def build(inputs: Inputs) -> DataFrame:
        return (
            inputs.rows()
            .groupBy(key)
            .transformWithStateInPandas(Keeping(*full), "k string, n long", mode, time)
        )

    return Version(build, mode.lower(), {**ROCKSDB, **conf})
