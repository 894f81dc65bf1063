"""The part of redistribute_offsets that talks to Kafka: check, translate and commit offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.command import Progress, Report, columns
from jobs.settings import KafkaSettings, MirrorSettings, OffsetsSettings
from statestore.errors import NotFoundError
from statestore.sources.discovery import PartitionFinding, Reconciled, reconcile
from statestore.sources.kafka import KafkaCluster
from statestore.sources.mirror import Mirror
from statestore.sources.offsets import SourceOffset, source_offsets

__all__ = ["KafkaCheck", "check", "summary", "table"]


@dataclass(frozen=True)
class KafkaCheck:
    """Checked offsets: the offsets of each old subtask, and the report of the check."""

    cluster: KafkaCluster
    group: str | None
    lists: list[list[SourceOffset] | None]
    report: Report

    def commit(self, offsets: Sequence[SourceOffset]) -> Report:
        """Commit offsets for the group; return a report that includes the previous offsets.

        Raises the errors of :meth:`~statestore.sources.kafka.KafkaCluster.commit`.
        """
        assert self.group is not None
        before = self.cluster.commit(self.group, offsets)
        return {
            "group": self.group,
            "committed": len(offsets),
            "before": [
                {"topic": topic, "partition": number, "offset": offset}
                for (topic, number), offset in sorted(before.items())
            ],
        }


def check(
    settings: OffsetsSettings, old: Sequence[Sequence[object] | None], say: Progress
) -> KafkaCheck | None:
    """Compare stored offsets with the current contents of their topics; None without a broker.

    Offsets of another cluster are translated first. Prints its decisions, unless only the check
    was requested, and also when it refuses. Raises NotFoundError for a topic in the settings that
    does not exist, IncompatibleStateError when a policy refuses, CommitConflictError when the group
    has members, and the errors of :class:`~statestore.sources.kafka.KafkaCluster` and
    :meth:`~statestore.sources.mirror.Mirror.translate`.
    """
    kafka = settings.kafka
    if kafka.bootstrap is None:
        return None
    cluster = KafkaCluster(kafka.bootstrap, kafka.options, seconds=kafka.seconds)
    if kafka.cluster == "same":
        found, lists = _compared(kafka, cluster, old), old
    else:
        mirror = _mirror(kafka, settings.mirror, cluster)
        found = mirror.translate(element for elements in old for element in elements or ())
        lists = mirror.renamed(old)
    report = _report(kafka, found.report)
    if found.refused or not settings.check_only:
        say(table(report))
    reconciled = found.per_old_subtask(lists)
    if kafka.group is not None:
        cluster.refuse_live(kafka.group)
    return KafkaCheck(cluster, kafka.group, reconciled, report)


def _compared(
    kafka: KafkaSettings, cluster: KafkaCluster, old: Sequence[Sequence[object] | None]
) -> Reconciled:
    """Compare the stored offsets with the same cluster."""
    stored = source_offsets(element for elements in old for element in elements or ())
    live = cluster.topics({*kafka.topics, *(each.topic for each in stored)})
    missing = sorted(set(kafka.topics) - live.keys())
    if missing:
        raise NotFoundError(
            f"Kafka at {kafka.bootstrap} has no topic {missing[0]!r}, which the setting "
            "kafka.topics names; correct the name or create the topic"
        )
    return reconcile(stored, live, kafka)


def _mirror(kafka: KafkaSettings, mirror: MirrorSettings, target: KafkaCluster) -> Mirror:
    source = (
        None
        if mirror.bootstrap is None
        else KafkaCluster(mirror.bootstrap, mirror.options, seconds=kafka.seconds)
    )
    return Mirror(
        flow=mirror.flow,
        target=target,
        source=source,
        policies=kafka,
        rules=mirror,
        topics=kafka.topics,
    )


def table(report: Report) -> str:
    """Return the check as text: one line for each partition, stored or live.

    For offsets of another cluster, the column ``translated`` says how exact they are.
    """
    names = ["topic", "partition", "stored", "translated", "live", "decision", "offset", "reason"]
    lines = [
        [
            each["topic"],
            each["partition"],
            _shown(each["stored"]),
            each.get("precision") or "-",
            "-" if each["low"] is None else f"{each['low']}..{each['high']}",
            each["decision"],
            _shown(each["offset"]),
            each["reason"],
        ]
        for each in report["partitions"]
    ]
    if not any("precision" in each for each in report["partitions"]):
        names, lines = names[:3] + names[4:], [line[:3] + line[4:] for line in lines]
    return f"{summary(report)}\n{columns(names, lines)}" if lines else summary(report)


def summary(report: Report) -> str:
    """Return the number of partitions per decision (kept, moved, …), as one line."""
    counts = ", ".join(f"{number} {decision}" for decision, number in report["decisions"].items())
    return f"Kafka at {report['bootstrap']}: {counts or 'no partitions'}"


def _report(kafka: KafkaSettings, findings: Sequence[PartitionFinding]) -> Report:
    return {
        "bootstrap": kafka.bootstrap,
        "decisions": dict(Counter(finding.decision.value for finding in findings)),
        "partitions": [
            {
                "topic": finding.topic,
                "partition": finding.partition,
                "topic_id": finding.topic_id,
                "stored": None if finding.stored is None else finding.stored.offset,
                "low": None if finding.live is None else finding.live.low,
                "high": None if finding.live is None else finding.live.high,
                "case": finding.case.value,
                "decision": finding.decision.value,
                "offset": finding.offset,
                "unread": finding.unread,
                "reason": finding.reason,
                **_translation(finding),
            }
            for finding in findings
        ],
    }


def _translation(finding: PartitionFinding) -> Report:
    """Return the additional members for an offset of another cluster."""
    translation = finding.translation
    if translation is None:
        return {}
    return {
        "stored": translation.stored.offset,
        "source_topic": translation.stored.topic,
        "precision": translation.precision.value,
        "read_again": translation.read_again,
        "gap_ms": translation.gap_ms,
    }


def _shown(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
