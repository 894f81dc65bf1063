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

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MalformedManifestError,
)
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.format.state import Layout
from statestore.layers.intact_key_groups import group_digests
from statestore.layers.key_group_contents import exact_groups
from statestore.maintenance.damage import (
    Damage,
    DamagedElements,
    DamagedKeyed,
    assess_damage,
    damaged_files,
)
from statestore.maintenance.derive import Deriver
from statestore.maintenance.older_checkpoints import OlderCheckpoints, SalvageSource
from statestore.maintenance.readable_parts import is_whole, rewrite_elements, rewrite_groups
from statestore.maintenance.salvage_parts import (
    LostPart,
    SalvagedState,
    merge_lost_parts,
    origin_of,
)
from statestore.maintenance.verify import BrokenFile
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.parquet.uncommitted_files import UncommittedFiles
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import Storage

__all__ = ["DEFAULT_KEYS", "SalvageReport", "salvage"]


DEFAULT_KEYS = 100


@dataclass(frozen=True, kw_only=True)
class SalvageReport:
    """The damage of a checkpoint, the lost parts, and the new checkpoint with the rest.

    ``new_checkpoint_id`` is None in a dry run, and if nothing is damaged. ``files`` is the number
    of checked files; names in ``damaged`` are relative to the store. ``left_out`` lists the state
    of its source that the checkpoint lacks, including the rows that this salvage lost.
    """

    store: str
    checkpoint_id: int
    new_checkpoint_id: int | None
    dry_run: bool
    files: int
    damaged: tuple[BrokenFile, ...]
    states: tuple[SalvagedState, ...]
    left_out: tuple[LeftOutState, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = ("is_intact",)

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged, so that there is nothing to salvage."""
        return not self.damaged


def salvage(
    storage: Storage,
    deriver: Deriver,
    *,
    checkpoint: int | str,
    from_older: bool,
    dry_run: bool,
    keys: int,
    progress: Callable[[int, int], None],
) -> SalvageReport:
    """Make a new checkpoint from the readable parts of a damaged one; do nothing if it is intact.

    Raises CheckpointNotFoundError, CommitConflictError, or MalformedManifestError, which lists the
    other checkpoints. Raises StorageError, also if a file could not be read: it may be intact.
    """
    if type(keys) is not int or keys < 0:
        raise InvalidArgumentError(
            f"keys is the number of lost keys to show and must be 0 or more, not {keys!r}"
        )
    catalog = Catalog(storage, deriver.catalog.store_id)
    # First: later checkpoints have not been looked at.
    visible, newest_id = catalog.visible_and_newest()
    manifest = _load(catalog, checkpoint)
    if not (from_older or dry_run):
        # The next snapshot would not build on an unreadable checkpoint either.
        deriver.refuse_older(manifest, [n for n in visible if _is_newer(catalog, n, manifest)])
    damaged = damaged_files(storage, manifest, progress)
    older = OlderCheckpoints(catalog, storage, manifest.checkpoint_id)
    damage = assess_damage(storage, damaged, older, fill=from_older, keys=keys)
    states = tuple(_state(storage, damaged_state, from_older) for damaged_state in damage)
    lost = tuple(_left_out_parts(states))
    new = None
    if damaged and not dry_run:
        with deriver.begin(manifest, newest_id=newest_id) as writer:
            writer.record_origin(origin_of(manifest.checkpoint_id, states))
            writer.record_left_out(lost)
            _write(storage, deriver, writer, manifest, damage, from_older)
        new = writer.id
    return SalvageReport(
        store=storage.url,
        checkpoint_id=manifest.checkpoint_id,
        new_checkpoint_id=new,
        dry_run=dry_run,
        files=manifest.files,
        damaged=tuple(file.broken for file in damaged),
        states=states,
        left_out=(*manifest.left_out, *lost),
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


def _load(catalog: Catalog, checkpoint: int | str) -> Manifest:
    checkpoint_id = catalog.resolve(checkpoint)
    try:
        return catalog.manifest(checkpoint_id)
    except MalformedManifestError as error:
        others = [str(number) for number in catalog.checkpoint_ids() if number != checkpoint_id]
        raise MalformedManifestError(
            f"{error}; nothing else lists the files of checkpoint {checkpoint_id}, so nothing "
            "of it can be salvaged. Recover that document from a backup, or restore another "
            f"checkpoint: {', '.join(others[-10:]) or 'none'}"
        ) from error


def _is_newer(catalog: Catalog, number: int, manifest: Manifest) -> bool:
    """Return whether a checkpoint is newer, and its manifest can be read."""
    with suppress(CheckpointNotFoundError, MalformedManifestError):
        return number > manifest.checkpoint_id and catalog.load_header(number) is not None
    return False


def _state(storage: Storage, damage: Damage, fill: bool) -> SalvagedState:
    if isinstance(damage, DamagedKeyed):
        return _keyed(damage, _rows_kept(storage, damage))
    return _elements(damage, fill)


def _rows_kept(storage: Storage, damage: DamagedKeyed) -> int:
    """Return the number of rows in the key groups that are not lost; changes are read for it."""
    if not damage.entry.layers:
        return damage.entry.rows - sum(damage.lost_groups().values())
    groups = exact_groups(storage, damage.entry, damage.kept_groups())
    return sum(rows.num_rows for _, rows in groups)


def _keyed(damage: DamagedKeyed, rows_kept: int) -> SalvagedState:
    entry, lost, copies = damage.entry, damage.lost_groups(), damage.copies
    parts = []
    filled_rows = 0
    for group in sorted(lost):
        known_in, keys = copies.known.get(group, (None, None))
        source = copies.sources.get(group)
        filled_rows += 0 if source is None else source.rows
        parts.append(
            LostPart(
                first=group,
                last=group,
                rows=lost[group],
                known_in=known_in,
                keys=keys,
                filled_from=None if source is None else source.checkpoint_id,
            )
        )
    return SalvagedState(
        operator=entry.state.uid,
        state=entry.state.name,
        sort="keyed",
        damaged_files=len(damage.readable),
        rows_before=entry.rows,
        rows_after=rows_kept + filled_rows,
        lost=merge_lost_parts(parts),
        keys=tuple(copies.keys),
        why_not_filled=tuple(copies.reasons),
    )


def _elements(damage: DamagedElements, fill: bool) -> SalvagedState:
    entry, copy = damage.entry, damage.copies
    lost = () if damage.readable else (_lost_elements(damage, fill),)
    rows = entry.rows if damage.readable else 0
    return SalvagedState(
        operator=entry.state.uid,
        state=entry.state.name,
        sort="operator",
        damaged_files=len(entry.handles),
        rows_before=entry.rows,
        rows_after=copy.entry.rows if lost and fill and copy.entry else rows,
        lost=lost,
        why_not_filled=tuple(copy.reasons),
    )


def _lost_elements(damage: DamagedElements, fill: bool) -> LostPart:
    known = damage.copies.checkpoint_id
    filled = known if fill else None
    return LostPart(
        first=None, last=None, rows=damage.entry.rows, known_in=known, filled_from=filled
    )


def _write(
    storage: Storage,
    deriver: Deriver,
    writer: CheckpointWriter,
    manifest: Manifest,
    damage: Sequence[Damage],
    fill: bool,
) -> None:
    """Add every state to the new checkpoint, damaged ones as far as they are readable."""
    damaged = {
        (damaged_state.entry.state.uid, damaged_state.entry.state.name): damaged_state
        for damaged_state in damage
    }
    for entry in manifest.entries:
        damaged_state = damaged.get((entry.state.uid, entry.state.name))
        if damaged_state is None:
            writer.collected.carry_entry(entry)
        elif isinstance(damaged_state, DamagedKeyed):
            number, _ = writer.planned
            target = KeyedTarget.of(
                deriver.catalog.storage, damaged_state.entry, number, deriver.parquet
            )
            writer.collected.carry_entry(*_rewrite_state(storage, damaged_state, target))
        else:
            writer.collected.carry_entry(
                *_rewrite_elements(deriver.catalog.storage, writer, damaged_state, fill)
            )


def _rewrite_state(
    storage: Storage, damage: DamagedKeyed, target: KeyedTarget
) -> tuple[KeyedEntry, list[KeyedStateHandle]]:
    """Return a keyed state without its damaged files, and the files that were written for it.

    The result has no layers: a layer that lacks key groups cannot be kept.
    """
    entry, sources = damage.entry, damage.copies.sources
    if entry.layers:
        parts = [(entry, damage.kept_groups()), *_group_by_checkpoint(sources)]
        handles = rewrite_groups(storage, parts, target)
        whole = replace(entry, handles=handles, layers=(), table=entry.table.without_version())
        return whole, [*handles]
    kept = [handle for handle in entry.handles if handle not in damage.readable]
    new: list[KeyedStateHandle] = []
    try:
        for handle, readable in damage.readable.items():
            lost = {group for group, _, _ in group_digests(handle)} - readable
            own = {group: source for group, source in sources.items() if group in lost}
            carried = _carry_older_files(storage, entry, own)
            kept += carried
            if carried:  # such a file has one key group, and replaces a file that had one
                continue
            others = _group_by_checkpoint(own)
            if readable or others:
                damaged = replace(entry, handles=(handle,))
                new += rewrite_groups(storage, [(damaged, readable), *others], target)
    except BaseException as error:
        written = UncommittedFiles(target.storage)
        written.add(target.folder, new)
        written.delete(error)
        raise
    ordered = sorted([*kept, *new], key=lambda handle: handle.key_groups.first)
    return replace(entry, handles=tuple(ordered), table=entry.table.without_version()), new


def _group_by_checkpoint(sources: dict[int, SalvageSource]) -> list[tuple[KeyedEntry, set[int]]]:
    """Group the key groups to fill by the older state that they are filled from."""
    others: dict[int, tuple[KeyedEntry, set[int]]] = {}
    for group, source in sources.items():
        if source.rows:
            others.setdefault(source.checkpoint_id, (source.entry, set()))[1].add(group)
    return [*others.values()]


def _carry_older_files(
    storage: Storage, entry: KeyedEntry, sources: dict[int, SalvageSource]
) -> list[KeyedStateHandle]:
    """Return older partitioned files that can replace a damaged one unchanged, if there are any."""
    if entry.state.layout is not Layout.PARTITIONED:
        return []
    return [
        source.handle
        for source in sources.values()
        if source.handle is not None
        and source.entry.state.layout is Layout.PARTITIONED
        and is_whole(storage, source.entry, [source.handle])
    ]


def _rewrite_elements(
    storage: Storage, writer: CheckpointWriter, damage: DamagedElements, fill: bool
) -> tuple[OperatorEntry, Sequence[OperatorStateHandle]]:
    """Return an operator state with its available elements, and the files written for it."""
    entry, older = damage.entry, damage.copies.entry
    table = entry.table.without_version()
    if damage.readable:
        number, _ = writer.planned
        handles = rewrite_elements(storage, entry, number)
        return replace(entry, handles=handles, table=table), handles
    if fill and older is not None:
        return replace(entry, counts=older.counts, handles=older.handles, table=table), ()
    return replace(entry, counts=(0,) * len(entry.counts), handles=(), table=table), ()
