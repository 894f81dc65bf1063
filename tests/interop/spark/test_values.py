"""Values of every type, under names that no table allows, keep Spark's bytes in a round trip."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.query_settings import SparkTarget
from tests.interop.spark.queries import PROVIDERS, events, settings, stream

LEAVES = [
    *("k", "id", "v", "t", "price", "day", "small", "blob", "cast(t as timestamp_ntz)"),
    *("cast(v as double) / nullif(id % 3, 0)", "cast('NaN' as float)", "-0.0d", "id % 2 = 0"),
    *("cast(v % 3 as tinyint)", "cast(price * 1e9 as decimal(38, 10))", "cast(null as string)"),
    *("date'0001-01-01'", "timestamp'1582-10-04 00:00:00'", "timestamp'9999-12-31 23:59:59'"),
    *("concat(k, char(0), 'é')", "cast(null as date)", "cast('Infinity' as double)"),
]
NAMES = [
    *("a.b", "a b", "a`b", "key_group", "KEY_GROUP", "Sum", "sum", "key", "value", "no_key"),
    *("shuffle_hash", "_metadata", "f0", "a,;{}()=", "ä\n\t", "partition_id", "x_is_set", "x"),
]


def leaf(draw: random.Random) -> Column:
    return F.expr(draw.choice(LEAVES))


def struct(draw: random.Random, depth: int, *, key: bool) -> Column:
    """Return a struct that is null for some rows."""
    names = draw.sample(NAMES, draw.randint(1, 3))
    fields = [made(draw, depth + 1, key=key).alias(name) for name in names]
    whole = F.struct(*fields)
    return F.when(F.expr("small is not null"), whole) if draw.random() < 0.6 else whole


def made(draw: random.Random, depth: int, *, key: bool) -> Column:
    """Return a value, mostly a scalar. Maps and arrays are used only outside of keys."""
    kind = draw.random()
    if depth > 2 or kind < 0.5:
        return leaf(draw)
    if key or kind < 0.75:
        return struct(draw, depth, key=key)
    within = made(draw, depth + 1, key=False)
    if kind < 0.88:
        return F.when(F.expr("id % 4 > 0"), F.array(within, F.lit(None)))
    return F.create_map(F.coalesce(F.col("k"), F.lit("none")), within)


@pytest.mark.long  # in each run, test_rows.py has every type in every mode
@pytest.mark.parametrize("seed", range(6))
def test_random_values_keep_their_bytes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    keys = [made(draw, 1, key=True).alias(draw.choice(NAMES)) for _ in range(draw.randint(1, 3))]
    values = [F.first(made(draw, 0, key=False)).alias(draw.choice(NAMES)) for _ in range(4)]
    events(tmp_path / "events", 0, 1)
    location, store = str(tmp_path / "location"), str(tmp_path / "store")
    conf = {
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS["rocksdb"],
        "spark.sql.shuffle.partitions": "2",
    }
    with settings(spark, conf):
        query = stream(spark, tmp_path / "events").groupBy(*keys).agg(*values)
        writer = query.writeStream.outputMode("update").format("noop")
        writer = writer.option("checkpointLocation", location).trigger(availableNow=True)
        assert writer.start().awaitTermination(300)
    opened = StateStore.open(store, spark=spark, layout="auto")
    record = import_checkpoint(spark, location, opened).record
    (one,) = record.stores
    state = opened.restore().keyed(one.uid, one.store).to_spark()
    found = one.columns.to_bytes(state, 2).select(
        F.spark_partition_id(), "key_bytes", "value_bytes"
    )
    reader = spark.read.format("statestore").option("_readAllColumnFamilies", "true")
    expected = reader.load(location).select(F.spark_partition_id(), "key_bytes", "value_bytes")
    rows = sorted(map(tuple, expected.collect()))
    assert sorted(map(tuple, found.collect())) == rows
    assert len(rows) > 0
    provider = "hdfs" if seed % 2 else "rocksdb"
    export_checkpoint(
        opened,
        str(tmp_path / "target"),
        partitions=3,
        target=SparkTarget(provider="hdfs" if provider == "hdfs" else "rocksdb"),
    )
