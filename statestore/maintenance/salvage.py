"""Salvage the readable parts of a damaged checkpoint into a new one; the damaged one stays.

Every byte and row of every file is checked. Intact files are named again. In a damaged file of
keyed state, a key group is readable if its pages pass their checksums and its rows match the digest
in the manifest. Readable key groups are written to new files, and the others are lost. An operator
state is lost if one of its elements cannot be read. In a state with changes, a key group is lost if
its base or one layer of its changes is lost; such a state is rewritten as a whole, with the changes
merged into its base.

Lost parts can be filled from the newest older checkpoint with an intact copy. The new checkpoint
then has a state that the job was never in, and its manifest records which part is from when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.errors import InvalidArgumentError, MalformedManifestError
from statestore.format.handles import KeyedStateHandle
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.state import Layout
from statestore.keys.groups import KeyGroupRange
from statestore.layers.intact_key_groups import group_digests
from statestore.layers.key_group_contents import exact_groups
from statestore.layers.rewrite import with_new_files
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.derive import DerivedReport, Deriver, Draft, Source
from statestore.maintenance.salvage_damage import (
    Damage,
    DamagedElements,
    DamagedKeyed,
    OlderCheckpoints,
    Sources,
    assess_damage,
    copy_groups,
    damaged_files,
    is_whole,
    rewrite_elements,
)
from statestore.maintenance.store_context import HasContext
from statestore.maintenance.verify_file import BrokenFile
from statestore.storage import Storage

DEFAULT_KEYS = 100


@dataclass(frozen=True, kw_only=True)
class LostPart:
    """A part of a damaged checkpoint that cannot be read.

    It covers key groups ``first`` to ``last``; both are None for a whole operator state.
    ``known_in`` is the newest older checkpoint with an intact copy of this part, and ``keys`` the
    number of its keys there. Both are None without such a copy; ``keys`` is also None for elements.
    ``filled_from`` is the checkpoint whose rows replaced the lost ones.
    """

    first: int | None
    last: int | None
    rows: int
    known_in: int | None = None
    keys: int | None = None
    filled_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class SalvagedState:
    """A state with damaged files: its row counts in the damaged and the new checkpoint.

    In a state with changes, ``rows_before`` and the rows of ``lost`` count the rows in its files,
    in base and changes together.

    ``lost`` is ordered by key group; adjacent key groups with the same outcome are one part.
    ``keys`` are lost keys that were found in older checkpoints, by column, up to the requested
    limit.
    ``why_not_filled`` gives the reasons why the rows of older checkpoints could not be used.
    """

    operator: str
    state: str
    sort: str
    damaged_files: int
    rows_before: int
    rows_after: int
    lost: tuple[LostPart, ...]
    keys: tuple[Mapping[str, Any], ...] = ()
    why_not_filled: tuple[str, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = ("lost_rows", "lost_key_groups", "lost_keys")

    @property
    def lost_rows(self) -> int:
        """The number of unreadable rows, whether or not older rows replaced them."""
        return sum(part.rows for part in self.lost)

    @property
    def lost_key_groups(self) -> int:
        """The number of unreadable key groups."""
        return sum(_width(part) for part in self.lost)

    @property
    def lost_keys(self) -> int:
        """The number of keys that older checkpoints have in the lost parts.

        The lost parts may have had other keys as well.
        """
        return sum(part.keys or 0 for part in self.lost)


@dataclass(frozen=True, kw_only=True)
class SalvageReport(DerivedReport):
    """The damage of a checkpoint, the lost parts, and the new checkpoint with the rest.

    ``files`` is the number of checked files; names in ``damaged`` are relative to the store.
    ``left_out`` includes the rows that this salvage lost.
    """

    files: int
    damaged: tuple[BrokenFile, ...]
    states: tuple[SalvagedState, ...]

    json_properties: ClassVar[tuple[str, ...]] = ("is_intact",)

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged, so that there is nothing to salvage."""
        return not self.damaged


