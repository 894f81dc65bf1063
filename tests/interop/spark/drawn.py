"""Hypothesis strategies for queries: their operators, providers, formats, partitions and data.

A :class:`Move` shrinks to one key, few functions, two micro-batches and one event each.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

from tests.interop.spark.drawn_queries import (
    EVENT_TIME,
    FAMILIES,
    FIELDS,
    FIXED,
    GROUPS,
    KEYS,
    ORDERED,
    ORDERLESS,
    USER_KEYS,
    VARIABLES,
    DrawnQuery,
    Family,
    Variable,
)
from tests.interop.spark.queries import NO_DATA_BATCHES, QUERIES, SPAN, START

__all__ = ["FEATURES", "Event", "Move", "moves", "write_batches"]

Provider = Literal["hdfs", "rocksdb"]

PROVIDERS: tuple[Provider, ...] = ("hdfs", "rocksdb")
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


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

    query: DrawnQuery
    providers: tuple[Provider, Provider]
    partitions: tuple[int, int]
    conf: tuple[tuple[str, str], ...]
    before: tuple[tuple[Event, ...], ...]
    after: tuple[tuple[Event, ...], ...]

    def features(self) -> Iterator[str]:
        """Yield the names of the features that the query and its move have."""
        yield f"family {self.query.family}"
        yield from self.query.features()
        first, second = self.partitions
        yield f"partitions {'equal' if first == second else 'more' if first < second else 'fewer'}"
        yield " to ".join(self.providers)
        for name, value in self.conf:
            yield f"{self.query.settings_group} with {_short(name)} {value}"


def _short(setting: str) -> str:
    return setting.removeprefix("spark.sql.streaming.")


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
def _queries(draw: st.DrawFn, family: Family) -> DrawnQuery:
    if family in FIXED:
        return DrawnQuery(family, QUERIES[family].mode, (), (), ())
    is_transform = family.startswith("transform")
    key = st.sampled_from(GROUPS if is_transform else KEYS)
    keys = draw(st.lists(key, min_size=1, max_size=4 if is_transform else 3, unique=True))
    if family.startswith("dedup") and draw(st.booleans()):
        keys.append(EVENT_TIME)
    return DrawnQuery(
        family,
        draw(_modes(family)),
        tuple(keys),
        draw(_functions(family)),
        draw(_variables()) if is_transform else (),
    )


def _modes(family: Family) -> st.SearchStrategy[str]:
    if family == "aggregation":
        return st.sampled_from(["update", "complete"])
    if family == "window":
        return st.sampled_from(["append", "update", "complete"])
    return st.just("update" if family.startswith("transform") else "append")


@st.composite
def _functions(draw: st.DrawFn, family: Family) -> tuple[str, ...]:
    if family not in ("aggregation", "window", "session", "chain"):
        return ()
    functions = draw(st.lists(st.sampled_from(ORDERLESS), min_size=3, max_size=8, unique=True))
    # Sessions are merged in another order, and the rows of a chain arrive in another order.
    if family in ("aggregation", "window"):
        functions += draw(st.lists(st.sampled_from(ORDERED), min_size=1, max_size=5, unique=True))
    return tuple(functions)


@st.composite
def _variables(draw: st.DrawFn) -> tuple[Variable, ...]:
    """Draw at least one variable of each kind."""
    more = draw(st.lists(st.sampled_from(VARIABLES), max_size=2))
    fields = st.lists(st.sampled_from(FIELDS), min_size=2, max_size=9, unique=True).map(tuple)
    user_keys = st.lists(st.sampled_from(USER_KEYS), min_size=1, unique=True).map(tuple)
    return tuple(Variable(kind, draw(fields), draw(user_keys)) for kind in (*VARIABLES, *more))


@st.composite
def moves(draw: st.DrawFn, family: Family | None = None) -> Move:
    """Draw a query with its settings and input, and the settings of the query that continues."""
    drawn = draw(_queries(draw(st.sampled_from(FAMILIES)) if family is None else family))
    # RocksDB has more settings, so it gets a larger share.
    pairs: list[tuple[Provider, Provider]] = [(one, two) for one in PROVIDERS for two in PROVIDERS]
    pairs += [("rocksdb", "rocksdb")] * 2
    supported = {*drawn.query().providers}
    providers = draw(st.sampled_from([pair for pair in pairs if {*pair} <= supported]))
    partitions = (draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    conf = draw(_settings(drawn, providers))
    return Move(
        drawn,
        providers,
        partitions,
        tuple(sorted(conf.items())),
        draw(st.lists(_BATCH, min_size=1, max_size=2).map(tuple)),
        draw(st.lists(_BATCH, min_size=1, max_size=2).map(tuple)),
    )


@st.composite
def _settings(
    draw: st.DrawFn, query: DrawnQuery, providers: tuple[Provider, Provider]
) -> dict[str, str]:
    in_rocksdb = providers == ("rocksdb", "rocksdb")
    # A micro-batch without data of a query in processing time is always followed by another.
    has_more = not query.is_in_processing_time and draw(st.booleans())
    conf = {NO_DATA_BATCHES: str(has_more).lower()}
    # Spark's rewriter, which writes format 2, does not support a limit.
    has_formats = in_rocksdb and query.family != "limit"
    conf[CHECKPOINT_FORMAT] = draw(st.sampled_from("12" if has_formats else "1"))
    if in_rocksdb:
        conf[CHANGELOG] = draw(st.sampled_from(["true", "false"]))
    if query.settings_group == "aggregation":
        conf[AGGREGATION_FORMAT] = draw(st.sampled_from("21"))
    if query.settings_group == "join":
        conf[JOIN_FORMAT] = draw(st.sampled_from("23" if in_rocksdb else "2"))
    if query.is_transform:
        conf[ENCODING] = draw(st.sampled_from(["unsaferow", "avro"]))
    return conf


FEATURES = frozenset(
    (
        *(f"family {family}" for family in FAMILIES),
        *(f"key {key}" for key in {*KEYS, *GROUPS, EVENT_TIME}),
        *(*ORDERLESS, *ORDERED),
        *(f"{kind} {field}" for kind in VARIABLES for field in FIELDS),
        *(f"user key {field}" for field in USER_KEYS),
        *(f"partitions {change}" for change in ("equal", "more", "fewer")),
        *(f"{before} to {after}" for before in PROVIDERS for after in PROVIDERS),
        *(
            f"{what} with {setting}"
            for what in ("aggregation", "join", "transform", "other")
            for setting in (
                *(f"{_short(NO_DATA_BATCHES)} {flag}" for flag in ("true", "false")),
                *(f"{_short(CHANGELOG)} {flag}" for flag in ("true", "false")),
                *(f"{_short(CHECKPOINT_FORMAT)} {version}" for version in "12"),
            )
        ),
        *(f"aggregation with {_short(AGGREGATION_FORMAT)} {version}" for version in "12"),
        *(f"join with {_short(JOIN_FORMAT)} {version}" for version in "23"),
        *(f"transform with {_short(ENCODING)} {form}" for form in ("unsaferow", "avro")),
    )
)
"""All that :meth:`Move.features` yields."""
