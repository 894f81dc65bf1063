"""The cost of a checkpoint of changes compared with a full one, and of a long history of them.

Through Spark: a share of the users changes, and only the changed rows are written; the rows are
cached in the JVM, as in the full snapshot. In Arrow: a thousand checkpoints of a thousand changes,
with compaction as a store has it by default, then a plan, a restore and a query of the newest,
against the same rows as one full snapshot. And 200 checkpoints in a row of a small and a large
state, with compaction and without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.measure import Figure, Runs, counted, in_turn, sample, times
from bench.state import state_rows, state_table
from statestore import StateStore
from statestore.format.manifest import KeyedEntry
from statestore.snapshot.state_spec import Changes
from statestore.spark.session import spark_session

__all__ = ["costs", "figures", "history"]

PARALLELISM, MAX_PARALLELISM = 4, 128
SHARES = (0.001, 0.01, 0.1)
FULL = "full snapshot, Spark"
MOST_TIME = {0.01: 0.1, 0.1: 0.25}  # by the share that changed
MOST_BYTES = {0.01: 0.03}

CHECKPOINTS, CHANGES = 1000, 1000
FEWEST = 10_000  # rows of the base, however small a run is asked for
READ_FULL, READ_LAYERED = "restore of a full snapshot, Arrow", "restore after 1,000 checkpoints"
READ_MOST = "restore of the checkpoint with most changes"
MOST_READ_AMPLIFICATION = 1.5
MOST_RESTORE_TIME, MOST_RESTORE_IN_A_ROW, MOST_ASK_TIME = 1.7, 2.5, 2
ASK_FULL, ASK_LAYERED = "sum of a column of a full snapshot", "the same after 1,000 checkpoints"
SUM = "SELECT sum(amount) FROM state"

SMALL_STATE, STREAM_SHARES, STREAM_CHECKPOINTS = 100_000, (0.01, 0.05), 200
PAUSED_CHECKPOINTS, PAUSE = 50, 5  # a pause of five times a checkpoint without compaction
MOST_TAIL, MOST_SUM, MOST_SUM_IN_A_ROW = 2, 1.15, 2


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time and the bytes of changes, each as a ratio to a full snapshot."""
    spark = spark_session(app_name="statestore-bench", master="local[2]", driver_memory="8g")
    state = state_rows(spark, rows).persist()
    changed = {share: _share(state, share).persist() for share in SHARES}
    for frame in (state, *changed.values()):
        frame.count()
    store = StateStore.open(str(folder / "store"), spark=spark)
    sizes: dict[str, int] = {}
    runs: Runs = {FULL: partial(_full, store, state, sizes)} | {
        _changes(share): partial(_part, store, frame, share, sizes)
        for share, frame in changed.items()
    }
    seconds = in_turn(runs, repeats)
    spark.stop()
    found = [times("B16", FULL, seconds)]
    for share in SHARES:
        what = _changes(share)
        found.append(times("B16", what, seconds, floor=FULL, goal=MOST_TIME.get(share)))
        part = sizes[what] / sizes[FULL]
        what = f"{what}: bytes of a full one"
        found.append(counted("B16", what, part, "×", goal=MOST_BYTES.get(share)))
    return found


def _share(state: DataFrame, share: float) -> DataFrame:
    parts = 1_000_000
    chosen = F.pmod(F.xxhash64("user"), F.lit(parts)) < int(parts * share)
    return state.where(chosen).withColumn("count", F.col("count") + 1)


def _changes(share: float) -> str:
    return f"changes of {share:.1%}, Spark"


def _full(store: StateStore, rows: DataFrame, sizes: dict[str, int]) -> None:
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        entry = checkpoint.write_keyed(
            "bench", "state", rows, key="user", max_parallelism=MAX_PARALLELISM
        )
    sizes[FULL] = entry.size_bytes


def _part(store: StateStore, rows: DataFrame, share: float, sizes: dict[str, int]) -> None:
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        entry = checkpoint.write_changes("bench", "state", rows, key="user")
    sizes[_changes(share)] = entry.layers[-1].entry.size_bytes