def salvage(
    store: HasContext,
    checkpoint: CheckpointRef,
    from_older: bool = False,
    dry_run: bool = False,
    keys: int = DEFAULT_KEYS,
    on_progress: Progress | None = None,
) -> SalvageReport:
    """Make a new checkpoint from the readable parts of a damaged one, which stays as it is.

    A state that lost everything is in the new checkpoint, without rows. If nothing is damaged,
    no checkpoint is made.

    Args:
        checkpoint: as in :meth:`savepoint`.
        from_older: accepts older state. Lost rows are replaced with the rows of the newest
            older checkpoint in which the key group is intact. The ``origin`` of the new
            manifest records this. It also allows a checkpoint that is not the newest, as in
            :meth:`compact`. Newer ones whose manifests cannot be read do not count.
        dry_run: makes no checkpoint.
        keys: the maximum number of lost keys in the report; by default 100. The keys are read
            from the same older checkpoint.
        on_progress: called with the number of checked files and the total.

    Returns:
        The lost key groups, rows and keys.

    Raises:
        CheckpointNotFoundError: if the checkpoint does not exist.
        MalformedManifestError: if the checkpoint's manifest cannot be read.
        CommitConflictError: if another writer commits first.
        StorageError: if the store cannot be read or written.
    """
    if type(keys) is not int or keys < 0:
        raise InvalidArgumentError(
            f"keys is the number of lost keys to show and must be 0 or more, not {keys!r}"
        )
    storage, deriver = store.parts.storage, store.parts.deriver()
    # The data files themselves are checked, not their copies in a cache.
    catalog = Catalog(storage, deriver.catalog.store_id)
    source = _load(replace(deriver, catalog=catalog), checkpoint, from_older or dry_run)
    manifest = source.manifest
    damaged = damaged_files(storage, manifest, on_progress or ignore_progress)
    older = OlderCheckpoints(catalog, storage, manifest.checkpoint_id)
    damage = assess_damage(storage, damaged, older, fill=from_older, keys=keys)
    states = tuple(_state(storage, damaged_state) for damaged_state in damage)
    is_needed = bool(damaged)
    with deriver.derive(source, "salvage", dry_run=dry_run, is_needed=is_needed) as draft:
        draft.leave_out(_left_out_parts(states))
        draft.record(**_origin(states))
        if draft.writer is not None:
            for damaged_state in damage:
                draft.put(_readable(storage, draft, damaged_state))
    return SalvageReport(
        **draft.facts,
        files=manifest.files,
        damaged=tuple(file.broken for file in damaged),
        states=states,
    )


def _left_out_parts(states: Iterable[SalvagedState]) -> Iterator[LeftOutState]:
    """Yield the lost parts that no older rows replace (I16)."""
    for state in states:
        for part in state.lost:
            if part.filled_from is None:
                yield LeftOutState(
                    operator=state.operator,
                    state=state.state,
                    reason=f"{part.rows} rows were damaged",
                    command="salvage",
                    first=part.first,
                    last=part.last,
                )


def _load(deriver: Deriver, checkpoint: CheckpointRef, from_older: bool) -> Source:
    try:
        return deriver.load_source(checkpoint, from_older=from_older, skip_unreadable=True)
    except MalformedManifestError as error:
        catalog = deriver.catalog
        checkpoint_id = catalog.resolve(checkpoint)
        others = [str(number) for number in catalog.checkpoint_ids() if number != checkpoint_id]
        raise MalformedManifestError(
            f"{error}; nothing else lists the files of checkpoint {checkpoint_id}, so nothing "
            "of it can be salvaged. Recover that document from a backup, or restore another "
            f"checkpoint: {', '.join(others[-10:]) or 'none'}"
        ) from error


def _state(storage: Storage, damage: Damage) -> SalvagedState:
    entry, lost, copies = damage.entry, damage.lost_groups(), damage.copies
    parts = []
    for group, rows in lost.items():
        known_in, keys = copies.known.get(group, (None, None))
        source = copies.sources.get(group)
        parts.append(
            LostPart(
                first=group,
                last=group,
                rows=rows,
                known_in=known_in,
                keys=keys,
                filled_from=None if source is None else source.checkpoint_id,
            )
        )
    filled_rows = sum(source.rows for source in copies.sources.values())
    return SalvagedState(
        operator=entry.state.uid,
        state=entry.state.name,
        sort="keyed" if isinstance(entry, KeyedEntry) else "operator",
        damaged_files=damage.damaged_files,
        rows_before=entry.rows,
        rows_after=_rows_kept(storage, damage) + filled_rows,
        lost=merge_lost_parts(parts),
        keys=tuple(copies.keys),
        why_not_filled=tuple(copies.reasons),
    )


def _rows_kept(storage: Storage, damage: Damage) -> int:
    """Return the number of rows that are not lost; changes are read for it."""
    if isinstance(damage, DamagedElements) or not damage.entry.layers:
        return damage.entry.rows - sum(damage.lost_groups().values())
    groups = exact_groups(storage, damage.entry, damage.kept_groups())
    return sum(rows.num_rows for _, rows in groups)


def _readable(storage: Storage, draft: Draft, damage: Damage) -> Entry:
    """Return a damaged state with its readable rows, filled with older rows if requested."""
    if isinstance(damage, DamagedKeyed):
        return _readable_groups(storage, draft, damage)
    return _readable_elements(draft, damage)


