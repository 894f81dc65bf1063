"""What a checkpoint takes over of the one before it, and what it leaves out on purpose.

A checkpoint is all of a job's state, so a state that it does not name would be gone with it, and
with it what nobody thinks of: how far a live query is. So a state of the checkpoint that this one
builds on is written, carried, or dropped by name; else nothing is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from statestore.errors import InvalidArgumentError, LeftOutStateError, StateNotFoundError
from statestore.flink.redistribution import RedistributionMode
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.keys.groups import effective_max_parallelism
from statestore.restore.restored import RestoredOperatorState
from statestore.snapshot.collected import Collected
from statestore.snapshot.written_states import write_operator

__all__ = ["LATEST", "Carrying"]

LATEST = "latest"


class Carrying:
    """What one checkpoint carries and drops of the one before it."""

    def __init__(self, collected: Collected) -> None:
        """Begin with nothing carried or dropped."""
        self._collected, self._attempt = collected, collected.attempt
        self._dropped: set[tuple[str, str]] = set()
        self._rest_of: int | str | None = None

    def carry(self, uid: str, name: str, *, base: int | str = LATEST) -> Entry:
        """Take a state over from the newest checkpoint, or from ``base``; return it.

        Its files are named again, and no row is read; elements of an operator are dealt anew when
        its parallelism is another one. Raises StateNotFoundError, CheckpointNotFoundError,
        MalformedManifestError, ParallelismError, or InvalidArgumentError for a state that is in
        this checkpoint already.
        """
        manifest = self._of(base)
        if manifest is None:
            raise StateNotFoundError(
                f"no state {name!r} of operator {uid!r} can be carried: the store has no "
                "checkpoint yet"
            )
        self._collected.refuse_twice(uid, name)
        self._collected.bases[manifest.checkpoint_id] = manifest
        return self._carry(manifest, self._find(manifest, uid, name), uid)

    def carry_rest(self, *, base: int | str = LATEST) -> None:
        """Take over, when the block ends, each state of the newest checkpoint, or of ``base``, that
        is neither in this one by then nor dropped; else as :meth:`carry`.
        """
        if self._collected.left:
            raise InvalidArgumentError("carry_rest() is called within the 'with' block")
        self._rest_of = base

    def drop(self, uid: str, name: str) -> None:
        """Leave a state of the newest checkpoint out of this one, and so of those that follow.

        Nothing happens when there is no such state.
        """
        if self._collected.left:
            raise InvalidArgumentError("drop(…) is called within the 'with' block")
        self._dropped.add((uid, name))

    def left_out(self, naming: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
        """Return operator and name of each state that would be lost if the block ended now, after
        those in ``naming`` had been written: states of the newest checkpoint that this one has not.
        """
        before = self._before()
        if before is None or self._rest_of is not None:
            return ()
        known = {*naming, *self._collected.names}
        return tuple((e.state.uid, e.state.name) for e in self._missing(before, known))

    def _before(self) -> Manifest | None:
        return self._attempt.made_of or self._attempt.history.before()

    def settle(self) -> None:
        """Carry the rest if that was asked for, and refuse what would be lost.

        Raises LeftOutStateError, or InvalidArgumentError for what is dropped and here.
        """
        self._refuse_dropped()
        if self._rest_of is not None:
            self._carry_missing(self._of(self._rest_of))
        self._rest_of = None
        self._refuse_left_out()

    def _of(self, base: int | str) -> Manifest | None:
        """Return a checkpoint to carry states of, None where there is none yet."""
        attempt = self._attempt
        return attempt.history.newest() if base == LATEST else attempt.history.load(base)

    def _carry_missing(self, manifest: Manifest | None) -> None:
        if manifest is None:
            return
        self._collected.bases[manifest.checkpoint_id] = manifest
        for entry in self._missing(manifest, self._collected.names):
            label = self._label(manifest, entry)
            if label is not None:  # else it is refused, unless it is dropped
                self._carry(manifest, entry, label)

    def _refuse_dropped(self) -> None:
        """Refuse what is dropped and here, but where another operator has the label by now."""
        before = self._before()
        if before is None:
            return
        by_id = self._by_id(self._collected.names)
        for entry in before.entries:
            state = entry.state.uid, entry.state.name
            if state in self._dropped and _is_among(before, entry, by_id):
                raise InvalidArgumentError(f"{entry.state} is dropped, and in this checkpoint")

    def _refuse_left_out(self) -> None:
        before = self._before()
        missing = [] if before is None else self._missing(before, self._collected.names)
        if before is None or not missing:
            return
        self._attempt.fence.check()  # who was replaced is told that first
        entry, *others = missing
        uid, name, label = entry.state.uid, entry.state.name, self._label(before, entry)
        keep = (
            f"give the job's graph its operator {uid!r} back"
            if label is None
            else f"take it over with checkpoint.carry({label!r}, {name!r}), or all that is not "
            "named with checkpoint.carry_rest()"
        )
        more = ", ".join(f"{e.state.name!r} of {e.state.uid!r}" for e in others[:9])
        raise LeftOutStateError(
            f"checkpoint {before.checkpoint_id} of {self._attempt.catalog.storage.url} has "
            f"{entry.state}, and the one that follows would lose it: {keep}; or leave it out on "
            f"purpose with checkpoint.drop({uid!r}, {name!r})"
            + (f". Left out as well: {more}{', …' if len(others) > 9 else ''}" if others else "")
        )

    def _label(self, before: Manifest, entry: Entry) -> str | None:
        stored = entry.state.uid
        return self._attempt.operators.label_of_id(before.operators.id_of(stored), stored)

    def _missing(self, before: Manifest, known: Collection[tuple[str, str]]) -> list[Entry]:
        """Return the states of a checkpoint that are not known here; operator ids tell who is who,
        and what is dropped goes by its label too: its operator may be in no graph any more.
        """
        by_id = self._by_id({*known, *self._dropped})
        return [
            entry
            for entry in before.entries
            if not _is_among(before, entry, by_id)
            and (entry.state.uid, entry.state.name) not in self._dropped
        ]

    def _by_id(self, known: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return operator id and name of states that are named by their operators' labels."""
        ids_of = self._attempt.operators.ids_of
        return {(operator_id, name) for uid, name in known for operator_id in ids_of(uid)}

    def _find(self, manifest: Manifest, uid: str, name: str) -> Entry:
        ids = self._attempt.operators.ids_of(uid)
        for entry in manifest.entries:
            if manifest.operators.id_of(entry.state.uid) in ids and entry.state.name == name:
                return entry
        return manifest.find(uid, name)

    def _carry(self, manifest: Manifest, entry: Entry, uid: str) -> Entry:
        """Take a state over under the operator's label in this job."""
        operators, stored = self._attempt.operators, entry.state.uid
        if manifest.operators.id_of(stored) not in operators.ids_of(uid):
            raise InvalidArgumentError(
                f"{entry.state} is of an operator without a uid, whose id only its job graph tells:"
                " give the operator a uid, or the snapshot the job's graph"
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
        """Write the elements of an operator for as many subtasks as it has now."""
        state = RestoredOperatorState(self._attempt.catalog, manifest, entry, parallelism)
        mode, name = entry.state.mode, entry.state.name
        if mode is RedistributionMode.UNION:
            lists = [state.subtask(0), *([] for _ in range(parallelism - 1))]
        else:
            lists = [*state.subtasks()]
        return write_operator(self._collected, uid, name, lists, mode)


def _is_among(before: Manifest, entry: Entry, by_id: Collection[tuple[str, str]]) -> bool:
    return (before.operators.id_of(entry.state.uid), entry.state.name) in by_id
