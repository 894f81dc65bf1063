"""Compact a checkpoint offline: fold changes into the base files, as a new checkpoint.

A job does the same between its own snapshots (``snapshot/background_compaction.py``). The compacted
files are new. The old files stay, because older checkpoints still name them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import InvalidArgumentError
from statestore.format.layers import (
    CompactionRule,
    LayeredSpan,
    layers_to_merge,
    live_rows,
    live_without,
    spans_of,
    spans_to_fold,
)
from statestore.format.manifest import KeyedEntry, Layer
from statestore.keys.groups import KeyGroupRange
from statestore.layers.compaction import Compactor
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.derive import DerivedReport
from statestore.maintenance.store_context import HasContext
from statestore.restore.target import keyed_entries

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True, kw_only=True)
class CompactedState:
    """One state before and after compaction.

    In a dry run, ``files_after`` and ``size_bytes_after`` are None. ``spans`` are the key groups
    whose changes are now in the base. ``rows_read`` counts the rows of base and changes that were
    read to fold them and to merge layers.
    """

    operator: str
    state: str
    layers_before: int
    layers_after: int
    files_before: int
    files_after: int | None
    size_bytes_before: int
    size_bytes_after: int | None
    rows_read: int
    spans: tuple[KeyGroupRange, ...]
    merged_layers: int

    @property
    def is_changed(self) -> bool:
        """Whether there was anything to compact."""
        return bool(self.spans or self.merged_layers)


@dataclass(frozen=True, kw_only=True)
class CompactReport(DerivedReport):
    """The result of a compaction, or of a dry run: the states that have layers."""

    everything: bool
    states: tuple[CompactedState, ...]

    json_properties: ClassVar[tuple[str, ...]] = ("is_compact",)

    @property
    def is_compact(self) -> bool:
        """True if there was nothing to compact."""
        return not any(state.is_changed for state in self.states)


def compact(
    store: HasContext,
    checkpoint: CheckpointRef = "latest",
    *,
    operator: str | None = None,
    state: str | None = None,
    key_groups: KeyGroupRange | str | None = None,
    everything: bool = False,
    rule: CompactionRule | None = None,
    from_older: bool = False,
    dry_run: bool = False,
    now_ms: int | None = None,
    on_progress: Progress | None = None,
) -> CompactReport:
    """Merge layers of incremental checkpoints, and fold them into their base.

    The result is a new checkpoint; the old ones stay. If there is nothing to do, no checkpoint
    is made. If the compaction fails, no new checkpoint is visible.

    A job compacts in the background of its own snapshots. A running job can no longer commit
    afterwards, as after :meth:`edit`. If two compactions run at the same time, only one
    commits.

    Args:
        checkpoint: as in :meth:`savepoint`.
        operator: compacts only the states of this operator.
        state: compacts only the state of this name.
        key_groups: a KeyGroupRange or a text such as ``0-31``. Only base files with some of
            these key groups are selected, and no layers are merged.
        everything: merges all changes into their base, so that no layers are left.
        rule: the policy to apply, once; by default the store's.
        from_older: allows a checkpoint that is not the newest. The new checkpoint then undoes
            the newer ones, with their batches. Without it only a dry run takes such a
            checkpoint.
        dry_run: reports what would be done, and changes nothing.
        now_ms: rows that have expired by this time, in ms since 1970, are not rewritten; by
            default now.
        on_progress: called with the number of spans and layers done and the total.

    Returns:
        The compacted states.

    Raises:
        CheckpointNotFoundError or StateNotFoundError: if the checkpoint or state does not
            exist.
        InvalidArgumentError: for invalid options.
        CorruptionError: if a file is damaged.
        CommitConflictError: if another writer commits first.
        StorageError: if the store cannot be read or written.
    """
    only = _range_of(key_groups)
    deriver, progress = store.parts.deriver(), on_progress or ignore_progress
    source = deriver.load_source(checkpoint, from_older=from_older or dry_run)
    # Without a rule, expired rows are also removed from key groups without changes.
    applied = None if everything else rule or store.parts.compaction or CompactionRule()
    plans = [
        _CompactionPlan.from_entry(entry, applied, only)
        for entry in keyed_entries(source.manifest, operator, state)
        if entry.layers or (everything and entry.state.ttl is not None)
    ]
    is_needed = any(plan.steps for plan in plans)
    now_ms = store.parts.now_ms() if now_ms is None else now_ms
    done = [plan.entry for plan in plans]
    with deriver.derive(source, "compact", dry_run=dry_run, is_needed=is_needed) as draft:
        if draft.writer is not None:
            with draft.checkpoint.collected.measuring.phase("compaction"):
                done = [*_compact_states(Compactor(draft.files, now_ms), plans, progress)]
            for entry in done:
                draft.put(entry, compacted=True)
            draft.record(everything=everything, states=_compacted_spans(plans))
    return CompactReport(
        **draft.facts,
        everything=everything,
        states=tuple(
            plan.report(None if dry_run else entry) for plan, entry in zip(plans, done, strict=True)
        ),
    )


def _range_of(key_groups: KeyGroupRange | str | None) -> KeyGroupRange | None:
    """Return the requested key groups; None for all.

    Raises InvalidArgumentError if the text is not a range.
    """
    if key_groups is None or isinstance(key_groups, KeyGroupRange):
        return key_groups
    match = _RANGE.fullmatch(key_groups)
    if match is None:
        raise InvalidArgumentError(
            f"{key_groups!r} is not a range of key groups; write it as 0-31, or 7"
        )
    return KeyGroupRange(int(match[1]), int(match[2] or match[1]))


@dataclass(frozen=True)
class _CompactionPlan:
    """The compaction of one state: fold spans, then merge the newest remaining layers."""

    entry: KeyedEntry
    spans: tuple[LayeredSpan, ...]
    merged: int
    left: tuple[Layer, ...]
    rows_read: int

    @classmethod
    def from_entry(
        cls, entry: KeyedEntry, rule: CompactionRule | None, only: KeyGroupRange | None
    ) -> _CompactionPlan:
        ages = rule is None and entry.state.ttl is not None
        known = [span for span in spans_of(entry) if span.changed_rows or (ages and span.rows)]
        if rule is not None:
            due = spans_to_fold(entry, rule)
            known = [span for span in known if span.key_groups in due]
        spans = [span for span in known if only is None or span.key_groups.intersect(only)]
        folded = [span.key_groups for span in spans]
        left = [
            remaining
            for layer in entry.layers
            if (remaining := live_without(layer, folded)) is not None
        ]
        merged = 0
        if only is None and rule is not None:
            merged = layers_to_merge(replace(entry, layers=tuple(left)), rule)
        merging = left[len(left) - merged :]
        rows = sum(span.rows + span.changed_rows for span in spans)
        every = KeyGroupRange.every(entry.state.max_parallelism)
        rows += sum(live_rows(layer, every) for layer in merging)
        if merged:
            left = [*left[:-merged], left[-1]]
        return cls(entry, tuple(spans), merged, tuple(left), rows)

    @property
    def steps(self) -> int:
        """The number of progress steps."""
        return len(self.spans) + (self.merged > 0)

    def report(self, after: KeyedEntry | None) -> CompactedState:
        return CompactedState(
            operator=self.entry.state.uid,
            state=self.entry.state.name,
            layers_before=len(self.entry.layers),
            layers_after=len(self.left if after is None else after.layers),
            files_before=self.entry.files,
            files_after=None if after is None else after.files,
            size_bytes_before=self.entry.size_bytes,
            size_bytes_after=None if after is None else after.size_bytes,
            rows_read=self.rows_read,
            spans=tuple(span.key_groups for span in self.spans),
            merged_layers=self.merged,
        )


def _compact_states(
    compactor: Compactor, plans: Sequence[_CompactionPlan], progress: Progress
) -> Iterator[KeyedEntry]:
    """Yield the compacted states, one after another."""
    total, steps = sum(plan.steps for plan in plans), count(1)

    def step() -> None:
        progress(next(steps), total)

    progress(0, total)
    for plan in plans:
        entry = compactor.fold(plan.entry, [span.key_groups for span in plan.spans], step)
        if plan.merged:
            entry = compactor.merge(entry, plan.merged)
            step()
        yield entry


def _compacted_spans(plans: Sequence[_CompactionPlan]) -> list[dict[str, Any]]:
    """Return what the ``origin`` of the new manifest records of each compacted state."""
    return [
        {
            "operator": plan.entry.state.uid,
            "state": plan.entry.state.name,
            "layers": len(plan.entry.layers),
            "folded": [[span.key_groups.first, span.key_groups.last] for span in plan.spans],
            "merged": plan.merged,
        }
        for plan in plans
        if plan.steps
    ]
