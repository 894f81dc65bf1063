r"""Snapshot: rows from any Spark source become the keyed and operator state of ONE checkpoint.

    python -m jobs.snapshot --conf-file conf/snapshot.toml
    python -m jobs.snapshot --conf-file conf/snapshot.toml --output json \
        --set store.url=/tmp/store --set parallelism=7 --set 'keyed[0].source.path=new.csv'
    spark-submit --properties-file conf/spark-defaults.conf \
        --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
        jobs/snapshot.py --conf-file conf/snapshot.toml

All states become visible together, or after an error none. conf/snapshot.toml documents every
setting. Exit codes: 2 fix the settings; 11 another writer was first, run it again; 12 the stored
state is another one; 15 the store cannot be written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if not __package__:  # spark-submit runs this file: the package `jobs` lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import DataFrame

from jobs.command import Job, Progress, Report, columns, run
from jobs.frames import naming, read, session
from jobs.settings import KeyedSettings, OperatorSettings, SnapshotSettings
from statestore import CheckpointWriter, StateStore
from statestore.model.manifest import Entry, KeyedEntry
from statestore.model.state import TimeDomain

__all__ = ["main", "snapshot"]


def snapshot(settings: SnapshotSettings, progress: Progress) -> Report:
    """Take one checkpoint; return its number and the rows, bytes and files of each state."""
    spark = session(
        settings.spark, app_name="snapshot", delta=settings.needs_delta, s3=settings.needs_s3
    )
    place = settings.store
    store = StateStore.open(
        place.url,
        spark=spark,
        table_format=place.table_format,
        storage_options=place.storage_options,
    )
    with store.snapshot(
        parallelism=settings.parallelism, checkpoint_id=settings.checkpoint_id
    ) as checkpoint:
        for state in settings.states:
            with naming(f"state {state.name!r} of operator {state.uid!r}"):
                rows = read(spark, state.source)
                written = _put(checkpoint, state, rows)
            progress(f"{state.uid}/{state.name}: {written.rows} rows")
    manifest = checkpoint.manifest
    return {
        "store": store.url,
        "checkpoint": manifest.checkpoint_id,
        "already_committed": checkpoint.already_committed,
        "parallelism": manifest.parallelism,
        "states": [_state(entry) for entry in manifest.entries],
        "rows": manifest.rows,
        "bytes": manifest.size_bytes,
        "files": manifest.files,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    return run(Job("snapshot", __doc__ or "", SnapshotSettings, snapshot, _text), arguments)


def _put(
    checkpoint: CheckpointWriter, state: KeyedSettings | OperatorSettings, rows: DataFrame
) -> Entry:
    if isinstance(state, OperatorSettings):
        put = {
            "split": checkpoint.split,
            "union": checkpoint.union,
            "broadcast": checkpoint.broadcast,
        }[state.mode]
        return put(state.uid, state.name, rows)
    return checkpoint.keyed(
        state.uid,
        state.name,
        rows,
        key=state.key,
        namespace=state.namespace,
        kind=state.kind,
        entry=state.entry,
        time_domain=None if state.time_domain is None else TimeDomain(state.time_domain),
        max_parallelism=state.max_parallelism,
        hash_scheme=state.hash_scheme,
    )


def _state(entry: Entry) -> dict[str, Any]:
    keyed = entry.state if isinstance(entry, KeyedEntry) else None
    kind = entry.state.kind if isinstance(entry, KeyedEntry) else entry.state.mode
    return {
        "uid": entry.state.uid,
        "name": entry.state.name,
        "kind": kind.value,
        "max_parallelism": keyed.max_parallelism if keyed else None,
        "rows": entry.rows,
        "bytes": entry.size_bytes,
        "files": len(entry.handles),
    }


def _text(report: Report) -> str:
    header = ("uid", "name", "kind", "rows", "bytes", "files")
    states = columns(header, [[state[name] for name in header] for state in report["states"]])
    place = f"checkpoint {report['checkpoint']} of {report['store']}"
    before = " before; nothing is written" if report["already_committed"] else ""
    return f"{place}, taken at parallelism {report['parallelism']}{before}\n{states}"


if __name__ == "__main__":
    raise SystemExit(main())
