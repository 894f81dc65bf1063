"""The bounds of a run: each figure that must not grow, its limit, and the reason for the limit.

The process that was started last is compared with itself. Its first quarter is its warm-up, in
which caches fill and the JVM compiles. The median of its last quarter must not exceed the median of
its second quarter by more than the limit allows. These are medians, because single samples count
the connections of requests that run at that moment.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.endurance.driver import KEEP, KEEP_EVERY
from tests.endurance.run import GC_SECONDS, KEPT_COPIES, MINIMUM_AGE_S, OUTAGE_SECONDS

__all__ = ["Bound", "Row", "bounds_of", "percentile", "read_rows"]

MB = 1e6
Row = Mapping[str, float]

# A heap of 1 GB. Class data, compiled code, threads and buffers of Spark take the rest.
_JVM_BYTES = 1.9e9
# A cache of 256 MiB, as much for sorting, and 300 MB for Python with Arrow, pandas and PySpark.
_DRIVER_BYTES = 0.9e9
_WINDOW_SECONDS = MINIMUM_AGE_S + 2 * GC_SECONDS + 2 * OUTAGE_SECONDS + 60
"""How long a file can stay after its checkpoint expired: the minimum age, the time until the next
collection, and the time that a collection, a failed one or an outage takes."""
_OBJECTS_PER_CHECKPOINT = 6
"""Three files of changes, merged layers and folded bases of three subtasks, and the files of three
operator states. The measured mean is lower."""
_CLAIMS_PER_MINUTE = 4
"""A restart, a command and the restart after it, and the repetitions during an outage."""


@dataclass(frozen=True)
class Bound:
    """A figure, its limit, and the reason; the figure fails the run if it exceeds the limit."""

    name: str
    value: float
    limit: float
    unit: str
    reason: str

    @property
    def holds(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.limit

    def __str__(self) -> str:
        """Return its description for a message."""
        sign = "≤" if self.holds else "exceeds"
        return f"{self.name}: {self.value:.6g} {sign} {self.limit:.6g} {self.unit}; {self.reason}"


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a CSV of numbers."""
    with file.open(newline="") as lines:
        return [
            {name: float(value) for name, value in row.items()} for row in csv.DictReader(lines)
        ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)]


def bounds_of(
    samples: Sequence[Row], commits: Sequence[Row], starts: Sequence[float]
) -> list[Bound]:
    """Return the bounds of a run; ``starts`` are the seconds at which the query was started."""
    last = [row for row in samples if row["driver_pid"] == _last_process(samples)]
    return [
        *_memory(last),
        *_handles(last, starts),
        *_objects(samples, commits),
        *_latency(commits),
    ]


def _last_process(samples: Sequence[Row]) -> float:
    return [row["driver_pid"] for row in samples if row["driver_pid"]][-1]


def _growth(rows: Sequence[Row], name: str) -> tuple[float, float]:
    """Return the median of the second quarter and of the last quarter of some rows."""
    quarter = len(rows) // 4
    second, last = rows[quarter : 2 * quarter], rows[3 * quarter :]
    return _median(second, name), _median(last, name)


