r"""Snapshot: write rows from any Spark source as the keyed and operator state of one checkpoint.

    python -m jobs.snapshot --conf-file conf/snapshot.toml
    python -m jobs.snapshot --conf-file conf/snapshot.toml --output json \
        --set store.url=/tmp/store --set parallelism=7 --set 'keyed[0].source.path=new.csv'
    spark-submit jobs/snapshot.py --conf-file conf/snapshot.toml

The commit is atomic: all states become visible together, or none after an error. If there is a
restart strategy, another attempt follows a failed one and reads the settings file again. All
attempts write the same checkpoint, which is committed once. conf/snapshot.toml documents every
setting.

Exit codes: 2 fix the settings; 11 another writer committed first, run the job again; 12 the stored
state is incompatible; 15 the store cannot be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # spark-submit runs this file: the package `jobs` is one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.bars import bar_of
from jobs.command import Job, Progress, Report, columns, run
from jobs.frames import read, session, settings_errors
from jobs.metrics import Listeners
from jobs.settings import KeyedSettings, OperatorSettings, SnapshotSettings
from statestore import CheckpointWriter, StateOptions, StateStore
from statestore.cli.arguments import graph_of
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    LateCommitError,
    LeftOutStateError,
    StoreNotFoundError,
)
from statestore.format.manifest import Entry, KeyedEntry, Manifest, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Snapshot", "main"]


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

    def attempt(
        self, settings: SnapshotSettings, progress: Progress, listeners: Listeners
    ) -> Report:
        """Take the checkpoint; return its number and the rows, bytes and files of each state."""
        # A table format that differs from the store's is refused before Spark is started.
        _ = StateStore.open(settings.store.url, **settings.store.options).table_format
        spark = session(
            settings.spark, app_name="snapshot", delta=settings.needs_delta, s3=settings.needs_s3
        )
        options = settings.store.options
        store = StateStore.open(settings.store.url, spark=spark, listeners=listeners, **options)
        try:
            earlier = self._find_own(store)
            if earlier is not None:
                return _report(store.url, earlier, already_committed=True)
            states = settings.states
            with bar_of(spark, len(states)) as bar, self._begin(store, settings) as checkpoint:
                _carry_or_drop_others(checkpoint, settings)
                for state in states:
                    bar.begin(f"writing {state.operator}/{state.state}")
                    with settings_errors(f"state {state.state!r} of operator {state.operator!r}"):
                        rows = read(spark, state.source)
                        written = _put(checkpoint, state, rows)
                    progress(f"{state.operator}/{state.state}: {written.rows} rows")
                bar.begin("committing")
        except LateCommitError:
            # Later commits may lack this state, so the next attempt uses a new number.
            self._number = None
            raise
        except CommitConflictError:
            self._was_second = True
            raise
        return _report(
            store.url, checkpoint.manifest, already_committed=checkpoint.already_committed
        )

    def _find_own(self, store: StateStore) -> Manifest | None:
        """Return the checkpoint that an earlier attempt committed, or None.

        Raises CommitConflictError, once, when another writer has taken the first attempt's number.
        That attempt's checkpoint will then never be visible, and the next attempt takes a new
        number.
        """
        was_second, self._was_second = self._was_second, False
        earlier = self._find_committed(store)
        if earlier is None or earlier.writer in self._writers:
            return earlier
        self._number = None
        if not was_second:  # otherwise the previous attempt already raised the conflict
            raise CommitConflictError(
                f"checkpoint {earlier.checkpoint_id} of {store.url}, which this job was "
                f"taking, was meanwhile committed by writer {earlier.writer.name}; nothing of "
                "this job is visible. Run the job again: it gets a new checkpoint id"
            )
        return None

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

    def _find_committed(self, store: StateStore) -> Manifest | None:
        """Return the checkpoint with the first attempt's number, or None if it does not exist."""
        if self._number is None:
            return None
        try:
            return store.manifest(self._number)
        except (CheckpointNotFoundError, StoreNotFoundError):
            return None


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    job = Job("snapshot", __doc__ or "", SnapshotSettings, Snapshot().attempt, _text)
    return run(job, arguments)


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


def _put(
    checkpoint: CheckpointWriter, state: KeyedSettings | OperatorSettings, rows: DataFrame
) -> Entry:
    if isinstance(state, OperatorSettings):
        put = {
            "split": checkpoint.write_split,
            "union": checkpoint.write_union,
            "broadcast": checkpoint.write_broadcast,
        }[state.mode]
        return put(state.operator, state.state, rows)
    options: StateOptions = {
        "key": state.key,
        "namespace": state.namespace,
        "max_parallelism": state.max_parallelism,
        "kind": state.kind,
        "entry": state.entry,
        "time_domain": state.time_domain,
        "hash_scheme": state.hash_scheme,
        "key_types": state.key_types,
        "renamed": state.renamed,
        "dropped": state.dropped,
    }
    if state.changes == "off":
        return checkpoint.write_keyed(state.operator, state.state, rows, **options)
    if state.changes == "upserts":
        return checkpoint.write_changes(state.operator, state.state, rows, **options)
    return checkpoint.write_changes_against(state.operator, state.state, rows, **options)


def _report(store: str, manifest: Manifest, *, already_committed: bool) -> Report:
    return {
        "store": store,
        "checkpoint": manifest.checkpoint_id,
        "already_committed": already_committed,
        "parallelism": manifest.parallelism,
        "states": [_state(entry) for entry in manifest.entries],
        "rows": manifest.rows,
        "bytes": manifest.size_bytes,
        "files": manifest.files,
    }


def _state(entry: Entry) -> dict[str, Any]:
    keyed = entry.state if isinstance(entry, KeyedEntry) else None
    kind_or_mode = entry.state.kind if isinstance(entry, KeyedEntry) else entry.state.mode
    changes = entry.changed_rows if isinstance(entry, KeyedEntry) else 0
    return {
        "operator": entry.state.uid,
        "state": entry.state.name,
        "kind": kind_or_mode.value,
        "max_parallelism": keyed.max_parallelism if keyed else None,
        "rows": entry.rows,
        "bytes": entry.size_bytes,
        "files": entry.files,
    } | ({"changes": changes} if changes else {})


def _text(report: Report) -> str:
    header = ("operator", "state", "kind", "rows", "bytes", "files")
    states = columns(header, [[state[name] for name in header] for state in report["states"]])
    place = f"checkpoint {report['checkpoint']} of {report['store']}"
    before = " by an earlier run; this run wrote nothing" if report["already_committed"] else ""
    return f"{place}, taken at parallelism {report['parallelism']}{before}\n{states}"


if __name__ == "__main__":
    raise SystemExit(main())
