"""Translate a source's stored offsets to another Kafka cluster, as a new checkpoint.

The plan has the decision about each partition, and nothing is written before it is accepted. The
new checkpoint has the offsets of the target cluster in place of the source's. Its ``origin`` keeps
both, so that a return to the old cluster needs no other checkpoint. All other states stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest, OperatorEntry
from statestore.format.names import SUBTASK
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.maintenance.derive import DerivedReport, Deriver, Draft, Source
from statestore.maintenance.store_context import HasContext
from statestore.parquet.operator_elements import elements_of
from statestore.rows.fit_columns import fit_column
from statestore.sources.discovery import PartitionFinding, Reconciled
from statestore.sources.mirror import Mirror
from statestore.sources.offsets import SourceOffset

_COMMAND = "kafka translate"
_FIELDS = {
    "topic": pa.string(),
    "partition": pa.int64(),
    "offset": pa.int64(),
    "topic_id": pa.string(),
}


@dataclass(frozen=True, kw_only=True)
class TranslatedPartition:
    """A partition at the target, with its offset at the source and the decision about it.

    Some members are None for a partition without a stored offset: ``source_topic``,
    ``source_offset``, ``precision`` (``exact``, ``earlier``, ``by timestamp`` or ``unknown``),
    ``read_again`` (the greatest number of records that are read a second time; None if it is
    unknown) and ``gap_ms`` (for an offset by timestamp, the time to the target's next record).
    ``low`` and ``high`` are the live offsets; None if the target lacks the partition. ``offset`` is
    the next one to read; None if the partition is retired or refused.
    """

    topic: str
    partition: int
    source_topic: str | None
    source_offset: int | None
    precision: str | None
    read_again: int | None
    gap_ms: int | None
    low: int | None
    high: int | None
    case: str
    decision: str
    offset: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class GroupOffset:
    """The previous offset of a consumer group at the target."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class TranslatedOffsets(DerivedReport):
    """Translated offsets.

    ``source`` and ``target`` are the aliases of the clusters. ``before`` has the previous offsets
    of ``group``, if one was committed.
    """

    operator: str
    state: str
    source: str
    target: str
    group: str | None
    partitions: tuple[TranslatedPartition, ...]
    before: tuple[GroupOffset, ...] = ()


@dataclass(frozen=True)
class TranslationPlan:
    """The decision about each partition of a state; nothing was written yet."""

    deriver: Deriver
    checkpoint: Source
    entry: OperatorEntry
    mirror: Mirror
    group: str | None
    found: Reconciled
    _elements: pa.Table

    @property
    def report(self) -> TranslatedOffsets:
        """The plan as the result of a dry run."""
        with self.deriver.derive(self.checkpoint, _COMMAND, dry_run=True) as draft:
            return self._report(draft, ())

    def write(self) -> TranslatedOffsets:
        """Write the translated offsets as a new checkpoint, and commit them for the group.

        The group's offsets are committed right before the checkpoint. If Kafka refuses them, no
        checkpoint is visible. If the checkpoint fails after that, the call can be repeated.

        Returns:
            The result, with the new checkpoint.

        Raises:
            IncompatibleStateError: a policy refuses a partition.
            CommitConflictError: the group has members, or another writer has taken over the store.
            InvalidArgumentError: an offset does not fit the column in which it was stored.
            StorageError: Kafka or the store cannot be reached.
        """
        state, before = self.entry.state, dict[tuple[str, int], int]()
        rows = self._rows(self.found.per_old_subtask(self.mirror.renamed(self._old_lists())))
        with self.deriver.derive(self.checkpoint, _COMMAND, dry_run=False) as draft:
            is_split, new = state.mode is RedistributionMode.SPLIT, draft.checkpoint
            write = new.write_split if is_split else new.write_union
            write(state.uid, state.name, rows)
            draft.leave_out(
                part
                for part in self.checkpoint.manifest.left_out
                if part.lacks(state.uid, state.name)
            )
            draft.record(**self._origin())
            draft.carry_rest()  # nothing else can fail after the group's offsets are committed
            if self.group is not None:
                before = self.mirror.target.commit(self.group, self.found.offsets)
        return self._report(draft, sorted(before.items()))

    def _old_lists(self) -> list[list[dict[str, Any]]]:
        elements, lists, first = self._elements.to_pylist(), [], 0
        for count in self.entry.counts:
            lists.append(elements[first : first + count])
            first += count
        return lists

    def _rows(self, lists: Sequence[Sequence[SourceOffset] | None]) -> pa.Table:
        """Return the new elements; other columns keep the values of the partition's old element.

        They are null for a partition that had no offset.
        """
        places: dict[tuple[str, int], int] = {}
        (old,) = self.mirror.renamed([self._elements.to_pylist()])
        for row, offset in enumerate(old or ()):
            places.setdefault((offset.topic, offset.partition), row)
        new = [offset for offsets in lists for offset in offsets or ()]
        rows = [places.get((offset.topic, offset.partition)) for offset in new]
        table = self._elements.take(pa.array(rows, pa.int64()))
        for index, field in enumerate(table.schema):
            if field.name in _FIELDS:
                data = [getattr(each, field.name) for each in new]
                values = pa.chunked_array([pa.array(data, _FIELDS[field.name])])
                subject = str(self.entry.state)
                fitted = fit_column(values, field.type, name=field.name, subject=subject)
                table = table.set_column(index, field.name, fitted)
        subtasks = [subtask for subtask, offsets in enumerate(lists) for _ in offsets or ()]
        return table.append_column(SUBTASK, pa.array(subtasks, pa.int64()))

    def _origin(self) -> dict[str, Any]:
        kept = ("topic", "partition", "offset", "source_topic", "source_offset", "read_again")
        return {
            "operator": self.entry.state.uid,
            "state": self.entry.state.name,
            "source": self.mirror.flow.source,
            "target": self.mirror.flow.target,
            "partitions": [
                {name: value for name, value in asdict(each).items() if name in kept}
                for each in self._partitions()
            ],
        }

    def _partitions(self) -> Iterator[TranslatedPartition]:
        return map(_translated_partition, self.found.report)

    def _report(
        self, draft: Draft, before: Sequence[tuple[tuple[str, int], int]]
    ) -> TranslatedOffsets:
        return TranslatedOffsets(
            **draft.facts,
            operator=self.entry.state.uid,
            state=self.entry.state.name,
            source=self.mirror.flow.source,
            target=self.mirror.flow.target,
            group=self.group,
            partitions=tuple(self._partitions()),
            before=tuple(
                GroupOffset(topic=topic, partition=number, offset=offset)
                for (topic, number), offset in before
            ),
        )


def plan_translation(
    store: HasContext,
    operator: str,
    state: str,
    mirror: Mirror,
    *,
    checkpoint: CheckpointRef = "latest",
    from_older: bool = False,
    group: str | None = None,
) -> TranslationPlan:
    """Translate a Kafka source's offsets to the cluster that MirrorMaker 2 writes to.

    Nothing is written. ``plan.report`` has the decision about each partition, and
    ``plan.write()`` makes a new checkpoint with the offsets of the new cluster.

    Args:
        operator: the operator.
        state: the state with topic, partition and offset.
        mirror: the two clusters, the replication flow, and the policies.
        checkpoint: as in :meth:`savepoint`.
        from_older: as in :meth:`compact`.
        group: a consumer group of the new cluster for which ``write()`` commits the offsets.

    Returns:
        The plan.

    Raises:
        StateNotFoundError: if the state does not exist.
        NotFoundError: if the offset-syncs topic or an additional topic does not exist.
        InvalidArgumentError: for broadcast state, elements that are not offsets, and offsets
            that are already translated.
        CorruptionError: if a record of MirrorMaker or a file is damaged.
        IncompatibleStateError: if a topic was recreated at the source.
        CommitConflictError: if the group has members.
        StorageError: if a cluster or the store cannot be reached.
    """
    deriver = store.parts.deriver()
    source = deriver.load_source(checkpoint, from_older=from_older)
    manifest = source.manifest
    entry = manifest.operator_entry(operator, state)
    if entry.state.mode is RedistributionMode.BROADCAST:
        raise InvalidArgumentError(
            f"{entry.state} is broadcast state, but the offsets of a source are split or union "
            "state; name the state with the offsets"
        )
    _refuse_translated(manifest, entry, mirror)
    if group is not None:
        mirror.target.refuse_live(group)
    elements = elements_of(deriver.catalog.storage, entry, verify=True)
    if not elements.num_rows:
        raise InvalidArgumentError(
            f"{entry.state} has no elements in checkpoint {manifest.checkpoint_id}, so there is no "
            "offset to translate; name another state or checkpoint"
        )
    found = mirror.translate(elements.to_pylist())
    return TranslationPlan(deriver, source, entry, mirror, group, found, elements)


def _refuse_translated(manifest: Manifest, entry: OperatorEntry, mirror: Mirror) -> None:
    origin, state = manifest.origin or {}, entry.state
    same = {
        "command": _COMMAND,
        "operator": state.uid,
        "state": state.name,
        "source": mirror.flow.source,
    }
    if same.items() <= origin.items():
        raise InvalidArgumentError(
            f"{state} of checkpoint {manifest.checkpoint_id} is already translated from cluster "
            f"{mirror.flow.source!r} to {origin['target']!r}; translate checkpoint "
            f"{origin['checkpoint']}, which has the offsets of {mirror.flow.source!r}, with "
            "from_older (--from-older)"
        )


def _translated_partition(finding: PartitionFinding) -> TranslatedPartition:
    translation, live = finding.translation, finding.live
    return TranslatedPartition(
        topic=finding.topic,
        partition=finding.partition,
        source_topic=None if translation is None else translation.stored.topic,
        source_offset=None if translation is None else translation.stored.offset,
        precision=None if translation is None else translation.precision.value,
        read_again=None if translation is None else translation.read_again,
        gap_ms=None if translation is None else translation.gap_ms,
        low=None if live is None else live.low,
        high=None if live is None else live.high,
        case=finding.case.value,
        decision=finding.decision.value,
        offset=finding.offset,
        reason=finding.reason,
    )
