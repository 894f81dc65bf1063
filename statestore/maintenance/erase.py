"""Erase a subject from all kept checkpoints, expire the old ones, and prove that it is gone.

The subject is a key of one operator, or values of columns in all operators (``erase_subject.py``).

Nothing is changed in place (I4, I6, I10). Each checkpoint that has the subject is replaced by a new
checkpoint. The new checkpoint has new files, without the subject, for the files that have it. It
references all other files unchanged. In layers of changes, the subject's rows and its deletes are
removed even if newer changes override them, because no file may have the subject. A file that
several checkpoints name is rewritten once for all of them. All newer checkpoints are also replaced,
with or without the subject, so that their order stays. The old checkpoints get tombstones, their
savepoints move to the new ones, and ``gc`` then deletes the old files. The ``origin`` of each new
manifest records the replaced checkpoint, and how many rows of which key group were removed. It does
not contain the subject.

**If it is interrupted**, it can be run again. All files are written before the first commit. The
newest checkpoint is committed first, and then the older ones, under ids below it that this writer
has claimed. So a reader of the newest checkpoint finds the newest state at every moment. Before all
of them, the newest one is also committed under each id that a writer which stalled before its put
could still take. This hides a late checkpoint of that writer, which may have the subject. These
extra checkpoints expire at the end. Each run first finishes the earlier one: if a checkpoint and
its replacement both exist, the savepoints are moved and the tombstone is put (below).

**The replacement is held** before the old checkpoint is released (I9, I10). A pin holds the new
checkpoint, then the savepoints move, then the old one gets its tombstone, and the pin is deleted
last. So a concurrent expiry finds one of the two held at every moment. The pin's token contains the
id of its checkpoint. If a pin still exists, its run has not finished, and any other run can finish
it.

**Delta logs** contain the minimum and maximum keys of each file. So the logs of the rewritten
tables are deleted, newest entry first: at any moment the remaining log is a valid, shorter one. The
manifest is authoritative, and the last of the new checkpoints starts a new log. A state with layers
of changes has no log until a checkpoint has it without layers, so no log names a missing file. If a
table shows an expired checkpoint, and only this one has the subject, the newest log entries are
deleted as well. If only entries of expired checkpoints show the subject, a log checkpoint is
written for the oldest kept version, and older entries are deleted. If that is not enough, the same
is done for the newest version.

**Why a savepoint may move to a checkpoint that only a pin holds.** The new checkpoint may get a
tombstone while the pin holds it, and be invisible when the savepoint is put. A collection lists
pins before savepoints. If it no longer finds the pin, it finds the savepoint, which was put
earlier.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.catalog.deletions import recorded
from statestore.catalog.holds import Pin, Savepoint
from statestore.delta.state_table import refuse_tables
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    CorruptionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateStoreError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, Manifest
from statestore.format.manifest_json import REPLACING
from statestore.listeners import Progress
from statestore.maintenance.derive import Deriver, Draft
from statestore.maintenance.erase_files import Hit, RowFinder, RowRemover
from statestore.maintenance.erase_logs import clean_logs, drop_log
from statestore.maintenance.erase_search import KeySearch, find_subject, readable_manifests
from statestore.maintenance.erase_subject import (
    OperatorKey,
    OtherState,
    Subject,
    SubjectOf,
    refuse_unknown,
    subject_of,
)
from statestore.maintenance.gc import CollectedGarbage, collect_garbage
from statestore.maintenance.retention import tombstone
from statestore.maintenance.store_context import HasContext
from statestore.parquet.file_checks import check_sizes

_COMMAND = "forget"
_WHY = "replaced without a subject"
E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class ErasedState:
    """The removal from one state: rows, deletes of the key in changes, and rewritten files.

    A file that several checkpoints name counts once. ``key_group`` is None if the rows may be in
    several key groups. ``keys`` are the lists of columns that were compared with the subject. There
    are several if the state once had other key columns.
    """

    operator: str
    state: str
    key_group: int | None
    rows: int
    files: int
    size_bytes: int
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ReplacedCheckpoint:
    """A checkpoint, its replacement (None in a dry run), and the removed rows.

    ``left_out`` lists the state of their source that both lack.
    """

    checkpoint_id: int
    new_checkpoint_id: int | None
    savepoints: tuple[str, ...]
    states: tuple[ErasedState, ...]
    left_out: tuple[LeftOutState, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ForgottenSubject:
    """The rows that were, or in a dry run would be, removed, and the search afterwards.

    The subject is a key of ``operator``, or values of ``columns``; the other one is None or empty.
    Checkpoints are ordered oldest first. ``finished`` are the replacements of an interrupted
    earlier run. ``logs`` are the tables whose Delta log was deleted, and ``cut_logs`` those whose
    log lost its old entries. ``pins`` hold replaced checkpoints that were replaced anyway.
    ``others`` are states that have a column of the subject, but are not changed. ``collected`` is
    None if no garbage was collected. ``search`` is None if the store was not searched, as in a dry
    run.
    """

    store: str
    dry_run: bool
    operator: str | None
    columns: tuple[str, ...]
    replaced: tuple[ReplacedCheckpoint, ...]
    finished: tuple[ReplacedCheckpoint, ...]
    logs: tuple[str, ...]
    cut_logs: tuple[str, ...]
    pins: tuple[str, ...]
    others: tuple[OtherState, ...] = ()
    collected: CollectedGarbage | None = None
    search: KeySearch | None = None

    @property
    def problem(self) -> StateStoreError | None:
        """The error if the search does not prove that the subject is gone, or None."""
        return None if self.search is None else self.search.problem


def forget(
    store: HasContext,
    subject: Mapping[str, Any] | OperatorKey,
    *,
    checkpoint: CheckpointRef | None = None,
    search: bool = True,
    ignore_pins: bool = False,
    dry_run: bool = False,
    gc: bool = False,
    on_progress: Progress | None = None,
) -> ForgottenSubject:
    """Remove a subject from every kept checkpoint, and search the whole store for it.

    With columns, rows are removed from every keyed state of every operator whose key, namespace
    or entry columns (map keys) include, or once included, all of the columns. With an
    :class:`OperatorKey`, they are removed from the states of one operator.

    The first checkpoint with the subject and all later ones are replaced by new ones, in their
    order. The old ones expire, and their savepoints move. :meth:`gc` deletes their files. A
    running job can no longer commit, and it still has the subject. An interrupted call can be
    run again, and then finishes.

    Args:
        subject: the value of each column, such as ``{"customer": 312}``, or a function that
            returns it for the column's type. States whose column has another type are not
            changed, but reported. Or an ``OperatorKey``.
        checkpoint: the only checkpoint to remove it from; by default every kept one.
        search: searches the store afterwards, as :meth:`find_subject` does.
        ignore_pins: replaces pinned checkpoints too.
        dry_run: reports what would be removed, and changes nothing.
        gc: also deletes all unneeded files of any age, as :meth:`gc` does with a minimum age of
            0. No job and no reader may be active. Without it the old files still contain the
            subject, and the search finds them.
        on_progress: called with the number of searched bytes and the total.

    Returns:
        The removed rows and the findings of the search.

    Raises:
        StateNotFoundError or CheckpointNotFoundError: if no state has these columns, or if the
            operator, state or checkpoint does not exist.
        InvalidArgumentError: for pinned checkpoints unless ``ignore_pins`` is set, and if no
            state can hold the values or the key.
        CorruptionError: if a file is damaged.
        CommitConflictError: if another writer commits first.
        StorageError: if the store cannot be read or written.
    """
    deriver, now_ms = store.parts.deriver(), store.parts.now_ms()
    erased = _erase(deriver, subject_of(subject), checkpoint, ignore_pins, dry_run, now_ms)
    if dry_run:
        return erased
    if gc:
        erased = replace(erased, collected=collect_garbage(store, minimum_age="0"))
    if search:
        erased = replace(erased, search=find_subject(store, subject, on_progress=on_progress))
    return erased


def _erase(
    deriver: Deriver,
    find: SubjectOf,
    checkpoint: CheckpointRef | None,
    ignore_pins: bool,
    dry_run: bool,
    now_ms: int,
) -> ForgottenSubject:
    """Remove a subject; return what was done, without a search."""
    catalog, finder = deriver.catalog, RowFinder(deriver.catalog.storage)
    number = _resolve_checkpoint(catalog, checkpoint)
    plan = _plan_erase(catalog, find, number, finder)
    finished: dict[int, Manifest] = {}
    if not dry_run and (plan.to_replace or plan.pending):
        for manifest in plan.kept.values():
            refuse_tables(catalog.storage, manifest)
        # First: from now on no other writer commits, and all earlier commits are visible.
        deriver.fence.claim(announce=True)
        number = _resolve_checkpoint(catalog, checkpoint)
        plan = _plan_erase(catalog, find, number, finder)
        while plan.pending:
            finished |= plan.pending
            _finish(deriver, plan.pending, plan.twice, now_ms)
            moved = None if number is None else plan.pending.get(number)
            number = number if moved is None else moved.checkpoint_id
            plan = _plan_erase(catalog, find, number, finder)
    pins = _describe_pins(catalog, plan.to_replace, now_ms)
    if pins and not ignore_pins:
        raise InvalidArgumentError(
            f"checkpoints to replace are pinned: {'; '.join(pins)}. Wait until the leases "
            "end, unpin them, or continue with ignore_pins (--ignore-pins): then their "
            "readers keep the files, which contain the key, until the leases end"
        )
    tables = {hit.entry.table.path for hits in plan.hits.values() for hit in hits}
    logs: tuple[str, ...] = ()
    successors: dict[int, Manifest] = {}
    if plan.to_replace and not dry_run:
        _refuse_broken(catalog, plan)
        successors, logs = _replace(deriver, plan, sorted(tables), now_ms)
    cut: tuple[str, ...] = ()
    if checkpoint is None:
        dropped, cut = clean_logs(
            deriver, plan.subject, plan.kept, plan.manifests, exclude=tables, dry_run=dry_run
        )
        logs += dropped
    return ForgottenSubject(
        store=catalog.storage.url,
        dry_run=dry_run,
        operator=plan.subject.operator,
        columns=plan.subject.columns,
        replaced=tuple(_report(plan, number, successors.get(number)) for number in plan.to_replace),
        finished=tuple(_report(plan, old, new) for old, new in (finished or plan.pending).items()),
        logs=logs,
        cut_logs=cut,
        pins=pins,
        others=plan.subject.others,
    )


@dataclass(frozen=True)
class _ErasePlan:
    """The kept checkpoints, the subject's rows in them, and the checkpoints to make again.

    ``manifests`` are all readable ones, including expired ones, oldest first.

    ``newest`` is the newest id before anything was read. ``pending`` are checkpoints that have a
    replacement but no tombstone yet, and ``twice`` the first replacements of checkpoints that have
    a second one.
    """

    subject: Subject
    manifests: tuple[Manifest, ...]
    newest: int
    kept: Mapping[int, Manifest]
    visible: frozenset[int]
    savepoints: tuple[Savepoint, ...]
    pending: Mapping[int, Manifest]
    twice: tuple[int, ...]
    hits: Mapping[int, tuple[Hit, ...]]

    @property
    def to_replace(self) -> tuple[int, ...]:
        """The checkpoints to make again, starting with the first one that has the key.

        These are all visible ones, which keeps their order, and the ones that only a savepoint
        keeps if they have the key.
        """
        first = min(self.hits, default=None)
        if first is None:
            return ()
        later = (number for number in sorted(self.kept) if number >= first)
        return tuple(n for n in later if n in self.visible or n in self.hits)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each file that has rows of the subject."""
        files = {file for hits in self.hits.values() for hit in hits for file in hit.files}
        return [handle.size_bytes for _, handle in files]

    def savepoints_of(self, number: int) -> tuple[Savepoint, ...]:
        """Return the savepoints of a checkpoint."""
        return tuple(
            savepoint for savepoint in self.savepoints if savepoint.checkpoint_id == number
        )


