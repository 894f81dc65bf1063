r"""Restore: write the rows of a checkpoint through Spark, at a new parallelism.

    python -m jobs.restore --conf-file conf/restore.toml
    python -m jobs.restore --conf-file conf/restore.toml --output json \
        --set parallelism=3 --set checkpoint=42 --set 'keyed[0].sink.path=/tmp/totals'
    spark-submit --properties-file conf/spark-defaults.conf \
        jobs/restore.py --conf-file conf/restore.toml

By default each subtask's rows are in a directory of their own: subtask=0/, subtask=1/, … If a
target exists, the job refuses it before it writes any state, unless the sink's mode allows it. The
parallelism is a number, is computed from the number of bytes, or is set for each operator of a job
graph.

If there is a restart strategy, another attempt follows a failed one. It reads the settings file and
the latest checkpoint again, and writes all states again. conf/restore.toml documents every setting.

Exit codes: 2 fix the settings; 10 no such store, checkpoint or state; 12 the parallelism does not
fit, or the graph drops a state; 13 the checkpoint is damaged; 15 the store cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # spark-submit runs this file: the package `jobs` is one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.bars import bar_of
from jobs.command import Job, Progress, Report, columns, run
from jobs.frames import (
    element_rows,
    exists,
    keyed_rows,
    refuse_existing,
    session,
    settings_errors,
    write,
)
from jobs.metrics import Listeners
from jobs.places import SinkSettings
from jobs.settings import RestoredStateSettings, RestoreSettings
from statestore import RestoredCheckpoint, StateStore
from statestore.cli.arguments import graph_of
from statestore.format.manifest import Entry, KeyedEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Restore", "main"]


class Restore:
    """Writes states of one checkpoint to their sinks, in as many attempts as it needs."""

    def __init__(self) -> None:
        """Start with no sink written."""
        self._made: set[str] = set()  # sinks of mode error that did not exist before this job

    def attempt(
        self, settings: RestoreSettings, progress: Progress, listeners: Listeners
    ) -> Report:
        """Write the configured states of a checkpoint; return its number and each state's sink."""
        known = _open(settings, settings.checkpoint, None, ())
        for state in settings.keyed:  # before Spark starts, so that a wrong name fails fast
            known.keyed(state.operator, state.state)
        for state in settings.operator_state:
            known.operator_state(state.operator, state.state)
        spark = session(
            settings.spark, app_name="restore", delta=settings.needs_delta, s3=settings.needs_s3
        )
        # By number: a newer checkpoint may exist by now, and a savepoint may have expired.
        wanted = settings.checkpoint
        restored = _open(
            settings, known.checkpoint_id if wanted == "latest" else wanted, spark, listeners
        )
        frames = [*_keyed(settings, restored), *_operator(settings, restored, spark)]
        for state, _ in frames:
            if state.sink.place not in self._made:
                refuse_existing(
                    spark, state.sink, f"state {state.state!r} of operator {state.operator!r}"
                )
        with bar_of(spark, len(frames)) as bar:
            for state, rows in frames:
                bar.begin(f"restoring {state.operator}/{state.state}")
                with settings_errors(f"state {state.state!r} of operator {state.operator!r}"):
                    self._write(spark, rows, state.sink)
                progress(f"{state.operator}/{state.state}: written to {state.sink.place}")
        entries = [*_entries(settings, restored)]
        return {
            "checkpoint": restored.checkpoint_id,
            "old_parallelism": restored.manifest.parallelism,
            "parallelism": restored.parallelism,
            "states": [_state(restored, state, entry) for state, entry in entries],
            "left_out": [
                str(record)
                for record in restored.manifest.left_out
                if any(record.lacks(state.operator, state.state) for state, _ in entries)
            ],
        }

    def _write(self, spark: SparkSession, rows: DataFrame, sink: SinkSettings) -> None:
        """Write to a sink, and overwrite the output of an earlier attempt of this job."""
        if sink.mode != "error":
            write(rows, sink)
            return
        mine = sink.place in self._made
        try:
            write(rows, replace(sink, mode="overwrite") if mine else sink)
        finally:
            # The sink did not exist just before. This is checked now and not before the next
            # attempt: data that others write there while this job waits must not be replaced.
            if exists(spark, sink):
                self._made.add(sink.place)


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    return run(Job("restore", __doc__ or "", RestoreSettings, Restore().attempt, _text), arguments)


def _open(
    settings: RestoreSettings,
    checkpoint: int | str,
    spark: SparkSession | None,
    listeners: Listeners,
) -> RestoredCheckpoint:
    options = settings.store.options
    store = StateStore.open(settings.store.url, spark=spark, listeners=listeners, **options)
    target = settings.target(graph_of(settings.graph))
    return store.restore(checkpoint=checkpoint, **vars(target))


def _keyed(
    settings: RestoreSettings, restored: RestoredCheckpoint
) -> Iterator[tuple[RestoredStateSettings, DataFrame]]:
    for state in settings.keyed:
        rows = restored.keyed(state.operator, state.state).to_spark()
        yield state, keyed_rows(rows, per_subtask=state.sink.per_subtask)


def _operator(
    settings: RestoreSettings, restored: RestoredCheckpoint, spark: SparkSession
) -> Iterator[tuple[RestoredStateSettings, DataFrame]]:
    for state in settings.operator_state:
        operator = restored.operator_state(state.operator, state.state)
        lists = [*operator.subtasks()]
        yield state, element_rows(spark, operator.entry.state.schema.to_json(), lists)


def _entries(
    settings: RestoreSettings, restored: RestoredCheckpoint
) -> Iterator[tuple[RestoredStateSettings, Entry]]:
    for state in settings.keyed:
        yield state, restored.keyed(state.operator, state.state).entry
    for state in settings.operator_state:
        yield state, restored.operator_state(state.operator, state.state).entry


def _state(
    restored: RestoredCheckpoint, state: RestoredStateSettings, entry: Entry
) -> dict[str, Any]:
    changes = entry.changed_rows if isinstance(entry, KeyedEntry) else 0
    return {
        "operator": state.operator,
        "state": state.state,
        "parallelism": restored.parallelism_of(state.operator),
        "stored_rows": entry.parts[0].rows,
        "target": state.sink.place,
        "per_subtask": state.sink.per_subtask,
    } | ({"stored_changes": changes} if changes else {})


def _text(report: Report) -> str:
    header = ("operator", "state", "parallelism", "stored_rows", "target")
    states = columns(header, [[state[name] for name in header] for state in report["states"]])
    parallelism = f"{report['old_parallelism']} -> {report['parallelism']}"
    lacking = "".join(f"\nleft out  {record}" for record in report["left_out"])
    return f"checkpoint {report['checkpoint']}, parallelism {parallelism}\n{states}{lacking}"


if __name__ == "__main__":
    raise SystemExit(main())
