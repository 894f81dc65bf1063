r"""Restore: a checkpoint at a new parallelism, its rows written where Spark can write.

    python -m jobs.restore --conf-file conf/restore.toml
    python -m jobs.restore --conf-file conf/restore.toml --output json \
        --set parallelism=3 --set checkpoint=42 --set 'keyed[0].sink.path=/tmp/totals'
    spark-submit --properties-file conf/spark-defaults.conf \
        jobs/restore.py --conf-file conf/restore.toml

By default each subtask's rows lie in a directory of their own, subtask=0/, subtask=1/, … A target
that exists is refused before any state is written, unless its mode says otherwise.
conf/restore.toml documents every setting. Exit codes: 2 fix the settings; 10 no such store,
checkpoint or state; 12 the parallelism does not fit; 13 the checkpoint is damaged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # spark-submit runs this file: the package `jobs` lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import DataFrame, SparkSession

from jobs.command import Job, Progress, Report, columns, run
from jobs.frames import element_rows, keyed_rows, naming, refuse_existing, session, write
from jobs.settings import RestoredStateSettings, RestoreSettings
from statestore import RestoredCheckpoint, StateStore

__all__ = ["main", "restore"]


def restore(settings: RestoreSettings, progress: Progress) -> Report:
    """Write the named states of a checkpoint; return its number and where each state went."""
    known = _open(settings, settings.checkpoint, None)
    for state in settings.keyed:  # before Spark starts: a wrong name should not cost seconds
        known.keyed(state.uid, state.name)
    for state in settings.operator:
        known.operator(state.uid, state.name)
    spark = session(
        settings.spark, app_name="restore", delta=settings.needs_delta, s3=settings.needs_s3
    )
    # By number: by now "latest" may be another checkpoint.
    restored = _open(settings, known.checkpoint_id, spark)
    frames = [*_keyed(settings, restored), *_operator(settings, restored, spark)]
    for state, _ in frames:
        refuse_existing(spark, state.sink, f"state {state.name!r} of operator {state.uid!r}")
    for state, rows in frames:
        with naming(f"state {state.name!r} of operator {state.uid!r}"):
            write(rows, state.sink)
        progress(f"{state.uid}/{state.name}: written to {state.sink.place}")
    return {
        "checkpoint": restored.checkpoint_id,
        "old_parallelism": restored.manifest.parallelism,
        "parallelism": restored.parallelism,
        "states": [_state(restored, state) for state, _ in frames],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    return run(Job("restore", __doc__ or "", RestoreSettings, restore, _text), arguments)


def _open(
    settings: RestoreSettings, checkpoint: int | str, spark: SparkSession | None
) -> RestoredCheckpoint:
    store = StateStore.open(
        settings.store.url, spark=spark, storage_options=settings.store.storage_options
    )
    return store.restore(
        checkpoint=checkpoint,
        parallelism=settings.parallelism,
        max_parallelism=settings.max_parallelism,
    )


def _keyed(
    settings: RestoreSettings, restored: RestoredCheckpoint
) -> Iterator[tuple[RestoredStateSettings, DataFrame]]:
    for state in settings.keyed:
        rows = restored.keyed(state.uid, state.name).dataframe()
        yield state, keyed_rows(rows, per_subtask=state.sink.per_subtask)


def _operator(
    settings: RestoreSettings, restored: RestoredCheckpoint, spark: SparkSession
) -> Iterator[tuple[RestoredStateSettings, DataFrame]]:
    for state in settings.operator:
        operator = restored.operator(state.uid, state.name)
        lists = [operator.subtask(subtask) for subtask in range(restored.parallelism)]
        yield state, element_rows(spark, operator.entry.state.schema.to_json(), lists)


def _state(restored: RestoredCheckpoint, state: RestoredStateSettings) -> dict[str, Any]:
    entry = restored.manifest.find(state.uid, state.name)
    return {
        "uid": state.uid,
        "name": state.name,
        "stored_rows": entry.rows,
        "target": state.sink.place,
        "per_subtask": state.sink.per_subtask,
    }


def _text(report: Report) -> str:
    header = ("uid", "name", "stored_rows", "target")
    states = columns(header, [[state[name] for name in header] for state in report["states"]])
    parallelism = f"{report['old_parallelism']} -> {report['parallelism']}"
    return f"checkpoint {report['checkpoint']}, parallelism {parallelism}\n{states}"


if __name__ == "__main__":
    raise SystemExit(main())
