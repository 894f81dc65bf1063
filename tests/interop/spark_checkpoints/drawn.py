"""Hypothesis strategies for queries: their operators, providers, formats, partitions and data.

A :class:`Move` shrinks to an aggregation, two micro-batches and one event.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

from tests.interop.spark_checkpoints.queries import NO_DATA_BATCHES, QUERIES, SPAN, START

__all__ = ["Event", "Move", "moves", "write_batches"]

Provider = Literal["hdfs", "rocksdb"]

PROVIDERS: tuple[Provider, ...] = ("hdfs", "rocksdb")
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
AGGREGATIONS = ("agg", "agg_many", "nested", "aggwin", "global", "session", "two")
TRANSFORMS = ("tws_avro", "tws_listed", "tws_ttl")


@dataclass(frozen=True)
class Event:
    """An input row. ``second`` is relative to the first second of its micro-batch."""

    k: str | None
    id: int
    v: int
    second: int
    cents: int
    day: int
    small: int | None
    blob: bytes

    def row(self, batch: int) -> dict[str, str | int | None]:
        """Return the row of a micro-batch as JSON."""
        return {
            "k": self.k,
            "id": self.id,
            "v": self.v,
            "t": (START + timedelta(seconds=batch * SPAN + self.second)).isoformat(),
            "price": f"{self.cents / 100:.2f}",
            "day": str(date(2026, 1, 1) + timedelta(days=self.day)),
            "small": self.small,
            "blob": base64.b64encode(self.blob).decode(),
        }


@dataclass(frozen=True)
class Move:
    """A query that moves after some of its micro-batches."""

    query: str
    providers: tuple[Provider, Provider]
    partitions: tuple[int, int]
    conf: tuple[tuple[str, str], ...]
    before: tuple[tuple[Event, ...], ...]
    after: tuple[tuple[Event, ...], ...]


def write_batches(folder: Path, first: int, batches: tuple[tuple[Event, ...], ...]) -> None:
    """Write one file per micro-batch, of which the first has the number ``first``."""
    folder.mkdir(exist_ok=True)
    for number, batch in enumerate(batches, first):
        file = folder / f"{number:05}.json"
        file.write_text("".join(f"{json.dumps(event.row(number))}\n" for event in batch))
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))


_EVENTS = st.builds(
    Event,
    k=st.sampled_from(["a", "b", "", None, "é\0", "🦊"]),
    id=st.integers(0, 9) | st.integers(-(1 << 31), (1 << 31) - 1),
    v=st.integers(0, 99) | st.integers(-(1 << 40), 1 << 40),
    # Some events are so late that a watermark drops them.
    second=st.integers(0, SPAN - 1) | st.integers(-1500, SPAN),
    cents=st.integers(-(10**6), 10**6),
    day=st.integers(0, 2),
    small=st.sampled_from([1, -2, None]),
    blob=st.binary(max_size=2),
)
_BATCH = st.lists(_EVENTS, min_size=1, max_size=20).map(tuple)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """Draw a query with its settings and input, and the settings of the query that continues."""
    query = QUERIES[draw(st.sampled_from(list(QUERIES)))]
    provider = st.sampled_from([one for one in PROVIDERS if one in query.providers])
    providers = (draw(provider), draw(provider))
    partitions = (draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    conf = dict(draw(_settings(query.name, providers)))
    return Move(
        query.name,
        providers,
        partitions,
        tuple(sorted(conf.items())),
        draw(st.lists(_BATCH, min_size=1, max_size=2).map(tuple)),
        draw(st.lists(_BATCH, min_size=1, max_size=2).map(tuple)),
    )


@st.composite
def _settings(draw: st.DrawFn, name: str, providers: tuple[Provider, Provider]) -> dict[str, str]:
    in_rocksdb = providers == ("rocksdb", "rocksdb")
    # A micro-batch without data of a query in processing time is always followed by another.
    conf = {NO_DATA_BATCHES: str(name != "tws_ttl" and draw(st.booleans())).lower()}
    # Spark's rewriter, which writes format 2, does not support a limit.
    has_formats = in_rocksdb and name != "limit"
    conf[CHECKPOINT_FORMAT] = draw(st.sampled_from("12" if has_formats else "1"))
    if in_rocksdb:
        conf[CHANGELOG] = draw(st.sampled_from(["true", "false"]))
    if name in AGGREGATIONS:
        conf[AGGREGATION_FORMAT] = draw(st.sampled_from("21"))
    if name == "join":
        conf[JOIN_FORMAT] = draw(st.sampled_from("23" if in_rocksdb else "2"))
    if name in TRANSFORMS:
        conf[ENCODING] = draw(st.sampled_from(["unsaferow", "avro"]))
    return conf
