"""Carry states of the previous checkpoint into the new one, or drop them on purpose.

A checkpoint is the complete state of a job. A state that it does not name would be lost, even one
that users do not think of, such as the progress of a live query. So each state of the previous
checkpoint must be written, carried, or dropped by name. If one is not, nothing is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from statestore.errors import InvalidArgumentError, LeftOutStateError, StateNotFoundError
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import effective_max_parallelism
from statestore.restore.restored import RestoredOperatorState
from statestore.snapshot.full_writer import write_operator
from statestore.snapshot.pending_checkpoint import PendingCheckpoint

__all__ = ["LATEST", "Carrying"]

LATEST = "latest"


class Carrying:
    """The states that one checkpoint carries from the previous one, and the dropped ones."""

    def __init__(self, collected: PendingCheckpoint) -> None:
        """Start with nothing carried or dropped."""
        self._collected, self._attempt = collected, collected.attempt
        self._dropped: set[tuple[str, str]] = set()
        self._rest_of: int | str | None = None

    def carry(self, uid: str, name: str, *, base: int | str = LATEST) -> Entry:
        """Carry a state from the newest checkpoint, or from ``base``; return it.

        Its files are named again, and no row is read. Elements of an operator are redistributed if
        its parallelism has changed. Raises StateNotFoundError, CheckpointNotFoundError,
        MalformedManifestError, ParallelismError, or InvalidArgumentError for a state that this
        checkpoint already has.
        """
        manifest = self._source_of(base)
        if manifest is None:
            raise StateNotFoundError(
                f"state {name!r} of operator {uid!r} cannot be carried: the store has no "
                "checkpoint yet"
            )
        self._collected.refuse_twice(uid, name)
        self._collected.bases[manifest.checkpoint_id] = manifest
        return self._carry(manifest, self._find(manifest, uid, name), uid)

    def carry_rest(self, *, base: int | str = LATEST) -> None:
        """When the block ends, carry the other states of the newest checkpoint, or of ``base``.

        These are the states that are neither in this checkpoint by then nor dropped. Each is
        carried as by :meth:`carry`.
        """
        if self._collected.left:
            raise InvalidArgumentError(
                "carry_rest() was called outside of the 'with' block; call it inside"
            )
        self._rest_of = base

    def drop(self, uid: str, name: str) -> None:
        """Leave a state of the newest checkpoint out of this one and all later ones.

        If the state does not exist, this does nothing.
        """
        if self._collected.left:
            raise InvalidArgumentError("drop(…) must be called inside the 'with' block")
        self._dropped.add((uid, name))

    def left_out(self, naming: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
        """Return (operator uid, state name) of each state that would be lost at this point.

        These are states of the newest checkpoint that this one does not have. The states in
        ``naming`` count as already written.
        """
        before = self._before()
        if before is None or self._rest_of is not None:
            return ()
        known = {*naming, *self._collected.names}
        return tuple((e.state.uid, e.state.name) for e in self._missing(before, known))

    def _before(self) -> Manifest | None:
        return self._attempt.made_of or self._attempt.history.before()

    def settle(self) -> None:
        """Carry the rest if requested, and refuse to lose a state.

        Raises LeftOutStateError, or InvalidArgumentError for a dropped state that was written.
        """
        self._refuse_dropped()
        if self._rest_of is not None:
            self._carry_missing(self._source_of(self._rest_of))
        self._rest_of = None
        self._refuse_left_out()

    def _source_of(self, base: int | str) -> Manifest | None:
        """Return the checkpoint to carry states from; None before the first checkpoint."""
        attempt = self._attempt
        return attempt.history.newest() if base == LATEST else attempt.history.load(base)

    def _carry_missing(self, manifest: Manifest | None) -> None:
        if manifest is None:
            return
        self._collected.bases[manifest.checkpoint_id] = manifest
        for entry in self._missing(manifest, self._collected.names):
            label = self._label(manifest, entry)
            if label is not None:  # otherwise it is refused later, unless it is dropped
                self._carry(manifest, entry, label)

    def _refuse_dropped(self) -> None:
        """Refuse a state that was both dropped and written.

        It is allowed if the label now belongs to another operator.
        """
        before = self._before()
        if before is None:
            return
        by_id = self._by_id(self._collected.names)
        for entry in before.entries:
            state = entry.state.uid, entry.state.name
            if state in self._dropped and _is_among(before, entry, by_id):
                raise InvalidArgumentError(
                    f"{entry.state} is both dropped and written in this checkpoint; remove one of "
                    "the two"
                )

    def _refuse_left_out(self) -> None:
        before = self._before()
        missing = [] if before is None else self._missing(before, self._collected.names)
        if before is None or not missing:
            return
        self._attempt.fence.check()  # a fenced writer gets that error first
        entry, *others = missing
        uid, name, label = entry.state.uid, entry.state.name, self._label(before, entry)
        keep = (
            f"add operator {uid!r} to the job graph again"
            if label is None
            else (
                f"carry it with checkpoint.carry({label!r}, {name!r}), or carry all other states "
                "with checkpoint.carry_rest()"
            )
        )
        more = ", ".join(f"{e.state.name!r} of {e.state.uid!r}" for e in others[:9])
        raise LeftOutStateError(
            (
                f"checkpoint {before.checkpoint_id} of {self._attempt.catalog.storage.url} has "
                f"{entry.state}, which the next checkpoint would lose: {keep}; or drop it with "
                f"checkpoint.drop({uid!r}, {name!r})"
            )
            + (f". Left out as well: {more}{', …' if len(others) > 9 else ''}" if others else "")
        )

    def _label(self, before: Manifest, entry: Entry) -> str | None:
        stored = entry.state.uid
        return self._attempt.operators.label_of_id(before.operators.id_of(stored), stored)

    def _missing(self, before: Manifest, known: Collection[tuple[str, str]]) -> list[Entry]:
        """Return the states of a checkpoint that the new checkpoint lacks, matched by operator id.

        Dropped states are also matched by label, because their operator may no longer be in the job
        graph.
        """
        by_id = self._by_id({*known, *self._dropped})
        return [
            entry
            for entry in before.entries
            if not _is_among(before, entry, by_id)
            and (entry.state.uid, entry.state.name) not in self._dropped
        ]

    def _by_id(self, known: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return (operator id, name) of states given by their operators' labels."""
        ids_of = self._attempt.operators.ids_of
        return {(operator_id, name) for uid, name in known for operator_id in ids_of(uid)}

    def _find(self, manifest: Manifest, uid: str, name: str) -> Entry:
        ids = self._attempt.operators.ids_of(uid)
        for entry in manifest.entries:
            if manifest.operators.id_of(entry.state.uid) in ids and entry.state.name == name:
                return entry
        return manifest.find(uid, name)

    def _carry(self, manifest: Manifest, entry: Entry, uid: str) -> Entry:
        """Carry a state under the operator's label in this job."""
        operators, stored = self._attempt.operators, entry.state.uid
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
            return self._deal(manifest, entry, uid, parallelism)
        self._collected.carry_entry(carried)
        return carried

    def _deal(
        self, manifest: Manifest, entry: OperatorEntry, uid: str, parallelism: int
    ) -> OperatorEntry:
        """Redistribute an operator's elements over its current number of subtasks."""
        state = RestoredOperatorState(self._attempt.catalog, manifest, entry, parallelism)
        mode, name = entry.state.mode, entry.state.name
        if mode is RedistributionMode.UNION:
            lists = [state.subtask(0), *([] for _ in range(parallelism - 1))]
        else:
            lists = [*state.subtasks()]
        return write_operator(self._collected, uid, name, lists, mode)


def _is_among(before: Manifest, entry: Entry, by_id: Collection[tuple[str, str]]) -> bool:
    return (before.operators.id_of(entry.state.uid), entry.state.name) in by_id