def _resolve_checkpoint(catalog: Catalog, checkpoint: CheckpointRef | None) -> int | None:
    return None if checkpoint is None else catalog.resolve(checkpoint)


def _plan_erase(
    catalog: Catalog, find: SubjectOf, only: int | None, finder: RowFinder
) -> _ErasePlan:
    """Read every kept checkpoint, and find the subject in the requested ones."""
    newest = catalog.next_id() - 1
    savepoints = catalog.holds.savepoints()
    visible = frozenset(catalog.checkpoint_ids())
    kept = {}
    for number in sorted({*visible, *(savepoint.checkpoint_id for savepoint in savepoints)}):
        with _advise_on_error(catalog, number, visible, savepoints):
            kept[number] = catalog.manifest(number)
    pending, twice = _pending_replacements(catalog, kept, visible, savepoints)
    others = {n: kept[n] for n in kept if n not in pending and n not in twice}
    among = others if only is None else {only: others[only]} if only in others else {}
    manifests = readable_manifests(catalog, known=kept)
    subject = find(manifests)
    hits = {}
    for number, manifest in among.items():
        with _advise_on_error(catalog, number, visible, savepoints):
            results = (
                finder.hit(entry, subject.selections(manifest, entry.state))
                for entry in manifest.keyed
            )
            hits[number] = tuple(hit for hit in results if hit is not None)
    if others:
        refuse_unknown(catalog, subject, [*others.values()])
    held = {number: states for number, states in hits.items() if states}
    return _ErasePlan(subject, manifests, newest, others, visible, savepoints, pending, twice, held)