def _readable_groups(storage: Storage, draft: Draft, damage: DamagedKeyed) -> KeyedEntry:
    """Return a keyed state without its damaged files.

    The result has no layers: a layer that lacks key groups cannot be kept.
    """
    entry, sources = damage.entry, damage.copies.sources
    if entry.layers:
        parts = [(entry, damage.kept_groups()), *_group_by_checkpoint(sources)]
        whole = KeyGroupRange.every(entry.state.max_parallelism)
        return with_new_files(entry, [whole], copy_groups(storage, parts, entry, draft.files)).entry
    new: list[KeyedStateHandle] = []
    for handle, readable in damage.readable.items():
        lost = {group for group, _, _ in group_digests(handle)} - readable
        own: Sources = {group: source for group, source in sources.items() if group in lost}
        carried = _carry_older_files(storage, entry, own)
        new += carried
        if carried:  # such a file has one key group, and replaces a file that had one
            continue
        others = _group_by_checkpoint(own)
        if readable or others:
            damaged = replace(entry, handles=(handle,))
            new += copy_groups(storage, [(damaged, readable), *others], entry, draft.files)
    spans = [handle.key_groups for handle in damage.readable]
    return with_new_files(entry, spans, new).entry


def _group_by_checkpoint(sources: Sources) -> list[tuple[KeyedEntry, set[int]]]:
    """Group the key groups to fill by the older state that they are filled from."""
    others: dict[int, tuple[KeyedEntry, set[int]]] = {}
    for group, source in sources.items():
        if source.rows and group is not None and isinstance(source.entry, KeyedEntry):
            others.setdefault(source.checkpoint_id, (source.entry, set()))[1].add(group)
    return [*others.values()]


def _carry_older_files(
    storage: Storage, entry: KeyedEntry, sources: Sources
) -> list[KeyedStateHandle]:
    """Return older partitioned files that can replace a damaged one unchanged, if there are any."""
    if entry.state.layout is not Layout.PARTITIONED:
        return []
    return [
        source.handle
        for source in sources.values()
        if source.handle is not None
        and isinstance(source.entry, KeyedEntry)
        and source.entry.state.layout is Layout.PARTITIONED
        and is_whole(storage, source.entry, [source.handle])
    ]


def _readable_elements(draft: Draft, damage: DamagedElements) -> OperatorEntry:
    """Return an operator state with its available elements."""
    entry, source = damage.entry, damage.copies.sources.get(None)
    table = entry.table.without_version()
    if damage.readable:
        handles = rewrite_elements(draft.files.storage, entry, draft.files.checkpoint_id)
        draft.files.add(table.path, handles)
        return replace(entry, handles=handles, table=table)
    if source is not None and isinstance(source.entry, OperatorEntry):
        older = source.entry
        return replace(entry, counts=older.counts, handles=older.handles, table=table)
    return replace(entry, counts=(0,) * len(entry.counts), handles=(), table=table)


def merge_lost_parts(parts: Iterable[LostPart]) -> tuple[LostPart, ...]:
    """Merge adjacent parts with the same outcome; the parts are ordered by key group."""
    merged_parts: list[LostPart] = []
    for part in parts:
        last = merged_parts[-1] if merged_parts else None
        if last is None or not _is_adjacent(last, part):
            merged_parts.append(part)
            continue
        keys = None if last.keys is None else last.keys + (part.keys or 0)
        merged_parts[-1] = replace(last, last=part.last, rows=last.rows + part.rows, keys=keys)
    return tuple(merged_parts)


def _origin(states: Iterable[SalvagedState]) -> dict[str, Any]:
    """Return the members of the ``origin`` of the new checkpoint.

    ``lost`` lists the missing parts, and ``filled`` the parts replaced by older rows. Both have
    ``operator`` and ``state``, and for keyed state ``first`` and ``last``.
    """
    lost, filled = [], []
    for state in states:
        for part in state.lost:
            place: dict[str, Any] = {"operator": state.operator, "state": state.state}
            if part.first is not None:
                place |= {"first": part.first, "last": part.last}
            if part.filled_from is None:
                lost.append(place | {"rows": part.rows})
            else:
                filled.append(place | {"checkpoint": part.filled_from})
    return {"lost": lost, "filled": filled}


def _is_adjacent(last: LostPart, part: LostPart) -> bool:
    fate = (last.known_in, last.filled_from) == (part.known_in, part.filled_from)
    return fate and None not in (last.last, part.first) and part.first == (last.last or 0) + 1


def _width(part: LostPart) -> int:
    return 0 if part.first is None or part.last is None else part.last - part.first + 1
