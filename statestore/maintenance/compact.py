"""Compact a checkpoint offline: fold changes into the base files, as a new checkpoint.

A job does the same between its own snapshots (``snapshot/background_compaction.py``). The compacted
files are new. The old files stay, because older checkpoints still name them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.compaction_policy import (
    CompactionRule,
    LayeredSpan,
    layers_to_merge,
    spans_of,
    spans_to_fold,
)
from statestore.format.layers import live_rows, live_without
from statestore.format.manifest import KeyedEntry, Layer, Manifest
from statestore.keys.groups import KeyGroupRange
from statestore.layers.compaction import Compactor
from statestore.maintenance.derive import DerivedReport, Deriver

__all__ = ["CompactReport", "CompactRequest", "CompactedState", "compact"]

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True, kw_only=True)
class CompactRequest:
    """The states and key groups to compact, and the rule that selects the changes.

    ``key_groups`` is a KeyGroupRange, or text such as ``0-31`` or ``7``. ``everything`` ignores the
    rule.
    """

    uid: str | None = None
    name: str | None = None
    key_groups: Any = None
    everything: bool = False
    rule: CompactionRule

    @property
    def only(self) -> KeyGroupRange | None:
        """The requested key groups; None for all.

        Raises InvalidArgumentError if the text is not a range.
        """
        wanted = self.key_groups
        if wanted is None or isinstance(wanted, KeyGroupRange):
            return wanted
        match = _RANGE.fullmatch(wanted) if isinstance(wanted, str) else None
        if match is None:
            raise InvalidArgumentError(
                f"{wanted!r} is not a range of key groups; write it as 0-31, or 7"
            )
        return KeyGroupRange(int(match[1]), int(match[2] or match[1]))


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
    deriver: Deriver,
    wanted: CompactRequest,
    *,
    checkpoint: CheckpointRef,
    from_older: bool,
    dry_run: bool,
    now_ms: int | None,
    progress: Callable[[int, int], None],
) -> CompactReport:
    """Make a new checkpoint with the same state, with changes folded and layers merged.

    If there is nothing to do, nothing is written and no other writer is fenced. Raises
    CheckpointNotFoundError, StateNotFoundError, InvalidArgumentError, CorruptionError for a damaged
    file, CommitConflictError, or StorageError. If it raises, no new checkpoint is visible.
    """
    only = wanted.only
    source = deriver.load_source(checkpoint, from_older=from_older or dry_run)
    entries = _select_entries(source.manifest, wanted)
    plans = [_CompactionPlan.from_entry(entry, wanted, only) for entry in entries]
    is_needed = any(plan.steps for plan in plans)
    done = [plan.entry for plan in plans]
    with deriver.derive(source, "compact", dry_run=dry_run, is_needed=is_needed) as draft:
        if draft.writer is not None:
            with draft.checkpoint.collected.measuring.phase("compaction"):
                done = [*_compact_states(Compactor(draft.files, now_ms), plans, progress)]
            for entry in done:
                draft.put(entry, compacted=True)
            draft.record(**_origin(wanted, plans))
    return CompactReport(
        **draft.facts,
        everything=wanted.everything,
        states=tuple(
            plan.report(None if dry_run else entry) for plan, entry in zip(plans, done, strict=True)
        ),
    )


def _select_entries(manifest: Manifest, wanted: CompactRequest) -> list[KeyedEntry]:
    """Return the requested states that have layers.

    Raises StateNotFoundError if no state matches.
    """
    if wanted.uid is not None and wanted.name is not None:
        manifest.keyed_entry(wanted.uid, wanted.name)
    named = [
        entry
        for entry in manifest.keyed
        if wanted.uid in (None, entry.state.uid) and wanted.name in (None, entry.state.name)
    ]
    if not named and (wanted.uid, wanted.name) != (None, None):
        subject = f"operator {wanted.uid!r}" if wanted.name is None else f"state {wanted.name!r}"
        existing = ", ".join(str(entry.state) for entry in manifest.keyed) or "none"
        raise StateNotFoundError(
            f"checkpoint {manifest.checkpoint_id} has no keyed state of {subject}; "
            f"it has {existing}"
        )
    ages = wanted.everything  # then expired rows are also removed from key groups without changes
    return [entry for entry in named if entry.layers or (ages and entry.state.ttl is not None)]


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
        cls, entry: KeyedEntry, wanted: CompactRequest, only: KeyGroupRange | None
    ) -> _CompactionPlan:
        ages = wanted.everything and entry.state.ttl is not None
        known = [span for span in spans_of(entry) if span.changed_rows or (ages and span.rows)]
        if not wanted.everything:
            due = spans_to_fold(entry, wanted.rule)
            known = [span for span in known if span.key_groups in due]
        spans = [span for span in known if only is None or span.key_groups.intersect(only)]
        folded = [span.key_groups for span in spans]
        left = [
            remaining
            for layer in entry.layers
            if (remaining := live_without(layer, folded)) is not None
        ]
        merged = 0
        if only is None and not wanted.everything:
            merged = layers_to_merge(replace(entry, layers=tuple(left)), wanted.rule)
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
    compactor: Compactor, plans: Sequence[_CompactionPlan], progress: Callable[[int, int], None]
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


def _origin(wanted: CompactRequest, plans: Sequence[_CompactionPlan]) -> dict[str, Any]:
    """Return the members of the ``origin`` that the new manifest records."""
    return {
        "everything": wanted.everything,
        "states": [
            {
                "operator": plan.entry.state.uid,
                "state": plan.entry.state.name,
                "layers": len(plan.entry.layers),
                "folded": [[span.key_groups.first, span.key_groups.last] for span in plan.spans],
                "merged": plan.merged,
            }
            for plan in plans
            if plan.steps
        ],
    }
