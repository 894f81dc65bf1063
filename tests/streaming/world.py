"""A store, events in files, and a query over them, for tests."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.streaming import MicroBatch, QueryOptions, QueryState, StatefulQuery

__all__ = ["EVENTS", "World", "of_one", "totals"]

KEYS = 17
EVENTS = "id long, user string, amount long"


def totals(events: DataFrame, state: DataFrame) -> DataFrame:
    """Add the amounts in the columns of the state."""
    new = events.select("user", F.lit(1).alias("n"), F.col("amount").alias("total"))
    sums = [F.sum(name).alias(name) for name in ("n", "total")]
    return state.unionByName(new).groupBy("user").agg(*sums)


def of_one(update: Callable[[DataFrame, DataFrame], Any]) -> Any:
    """Return an update for a query with a single state, from a function of that state's rows."""

    def updated(
        events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
    ) -> Mapping[str, Any]:
        ((name, state),) = states.items()
        return {name: update(events, state)}

    return updated


@dataclass
class World:
    """A store, a folder of events, and a query over it."""

    spark: SparkSession
    folder: Path
    events: int = 0

    @property
    def store(self) -> StateStore:
        """The store, as another process opens it."""
        return StateStore.open(str(self.folder / "store"), table_format="parquet")

    def query(
        self,
        schema: str = "total long, user string, n long",  # not in the order of the stored columns
        options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> StatefulQuery:
        """Return the query of the totals, as a new driver creates it."""
        query = StatefulQuery(
            store=self.store,
            operator="totals",
            key="user",
            states={"per-user": QueryState(schema, **(options or {"max_parallelism": 8}))},
            update=of_one(totals),
            parallelism=2,
        )
        names = {field.name for field in fields(QueryOptions)} & others.keys()
        options_of_query = QueryOptions(**{name: others.pop(name) for name in names})
        return replace(query, options=options_of_query, **others)

    def add(self, files: int = 1, events: int = 40) -> None:
        """Write files of events, each with its own time, so that their order is fixed."""
        (self.folder / "in").mkdir(exist_ok=True)
        for _ in range(files):
            ids = range(self.events, self.events + events)
            rows = [{"id": i, "user": f"u{i * 7 % KEYS}", "amount": i % 10} for i in ids]
            path = self.folder / "in" / f"{self.events:06}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_700_000_000 + self.events, 1_700_000_000 + self.events))
            self.events += events

    def run(self, query: StatefulQuery, location: str = "progress", files: int = 1) -> None:
        """Process all available events with a query, by default one file per micro-batch."""
        reader = self.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", files)
        stream = reader.json(str(self.folder / "in"))
        query.start(stream, str(self.folder / location), available_now=True).awaitTermination()

    def frame(self, *users: str | None) -> DataFrame:
        """Return events of some users, each with the amount 1."""
        rows = [(i, user, 1) for i, user in enumerate(users)]
        return self.spark.createDataFrame(rows, EVENTS)

    def state(self, name: str = "per-user") -> dict[str, tuple[int, int]]:
        """Return the totals in the newest checkpoint."""
        restored = self.store.restore(parallelism=3)
        rows = [
            row
            for subtask in range(3)
            for row in restored.keyed("totals", name).to_arrow(subtask).to_pylist()
        ]
        found = {row["user"]: (row["n"], row["total"]) for row in rows}
        assert len(found) == len(rows)
        return found

    @property
    def expected(self) -> dict[str, tuple[int, int]]:
        """The totals of all written events."""
        n: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for i in range(self.events):
            n[f"u{i * 7 % KEYS}"] += 1
            total[f"u{i * 7 % KEYS}"] += i % 10
        return {user: (n[user], total[user]) for user in n}
