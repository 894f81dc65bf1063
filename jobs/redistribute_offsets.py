r"""Redistribute offsets: where each consumer of a source goes on reading, at a new parallelism.

    python -m jobs.redistribute_offsets --conf-file conf/redistribute_offsets.toml
    python -m jobs.redistribute_offsets --conf-file conf/redistribute_offsets.toml \
        --set parallelism=7 --output json
    spark-submit jobs/redistribute_offsets.py --conf-file conf/redistribute_offsets.toml

Reads one operator state with the columns topic, partition and offset (the next one to read) and
gives each partition to exactly one subtask: split state in blocks, union state as Flink's Kafka
source does. Starts neither Spark nor a JVM. With a restart strategy a failed attempt is followed by
another, from the checkpoint that is the latest by then and at the parallelism that the settings
file has by then. conf/redistribute_offsets.toml documents every setting. Exit codes: 2 fix the
settings; 10 no such store, checkpoint or state; 13 the checkpoint is damaged; 15 the store cannot
be read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if not __package__:  # spark-submit runs this file: the package `jobs` lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.command import Job, Progress, Report, columns, run, write_file
from jobs.settings import OffsetsSettings
from statestore import StateStore
from statestore.sources.offsets import (
    SourceOffset,
    offset_elements,
    per_subtask_offsets,
    starting_offsets_json,
)

__all__ = ["main", "redistribute_offsets"]

SUBTASK = "{subtask}"


def redistribute_offsets(settings: OffsetsSettings, progress: Progress) -> Report:
    """Write the files that the settings name; return what each subtask reads, and from where."""
    store = StateStore.open(settings.store.url, **settings.store.options)
    # At the parallelism it was taken at: a source may have more subtasks than the job's keyed
    # states have key groups.
    checkpoint = store.restore(checkpoint=settings.checkpoint)
    state = checkpoint.operator(settings.offsets.uid, settings.offsets.name)
    old, mode = state.per_old_subtask(), state.entry.state.mode
    new = per_subtask_offsets(old, settings.parallelism, mode=mode)
    report = {
        "store": store.url,
        "checkpoint": checkpoint.checkpoint_id,
        "uid": settings.offsets.uid,
        "name": settings.offsets.name,
        "mode": mode.value,
        "old_parallelism": len(old),
        "parallelism": settings.parallelism,
        "subtasks": [
            {
                "subtask": subtask,
                "offsets": offset_elements(offsets),
                "starting_offsets": json.loads(starting_offsets_json(offsets)),
            }
            for subtask, offsets in enumerate(new)
        ],
    }
    for path, text in _files(settings, report, new):
        write_file(path, text)
        progress(f"written: {path}")
    return report


def main(arguments: list[str] | None = None) -> int:
    """Run the job; return the exit code."""
    job = Job("redistribute_offsets", __doc__ or "", OffsetsSettings, redistribute_offsets, _text)
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
    state = f"{report['mode']} state {report['name']!r} of operator {report['uid']!r}"
    parallelism = f"parallelism {report['old_parallelism']} -> {report['parallelism']}"
    lines = [f"checkpoint {report['checkpoint']}, {state}, {parallelism}", columns(header, rows)]
    if idle:
        lines.append(f"without a partition: subtask {', '.join(idle)}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
