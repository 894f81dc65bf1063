"""Draw the figures of a run, and write the table of its bounds."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import vl_convert

from tests.endurance.bounds import Bound, Row, bounds_of, percentile, read_rows

__all__ = ["write_report"]

_MOST_POINTS = 300
_WINDOWS = 40
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_WIDTH, _HEIGHT = 680, 190
Points = list[dict[str, Any]]


def write_report(folder: Path) -> list[Bound]:
    """Write ``report.md`` and the figures of a run into its folder; return its bounds."""
    samples, commits = (read_rows(folder / name) for name in ("samples.csv", "commits.csv"))
    bounds = bounds_of(samples, commits, _starts(folder))
    for name, (title, points) in figures(samples, commits).items():
        (folder / f"{name}.svg").write_text(_svg(title, points))
    (folder / "report.md").write_text("\n".join(_text(folder, samples, commits, bounds)) + "\n")
    return bounds


def figures(samples: Sequence[Row], commits: Sequence[Row]) -> dict[str, tuple[str, Points]]:
    """Return the title and the points of each figure."""
    memory = {
        "driver, Python": "driver_rss",
        "driver, JVM": "jvm_rss",
        "JVM's heap after a collection": "jvm_live_bytes",
        "Spark's Python workers": "workers_rss",
        "commands": "maintenance_rss",
    }
    handles = {"driver": "driver_handles", "JVM": "jvm_handles", "commands": "maintenance_handles"}
    objects = {"data files": "store_data", "manifests": "store_manifest", "Delta logs": "store_log"}
    claims = {"store": "store_claim", "copies": "copies_claim"}
    logs = {"store": "store_longest_log", "copies": "copies_longest_log"}
    return {
        "endurance-memory": ("memory, MB", _lines(samples, memory, 1e6)),
        "endurance-handles": ("file handles", _lines(samples, handles)),
        "endurance-objects": ("objects of the store", _lines(samples, objects)),
        "endurance-logs": ("files of the longest Delta log", _lines(samples, logs)),
        "endurance-claims": ("writers' claims", _lines(samples, claims)),
        "endurance-latency": ("commit latency, s", _latencies(commits)),
    }


def _lines(rows: Sequence[Row], names: Mapping[str, str], unit: float = 1) -> Points:
    step = max(len(rows) // _MOST_POINTS, 1)
    return [
        {"minute": row["second"] / 60, "value": row[name] / unit, "what": title}
        for row in rows[::step]
        for title, name in names.items()
    ]


def _latencies(commits: Sequence[Row]) -> Points:
    size = max(len(commits) // _WINDOWS, 1)
    points: Points = []
    for first in range(0, len(commits) - size + 1, size):
        part = commits[first : first + size]
        took = [row["took_ms"] / 1000 for row in part]
        minute = part[0]["second"] / 60
        points += [
            {"minute": minute, "value": statistics.median(took), "what": "median"},
            {"minute": minute, "value": percentile(took, 0.99), "what": "99th percentile"},
        ]
    return points


def _svg(title: str, points: Points) -> str:
    order = list(dict.fromkeys(point["what"] for point in points))
    spec = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "background": "white",
        "data": {"values": points},
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": "minute", "type": "quantitative", "title": "minute"},
            "y": {"field": "value", "type": "quantitative", "title": title},
            "color": {
                "field": "what",
                "type": "nominal",
                "title": None,
                "sort": order,
                "scale": {"range": list(_COLORS)},
            },
        },
        "config": {"font": "sans-serif", "legend": {"orient": "top"}},
    }
    return str(vl_convert.vegalite_to_svg(spec))


def _text(
    folder: Path, samples: Sequence[Row], commits: Sequence[Row], bounds: Sequence[Bound]
) -> Iterator[str]:
    took = [row["took_ms"] / 1000 for row in commits]
    yield f"* {samples[-1]['second'] / 60:.0f} minutes, {len(commits)} checkpoints of the query."
    yield (
        f"* Commit latency: median {statistics.median(took):.2f} s, 99th percentile "
        f"{percentile(took, 0.99):.2f} s, longest {max(took):.2f} s."
    )
    yield ""
    yield "| event | number |"
    yield "| --- | --- |"
    yield from (f"| {event} | {number} |" for event, number in sorted(_events(folder).items()))
    yield ""
    yield "| bounded | value | limit | unit | holds | reason |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for bound in bounds:
        answer = "yes" if bound.holds else "**no**"
        yield (
            f"| {bound.name} | {bound.value:.4g} | {bound.limit:.4g} | {bound.unit} | {answer} | "
            f"{bound.reason} |"
        )


def _starts(folder: Path) -> list[float]:
    """Return the seconds at which the query was started, also by itself after an error."""
    with (folder / "events.jsonl").open() as lines:
        events = map(json.loads, lines)
        return [event["second"] for event in events if event["event"] in ("start", "job restart")]


def _events(folder: Path) -> Counter[str]:
    """Return how often each event happened; faults of the network by name."""
    counts: Counter[str] = Counter()
    with (folder / "events.jsonl").open() as lines:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "requests":
                others = event.keys() - {"event", "second"}
                counts.update({f"requests: {name}": event[name] for name in others})
            elif event["event"] != "begin":
                counts[event["event"]] += 1
    return counts
