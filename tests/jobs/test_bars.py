"""Progress of the jobs: a bar on a terminal that follows Spark's tasks, and otherwise no output."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.bars import StatesBar, bar_of, tasks_of
from jobs.restore import main as restore
from jobs.snapshot import main as snapshot
from tests.support.terminal import terminal

pytestmark = pytest.mark.spark

STORE = '[store]\nurl = "{here}/store"\n'
SNAPSHOT = f"""
parallelism = 2
{STORE}table_format = "parquet"
[[keyed]]
operator = "totals"
state = "sums"
key = ["k"]
max_parallelism = 4
[keyed.source]
format = "json"
path = "{{here}}/rows.json"
"""
RESTORE = f"""
parallelism = 1
{STORE}
[[keyed]]
operator = "totals"
state = "sums"
[keyed.sink]
format = "parquet"
path = "{{here}}/out"
"""


def test_the_bar_advances_by_state_and_within_a_state_by_task() -> None:
    drawn: list[tuple[float, float, str | None]] = []
    tasks = iter([(0, 0), (1, 4), (8, 8)])
    bar = StatesBar(2, lambda *given: drawn.append(given), lambda: next(tasks))
    bar.begin("writing a")
    bar.look()  # no stage is running, so there is nothing new to draw
    bar.look()
    bar.begin("writing b")
    bar.begin("committing")
    bar.look()
    assert drawn == [
        (0, 2, "writing a"),
        (0.25, 2, "writing a: 1 of 4 tasks"),
        (1, 2, "writing b"),
        (2, 2, "committing"),
    ]


def test_tasks_are_counted_over_running_stages(spark: SparkSession, tmp_path: Path) -> None:
    go = str(tmp_path / "go")

    def wait(batches: Iterable[object]) -> Iterator[object]:
        while not os.path.exists(go):  # noqa: PTH110 - runs in a worker
            time.sleep(0.05)
        yield from batches

    frame = spark.range(4, numPartitions=2).mapInArrow(wait, "id long")
    running = threading.Thread(target=frame.collect)
    running.start()
    try:
        under_way = tasks_before_long(spark, (0, 2))
    finally:
        Path(go).touch()
        running.join()
    assert under_way == (0, 2)
    assert tasks_before_long(spark, (0, 0)) == (0, 0)


def tasks_before_long(spark: SparkSession, wanted: tuple[int, int]) -> tuple[int, int]:
    """Return the expected counts as soon as they occur, or the last counts after five minutes."""
    deadline = time.monotonic() + 300
    while (found := tasks_of(spark)) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_on_a_terminal_snapshot_and_restore_draw_their_states(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "rows.json").write_text('{"k": "a", "v": 1}\n')
    with terminal() as drawn:
        for main, text in ((snapshot, SNAPSHOT), (restore, RESTORE)):
            file = tmp_path / "settings.toml"
            file.write_text(text.replace("{here}", str(tmp_path)))
            assert main(["--conf-file", str(file)]) == 0
    for part in ("writing totals/sums", "totals/sums: 1 rows", "committing", "restoring totals"):
        assert part in drawn[0]


def test_without_a_terminal_nothing_is_drawn_and_spark_is_not_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with bar_of(None, 1) as bar:  # type: ignore[arg-type]
        bar.begin("writing a")
    assert capfd.readouterr() == ("", "")
