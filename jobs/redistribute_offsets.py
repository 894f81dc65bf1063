"""Redistribute offsets: assign each partition of a source to one consumer, at a new parallelism.

Starts neither Spark nor a JVM.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta, field

if not __package__:  # spark-submit runs this file: the package `jobs` is one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.job import (
    MOST_KEY_GROUPS,
    Attempt,
    Job,
    JobSettings,
    StateName,
    job_options,
    load_settings,
    run_attempts,
)
from statestore.catalog.catalog import refuse_inside_store
from statestore.cli.command import Invocation, pass_invocation
from statestore.cli.output import Output, Page, document_text, write_rows
from statestore.errors import InvalidArgumentError, NotFoundError
from statestore.restore.row_files import output_file
from statestore.settings import SettingsTable
from statestore.sources.discovery import (
    GapPolicy,
    NewPolicy,
    Policies,
    Reconciled,
    RecreatedPolicy,
    RemovedPolicy,
    RewindPolicy,
    reconcile,
)
from statestore.sources.kafka import DEFAULT_SECONDS, KafkaCluster
from statestore.sources.offsets import (
    SourceOffset,
    offset_elements,
    per_subtask_offsets,
    source_offsets,
    starting_offsets_json,
)
from statestore.storage import LocalStorage

__all__ = ["OffsetsSettings", "redistribute_offsets"]

SUBTASK = "{subtask}"


class Files(SettingsTable, frozen=True, kw_only=True):
    """The local files to write; a file whose name is None is not written."""

    per_subtask: str | None = None
    starting_offsets: str | None = None


class Kafka(SettingsTable, frozen=True, kw_only=True):
    """The cluster that the offsets are checked against; without ``bootstrap``, no check."""

    bootstrap: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seconds: Annotated[float, Meta(ge=0.1, le=3600)] = DEFAULT_SECONDS
    topics: tuple[str, ...] = ()
    group: str | None = None
    new_partitions: NewPolicy = "earliest"
    removed_partitions: RemovedPolicy = "fail"
    recreated_topics: RecreatedPolicy = "fail"
    gap: GapPolicy = "fail"
    rewind: RewindPolicy = "fail"

    def __post_init__(self) -> None:
        """Refuse settings that have no effect without a broker."""
        for name in ("options", "topics", "group"):
            if self.bootstrap is None and getattr(self, name):
                raise InvalidArgumentError(
                    f"{name} is set but bootstrap is not, so Kafka would not be used; set "
                    f"bootstrap or remove {name}"
                )

    @property
    def cluster(self) -> KafkaCluster | None:
        """The cluster; None if the offsets are not checked against Kafka."""
        if self.bootstrap is None:
            return None
        return KafkaCluster(self.bootstrap, self.options, seconds=self.seconds)

    def compare(self, cluster: KafkaCluster, old: Sequence[Sequence[object] | None]) -> Reconciled:
        """Compare stored offsets with the current contents of their topics.

        Raises NotFoundError for a topic in the settings that does not exist, CommitConflictError if
        the group has members, and the errors of the cluster.
        """
        stored = source_offsets(element for elements in old for element in elements or ())
        live = cluster.topics({*self.topics, *(each.topic for each in stored)})
        if missing := sorted(set(self.topics) - live.keys()):
            raise NotFoundError(
                f"Kafka at {self.bootstrap} has no topic {missing[0]!r}, which the setting "
                "kafka.topics names; correct the name or create the topic"
            )
        policies = Policies(
            new_partitions=self.new_partitions,
            removed_partitions=self.removed_partitions,
            recreated_topics=self.recreated_topics,
            gap=self.gap,
            rewind=self.rewind,
        )
        return reconcile(stored, live, policies)


class OffsetsSettings(JobSettings, frozen=True, kw_only=True):
    """The settings file of the job; conf/redistribute_offsets.toml documents each setting."""

    offsets: StateName
    parallelism: Annotated[int, Meta(ge=1, le=MOST_KEY_GROUPS)]
    checkpoint: int | str = "latest"
    files: Files = field(default_factory=Files)
    kafka: Kafka = field(default_factory=Kafka)


@click.command(
    "redistribute_offsets",
    cls=Job,
    prints=(
        "The offsets of each new subtask: each partition is assigned to exactly one. The state has "
        "the columns topic, partition and offset (the next one to read). If the settings name a "
        "Kafka broker, the offsets are first compared with the topics: a line for each partition "
        "has the decision and the reason. If a policy refuses one, nothing is written, and the "
        "exit code is 12. For another cluster, run 'statestore kafka translate' first. "
        "conf/redistribute_offsets.toml explains every setting."
    ),
    examples=(
        "python -m jobs.redistribute_offsets conf/redistribute_offsets.toml --store ./fraud",
        (
            "python -m jobs.redistribute_offsets conf/redistribute_offsets.toml --dry-run "
            "--set parallelism=7 --store ./fraud"
        ),
    ),
)
@job_options
@click.option("--dry-run", is_flag=True, help="Report what would be written, and write nothing.")
@pass_invocation
def redistribute_offsets(
    invocation: Invocation, file: str, changes: tuple[str, ...], dry_run: bool
) -> Output[dict[str, Any]]:
    """Assign each partition of a source to one consumer, at a new parallelism."""
    load = partial(load_settings, file, changes, OffsetsSettings)
    work = partial(_redistribute, dry_run=dry_run)
    return Output(run_attempts(invocation, load, work), write_report)


def _redistribute(attempt: Attempt[OffsetsSettings], *, dry_run: bool) -> dict[str, Any]:
    """Write the files that the settings name; return the start offsets of each subtask.

    If there is a broker, all offsets are checked against it before any file is written.
    """
    settings, kafka, store = attempt.settings, attempt.settings.kafka, attempt.store()
    named = settings.offsets
    # Restore at the checkpoint's own parallelism: a source may have more subtasks than the job's
    # keyed states have key groups.
    restored = store.restore(checkpoint=settings.checkpoint)
    state = restored.operator_state(named.operator, named.state)
    old, mode = state.per_old_subtask(), state.entry.state.mode
    report: dict[str, Any] = {
        "store": store.url,
        "checkpoint": restored.checkpoint_id,
        "operator": named.operator,
        "state": named.state,
        "mode": mode.value,
        "old_parallelism": len(old),
        "parallelism": settings.parallelism,
        "left_out": named.left_out(restored.manifest),
    }
    lists: Sequence[Sequence[object] | None] = old
    cluster = kafka.cluster
    if cluster is not None:
        found = kafka.compare(cluster, old)
        report["kafka"] = {
            "bootstrap": kafka.bootstrap,
            "decisions": dict(Counter(finding.decision.value for finding in found.report)),
            "partitions": found.report,
        }
        if found.refused or not dry_run:
            attempt.show(lambda page: write_comparison(page, report["kafka"]))
        lists = found.per_old_subtask(old)
        if kafka.group is not None:
            cluster.refuse_live(kafka.group)
    new = per_subtask_offsets(lists, settings.parallelism, mode=mode)
    report["subtasks"] = [
        {
            "subtask": subtask,
            "offsets": offset_elements(offsets),
            "starting_offsets": json.loads(starting_offsets_json(offsets)),
        }
        for subtask, offsets in enumerate(new)
    ]
    if dry_run:
        return report | {"check_only": True}
    _write_files(attempt, report, new)
    if cluster is not None and kafka.group is not None:
        report["commit"] = _commit(cluster, kafka.group, [each for mine in new for each in mine])
    return report


def _commit(cluster: KafkaCluster, group: str, offsets: Sequence[SourceOffset]) -> dict[str, Any]:
    """Commit the offsets for the group; return a report with its previous offsets."""
    before = sorted(cluster.commit(group, offsets).items())
    return {
        "group": group,
        "committed": len(offsets),
        "before": [
            {"topic": topic, "partition": number, "offset": offset}
            for (topic, number), offset in before
        ],
    }


def _write_files(
    attempt: Attempt[OffsetsSettings],
    report: dict[str, Any],
    new: Sequence[Sequence[SourceOffset]],
) -> None:
    """Write the files; a concurrent reader sees the old file or the new one."""
    files = {Path(name): text for name, text in _files(attempt.settings.files, report, new)}
    for path in files:
        refuse_inside_store(LocalStorage(str(path)), "the file")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with output_file(path, replace=True) as file:
            file.write(f"{text}\n".encode())
        attempt.say(f"written: {path}")


def _files(
    files: Files, report: dict[str, Any], new: Sequence[Sequence[SourceOffset]]
) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file."""
    if files.per_subtask is not None:
        yield files.per_subtask, document_text(report, indent=2, ascii_only=True)
    if files.starting_offsets is None:
        return
    if SUBTASK in files.starting_offsets:
        for subtask, offsets in enumerate(new):
            name = files.starting_offsets.replace(SUBTASK, str(subtask))
            yield name, starting_offsets_json(offsets)
    else:
        yield files.starting_offsets, starting_offsets_json(o for offsets in new for o in offsets)


