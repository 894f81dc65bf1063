"""Snapshot: write rows from any Spark source as the keyed and operator state of one checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from msgspec import Meta, field

if not __package__:  # spark-submit runs this file: the package `jobs` is one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.frames import Source, Spark, session, settings_errors
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
from statestore import CheckpointWriter, StateOptions, StateStore
from statestore.cli.arguments import graph_of
from statestore.cli.command import Invocation, pass_invocation
from statestore.cli.output import Output, Page, progress_bar, write_rows
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    InvalidArgumentError,
    LateCommitError,
    LeftOutStateError,
    StoreNotFoundError,
)
from statestore.format.manifest import Entry, KeyedEntry, Manifest, Writer

__all__ = ["Snapshot", "SnapshotSettings", "snapshot"]


class WrittenKeyedState(StateName, frozen=True, kw_only=True):
    """One keyed state of a snapshot: its name, its columns with their roles, and its source."""

    key: tuple[str, ...]
    source: Source
    kind: Literal["value", "list", "map", "reducing", "aggregating", "timers"] = "value"
    namespace: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()
    time_domain: Literal["event", "processing"] | None = None
    max_parallelism: Annotated[int, Meta(ge=1, le=MOST_KEY_GROUPS)] | None = None
    hash_scheme: Literal["java", "flink-sql", "pyflink"] | None = None
    key_types: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    changes: Literal["off", "upserts", "against-latest"] = "off"

    def write(self, checkpoint: CheckpointWriter, rows: Any) -> Entry:
        """Write the rows, or their changes, as this state."""
        methods: dict[str, Callable[..., KeyedEntry]] = {
            "off": checkpoint.write_keyed,
            "upserts": checkpoint.write_changes,
            "against-latest": checkpoint.write_changes_against,
        }
        options: StateOptions = {
            "key": self.key,
            "namespace": self.namespace,
            "max_parallelism": self.max_parallelism,
            "kind": self.kind,
            "entry": self.entry,
            "time_domain": self.time_domain,
            "hash_scheme": self.hash_scheme,
            "key_types": self.key_types,
            "renamed": self.renamed,
            "dropped": self.dropped,
        }
        return methods[self.changes](self.operator, self.state, rows, **options)


class WrittenOperatorState(StateName, frozen=True, kw_only=True):
    """One operator state of a snapshot: its mode, and the source of its elements."""

    mode: Literal["split", "union", "broadcast"]
    source: Source

    def write(self, checkpoint: CheckpointWriter, rows: Any) -> Entry:
        """Write the rows as this state."""
        write = {
            "split": checkpoint.write_split,
            "union": checkpoint.write_union,
            "broadcast": checkpoint.write_broadcast,
        }[self.mode]
        return write(self.operator, self.state, rows)


class SnapshotSettings(JobSettings, frozen=True, kw_only=True):
    """The settings file of the job; conf/snapshot.toml documents each setting."""

    parallelism: Annotated[int, Meta(ge=1, le=MOST_KEY_GROUPS)] | None = None
    graph: str | None = None
    checkpoint_id: Annotated[int, Meta(ge=1, le=10**10 - 1)] | None = None
    job: str | None = None
    batch: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    others: Literal["refuse", "carry"] = "refuse"
    drop: tuple[StateName, ...] = ()
    spark: Spark = field(default_factory=Spark)
    keyed: tuple[WrittenKeyedState, ...] = ()
    operator_state: tuple[WrittenOperatorState, ...] = ()

    def __post_init__(self) -> None:
        """Refuse: no states, repeated states, no parallelism, a batch without a job."""
        super().__post_init__()
        refuse_repeated((*self.states, *self.drop) if self.states else ())
        if (self.job is None) is not (self.batch is None):
            raise InvalidArgumentError("job and batch must be set together; set both or neither")
        if self.parallelism is None and self.graph is None:
            raise InvalidArgumentError(
                "'parallelism' is missing; set it, or set graph to the job graph"
            )

    @property
    def states(self) -> tuple[WrittenKeyedState | WrittenOperatorState, ...]:
        """All states, keyed first."""
        return (*self.keyed, *self.operator_state)


class Snapshot:
    """Takes one checkpoint, in as many attempts as it needs.

    The first attempt fixes the checkpoint's number, and later attempts ask for the same number. If
    a commit succeeded but its response was lost, the next attempt finds the checkpoint and does not
    write it twice.
    """

    def __init__(self) -> None:
        """Start without a checkpoint number."""
        self._number: int | None = None
        self._writers: set[Writer] = set()  # one per attempt; their checkpoints belong to this job
        self._was_second = False  # whether the previous attempt lost to another writer

    def attempt(self, attempt: Attempt[SnapshotSettings]) -> dict[str, Any]:
        """Take the checkpoint; return its number and the rows, bytes and files of each state."""
        settings, states = attempt.settings, attempt.settings.states
        # A table format that differs from the store's is refused before Spark is started.
        _ = attempt.store().table_format
        spark = session(settings.spark, "snapshot", [state.source for state in states])
        store = attempt.store(spark)
        try:
            earlier = self._find_own(store)
            if earlier is not None:
                return _report(store, earlier, already_committed=True)
            with progress_bar("starting") as bar, self._begin(store, settings) as checkpoint:
                _carry_or_drop_others(checkpoint, settings)
                for number, state in enumerate(states):
                    bar(number, len(states), f"writing {state.operator}/{state.state}")
                    with settings_errors(state.label):
                        written = state.write(checkpoint, state.source.read(spark))
                    attempt.say(f"{state.operator}/{state.state}: {written.rows} rows")
                bar(len(states), len(states), "committing")
        except LateCommitError:
            # Later commits may lack this state, so the next attempt uses a new number.
            self._number = None
            raise
        except CommitConflictError:
            self._was_second = True
            raise
        return _report(store, checkpoint.manifest, already_committed=checkpoint.already_committed)

    def _find_own(self, store: StateStore) -> Manifest | None:
        """Return the checkpoint that an earlier attempt committed, or None.

        Raises CommitConflictError, once, when another writer has taken the first attempt's number.
        That attempt's checkpoint will then never be visible, and the next attempt takes a new
        number.
        """
        was_second, self._was_second = self._was_second, False
        if self._number is None:
            return None
        try:
            earlier = store.checkpoint(self._number).manifest
        except (CheckpointNotFoundError, StoreNotFoundError):
            return None
        if earlier.writer in self._writers:
            return earlier
        self._number = None
        if was_second:  # the previous attempt already raised the conflict
            return None
        raise CommitConflictError(
            f"checkpoint {earlier.checkpoint_id} of {store.url}, which this job was "
            f"taking, was meanwhile committed by writer {earlier.writer.name}; nothing of "
            "this job is visible. Run the job again: it gets a new checkpoint id"
        )

    def _begin(self, store: StateStore, settings: SnapshotSettings) -> CheckpointWriter:
        """Return a writer for the number in the settings, the first attempt's, or the next one."""
        wanted, job = settings.checkpoint_id, settings.job
        checkpoint = store.snapshot(
            parallelism=settings.parallelism,
            graph=graph_of(settings.graph),
            checkpoint_id=self._number if wanted is None else wanted,
            batch=None if job is None or settings.batch is None else (job, settings.batch),
        )
        if wanted is None and not checkpoint.already_committed:
            self._number, writer = checkpoint.planned
            self._writers.add(writer)
        return checkpoint