def _median(rows: Sequence[Row], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _memory(rows: Sequence[Row]) -> Iterator[Bound]:
    leak = "a leak in each micro-batch or command would add up; the rest is the allocator's noise"
    grown = (
        ("driver_rss", "memory of the driver's Python", 1.15, 48 * MB, leak),
        ("maintenance_rss", "memory of the process that runs the commands", 1.15, 48 * MB, leak),
        ("jvm_live_bytes", "heap of the JVM after a full collection", 1.15, 24 * MB, leak),
        ("jvm_non_heap_bytes", "classes and code of the JVM", 1.15, 24 * MB, leak),
    )
    for name, title, factor, rest, reason in grown:
        second, last = _growth(rows, name)
        yield Bound(title, last / MB, (second * factor + rest) / MB, "MB", reason)
    peaks = (
        ("driver_rss", "peak memory of the driver's Python", _DRIVER_BYTES, "its cache and sort"),
        ("jvm_rss", "peak memory of the JVM", _JVM_BYTES, "1 GB of heap, and classes and code"),
    )
    for name, title, limit, reason in peaks:
        yield Bound(title, max(row[name] for row in rows) / MB, limit / MB, "MB", reason)


def _handles(rows: Sequence[Row], starts: Sequence[float]) -> Iterator[Bound]:
    begun = rows[len(rows) // 4]["second"]
    started = sum(second >= begun for second in starts)
    reason = "each query, store and command must close its files and connections"
    pyspark = f"{reason}; PySpark keeps a connection and its thread for each of {started} starts"
    names = (
        ("driver_handles", "file handles of the driver's Python", 8 + started, pyspark),
        ("driver_threads", "threads of the driver's Python", 8 + started, pyspark),
        ("jvm_handles", "file handles of the JVM", 8 + started, pyspark),
        ("jvm_threads", "threads of the JVM", 40, reason),
        ("maintenance_handles", "file handles of the process that runs the commands", 16, reason),
        ("temporary", "entries of the temporary folder", 6, reason),
    )
    for name, title, more, why in names:
        second, last = _growth(rows, name)
        yield Bound(title, last, second + more, "", why)


def _objects(samples: Sequence[Row], commits: Sequence[Row]) -> Iterator[Bound]:
    most, minutes = _most_in(commits, _WINDOW_SECONDS), _WINDOW_SECONDS / 60
    kept = KEEP + KEEP_EVERY
    newest = max((row["checkpoint"] for row in commits), default=0)
    data = (
        f"{_OBJECTS_PER_CHECKPOINT} for each of {kept} kept checkpoints, and for each of the "
        f"{most} that one window of {_WINDOW_SECONDS:.0f} s had"
    )
    manifests = "one for each of these checkpoints; a purge replaces each once"
    log = "an entry for each of these checkpoints; 20 more because a log checkpoint is made each 10"
    tombstones = "one for each expired checkpoint, for 30 days"
    most_claims = 2 + _CLAIMS_PER_MINUTE * minutes + 2 * kept
    copies = f"{KEPT_COPIES} are kept, and a copy is made at most each minute"
    claims = (
        "replaced claims go after the minimum age; at most one interference each minute, and a "
        "purge also claims for each checkpoint that it replaces"
    )
    copies_claims = (
        "replaced claims go after the minimum age; a copy each minute, which is repeated at most "
        "once"
    )
    figures = (
        ("data files of the store", "store_data", _OBJECTS_PER_CHECKPOINT * (kept + most), data),
        ("manifests of the store", "store_manifest", 2 * (kept + most), manifests),
        ("longest Delta log of the store", "store_longest_log", kept + most + 20, log),
        ("tombstones of the store", "store_tombstone", newest + kept, tombstones),
        ("manifests of the copies", "copies_manifest", KEPT_COPIES + 1 + minutes, copies),
        ("claims of writers of the store", "store_claim", most_claims, claims),
        ("claims of writers of the copies", "copies_claim", 2 + 2 * minutes, copies_claims),
    )
    for title, column, limit, reason in figures:
        yield Bound(title, max(row[column] for row in samples), limit, "", reason)


def _most_in(commits: Sequence[Row], seconds: float) -> int:
    """Return the most checkpoints that were committed within some seconds."""
    moments = [row["second"] for row in commits]
    first = most = 0
    for number, moment in enumerate(moments):
        while moments[first] < moment - seconds:
            first += 1
        most = max(most, number - first + 1)
    return most


def _latency(commits: Sequence[Row]) -> Iterator[Bound]:
    took = [row["took_ms"] / 1000 for row in commits]
    quarter = len(took) // 4
    median = statistics.median(took[quarter : 2 * quarter])
    yield Bound(
        "median of the commit latency, last quarter",
        statistics.median(took[-quarter:]),
        1.6 * median + 0.5,
        "s",
        "1.6 times the second quarter and 0.5 s: a checkpoint must not become slower with the "
        "history, and other work on the machine explains the factor",
    )
    yield Bound(
        "99th percentile of the commit latency",
        percentile(took, 0.99),
        30.0,
        "s",
        "the first commit of a cold JVM on a busy machine; in a run of ten minutes it is the 99th "
        "percentile",
    )
    yield Bound(
        "longest commit",
        max(took),
        MINIMUM_AGE_S / 2,
        "s",
        "half the minimum age of a garbage collection, which must exceed the longest snapshot",
    )