def write_report(page: Page, report: dict[str, Any]) -> None:
    """Write the offsets of each subtask as text."""
    is_dry = "check_only" in report
    if kafka := report.get("kafka"):
        write_comparison(page, kafka, is_short=not is_dry)
    page.line(
        f"checkpoint {report['checkpoint']}, {report['mode']} state {report['state']!r} of "
        f"operator {report['operator']!r}, parallelism {report['old_parallelism']} -> "
        f"{report['parallelism']}"
    )
    rows = [
        [str(subtask["subtask"]), *(str(each[name]) for name in ("topic", "partition", "offset"))]
        for subtask in report["subtasks"]
        for each in subtask["offsets"]
    ]
    numbers = {"subtask", "partition", "offset"}
    write_rows(page, ("subtask", "topic", "partition", "offset"), rows, right=numbers)
    idle = [str(each["subtask"]) for each in report["subtasks"] if not each["offsets"]]
    if idle:
        page.line(f"subtasks without a partition: {', '.join(idle)}")
    for record in report["left_out"]:
        page.line(f"left out  {record}")
    if done := report.get("commit"):
        page.line(f"committed for group {done['group']!r}: {done['committed']} partitions")
    if is_dry:
        page.line("dry run: nothing was written")


def write_comparison(page: Page, kafka: dict[str, Any], *, is_short: bool = False) -> None:
    """Write the number of partitions per decision, and unless ``is_short`` a line for each."""
    counts = ", ".join(f"{number} {decision}" for decision, number in kafka["decisions"].items())
    page.line(f"Kafka at {kafka['bootstrap']}: {counts or 'no partitions'}")
    if is_short or not kafka["partitions"]:
        return
    rows = [
        [
            each.topic,
            str(each.partition),
            "-" if each.stored is None else str(each.stored.offset),
            "-" if each.live is None else f"{each.live.low}..{each.live.high}",
            each.decision.value,
            "-" if each.offset is None else str(each.offset),
            each.reason,
        ]
        for each in kafka["partitions"]
    ]
    header = ("topic", "partition", "stored", "live", "decision", "offset", "reason")
    write_rows(page, header, rows, right={"partition"})


if __name__ == "__main__":
    redistribute_offsets()
