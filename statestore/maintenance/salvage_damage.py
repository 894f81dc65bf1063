"""Find the damage of a checkpoint, the parts still readable, and older copies of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.layers.intact_key_groups import group_digests
from statestore.layers.key_group_contents import group_rows, live_parts
from statestore.listeners import Progress
from statestore.maintenance.salvage_older import ElementsCopy, GroupCopies, OlderCheckpoints
from statestore.maintenance.salvage_readable import (
    are_elements_intact,
    readable_groups,
)
from statestore.maintenance.verify import BrokenFile
from statestore.maintenance.verify_file import FileCheck, check_files
from statestore.storage import Storage

__all__ = [
    "Damage",
    "DamagedElements",
    "DamagedFile",
    "DamagedKeyed",
    "assess_damage",
    "damaged_files",
]


@dataclass(frozen=True)
class DamagedFile:
    """A damaged file: the state, its base or layer of changes, the handle, and the reasons."""

    entry: Entry
    part: Entry
    handle: KeyedStateHandle | OperatorStateHandle
    broken: BrokenFile


@dataclass
class DamagedKeyed:
    """A keyed state with damaged files, its readable key groups, and copies of the lost ones."""

    entry: KeyedEntry
    readable: dict[KeyedStateHandle, frozenset[int]] = field(default_factory=dict)
    copies: GroupCopies = field(default_factory=GroupCopies)

    def lost_groups(self) -> dict[int, int]:
        """Return the rows of each lost key group, in order.

        With changes, these are the rows in its files.

        A key group is lost if its base or one layer of its changes is lost. Damage to rows of a
        layer that were folded into the base loses nothing.
        """
        lost = {
            group
            for part, live in live_parts(self.entry)
            for handle in part.handles
            if handle in self.readable
            for group, _, _ in group_digests(handle)
            if group in live and group not in self.readable[handle]
        }
        rows = group_rows(self.entry)
        return {group: rows[group] for group in sorted(lost)}

    def kept_groups(self) -> frozenset[int]:
        """Return the key groups that have rows and are not lost."""
        return frozenset(group_rows(self.entry).keys() - self.lost_groups().keys())


@dataclass
class DamagedElements:
    """An operator state with a damaged file: whether it is still readable, and an older copy."""

    entry: OperatorEntry
    readable: bool
    copies: ElementsCopy = field(default_factory=ElementsCopy)


Damage = DamagedKeyed | DamagedElements


def damaged_files(storage: Storage, manifest: Manifest, progress: Progress) -> list[DamagedFile]:
    """Check every byte and row of every file, several in parallel; return the damaged files."""
    checks, owners = [], []
    for entry in manifest.entries:
        for part in entry.parts:
            first_row = 0
            for handle in part.handles:
                checks.append(FileCheck(storage, part, handle, first_row, deep=True))
                owners.append(entry)
                first_row += handle.rows
    damaged: list[DamagedFile] = []
    progress(0, len(checks))
    results = zip(owners, checks, check_files(checks), strict=True)
    for done, (owner, check, flaws) in enumerate(results, start=1):
        progress(done, len(checks))
        if flaws is None:
            continue
        part, handle = check.entry, check.handle
        groups = handle.key_groups if isinstance(handle, KeyedStateHandle) else None
        broken = BrokenFile(
            file=part.table.name_of(handle),
            kind=flaws.kind,
            what=flaws.what,
            checkpoint_id=manifest.checkpoint_id,
            operator=part.state.uid,
            state=part.state.name,
            key_groups=groups,
        )
        damaged.append(DamagedFile(owner, part, handle, broken))
    return damaged


def assess_damage(
    storage: Storage,
    damaged: list[DamagedFile],
    older: OlderCheckpoints,
    *,
    fill: bool,
    keys: int,
) -> list[Damage]:
    """For each damaged state, find the readable parts and the copies in older checkpoints."""
    states: dict[tuple[str, str], Damage] = {}
    for one_file in damaged:
        entry, part, handle = one_file.entry, one_file.part, one_file.handle
        name = entry.state.uid, entry.state.name
        if isinstance(entry, OperatorEntry):
            if name not in states:
                states[name] = DamagedElements(entry, are_elements_intact(storage, entry))
            continue
        assert isinstance(part, KeyedEntry)
        assert isinstance(handle, KeyedStateHandle)
        keyed_damage = states.setdefault(name, DamagedKeyed(entry))
        assert isinstance(keyed_damage, DamagedKeyed)
        keyed_damage.readable[handle] = readable_groups(storage, part, handle)
    files = frozenset(one_file.broken.file for one_file in damaged)
    for damage in states.values():
        if isinstance(damage, DamagedKeyed):
            lost = damage.lost_groups()
            damage.copies = older.groups(damage.entry, lost, files, fill=fill, limit=keys)
        elif not damage.readable:
            damage.copies = older.elements(damage.entry)
    return [*states.values()]