def _pending_replacements(
    catalog: Catalog,
    kept: Mapping[int, Manifest],
    visible: frozenset[int],
    savepoints: tuple[Savepoint, ...],
) -> tuple[dict[int, Manifest], tuple[int, ...]]:
    """Return the replacements that an earlier run committed but did not finish.

    The second value has the ones that were replaced a second time.
    """
    pending: dict[int, Manifest] = {}
    twice, moving = [], unfinished_replacements(catalog)
    for number, manifest in sorted(kept.items()):
        origin = manifest.origin or {}
        if origin.get("command") not in REPLACING or number not in visible:
            continue
        old = int(origin["checkpoint"])
        moved = all(savepoint.checkpoint_id != old for savepoint in savepoints)
        if old in visible or not moved or origin.get("expired") or number in moving:
            if old in pending:
                twice.append(pending[old].checkpoint_id)
            pending[old] = manifest
    return pending, tuple(twice)


@contextmanager
def _advise_on_error(
    catalog: Catalog,
    number: int,
    visible: frozenset[int],
    savepoints: tuple[Savepoint, ...],
) -> Iterator[None]:
    """Add a note to an error: the checkpoint and state that stop the command, and what helps."""
    try:
        yield
    except CorruptionError as error:
        store = f"--store {catalog.storage.url}"
        newer = sum(other > number for other in visible)
        names = [savepoint.name for savepoint in savepoints if savepoint.checkpoint_id == number]
        ways = [f"statestore {store} savepoint --remove {shlex.quote(name)}" for name in names]
        older = "which also expires all older checkpoints"
        if number in visible and newer:
            ways.append(f"statestore {store} expire --retain {newer}, {older}")
        elif number in visible and isinstance(error, MalformedManifestError):
            ways = ["recover its manifest from a backup"]
        elif number in visible:
            ways = [f"statestore {store} salvage {number}", *ways]
            ways.append(f"statestore {store} expire --retain 1, {older}")
        error.add_note(
            f"checkpoint {number}{f', savepoint {names[0]!r},' if names else ''} stops the "
            f"removal, which has to search every kept checkpoint: {', then '.join(ways)}"
        )
        raise


