"""One page about the last run of each shard: ``python -m tests.nightly.page``.

The exit code is 1 if the last run of a shard failed, or is more than seven days ago.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from tests.nightly import results
from tests.nightly.results import FOLDER, Result
from tests.nightly.shards import SHARDS

__all__ = ["main", "page", "problems"]

OLDEST = timedelta(days=7)


def problems(last: Mapping[str, Result], names: Iterable[str], now: datetime) -> list[str]:
    """Return the shards that failed, that are too old, or that never ran."""
    found = []
    for name in names:
        result = last.get(name)
        if result is None:
            found.append(f"{name} has never run")
        elif result.result == "failed":
            found.append(f"{name} failed: {result.reason}")
        elif result.age(now) > OLDEST:
            found.append(f"{name} last ran {result.age(now).days} days ago")
    return found


def page(last: Mapping[str, Result], names: Sequence[str], now: datetime) -> str:
    """Return the page as Markdown: the problems, then a line for each shard."""
    found = problems(last, names, now)
    ran = [last[name] for name in names if name in last]
    hours = sum(result.seconds for result in ran) / 3600
    lines = [
        "# Nightly",
        "",
        f"{now:%Y-%m-%d %H:%M} UTC: {len(ran)} of {len(names)} shards ran, {hours:.1f} hours.",
        "",
        *(f"* {problem}" for problem in found),
        *([""] if found else []),
        "| shard | result | minutes | started | tree | seed | reason |",
        "| --- | --- | --: | --- | --- | --: | --- |",
    ]
    lines += [
        f"| {result.shard} | {result.result} | {result.seconds / 60:.1f} "
        f"| {result.started:%Y-%m-%d %H:%M} | {result.tree[:8]} | {result.seed} "
        f"| {result.reason.replace('|', '/')} |"
        for result in ran
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, print it, and return the exit code."""
    last, names = results.newest(results.read()), [shard.name for shard in SHARDS]
    text = page(last, names, results.now())
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "page.md").write_text(text)
    print(text)
    return 1 if problems(last, names, results.now()) else 0


if __name__ == "__main__":
    sys.exit(main())
