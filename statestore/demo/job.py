"""The stateful job, and how far its source subtasks read in each micro-batch.

The job aggregates the state of each aircraft from micro-batches of flights.

One operator has three keyed states, by tail number: a value (``totals``), a map (``routes``) and a
list (``recent``, the last five flights). Flights without a tail number have no key. They are
counted by source partition (``unkeyed``), in union state like the source's offsets.

An update is a union followed by an aggregation, so the result does not depend on the boundaries of
micro-batches. Flights that depart in the same minute are ordered by (partition, offset). This is a
total order, so that "the last five" is well-defined.

Source subtasks run at different speeds, and a subtask divides its speed among its partitions, as
consumers do. So when the job stops, its partitions are read to different depths, and none to its
end. A restore with any other offsets would lose flights, or count them twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from statestore.demo.flights import TOPIC, FlightLog
from statestore.sources.offsets import (
    SourceOffset,
    assign_partitions,
    offset_elements,
    source_offsets,
)
from statestore.sources.offsets import subtask_of_partition as subtask_of
from statestore.store import StateStore

# Four subtasks read half of the input in three micro-batches.
_WEIGHTS = (3, 4, 5, 6)
BATCHES_TO_HALF = 3


@dataclass(frozen=True)
class FlightBatch:
    """The range of a micro-batch: each partition from its start to its stop (exclusive)."""

    starts: Mapping[int, int]
    stops: Mapping[int, int]

    @property
    def rows(self) -> int:
        """The number of flights in the micro-batch."""
        return sum(self.stops[partition] - start for partition, start in self.starts.items())


def partitions_by_subtask(partitions: Mapping[int, int], parallelism: int) -> list[list[int]]:
    """Return the partitions of each source subtask, assigned as in Flink's Kafka source."""
    pairs = [(TOPIC, partition) for partition in partitions]
    return [[partition for _, partition in mine] for mine in assign_partitions(pairs, parallelism)]


def micro_batches(
    starts: Mapping[int, int], ends: Mapping[int, int], parallelism: int, limit: int
) -> list[FlightBatch]:
    """Return micro-batches for the next ``limit`` flights after ``starts``, or all of the rest."""
    batches = []
    here = dict(starts)
    while limit > 0 and here != ends:
        stops = _stops(here, ends, parallelism, limit)
        batches.append(FlightBatch(here, stops))
        limit -= batches[-1].rows
        here = stops
    return batches


