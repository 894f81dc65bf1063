"""Spark's part in a history: writing DataFrames, and reading them, the data source, lookups and
Delta tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.fuzz.givers import plain_table, rows_of
from tests.fuzz.history import Column, Row
from tests.fuzz.kinds import kind_text
from tests.fuzz.model import Known, range_of
from tests.fuzz.outside import of_delta
from tests.fuzz.readers import GROUP, Reader, same, some_keys, with_groups
from tests.fuzz.world import NAME, UID, World

__all__ = ["SPARK", "frame"]

PART = Column("part", "integer")


def frame(spark: SparkSession, rows: Sequence[Row], columns: Sequence[Column]) -> DataFrame:
    """Return rows as a DataFrame of exactly these types."""
    schema = ", ".join(f"`{column.name}` {kind_text(column.kind)}" for column in columns)
    made: DataFrame = spark.createDataFrame(plain_table(rows, columns), schema)
    return made


def dataframe(world: World, number: int, draw: Random) -> None:
    """Spark partition i is subtask i."""
    known = world.model.known[number]
    parallelism = draw.randint(1, min(known.max_parallelism, 4))
    restored = world.store.restore(
        checkpoint=number, parallelism=parallelism, now_ms=world.model.now_ms
    )
    _by_part(world, known, restored.keyed(UID, NAME).to_spark(), parallelism, "DataFrame")


def data_source(world: World, number: int, draw: Random) -> None:
    known = world.model.known[number]
    parallelism = draw.randint(1, min(known.max_parallelism, 4))
    options = {
        "store": world.store.url,
        "operator": UID,
        "state": NAME,
        "checkpoint": number,
        "parallelism": parallelism,
        "now_ms": world.model.now_ms,
    }
    read = world.spark.read.format("keyed_state").options(**options).load()
    _by_part(world, known, read, parallelism, "keyed_state")


def _by_part(world: World, known: Known, read: DataFrame, parallelism: int, who: str) -> None:
    table = read.withColumn(PART.name, F.spark_partition_id()).toArrow()
    parts = [row[PART.name] for row in rows_of(table.select([PART.name]), (PART,))]
    most = known.max_parallelism
    found = with_groups(world, known, table.drop([PART.name]), most, range(most), who)
    for row, part in zip(found, parts, strict=True):
        assert row["key_group"] in range_of(part, parallelism, most), f"{who}: in part {part}"
    same(found, world.model.visible(known).values(), known.columns, who)


def lookup(world: World, number: int, draw: Random) -> None:
    """``rows_of`` returns the rows of many keys as a DataFrame."""
    known = world.model.known[number]
    some, names = some_keys(world, known, draw), world.shape.key
    asked = [
        dict(zip([c.name for c in names], key if len(names) > 1 else (key,), strict=True))
        for key, _, _ in some
    ]
    restored = world.store.restore(checkpoint=number, now_ms=world.model.now_ms)
    table = restored.keyed(UID, NAME).lookup_in_spark(plain_table(asked, names)).toArrow()
    most = known.max_parallelism
    found = with_groups(world, known, table, most, range(most), "rows_of")
    same(found, [row for _, _, rows in some for row in rows], known.columns, "rows_of")


def delta(world: World, number: int, draw: Random) -> None:
    def read(path: str, version: int, known: Known) -> Any:
        return world.spark.read.format("delta").option("versionAsOf", version).load(path).toArrow()

    of_delta(world, number, "Delta", read)


def sql(world: World, number: int, draw: Random) -> None:
    """Read the newest version by its path, if the state was not written since."""
    known = world.model.known[number]
    entry = world.store.checkpoint(number).manifest.keyed_entry(UID, NAME)
    newest = max(world.model.known)
    if number != newest or entry.table.version is None or world.shape.ttl_ms is not None:
        return
    if not entry.layers:
        path = f"{world.store.url}/{entry.table.path}"
        table = world.spark.sql(f"SELECT * FROM delta.`{path}`").toArrow()
        found = rows_of(table, (GROUP, *known.columns))
        same(found, known.rows.values(), known.columns, "newest Delta version")


SPARK: dict[str, Reader] = {
    "DataFrame": dataframe,
    "keyed_state": data_source,
    "rows_of": lookup,
    "Delta": delta,
    "Delta by SQL": sql,
}