def _describe_pins(catalog: Catalog, again: tuple[int, ...], now_ms: int) -> tuple[str, ...]:
    """Describe the pins of the checkpoints that would be replaced."""
    pins = [p for p in catalog.holds.pins() if p.until_ms > now_ms and p.checkpoint_id in again]
    pins.sort(key=lambda pin: (pin.checkpoint_id, pin.token))
    return tuple(f"checkpoint {p.checkpoint_id} by {p.holder} (pin {p.token})" for p in pins)


def _refuse_broken(catalog: Catalog, plan: _ErasePlan) -> None:
    """Raise MissingFileError or DamagedFileError if a file to be named again is damaged.

    At this point nothing has been written or deleted.
    """
    for number in plan.to_replace:
        with _advise_on_error(catalog, number, plan.visible, plan.savepoints):
            check_sizes(catalog.storage, plan.kept[number].entries)


def _replace(
    deriver: Deriver, plan: _ErasePlan, tables: Iterable[str], now_ms: int
) -> tuple[dict[int, Manifest], tuple[str, ...]]:
    """Put the replacements in the place of the old checkpoints, and record it.

    Return them by the id of the old one, and the tables whose Delta log was deleted.
    """
    storage = deriver.catalog.storage
    with recorded(storage, _COMMAND, _WHY, plan.to_replace, plan.sizes, now_ms):
        logs = tuple(table for table in tables if drop_log(storage, table))
        replacements, twice = _commit_replacements(deriver, plan, logs)
        _finish(deriver, replacements, twice, now_ms)
    return replacements, logs


