"""Restore: write the rows of a checkpoint through Spark, at a new parallelism."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from msgspec import Meta, field

if not __package__:  # spark-submit runs this file: the package `jobs` is one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.frames import Sink, Spark, element_rows, keyed_rows, session, settings_errors
from jobs.job import (
    MOST_KEY_GROUPS,
    Attempt,
    Job,
    JobSettings,
    StateName,
    job_options,
    load_settings,
    refuse_repeated,
    run_attempts,
)
from statestore import RestoredCheckpoint
from statestore.catalog.catalog import CheckpointRef
from statestore.cli.arguments import graph_of
from statestore.cli.command import Invocation, pass_invocation
from statestore.cli.output import Output, Page, progress_bar, write_rows
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.format.manifest import Entry, KeyedEntry
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.restart import NoRestart
from statestore.restore.byte_sizes import bytes_of
from statestore.restore.restored import RestoredKeyedState, RestoredOperatorState
from statestore.restore.target import RestoreTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Restore", "RestoreSettings", "restore"]


class RestoredState(StateName, frozen=True, kw_only=True):
    """One state of a restore, and its sink."""

    sink: Sink


class RestoreSettings(JobSettings, frozen=True, kw_only=True):
    """The settings file of the job; conf/restore.toml documents each setting."""

    checkpoint: int | str = "latest"
    parallelism: Annotated[int, Meta(ge=1, le=MOST_KEY_GROUPS)] | Literal["auto"] | None = None
    bytes_per_task: int | str | None = None
    graph: str | None = None
    allow_non_restored_state: bool = False
    max_parallelism: Annotated[int, Meta(ge=1, le=MOST_KEY_GROUPS)] | None = None
    spark: Spark = field(default_factory=Spark)
    keyed: tuple[RestoredState, ...] = ()
    operator_state: tuple[RestoredState, ...] = ()

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, and sinks that cannot be written again.

        Also refuse: no states, repeated states, and two states with the same target.
        """
        super().__post_init__()
        self.target(None if self.graph is None else JobGraph(()))
        refuse_repeated(self.states)
        places = [state.sink.path or state.sink.table for state in self.states]
        for state, place in zip(self.states, places, strict=True):
            if place is not None and places.count(place) > 1:
                raise InvalidArgumentError(
                    f"two states have the same target {place!r}; give each state its own target"
                )
            if state.sink.mode in ("append", "ignore") and self.restart_strategy != NoRestart():
                raise InvalidArgumentError(
                    f"{state.label} has a sink with mode {state.sink.mode!r}, and the job has a "
                    "restart strategy: a restarted attempt cannot distinguish the failed attempt's "
                    "rows from older rows; set mode to error or overwrite, or remove the restart "
                    "strategy"
                )

    def target(self, graph: JobGraph | None) -> RestoreTarget:
        """Return the target of the restore, with the parsed job graph of ``graph``."""
        size = self.bytes_per_task
        return RestoreTarget(
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            bytes_per_task=None if size is None else bytes_of(size),
            graph=graph,
            allow_non_restored_state=self.allow_non_restored_state,
        )

    @property
    def states(self) -> tuple[RestoredState, ...]:
        """All states, keyed first."""
        return (*self.keyed, *self.operator_state)


class Restore:
    """Writes states of one checkpoint to their sinks, in as many attempts as it needs."""

    def __init__(self) -> None:
        """Start with no sink written."""
        self._made: set[str] = set()  # sinks of mode error that did not exist before this job

    def attempt(self, attempt: Attempt[RestoreSettings]) -> dict[str, Any]:
        """Write the configured states of a checkpoint; return its number and each state's sink."""
        settings = attempt.settings
        known = _restored(attempt, settings.checkpoint)
        _ = [*_stored(settings, known)]  # before Spark starts, so that a wrong name fails fast
        spark = session(settings.spark, "restore", [state.sink for state in settings.states])
        restored = _restored(attempt, known.checkpoint, spark)
        states = [*_stored(settings, restored)]
        frames = [_frame(spark, state.sink, stored) for state, stored in states]
        for state, _ in states:
            self._refuse_existing(spark, state)
        with progress_bar("starting") as bar:
            for number, (state, _) in enumerate(states):
                bar(number, len(states), f"restoring {state.operator}/{state.state}")
                with settings_errors(state.label):
                    self._write(spark, frames[number], state.sink)
                attempt.say(f"{state.operator}/{state.state}: written to {state.sink.place}")
        return {
            "checkpoint": restored.checkpoint_id,
            "old_parallelism": restored.manifest.parallelism,
            "parallelism": restored.parallelism,
            "states": [_state(restored, state, stored.entry) for state, stored in states],
            "left_out": [
                *dict.fromkeys(
                    record
                    for state in settings.states
                    for record in state.left_out(restored.manifest)
                )
            ],
        }

    def _refuse_existing(self, spark: SparkSession, state: RestoredState) -> None:
        """Raise SettingsError when a sink exists that this job may not replace."""
        sink = state.sink
        if sink.mode == "error" and sink.place not in self._made and sink.exists(spark):
            raise SettingsError(
                f"{state.label}: {sink.place} already exists; choose another path or table, or "
                "set mode to overwrite, append or ignore"
            )

    def _write(self, spark: SparkSession, rows: DataFrame, sink: Sink) -> None:
        """Write to a sink, and overwrite the output of an earlier attempt of this job."""
        try:
            sink.write(rows, "overwrite" if sink.place in self._made else sink.mode)
        finally:
            # The sink did not exist just before. This is checked now and not before the next
            # attempt: data that others write there while this job waits must not be replaced.
            if sink.mode == "error" and sink.exists(spark):
                self._made.add(sink.place)