@click.command(
    "snapshot",
    cls=Job,
    prints=(
        "The new checkpoint, and rows, bytes and files of each state. All states become visible "
        "together, or none after an error. If the settings have a restart strategy, another "
        "attempt follows a failed one. All attempts write the same checkpoint, once. "
        "conf/snapshot.toml explains every setting."
    ),
    examples=(
        "python -m jobs.snapshot conf/snapshot.toml --store ./fraud",
        "python -m jobs.snapshot conf/snapshot.toml --set parallelism=7 --store ./fraud",
        "spark-submit jobs/snapshot.py conf/snapshot.toml --store s3://lake/fraud --output json",
    ),
)
@job_options
@pass_invocation
def snapshot(invocation: Invocation, file: str, changes: tuple[str, ...]) -> Output[dict[str, Any]]:
    """Write rows from any Spark source as the state of one checkpoint."""
    load = partial(load_settings, file, changes, SnapshotSettings)
    return Output(run_attempts(invocation, load, Snapshot().attempt), write_report)


def _carry_or_drop_others(checkpoint: CheckpointWriter, settings: SnapshotSettings) -> None:
    """Carry or drop states that the settings do not write.

    Raises LeftOutStateError, before any row is read, if the checkpoint would lose a state.
    """
    for state in settings.drop:
        checkpoint.drop(state.operator, state.state)
    if settings.others == "carry":
        checkpoint.carry_rest()
    left_out = checkpoint.left_out((state.operator, state.state) for state in settings.states)
    if left_out:
        (uid, name), *more = left_out
        others = f" (and {len(more)} more)" if more else ""
        raise LeftOutStateError(
            f"the newest checkpoint has state {name!r} of operator {uid!r}{others}, which "
            "these settings do not write, so the next checkpoint would lose it: set others = "
            '"carry" to carry all such states, or '
            f"drop = [{{ operator = {json.dumps(uid)}, state = {json.dumps(name)} }}] to drop "
            "this state"
        )


def _report(store: StateStore, manifest: Manifest, *, already_committed: bool) -> dict[str, Any]:
    return {
        "store": store.url,
        "checkpoint": manifest.checkpoint_id,
        "already_committed": already_committed,
        "parallelism": manifest.parallelism,
        "states": [_state(entry) for entry in manifest.entries],
        "rows": manifest.rows,
        "bytes": manifest.size_bytes,
        "files": manifest.files,
    }


def _state(entry: Entry) -> dict[str, Any]:
    state: dict[str, Any] = {
        "operator": entry.state.uid,
        "state": entry.state.name,
        "rows": entry.rows,
        "bytes": entry.size_bytes,
        "files": entry.files,
    }
    if not isinstance(entry, KeyedEntry):
        return state | {"kind": entry.state.mode.value, "max_parallelism": None}
    keyed = {"kind": entry.state.kind.value, "max_parallelism": entry.state.max_parallelism}
    return state | keyed | ({"changes": entry.changed_rows} if entry.changed_rows else {})


def write_report(page: Page, report: dict[str, Any]) -> None:
    """Write the new checkpoint as text."""
    before = " by an earlier run; this run wrote nothing" if report["already_committed"] else ""
    page.line(
        f"checkpoint {report['checkpoint']} of {report['store']}, taken at parallelism "
        f"{report['parallelism']}{before}"
    )
    names, numbers = ("operator", "state", "kind"), ("rows", "bytes", "files")
    rows = [[str(state[name]) for name in (*names, *numbers)] for state in report["states"]]
    write_rows(page, (*names, *numbers), rows, right={*numbers})


if __name__ == "__main__":
    snapshot()