def _commit_replacements(
    deriver: Deriver, plan: _ErasePlan, logs: tuple[str, ...]
) -> tuple[dict[int, Manifest], tuple[int, ...]]:
    """Commit all replacements, and return them by the id of the checkpoint that they replace.

    Also return the ids of the extra copies of the newest one that were committed before it.
    """
    again = [plan.kept[number] for number in plan.to_replace]
    drafts = deriver.begin_in_order(again, _COMMAND, newest_id=plan.newest)
    remover = RowRemover(deriver.catalog.storage)
    with ExitStack() as stack:
        for draft in reversed(drafts):  # it releases the last one first
            stack.enter_context(draft.checkpoint)
        # In commit order. The first one owns the files that others name as well. If another one
        # owned them, its failure would delete them.
        for draft in drafts:
            number = draft.source.manifest.checkpoint_id
            with _advise_on_error(deriver.catalog, number, plan.visible, plan.savepoints):
                _write_replacement(draft, remover, plan, logs)
    twice = tuple(draft.checkpoint.id for draft in drafts[: len(drafts) - len(again)])
    replacements = {d.source.manifest.checkpoint_id: d.checkpoint.manifest for d in drafts}
    return replacements, twice


def _write_replacement(
    draft: Draft, remover: RowRemover, plan: _ErasePlan, logs: tuple[str, ...]
) -> None:
    """Give a checkpoint every state of another one, with the subject removed."""
    manifest = draft.source.manifest
    matching_hits = plan.hits.get(manifest.checkpoint_id, ())
    hits = {(hit.entry.state.uid, hit.entry.state.name): hit for hit in matching_hits}
    for entry in manifest.entries:
        hit = hits.get((entry.state.uid, entry.state.name))
        left = entry if hit is None else remover.without_rows(hit, draft.files)
        draft.put(_without_log(left, logs))
    draft.record(**_origin(plan, manifest))
    # For readers and for ``expire``, the rows keep their age.
    draft.checkpoint.collected.replaced = manifest


def _finish(
    deriver: Deriver, replacements: Mapping[int, Manifest], twice: tuple[int, ...], now_ms: int
) -> None:
    """Let the replacements take the place of the old checkpoints."""
    # while the old one exists, because it is needed to identify the extra copies
    for number in twice:
        deriver.catalog.expire(number, tombstone(number, deriver.release, now_ms))
    replace_checkpoints(deriver.catalog, replacements, deriver.release, now_ms)


def _without_log(entry: E, logs: tuple[str, ...]) -> E:
    """Return a state without its table version if the table's log was deleted."""
    if entry.table.path not in logs:
        return entry
    return replace(entry, table=entry.table.without_version())


def _origin(plan: _ErasePlan, manifest: Manifest) -> dict[str, Any]:
    """Return the members of the ``origin``: the removed rows, and the holds to move."""
    number = manifest.checkpoint_id
    states = [
        {
            "operator": hit.entry.state.uid,
            "state": hit.entry.state.name,
            "key_group": hit.key_group,
            "rows": hit.rows,
        }
        for hit in plan.hits.get(number, ())
    ]
    savepoints = [
        {"name": savepoint.name, "created_at_ms": savepoint.created_at_ms}
        for savepoint in plan.savepoints_of(number)
    ]
    operator = plan.subject.operator
    origin: dict[str, Any] = {
        **({} if operator is None else {"operator": operator}),
        "states": states,
        "savepoints": savepoints,
        "expired": number not in plan.visible,
        "created_at_ms": manifest.created_at_ms,
    }
    before: Any = manifest.origin
    while isinstance(before, dict) and before.get("command") in REPLACING:
        before = before.get("before")  # otherwise many of them would nest deeper than can be read
    return origin | ({"before": before} if before else {})


def _report(plan: _ErasePlan, old: int, new: Manifest | None) -> ReplacedCheckpoint:
    return ReplacedCheckpoint(
        old,
        None if new is None else new.checkpoint_id,
        tuple(savepoint.name for savepoint in plan.savepoints_of(old)),
        tuple(_erased_state(hit) for hit in plan.hits.get(old, ())),
        (plan.kept[old] if new is None else new).left_out,
    )


def _erased_state(hit: Hit) -> ErasedState:
    size = sum(handle.size_bytes for _, handle in hit.files)
    state = hit.entry.state
    keys = tuple(tuple(selection.schema.names) for selection in hit.selections)
    return ErasedState(state.uid, state.name, hit.key_group, hit.rows, len(hit.files), size, keys)


