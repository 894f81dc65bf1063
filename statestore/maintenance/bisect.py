"""Find the first kept checkpoint in which a predicate holds for a row of a state.

Halving looks at about log2 of the kept checkpoints, and is right only if the predicate stays true
once it is true. Nothing is assumed if every checkpoint is looked at. A look stops at the first row
for which the predicate holds, and reads only the columns, files and row groups that can match.

Rows that had expired when a checkpoint was taken are omitted if the state hides them, so an old
checkpoint shows what its job saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from threading import Event
from typing import Any, ClassVar

import pyarrow as pa

from statestore.catalog.catalog import Catalog, Checkpoint, CheckpointRef
from statestore.durations import Duration, milliseconds_of
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MissingFileError,
    QueryStoppedError,
    StateNotFoundError,
)
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, Writer, name_of
from statestore.format.schema import Schema
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.diff import DEFAULT_EXAMPLES, diff, has_common_groups
from statestore.maintenance.diff_report import Example, StateDifference
from statestore.maintenance.diff_rows import RowDifference
from statestore.maintenance.store_context import HasContext
from statestore.parquet.operator_elements import elements_of
from statestore.restore.duck import quote_identifier
from statestore.restore.lookup import WantedKeys, rows_of_keys
from statestore.restore.sql_query import any_row, check_predicate, matching_rows
from statestore.rows.equality import matching_positions
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import take_rows
from statestore.rows.python_values import rows_to_dicts
from statestore.sources.offsets import source_offsets
from statestore.storage import Storage

_OFFSET = frozenset({"topic", "partition", "offset"})


@dataclass(frozen=True, kw_only=True)
class ProbedCheckpoint:
    """A checkpoint that was looked at.

    ``holds`` is None if the answer is unknown, and ``reason`` says why. A checkpoint without the
    state has no row for which the predicate holds, and a reason, too.
    """

    checkpoint_id: int
    holds: bool | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint, its writer, and the record of the command that made it, if not a job."""

    checkpoint_id: int
    created_at_ms: int
    writer: Writer
    origin: Mapping[str, Any] | None
    left_out: tuple[LeftOutState, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest, operator: str, state: str) -> FoundCheckpoint:
        """Return a checkpoint, with the rows of the state that it lacks."""
        return cls(
            checkpoint_id=manifest.checkpoint_id,
            created_at_ms=manifest.created_at_ms,
            writer=manifest.writer,
            origin=manifest.origin,
            left_out=left_out_of(manifest.left_out, operator, state),
        )


