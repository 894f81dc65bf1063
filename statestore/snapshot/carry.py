"""Carry states of the previous checkpoint into the new one, or drop them on purpose.

A checkpoint is the complete state of a job. A state that it does not name would be lost, even one
that users do not think of, such as the progress of a live query. So each state of the previous
checkpoint must be written, carried, or dropped by name. If one is not, nothing is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from statestore.errors import InvalidArgumentError, LeftOutStateError, StateNotFoundError
from statestore.format.manifest import (
    Entry,
    KeyedEntry,
    Manifest,
    OperatorEntry,
    StateName,
    name_of,
)
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import effective_max_parallelism
from statestore.restore.restored import RestoredOperatorState
from statestore.snapshot.pending_checkpoint import LATEST, PendingCheckpoint
from statestore.snapshot.state_writer import write_operator


def carry(pending: PendingCheckpoint, uid: str, name: str, base: int | str) -> Entry:
    """Carry a state; see ``CheckpointWriter.carry``."""
    manifest = _source_of(pending, base)
    if manifest is None:
        raise StateNotFoundError(
            f"state {name!r} of operator {uid!r} cannot be carried: the store has no checkpoint yet"
        )
    pending.refuse_twice(uid, name)
    pending.bases[manifest.checkpoint_id] = manifest
    return _carry(pending, manifest, _find(pending, manifest, uid, name), uid)


def left_out(pending: PendingCheckpoint, naming: Iterable[StateName]) -> tuple[StateName, ...]:
    """Return the states that would be lost now; see ``CheckpointWriter.left_out``."""
    before = pending.parent
    if before is None or pending.rest_of is not None:
        return ()
    return tuple(map(name_of, _missing(pending, before, {*naming, *pending.names})))


def carry_missing(pending: PendingCheckpoint) -> None:
    """Carry the rest if requested, and refuse to lose a state.

    Raises LeftOutStateError, or InvalidArgumentError for a dropped state that was written.
    """
    before = pending.parent
    if before is not None:
        _refuse_dropped(pending, before)
    if pending.rest_of is not None:
        _carry_rest(pending, _source_of(pending, pending.rest_of))
    missing = [] if before is None else _missing(pending, before, pending.names)
    if before is not None and missing:
        pending.fence.check()  # a fenced writer gets that error first
        raise _left_out_error(pending, before, missing)


def _source_of(pending: PendingCheckpoint, base: int | str) -> Manifest | None:
    """Return the checkpoint to carry states from; None before the first checkpoint."""
    return pending.history.newest() if base == LATEST else pending.history.load(base)


def _carry_rest(pending: PendingCheckpoint, manifest: Manifest | None) -> None:
    if manifest is None:
        return
    pending.bases[manifest.checkpoint_id] = manifest
    for entry in _missing(pending, manifest, pending.names):
        label = _label(pending, manifest, entry)
        if label is not None:  # otherwise it is refused later, unless it is dropped
            _carry(pending, manifest, entry, label)


def _refuse_dropped(pending: PendingCheckpoint, before: Manifest) -> None:
    """Refuse a state that was both dropped and written.

    It is allowed if the label now belongs to another operator.
    """
    by_id = _by_id(pending, pending.names)
    for entry in before.entries:
        if name_of(entry) in pending.dropped and _is_among(before, entry, by_id):
            raise InvalidArgumentError(
                f"{entry.state} is both dropped and written in this checkpoint; remove one of "
                "the two"
            )


def _left_out_error(
    pending: PendingCheckpoint, before: Manifest, missing: Sequence[Entry]
) -> LeftOutStateError:
    entry, *others = missing
    uid, name, label = entry.state.uid, entry.state.name, _label(pending, before, entry)
    keep = (
        f"add operator {uid!r} to the job graph again"
        if label is None
        else (
            f"carry it with checkpoint.carry({label!r}, {name!r}), or carry all other states "
            "with checkpoint.carry_rest()"
        )
    )
    more = ", ".join(f"{e.state.name!r} of {e.state.uid!r}" for e in others[:9])
    return LeftOutStateError(
        (
            f"checkpoint {before.checkpoint_id} of {pending.catalog.storage.url} has "
            f"{entry.state}, which the next checkpoint would lose: {keep}; or drop it with "
            f"checkpoint.drop({uid!r}, {name!r})"
        )
        + (f". Left out as well: {more}{', …' if len(others) > 9 else ''}" if others else "")
    )


def _label(pending: PendingCheckpoint, before: Manifest, entry: Entry) -> str | None:
    stored = entry.state.uid
    return pending.operators.label_of_id(before.operators.id_of(stored), stored)


def _missing(
    pending: PendingCheckpoint, before: Manifest, known: Collection[StateName]
) -> list[Entry]:
    """Return the states of a checkpoint that the new checkpoint lacks, matched by operator id.

    Dropped states are also matched by label, because their operator may no longer be in the job
    graph.
    """
    by_id = _by_id(pending, {*known, *pending.dropped})
    return [
        entry
        for entry in before.entries
        if not _is_among(before, entry, by_id) and name_of(entry) not in pending.dropped
    ]


def _by_id(pending: PendingCheckpoint, known: Iterable[StateName]) -> set[tuple[str, str]]:
    """Return (operator id, name) of states given by their operators' labels."""
    ids_of = pending.operators.ids_of
    return {(operator_id, name) for uid, name in known for operator_id in ids_of(uid)}


def _is_among(before: Manifest, entry: Entry, by_id: Collection[tuple[str, str]]) -> bool:
    return (before.operators.id_of(entry.state.uid), entry.state.name) in by_id


def _find(pending: PendingCheckpoint, manifest: Manifest, uid: str, name: str) -> Entry:
    ids = pending.operators.ids_of(uid)
    for entry in manifest.entries:
        if manifest.operators.id_of(entry.state.uid) in ids and entry.state.name == name:
            return entry
    return manifest.find(uid, name)


def _carry(pending: PendingCheckpoint, manifest: Manifest, entry: Entry, uid: str) -> Entry:
    """Carry a state under the operator's label in this job."""
    operators, stored = pending.operators, entry.state.uid
    if manifest.operators.id_of(stored) not in operators.ids_of(uid):
        raise InvalidArgumentError(
            f"{entry.state} belongs to an operator without a uid, whose id only the job graph "
            "determines: give the operator a uid, or pass the job graph to the snapshot"
        )
    parallelism = operators.parallelism_of(uid)
    if isinstance(entry, KeyedEntry):
        effective_max_parallelism(entry.state.max_parallelism, parallelism, None)
        carried: Entry = replace(entry, state=replace(entry.state, uid=uid))
    elif entry.state.mode is RedistributionMode.BROADCAST or len(entry.counts) == parallelism:
        carried = replace(entry, state=replace(entry.state, uid=uid))
    else:
        return _deal(pending, manifest, entry, uid, parallelism)
    pending.carry(carried)
    return carried


def _deal(
    pending: PendingCheckpoint, manifest: Manifest, entry: OperatorEntry, uid: str, parallelism: int
) -> OperatorEntry:
    """Redistribute an operator's elements over its current number of subtasks."""
    state = RestoredOperatorState(pending.catalog.storage, manifest, entry, parallelism)
    mode, name = entry.state.mode, entry.state.name
    if mode is RedistributionMode.UNION:
        lists = [state.subtask(0), *([] for _ in range(parallelism - 1))]
    else:
        lists = [*state.subtasks()]
    return write_operator(pending, uid, name, lists, mode)