def history(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return what a thousand checkpoints of a thousand changes leave, and take."""
    rows = max(rows, FEWEST)
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    base = state_table(rows)
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        checkpoint.write_keyed("bench", "state", base, key="user", max_parallelism=MAX_PARALLELISM)
    seconds, amplification = [], []
    for upserts, deletes in _random_changes(base):
        start = time.perf_counter()
        with store.snapshot(parallelism=PARALLELISM) as checkpoint:
            checkpoint.write_changes("bench", "state", Changes(upserts, deletes), key="user")
        seconds.append(time.perf_counter() - start)
        amplification.append(_amplification(checkpoint.manifest.keyed[0]))
    entry = store.checkpoint().manifest.keyed[0]
    full = StateStore.open(str(folder / "full"), table_format="parquet")
    with full.snapshot(parallelism=PARALLELISM) as checkpoint:
        merged = pa.concat_tables(list(_subtasks(store))).drop_columns(["key_group"])
        checkpoint.write_keyed(
            "bench", "state", merged, key="user", max_parallelism=MAX_PARALLELISM
        )
    reads: Runs = {
        READ_FULL: partial(_read, full),
        READ_LAYERED: partial(_read, store),
        # The first checkpoint is the base, and the others are numbered as they come.
        READ_MOST: partial(_read, store, 2 + amplification.index(max(amplification))),
        ASK_FULL: lambda: full.query(SUM).read_all(),
        ASK_LAYERED: lambda: store.query(SUM).read_all(),
        "plan after 1,000 checkpoints": lambda: store.plan(parallelism=8),
    }
    read = in_turn(reads, repeats)
    on_disk = sum(1 for _ in (folder / "store").rglob("*.parquet"))
    return [
        sample("B17", f"checkpoint of {CHANGES:,} changes, Arrow", seconds, tail=True),
        counted("B17", "layers of the newest checkpoint", len(entry.layers), ""),
        counted("B17", "files of the newest checkpoint", entry.files, ""),
        counted("B17", "files of all checkpoints, none expired", on_disk, ""),
        counted(
            "B17", "rows read for each of the base, most", max(amplification), "×",
            goal=MOST_READ_AMPLIFICATION,
        ),
        times("B17", "plan after 1,000 checkpoints", read),
        times("B17", READ_FULL, read),
        times("B17", READ_LAYERED, read, floor=READ_FULL, goal=MOST_RESTORE_TIME),
        times("B17", READ_MOST, read, floor=READ_FULL, goal=MOST_RESTORE_TIME),
        times("B17", ASK_FULL, read),
        times("B17", ASK_LAYERED, read, floor=ASK_FULL, goal=MOST_ASK_TIME),
    ]  # fmt: skip


def costs(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return what compaction adds to checkpoints of changes, in a row and with pauses."""
    found = []
    for number in dict.fromkeys((min(SMALL_STATE, rows), rows)):
        base = state_table(number)
        for share in STREAM_SHARES:
            found += _cost(folder / f"{number}-{share}", base, share, repeats)
    return found


def _cost(folder: Path, base: pa.Table, share: float, repeats: int) -> list[Figure]:
    """Measure without compaction first: a thread of one store would slow the other one down."""
    what = f"{base.num_rows:,} rows, {share:.0%} changed"
    never = StateStore.open(str(folder / "never"), table_format="parquet", compaction=None)
    without = _stream(never, base, share, STREAM_CHECKPOINTS)
    usual = sample("B30", f"checkpoint without compaction, {what}", without, tail=True)
    pause = PAUSE * usual.value
    calm = StateStore.open(str(folder / "calm"), table_format="parquet", compaction=None)
    apart_without = _stream(calm, base, share, PAUSED_CHECKPOINTS, pause)
    paused = StateStore.open(str(folder / "paused"), table_format="parquet")
    apart = _stream(paused, base, share, PAUSED_CHECKPOINTS, pause)
    paused.parts.background.wait()
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    in_a_row = _stream(store, base, share, STREAM_CHECKPOINTS)
    store.parts.background.wait()
    full, layered = f"restore of a full one, {what}", f"restore after 200, {what}"
    calmer = f"restore after {PAUSED_CHECKPOINTS} with pauses, {what}"
    reads: Runs = {
        full: partial(_read, store, 1),
        layered: partial(_read, store),
        calmer: partial(_read, paused),
    }
    read = in_turn(reads, repeats)
    return [
        usual,
        *_compared(f"with pauses, {what}", apart, apart_without, MOST_SUM, MOST_TAIL),
        *_compared(f"in a row, {what}", in_a_row, without, MOST_SUM_IN_A_ROW),
        times("B30", full, read),
        times("B30", layered, read, floor=full, goal=MOST_RESTORE_IN_A_ROW),
        times("B30", calmer, read, floor=full, goal=MOST_RESTORE_TIME),
    ]


def _compared(
    what: str,
    seconds: list[float],
    without: list[float],
    most_sum: float,
    most_tail: float | None = None,
) -> list[Figure]:
    """Return checkpoints with compaction, and their tail and sum relative to those without."""
    own = sample("B30", f"checkpoint {what}", seconds, tail=True)
    assert own.p99 is not None
    tail, total = own.p99 / statistics.median(without), sum(seconds) / sum(without)
    return [
        own,
        counted("B30", f"p99 to the median without, {what}", tail, "×", goal=most_tail),
        counted("B30", f"sum to the sum without, {what}", total, "×", goal=most_sum),
    ]


def _stream(
    store: StateStore, base: pa.Table, share: float, count: int, pause: float = 0
) -> list[float]:
    """Return the seconds of ``count`` checkpoints that each change a share of the rows."""
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        checkpoint.write_keyed("bench", "state", base, key="user", max_parallelism=MAX_PARALLELISM)
    random, seconds = np.random.default_rng(7), []
    for _ in range(count):
        chosen = random.choice(base.num_rows, int(base.num_rows * share), replace=False)
        changed = base.take(pa.array(chosen))
        time.sleep(pause)
        start = time.perf_counter()
        with store.snapshot(parallelism=PARALLELISM) as checkpoint:
            checkpoint.write_changes("bench", "state", changed)
        seconds.append(time.perf_counter() - start)
    return seconds


def _random_changes(base: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield upserts and deletes of users: nine in ten of the one, one in ten of the other."""
    random = np.random.default_rng(7)
    for _ in range(CHECKPOINTS):
        chosen = pa.array(random.choice(base.num_rows, CHANGES, replace=False))
        rows = base.take(chosen)
        gone = CHANGES // 10
        yield rows.slice(gone), rows.slice(0, gone).select(["user"])


def _amplification(entry: KeyedEntry) -> float:
    return entry.rows / max(entry.rows - entry.changed_rows, 1)


def _subtasks(store: StateStore, checkpoint: int | str = "latest") -> Iterator[pa.Table]:
    restored = store.restore(checkpoint=checkpoint, parallelism=PARALLELISM).keyed("bench", "state")
    for subtask in range(PARALLELISM):
        yield restored.to_arrow(subtask)


def _read(store: StateStore, checkpoint: int | str = "latest") -> int:
    return sum(table.num_rows for table in _subtasks(store, checkpoint))
