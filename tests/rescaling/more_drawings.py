"""The drawings of docs/RESCALING.md, from section 6 on: bytes, hosts, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from jobs.job import JobSettings, load_settings
from statestore import KeyGroupRange
from statestore.cli.drawing import UNICODE, bar, range_text, size
from statestore.jobgraph.restart import RestartStrategy
from statestore.jobgraph.slots import PreviousAllocation, place_subtasks
from tests.rescaling.facts import RATE, decision
from tests.rescaling.job import HOSTS, NEW, OLD, ROW_BYTES, Job
from tests.rescaling.layout import cells, cut, table

INDENT, CELL = 15, 5
NONE = "·"
WAITING = "waits"

# Seconds that the job ran before each failure; one failure occurs while the job still waits.
RUNS: tuple[int | str, ...] = (20, 3, WAITING, 3, 3, 3, 3, 4000)
RATED_RUNS: tuple[int | str, ...] = (40, 30, 10, 20, 5)


def bytes_by_range(job: Job) -> str:
    """Draw each key group's bytes, divided evenly and by bytes, and the share of each subtask."""
    chosen = decision(job)
    even = job.assignment(chosen.parallelism).ranges()
    megabytes = [size_bytes // ROW_BYTES for size_bytes in job.bytes_of_key_groups]
    return "\n".join(
        [
            cells("key group", range(job.max_parallelism), indent=INDENT, width=CELL),
            cells("MB", [number or NONE for number in megabytes], indent=INDENT, width=CELL),
            f"{_cut('even ranges', even)}  {_each(chosen.even_range_bytes)}",
            f"{_cut('cut by bytes', chosen.byte_ranges)}  {_each(chosen.byte_range_bytes)}",
        ]
    )


def placement(job: Job) -> str:
    """Draw where the bytes of each new subtask are, and where it is placed; host d is new."""
    old, new = job.assignment(OLD).ranges(), job.assignment(NEW)
    previous = [PreviousAllocation(i, own, _held(job, own)) for i, own in enumerate(old)]
    placed = place_subtasks(new, previous, range(NEW))
    names = [*HOSTS, "d"]
    rows, local = [], 0
    for subtask, slot in enumerate(placed):
        own = new.range_of(subtask)
        shares = [_held(job, own.intersect(each)) for each in old]
        here = shares[slot] if slot < OLD else 0
        local += here
        drawn = [_share(share, chosen=at == slot) for at, share in enumerate([*shares, 0])]
        groups = range_text(own, UNICODE)
        rows.append((subtask, groups, *drawn, f"host {names[slot]}", size(here)))
    in_order = sum(_held(job, new.range_of(i).intersect(each)) for i, each in enumerate(old))
    total = size(job.sums.size_bytes)
    hosts = [f"bytes on {name}" for name in names]
    columns = ["subtask", "key groups", *hosts, "runs on", "local"]
    return (
        table(columns, rows, left=",".join(hosts))
        + f"\nlocal: {size(local)} of {total}; "
        + f"with subtask i on the i-th host it would be {size(in_order)}"
    )


def restarts(job: Job) -> str:
    """Draw a series of failures under the settings above, next to one under a failure rate."""
    strategy = load_settings("restart.toml", (), JobSettings).restart_strategy
    left = ["exponential-delay", *_restarts(strategy, RUNS, drawn=True).splitlines()]
    right = ["failure-rate", *_restarts(RATE, RATED_RUNS, drawn=False).splitlines()]
    width = max(map(len, left))
    return "\n".join(f"{a:<{width}}      {b}" for a, b in zip_longest(left, right, fillvalue=""))


def _restarts(strategy: RestartStrategy, runs: Sequence[int | str], *, drawn: bool) -> str:
    """Return each failure of a job, its backoff, and whether the job restarts."""
    state, begins = strategy.begin(), 0
    failed, ended = 0, False
    rows: list[tuple[object, ...]] = []
    for run in runs:
        assert not ended
        failed = begins + run * 1000 if isinstance(run, int) else (failed + begins) // 2
        state, is_new = state.notify(failed)
        ended = not state.can_restart(failed)
        wait = state.backoff_ms(failed)
        begins = failed + wait
        ran = _seconds(run * 1000) if isinstance(run, int) else run
        shown = "the job ends" if ended else _seconds(wait)
        row = (ran, _seconds(failed), state.attempts if is_new else f"({state.attempts})", shown)
        length = bar(0 if ended else wait, 10_000, width=20, pen=UNICODE) or NONE
        rows.append((*row, length) if drawn else row)
    names = ["runs for", "fails at", "attempt", "waits"]
    return table([*names, "as a bar"] if drawn else names, rows, left="as a bar")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:,g} s"


def _each(sizes: Sequence[int]) -> str:
    return " + ".join(str(size_bytes // ROW_BYTES) for size_bytes in sizes) + " MB"


def _share(value: int, *, chosen: bool) -> str:
    if not value:
        return "●" if chosen else NONE
    return (
        f"{bar(value, 6 * ROW_BYTES, width=6, pen=UNICODE)} {size(value)}{' ●' if chosen else ''}"
    )


def _held(job: Job, groups: KeyGroupRange | None) -> int:
    return sum(job.bytes_of_key_groups[group] for group in groups) if groups else 0


def _cut(label: str, ranges: Sequence[KeyGroupRange]) -> str:
    named = [(range_text(one, UNICODE), len(one)) for one in ranges]
    return cut(label, named, indent=INDENT, width=CELL)