@dataclass(frozen=True, kw_only=True)
class ReplayRange:
    """The records of a partition between two checkpoints: from ``start`` to before ``stop``.

    ``start`` is None if the earlier checkpoint has no offset of the partition. If ``stop`` is
    smaller than ``start``, the source was rewound.
    """

    operator: str
    state: str
    topic: str
    partition: int
    start: int | None
    stop: int


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The first kept checkpoint in which a predicate holds, and what changed there.

    * ``checkpoints`` is the number of kept checkpoints, and ``probes`` are those that were looked
      at, in ascending order. ``is_exhaustive`` tells that these are all.
    * ``first`` is None if the predicate holds in none that was looked at. ``before`` is the last
      one before it in which it does not hold, None if ``first`` is the oldest with a known answer.
    * ``between`` are kept checkpoints between the two whose answer is unknown. ``gaps`` is the
      number of ids between the two that are not kept. The change can be in any of them.
    * ``changes`` are the differences of the state between the two: ``a`` is ``before``, and ``b``
      is ``first``. Its examples begin with the rows for which the predicate holds.
    * ``replay`` are the source's records between the two, by partition. ``no_replay`` is the
      reason if they are unknown.
    * ``transitions`` are the probes whose answer differs from the last known one, if every
      checkpoint was looked at.
    """

    store: str
    operator: str
    state: str
    where: str
    checkpoints: int
    is_exhaustive: bool
    probes: tuple[ProbedCheckpoint, ...]
    first: FoundCheckpoint | None = None
    before: FoundCheckpoint | None = None
    between: tuple[int, ...] = ()
    gaps: int = 0
    changes: StateDifference | None = None
    replay: tuple[ReplayRange, ...] = ()
    no_replay: str | None = None

    json_properties: ClassVar[tuple[str, ...]] = ("transitions",)

    @property
    def transitions(self) -> tuple[ProbedCheckpoint, ...]:
        """The first known answer and each one that differs from the last known one."""
        known = [probe for probe in self.probes if probe.holds is not None]
        if not self.is_exhaustive:
            return ()
        changed = (new for old, new in pairwise(known) if old.holds != new.holds)
        return (*known[:1], *changed)


def halve(count: int, holds: Callable[[int], bool | None]) -> tuple[int, int]:
    """Return the last position at which a predicate is false, and the first at which it is true.

    The predicate is asked at about log2 of the positions, the last one first. The result is right
    if it stays true once it is true. A position with an unknown answer (None) is skipped, and may
    be between the two results.

    Args:
        count: The number of positions.
        holds: The predicate of a position, which is asked at most once.

    Returns:
        Both positions: -1 if there is none where it is false, ``count`` if none where it is true.
    """
    low, high = -1, count
    unknown: set[int] = set()
    while rest := [place for place in range(low + 1, high) if place not in unknown]:
        place = rest[-1] if high == count else min(rest, key=lambda p: abs(2 * p - low - high))
        answer = holds(place)
        if answer is None:
            unknown.add(place)
        elif answer:
            high = place
        else:
            low = place
    return low, high


def bisect(
    store: HasContext,
    where: str,
    operator: str,
    state: str,
    checkpoint: CheckpointRef = "latest",
    *,
    every: bool = False,
    keys: int = DEFAULT_EXAMPLES,
    time_limit: Duration | None = None,
    memory_limit: int | str | None = None,
    cancelled: Event | None = None,
    on_progress: Progress | None = None,
) -> Bisection:
    """Return the first kept checkpoint in which a predicate holds for a row of a state.

    A checkpoint is kept if it is visible or has a savepoint. Halving assumes that the predicate
    stays true once it is true. A checkpoint that is deleted meanwhile, or whose state has other
    columns that the predicate cannot use, is skipped.

    Args:
        where: the predicate, an SQL expression of DuckDB over the columns of the state. They are
            those of ``store.views()``.
        operator: the operator.
        state: the state, of any kind.
        checkpoint: the newest checkpoint to look at.
        every: looks at each checkpoint instead of halving.
        keys: the maximum number of examples; by default 10.
        time_limit: the longest time of each look, as in :meth:`StateStore.query`.
        memory_limit: as in :meth:`StateStore.query`.
        cancelled: as in :meth:`StateStore.query`.
        on_progress: called with the number of checkpoints that were looked at, and about the
            total.

    Returns:
        The checkpoint, its writer, the changes since the one before it, and the offsets to replay.

    Raises:
        InvalidArgumentError: for a predicate that is invalid for the newest form of the state,
            before anything is read. Notes quote the place, and name the columns.
        CheckpointNotFoundError or StateNotFoundError: if there is none, or they do not exist.
        QueryStoppedError: if a look exceeds a limit or is cancelled; a note names its checkpoint.
        CorruptionError: for a damaged file of a kept checkpoint.
        MissingDependencyError: without DuckDB.
    """
    catalog, progress = store.parts.catalog(), on_progress or ignore_progress
    newest = catalog.checkpoint(checkpoint)
    ids = [number for number in catalog.kept_ids() if number <= newest.checkpoint_id]
    options = {
        "time_limit_s": None if time_limit is None else milliseconds_of(time_limit) / 1000,
        "memory_limit": memory_limit,
        "cancelled": cancelled,
    }
    looks = _Looks(catalog, operator, state, where, options)
    newest, entry = _newest_form(looks, reversed(ids))
    looks.check(newest, entry)
    count = len(ids) if every else ids.index(newest.checkpoint_id) + 1
    total = count if every else count.bit_length() + 1

    def holds(place: int) -> bool | None:
        answer = looks.at(ids[place])
        progress(min(len(looks.probes), total), total)
        return answer

    low, high = _first_of_all(count, holds) if every else halve(count, holds)
    progress(total, total)
    probes = tuple(looks.probes[number] for number in sorted(looks.probes))
    found = Bisection(
        store=store.parts.storage.url,
        operator=operator,
        state=state,
        where=where,
        checkpoints=len(ids),
        is_exhaustive=every,
        probes=probes,
    )
    if high == count:
        return found
    first = looks.checkpoint(ids[high])
    found = replace(found, first=FoundCheckpoint.of(first.manifest, operator, state))
    if low < 0:
        return replace(found, between=tuple(ids[:high]))
    before = looks.checkpoint(ids[low])
    replay, no_replay = _replay(catalog.storage, before.manifest, first.manifest)
    return replace(
        found,
        before=FoundCheckpoint.of(before.manifest, operator, state),
        between=tuple(ids[low + 1 : high]),
        gaps=ids[high] - ids[low] - (high - low),
        changes=_changes(store, looks, before, first, keys),
        replay=replay,
        no_replay=no_replay,
    )


def _first_of_all(count: int, holds: Callable[[int], bool | None]) -> tuple[int, int]:
    """Ask at each position; return the first at which it holds, and the last known one before."""
    answers = [*map(holds, range(count))]
    high = next((place for place, answer in enumerate(answers) if answer), count)
    known = (place for place in reversed(range(high)) if answers[place] is False)
    return next(known, -1), high


@dataclass
class _Looks:
    """The checkpoints that were looked at, and the answers."""

    catalog: Catalog
    operator: str
    state: str
    where: str
    options: Mapping[str, Any]
    probes: dict[int, ProbedCheckpoint] = field(default_factory=dict)
    _found: dict[int, Checkpoint] = field(default_factory=dict)
    _fitting: Schema | None = None

    def checkpoint(self, number: int) -> Checkpoint:
        """Return a checkpoint, whose manifest is read once."""
        if number not in self._found:
            manifest = self.catalog.load_header(number)
            self._found[number] = Checkpoint(manifest, None, self.catalog.storage)
        return self._found[number]

    def entry(self, number: int) -> Entry | None:
        """Return the state in a checkpoint; None if it is missing there."""
        try:
            return self.checkpoint(number).manifest.find(self.operator, self.state)
        except StateNotFoundError:
            return None

    def at(self, number: int) -> bool | None:
        """Return whether the predicate holds in a checkpoint; None if that is unknown."""
        try:
            holds, reason = self._look(number)
        except (CheckpointNotFoundError, MissingFileError):
            if number in self.catalog.kept_ids():
                raise
            holds, reason = None, "it was deleted meanwhile"
        except QueryStoppedError as error:
            error.add_note(f"while looking at checkpoint {number}")
            raise
        self.probes[number] = ProbedCheckpoint(checkpoint_id=number, holds=holds, reason=reason)
        return holds

    def _look(self, number: int) -> tuple[bool | None, str | None]:
        found, entry = self.checkpoint(number), self.entry(number)
        if entry is not None:
            taken = found.manifest.created_at_ms
            try:
                self.check(found, entry)
                if any_row(found, entry, self.where, now_ms=taken, **self.options):
                    return True, None
            except InvalidArgumentError as error:
                return None, str(error)
        lacking = left_out_of(found.manifest.left_out, self.operator, self.state)
        if lacking:
            return None, f"rows of the state are left out: {lacking[0]}"
        return False, "it has no such state" if entry is None else None

    def check(self, found: Checkpoint, entry: Entry) -> None:
        """Refuse a predicate that does not fit the columns of the state, once for each schema."""
        if entry.state.schema != self._fitting:
            check_predicate(found, entry, self.where, **self.options)
            self._fitting = entry.state.schema

    def identities(self, number: int, entry: KeyedEntry, limit: int) -> pa.Table:
        """Return the identity columns of rows of a keyed state for which the predicate holds."""
        found = self.checkpoint(number)
        names = [*map(quote_identifier, entry.state.identity)]
        taken = found.manifest.created_at_ms
        rows = matching_rows(found, entry, self.where, names, limit, now_ms=taken, **self.options)
        return fit_table(rows, entry.state.schema.select(entry.state.identity))


def _newest_form(looks: _Looks, numbers: Iterable[int]) -> tuple[Checkpoint, Entry]:
    """Return the newest checkpoint that has the state, and the state."""
    for number in numbers:
        try:
            entry = looks.entry(number)
        except CheckpointNotFoundError:
            continue
        if entry is not None:
            return looks.checkpoint(number), entry
        looks.at(number)
    raise StateNotFoundError(
        f"no kept checkpoint has a state {looks.state!r} of operator {looks.operator!r}; "
        "'statestore show' lists the existing states"
    )


def _changes(
    store: HasContext, looks: _Looks, before: Checkpoint, first: Checkpoint, limit: int
) -> StateDifference:
    """Return the differences of the state; rows for which the predicate holds are first."""
    [found] = diff(
        store, before, first, operator=looks.operator, state=looks.state, keys=limit
    ).states
    old, new = looks.entry(before.checkpoint_id), looks.entry(first.checkpoint_id)
    if (
        not limit
        or not isinstance(old, KeyedEntry)
        or not isinstance(new, KeyedEntry)
        or not has_common_groups(old, new)
    ):
        return found
    identities = looks.identities(first.checkpoint_id, new, limit)
    wanted = WantedKeys.of(identities, new.state)
    reads = KeyGroupRange.every(new.state.max_parallelism)
    rows_a, rows_b = (
        rows_of_keys(looks.catalog.storage, entry, reads_of(entry, reads), wanted)
        for entry in (old, new)
    )
    places, _ = matching_positions(rows_b.select(new.state.identity), identities)
    rows_b = take_rows(rows_b, places)
    difference = RowDifference.between((old.state, rows_a), (new.state, rows_b))
    examples: list[Example] = difference.examples({"changed": limit, "added": limit})
    examples += [example for example in found.examples if example not in examples]
    return replace(found, examples=tuple(examples[:limit]))


def _replay(
    storage: Storage, before: Manifest, first: Manifest
) -> tuple[tuple[ReplayRange, ...], str | None]:
    """Return the records of each partition between two checkpoints, or why they are unknown."""
    try:
        old, new = _offsets(storage, before), _offsets(storage, first)
    except InvalidArgumentError as error:
        return (), f"the stored offsets are not valid: {error}"
    if not new:
        return (), "no operator state has the columns topic, partition and offset"
    ranges = (
        ReplayRange(
            operator=operator,
            state=state,
            topic=topic,
            partition=partition,
            start=old.get((operator, state, topic, partition)),
            stop=stop,
        )
        for (operator, state, topic, partition), stop in new.items()
    )
    return tuple(part for part in ranges if part.start != part.stop), None


def _offsets(storage: Storage, manifest: Manifest) -> dict[tuple[str, str, str, int], int]:
    """Return the offsets in all operator states, by operator, state, topic and partition."""
    return {
        (*name_of(entry), offset.topic, offset.partition): offset.offset
        for entry in manifest.operator
        if _OFFSET.issubset(entry.state.schema.names)
        for offset in source_offsets(rows_to_dicts(elements_of(storage, entry)))
    }
