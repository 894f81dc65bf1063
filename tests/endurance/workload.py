"""The events of the endurance test, the update of the query, and the state that they must lead to.

Events add an amount to a key or close the key, which deletes its row. The update does this with
Spark. :func:`expected_state` computes the same from the event files with DuckDB, without a stop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from statestore.snapshot.state_spec import Changes
from statestore.streaming import MicroBatch, Updated

__all__ = [
    "EVENTS",
    "EVENT_SCHEMA",
    "KEYS",
    "OPERATOR",
    "STATE",
    "STATE_SCHEMA",
    "Totals",
    "add_file",
    "expected_state",
    "update",
    "victim",
]

OPERATOR, STATE = "accounts", "totals"
EVENT_SCHEMA = "id long, key string, amount long, is_close boolean"
STATE_SCHEMA = "key string, n long, amount long"
EVENTS, KEYS = 1000, 20_000
_OF_A_VICTIM = 5
"""How many events of each file belong to the key that is purged next."""
_CLOSES = 23
"""One of this many events closes its key."""

Totals = dict[str, tuple[int, int]]
"""For each key: the number of its events since it was last closed, and the sum of their amounts."""


def victim(number: int) -> str:
    """Return the key that the purge with this number removes."""
    return f"victim-{number:04}"


def add_file(folder: Path, number: int, purge: int) -> None:
    """Create a file of events atomically, with a later time than earlier files.

    Some events belong to the key that the next purge, ``purge``, removes.
    """
    ids = range(number * EVENTS, (number + 1) * EVENTS)
    events = [
        {
            "id": i,
            "key": f"k{i * 7919 % 1_000_003 % KEYS:05}",
            "amount": i % 101 - 30,
            "is_close": i % _CLOSES == number % _CLOSES,
        }
        for i in ids[_OF_A_VICTIM:]
    ]
    events += [
        {"id": i, "key": victim(purge), "amount": 1, "is_close": False} for i in ids[:_OF_A_VICTIM]
    ]
    hidden = folder / f".{number:06}.json"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events))
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(folder / f"{number:06}.json")


def update(events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch) -> Updated:
    """Add the events of each key since its last close to its totals; delete keys without any."""
    stored = states[STATE].select(
        "key", F.lit(-1).cast("long").alias("id"), "n", "amount", F.lit(False).alias("is_close")
    )
    new = events.select("key", "id", F.lit(1).cast("long").alias("n"), "amount", "is_close")
    closed = F.max(F.when(F.col("is_close"), F.col("id"))).over(Window.partitionBy("key"))
    rows = stored.unionByName(new).withColumn("closed", closed)
    counts = ~F.col("is_close") & (F.col("closed").isNull() | (F.col("id") > F.col("closed")))
    sums = (
        F.sum(F.when(counts, F.col(name)).otherwise(F.lit(0).cast("long"))).alias(name)
        for name in ("n", "amount")
    )
    totals = rows.groupBy("key").agg(*sums)
    changes = Changes(upserts=totals.where("n > 0"), deletes=totals.where("n = 0").select("key"))
    return Updated({STATE: changes}, shared=(totals,))


def expected_state(folder: Path, files: int, purged: Collection[str]) -> Totals:
    """Return the state after the first files, without the purged keys."""
    sql = """
        WITH events AS (
            SELECT * FROM read_json($files, format = 'newline_delimited', columns = {
                id: 'BIGINT', key: 'VARCHAR', amount: 'BIGINT', is_close: 'BOOLEAN'})
            WHERE id < $ids),
        closes AS (SELECT key, max(id) AS closed FROM events WHERE is_close GROUP BY key)
        SELECT key, count(*), sum(amount)::BIGINT FROM events LEFT JOIN closes USING (key)
        WHERE NOT is_close AND (closed IS NULL OR id > closed)
            AND NOT list_contains($purged::VARCHAR[], key)
        GROUP BY key
    """
    with duckdb.connect(":memory:", config={"memory_limit": "512MB", "threads": "1"}) as database:
        parameters = {
            "files": str(folder / "*.json"),
            "ids": files * EVENTS,
            "purged": sorted(purged),
        }
        rows = database.execute(sql, parameters).fetchall()
    return {key: (n, amount) for key, n, amount in rows}