_LEASE_MS = 30 * 24 * 3_600_000
"""A long standstill, and time to run a command again."""
_REPLACES = "replaces-"


def replace_checkpoints(
    catalog: Catalog, replacements: Mapping[int, Manifest], release: str, now_ms: int
) -> None:
    """Replace checkpoints: move their savepoints to the replacements, and expire the old ones.

    ``replacements`` are by the id of the old one. The call can be repeated, and finishes an
    interrupted one. A replacement's ``origin`` lists the savepoints of the old checkpoint, and
    whether it had ``expired``. Raises CommitConflictError if a replacement expired before it could
    be held; in that case the savepoint stays.
    """
    held = [_pin_replacement(catalog, old, new, now_ms) for old, new in replacements.items()]
    for (old, new), pin in zip(replacements.items(), held, strict=True):
        if pin is not None:
            _move_savepoints(catalog, old, new)
        if old in catalog.checkpoint_ids():
            catalog.expire(old, tombstone(old, release, now_ms))
        if (new.origin or {})["expired"]:  # only its savepoints kept it, and they still do
            number = new.checkpoint_id
            catalog.expire(number, tombstone(number, release, now_ms))
        if pin is not None:
            catalog.holds.delete_pin(pin.token)


def unfinished_replacements(catalog: Catalog) -> frozenset[int]:
    """Return the checkpoints that an unfinished run was putting in the place of others."""
    pins = catalog.holds.pins()
    return frozenset(pin.checkpoint_id for pin in pins if pin.token.startswith(_REPLACES))


def _token(new: Manifest) -> str:
    return _REPLACES + new.writer.token


def _pin_replacement(catalog: Catalog, old: int, new: Manifest, now_ms: int) -> Pin | None:
    """Return the pin that holds the replacement from now on; None if it needs none."""
    pins = {pin.token: pin for pin in catalog.holds.pins()}
    pin = pins.get(_token(new))
    to_move = _savepoints_to_move(catalog, old, new)
    if not to_move or (pin is not None and pin.until_ms > now_ms):
        return pin
    if pin is not None:
        catalog.holds.delete_pin(pin.token)
    number = new.checkpoint_id
    holder = f"moving the savepoints of checkpoint {old}"
    pin = Pin(_token(new), number, holder, until_ms=now_ms + _LEASE_MS)
    try:
        catalog.holds.put_pin(pin, visible=lambda: catalog.check_visible(number))
    except CheckpointNotFoundError as error:
        raise CommitConflictError(
            f"checkpoint {number} of {catalog.storage.url}, the replacement of {old}, expired at "
            "the same time; the savepoints stay with the old checkpoint. Run the purge again"
        ) from error
    return pin


def _savepoints_to_move(catalog: Catalog, old: int, new: Manifest) -> list[Savepoint]:
    """Return the savepoints to move, in their new form; an interrupted move has deleted some."""
    existing = {savepoint.name: savepoint for savepoint in catalog.holds.savepoints()}
    recorded = [
        Savepoint(each["name"], old, each["created_at_ms"])
        for each in (new.origin or {})["savepoints"]
    ]
    savepoints = {
        savepoint.name: existing.get(savepoint.name, savepoint)
        for savepoint in [*recorded, *existing.values()]
    }
    of_old = [savepoint for savepoint in savepoints.values() if savepoint.checkpoint_id == old]
    return [replace(savepoint, checkpoint_id=new.checkpoint_id) for savepoint in of_old]


def _move_savepoints(catalog: Catalog, old: int, new: Manifest) -> None:
    """Move a savepoint: delete it and put it again, because such a file is never overwritten."""

    def kept() -> None:
        try:
            catalog.check_visible(new.checkpoint_id)
        except CheckpointNotFoundError:
            if new.checkpoint_id not in unfinished_replacements(catalog):
                raise

    for moved in _savepoints_to_move(catalog, old, new):
        existing = {
            savepoint.name: savepoint.checkpoint_id for savepoint in catalog.holds.savepoints()
        }
        if existing.get(moved.name) == old:
            catalog.holds.delete_savepoint(moved.name)
        if existing.get(moved.name, old) == old:  # another process may have moved it at this moment
            catalog.holds.put_savepoint(moved, visible=kept)