def _stops(
    here: Mapping[int, int], ends: Mapping[int, int], parallelism: int, limit: int
) -> dict[int, int]:
    """Return the end offsets of a micro-batch of at most ``limit`` flights."""
    stops = dict(here)
    speeds = _speeds(sum(ends.values()), parallelism)
    for mine, speed in zip(partitions_by_subtask(ends, parallelism), speeds, strict=True):
        left = speed
        for others, partition in zip(range(len(mine), 0, -1), mine, strict=True):
            share = -(-left // others)  # rounded up; the next partition takes any unused share
            taken = min(share, ends[partition] - here[partition], limit)
            stops[partition] += taken
            left -= taken
            limit -= taken
    return stops


def _speeds(flights: int, parallelism: int) -> Iterator[int]:
    """Yield the flights that each source subtask reads in a micro-batch, at least 1."""
    weight = -(-flights // (2 * BATCHES_TO_HALF * sum(_WEIGHTS)))
    for subtask in range(parallelism):
        yield max(1, weight * _WEIGHTS[subtask % len(_WEIGHTS)])


AIRCRAFT = "aircraft"


SOURCE = "flights-source"


KEY = "tail_number"


MAX_PARALLELISM = 128


LAST = 5


@dataclass(frozen=True)
class States:
    """The keyed states of the job, each as a DataFrame with the stored columns."""

    totals: DataFrame
    routes: DataFrame
    recent: DataFrame

    def by_name(self) -> dict[str, DataFrame]:
        """Return the states by state name."""
        return {"totals": self.totals, "routes": self.routes, "recent": self.recent}

    def compute(self) -> States:
        """Compute and keep the rows of all states, so that query plans do not grow."""
        return States(*(state.localCheckpoint() for state in self.by_name().values()))


@dataclass(frozen=True)
class Job:
    """The job between two micro-batches; ``unkeyed`` counts flights without a key, by partition."""

    parallelism: int
    states: States | None
    offsets: Mapping[int, int]
    unkeyed: Mapping[int, int]

    @property
    def consumed(self) -> int:
        """The number of flights read since the job was first started."""
        return sum(self.offsets.values())


def start(log: FlightLog, parallelism: int) -> Job:
    """Return the job before its first flight."""
    return Job(parallelism, None, log.starts, dict.fromkeys(log.starts, 0))


def consume(spark: SparkSession, log: FlightLog, job: Job, batch: FlightBatch) -> Job:
    """Return the job after one more micro-batch."""
    rows = log.read(spark, batch.starts, batch.stops)
    states = fold(job.states, rows.where(F.col(KEY).isNotNull())).compute()
    without_key = rows.where(F.col(KEY).isNull()).groupBy("partition").count().collect()
    unkeyed = dict(job.unkeyed)
    for row in without_key:
        unkeyed[row["partition"]] += row["count"]
    return Job(job.parallelism, states, batch.stops, unkeyed)


def fold(before: States | None, rows: DataFrame) -> States:
    """Return the states after ``rows``, all with a tail number; ``before`` is None at the start."""
    flight_count = F.lit(1).cast("long").alias("flights")
    totals = rows.select(
        KEY,
        flight_count,
        "miles",
        F.coalesce("minutes", F.lit(0)).alias("minutes"),  # null: the flight was cancelled
        F.col("departure").alias("seen"),
    )
    recent = rows.select(KEY, "departure", "flight", "route", "partition", "offset")
    routes = rows.select(KEY, "route", flight_count)
    if before is not None:
        totals = totals.unionByName(before.totals)
        routes = routes.unionByName(before.routes)
        recent = recent.unionByName(before.recent.drop("position"))
    return States(
        totals=totals.groupBy(KEY).agg(
            *(F.sum(name).alias(name) for name in ("flights", "miles", "minutes")),
            F.max("seen").alias("seen"),
        ),
        routes=routes.groupBy(KEY, "route").agg(F.sum("flights").alias("flights")),
        recent=_last_flights(recent),
    )


def snapshot(store: StateStore, job: Job, layout: str = "partitioned") -> int:
    """Commit states and offsets as one checkpoint; return its id."""
    assert job.states is not None
    states = job.states
    options: dict[str, Any] = {"key": KEY, "max_parallelism": MAX_PARALLELISM, "layout": layout}
    with store.snapshot(parallelism=job.parallelism) as checkpoint:
        checkpoint.write_keyed(AIRCRAFT, "totals", states.totals, **options)
        checkpoint.write_keyed(
            AIRCRAFT, "routes", states.routes, kind="map", entry="route", **options
        )
        checkpoint.write_keyed(
            AIRCRAFT, "recent", states.recent, kind="list", entry="position", **options
        )
        for name, per_subtask in elements(job).items():
            checkpoint.write_union(SOURCE, name, per_subtask)
    return checkpoint.id


def elements(job: Job) -> dict[str, list[list[dict[str, str | int]]]]:
    """Return the elements of each source subtask by operator state: offsets and counts."""
    assigned = partitions_by_subtask(job.offsets, job.parallelism)
    return {
        "offsets": [
            list(offset_elements(SourceOffset(TOPIC, p, job.offsets[p]) for p in mine))
            for mine in assigned
        ],
        "unkeyed": [
            [{"topic": TOPIC, "partition": p, "flights": job.unkeyed[p]} for p in mine]
            for mine in assigned
        ],
    }


def restore(store: StateStore, checkpoint: int, parallelism: int) -> Job:
    """Restore the job from a checkpoint; each subtask reads its own part."""
    restored = store.restore(checkpoint=checkpoint, parallelism=parallelism)
    offsets: dict[int, int] = {}
    unkeyed: dict[int, int] = {}
    for subtask in range(parallelism):
        # Union state: every subtask gets all elements, and keeps the elements of its own
        # partitions.
        for source_offset in source_offsets(
            restored.operator_state(SOURCE, "offsets").subtask(subtask)
        ):
            if subtask_of(source_offset.topic, source_offset.partition, parallelism) == subtask:
                offsets[source_offset.partition] = source_offset.offset
        for count in restored.operator_state(SOURCE, "unkeyed").subtask(subtask):
            if subtask_of(count["topic"], count["partition"], parallelism) == subtask:
                unkeyed[count["partition"]] = count["flights"]
    keyed = (restored.keyed(AIRCRAFT, name) for name in ("totals", "routes", "recent"))
    states = States(*(state.to_spark().drop("key_group") for state in keyed))
    return Job(parallelism, states, offsets, unkeyed)


def _last_flights(flights: DataFrame) -> DataFrame:
    """Return the last flights of each aircraft, with the oldest at position 0."""
    of_aircraft = Window.partitionBy(KEY)
    order = ("departure", "partition", "offset")
    newest_first = of_aircraft.orderBy(*(F.col(name).desc() for name in order))
    ranked = flights.withColumn("rank", F.row_number().over(newest_first))
    kept = ranked.where(F.col("rank") <= LAST)
    position = F.count("*").over(of_aircraft).cast("int") - F.col("rank")
    return kept.select(KEY, position.alias("position"), *flights.columns[1:])