@click.command(
    "restore",
    cls=Job,
    prints=(
        "The checkpoint, the parallelism, and the target of each state. By default each subtask's "
        "rows are in a directory of their own: subtask=0/, subtask=1/, … If a target exists, "
        "nothing is written, unless the sink's mode allows it. If the settings have a restart "
        "strategy, another attempt follows a failed one: it restores the latest checkpoint, and "
        "writes all states again. conf/restore.toml explains every setting."
    ),
    examples=(
        "python -m jobs.restore conf/restore.toml --store ./fraud",
        "python -m jobs.restore conf/restore.toml --set parallelism=3 --store ./fraud",
        "spark-submit jobs/restore.py conf/restore.toml --store s3://lake/fraud --output json",
    ),
)
@job_options
@pass_invocation
def restore(invocation: Invocation, file: str, changes: tuple[str, ...]) -> Output[dict[str, Any]]:
    """Write the rows of a checkpoint through Spark, at a new parallelism."""
    load = partial(load_settings, file, changes, RestoreSettings)
    return Output(run_attempts(invocation, load, Restore().attempt), write_report)


def _restored(
    attempt: Attempt[RestoreSettings], checkpoint: CheckpointRef, spark: SparkSession | None = None
) -> RestoredCheckpoint:
    store = attempt.store(spark)
    target = attempt.settings.target(graph_of(attempt.settings.graph))
    return store.restore(checkpoint=checkpoint, **vars(target))


def _stored(
    settings: RestoreSettings, restored: RestoredCheckpoint
) -> Iterator[tuple[RestoredState, RestoredKeyedState | RestoredOperatorState]]:
    for state in settings.keyed:
        yield state, restored.keyed(state.operator, state.state)
    for state in settings.operator_state:
        yield state, restored.operator_state(state.operator, state.state)


def _frame(
    spark: SparkSession, sink: Sink, stored: RestoredKeyedState | RestoredOperatorState
) -> DataFrame:
    if isinstance(stored, RestoredKeyedState):
        return keyed_rows(stored.to_spark(), per_subtask=sink.per_subtask)
    return element_rows(spark, stored.entry.state.schema.to_json(), [*stored.subtasks()])


def _state(restored: RestoredCheckpoint, state: RestoredState, entry: Entry) -> dict[str, Any]:
    changes = entry.changed_rows if isinstance(entry, KeyedEntry) else 0
    return {
        "operator": state.operator,
        "state": state.state,
        "parallelism": restored.parallelism_of(state.operator),
        "stored_rows": entry.parts[0].rows,
        "target": state.sink.place,
        "per_subtask": state.sink.per_subtask,
    } | ({"stored_changes": changes} if changes else {})


def write_report(page: Page, report: dict[str, Any]) -> None:
    """Write the restored states as text."""
    page.line(
        f"checkpoint {report['checkpoint']}, parallelism {report['old_parallelism']} -> "
        f"{report['parallelism']}"
    )
    header = ("operator", "state", "parallelism", "stored_rows", "target")
    rows = [[str(state[name]) for name in header] for state in report["states"]]
    write_rows(page, header, rows, right={"parallelism", "stored_rows"})
    for record in report["left_out"]:
        page.line(f"left out  {record}")


if __name__ == "__main__":
    restore()
