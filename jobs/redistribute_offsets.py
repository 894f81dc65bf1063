r"""Redistribute offsets: assign each partition of a source to one consumer, at a new parallelism.

    python -m jobs.redistribute_offsets --conf-file conf/redistribute_offsets.toml
    python -m jobs.redistribute_offsets --conf-file conf/redistribute_offsets.toml \
        --set parallelism=7 --output json
    python -m jobs.redistribute_offsets --conf-file conf/redistribute_offsets.toml --dry-run
    spark-submit jobs/redistribute_offsets.py --conf-file conf/redistribute_offsets.toml

Reads one operator state with the columns topic, partition and offset (the next offset to read).
Each partition goes to exactly one subtask: split state in blocks, union state as in Flink's Kafka
source. Starts neither Spark nor a JVM.

If [kafka] names a broker, the job first compares the offsets with the live ranges of the topics. It
prints the decision for each partition, and stops if a policy refuses one. After the files are
written, it can commit the new offsets for a consumer group without members.

If the stored offsets are those of another cluster (kafka.cluster is "new"), the job first
translates them with the records of MirrorMaker 2.

If there is a restart strategy, another attempt follows a failed one. It reads the settings file and
the latest checkpoint again. conf/redistribute_offsets.toml documents every setting.

Exit codes: 2 fix the settings; 10 no such store, checkpoint, state or topic; 11 the consumer group
has members; 12 a policy refuses an offset; 13 the checkpoint, or a record of MirrorMaker, is
damaged; 15 the store cannot be read, or no broker answers; 16 confluent-kafka is not installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if not __package__:  # spark-submit runs this file: the package `jobs` is one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.command import Job, Progress, Report, columns, run, write_file
from jobs.kafka import check, summary, table
from jobs.metrics import Listeners
from jobs.settings import OffsetsSettings
from statestore import StateStore
from statestore.catalog.catalog import refuse_inside_store
from statestore.format.manifest import Manifest
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.sources.offsets import (
    SourceOffset,
    offset_elements,
    per_subtask_offsets,
    starting_offsets_json,
)
from statestore.storage import LocalStorage

__all__ = ["main", "redistribute_offsets"]

SUBTASK = "{subtask}"


def redistribute_offsets(
    settings: OffsetsSettings, progress: Progress, listeners: Listeners
) -> Report:
    """Write the files that the settings name; return the start offsets of each subtask.

    If there is a broker, all offsets are checked against it before any file is written.
    """
    store = StateStore.open(settings.store.url, listeners=listeners, **settings.store.options)
    # Restore at the checkpoint's own parallelism: a source may have more subtasks than the job's
    # keyed states have key groups.
    checkpoint = store.restore(checkpoint=settings.checkpoint)
    state = checkpoint.operator_state(settings.offsets.operator, settings.offsets.state)
    old, mode = state.per_old_subtask(), state.entry.state.mode
    kafka = check(settings, old, progress)
    reported: Sequence[Sequence[object] | None] = old if kafka is None else kafka.lists
    new = per_subtask_offsets(reported, settings.parallelism, mode=mode)
    report = _report(settings, store.url, checkpoint.manifest, mode, len(old), new)
    if kafka is not None:
        report["kafka"] = kafka.report
    if settings.check_only:
        return report | {"check_only": True}
    files = [*_files(settings, report, new)]
    for path, _ in files:
        refuse_inside_store(LocalStorage(path), "the file")
    for path, text in files:
        write_file(path, text)
        progress(f"written: {path}")
    if kafka is not None and kafka.group is not None:
        report["commit"] = kafka.commit([offset for offsets in new for offset in offsets])
    return report


def _report(
    settings: OffsetsSettings,
    store: str,
    manifest: Manifest,
    mode: RedistributionMode,
    old_parallelism: int,
    new: Sequence[Sequence[SourceOffset]],
) -> Report:
    return {
        "store": store,
        "checkpoint": manifest.checkpoint_id,
        "operator": settings.offsets.operator,
        "state": settings.offsets.state,
        "mode": mode.value,
        "old_parallelism": old_parallelism,
        "parallelism": settings.parallelism,
        "subtasks": [
            {
                "subtask": subtask,
                "offsets": offset_elements(offsets),
                "starting_offsets": json.loads(starting_offsets_json(offsets)),
            }
            for subtask, offsets in enumerate(new)
        ],
        "left_out": [
            str(record)
            for record in manifest.left_out
            if record.lacks(settings.offsets.operator, settings.offsets.state)
        ],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    job = Job(
        "redistribute_offsets",
        __doc__ or "",
        OffsetsSettings,
        redistribute_offsets,
        _text,
        dry_run="check_only",
    )
    return run(job, arguments)


def _files(
    settings: OffsetsSettings, report: Report, new: Sequence[Sequence[SourceOffset]]
) -> Iterator[tuple[str, str]]:
    files = settings.files
    if files.per_subtask is not None:
        yield files.per_subtask, json.dumps(report, indent=2)
    if files.starting_offsets is None:
        return
    if SUBTASK in files.starting_offsets:
        for subtask, offsets in enumerate(new):
            name = files.starting_offsets.replace(SUBTASK, str(subtask))
            yield name, starting_offsets_json(offsets)
    else:
        yield files.starting_offsets, starting_offsets_json(o for offsets in new for o in offsets)


def _text(report: Report) -> str:
    header = ("subtask", "topic", "partition", "offset")
    rows = [
        [subtask["subtask"], offset["topic"], offset["partition"], offset["offset"]]
        for subtask in report["subtasks"]
        for offset in subtask["offsets"]
    ]
    idle = [str(each["subtask"]) for each in report["subtasks"] if not each["offsets"]]
    state = f"{report['mode']} state {report['state']!r} of operator {report['operator']!r}"
    parallelism = f"parallelism {report['old_parallelism']} -> {report['parallelism']}"
    lines = [f"checkpoint {report['checkpoint']}, {state}, {parallelism}", columns(header, rows)]
    lines += [f"left out  {record}" for record in report["left_out"]]
    if idle:
        lines.append(f"subtasks without a partition: {', '.join(idle)}")
    if kafka := report.get("kafka"):
        lines.insert(0, table(kafka) if report.get("check_only") else summary(kafka))
    if done := report.get("commit"):
        lines.append(f"committed for group {done['group']!r}: {done['committed']} partitions")
    if report.get("check_only"):
        lines.append("dry run: nothing was written")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
