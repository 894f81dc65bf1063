"""What is damaged in a checkpoint, what of it can be read, and what older ones have of the rest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from statestore.commands.older import FoundElements, FoundGroups, OlderCheckpoints
from statestore.commands.verify import BrokenFile
from statestore.files.key_groups import group_digests, group_rows, live_parts
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.storage import Storage
from statestore.table.salvage import are_elements_sound, readable_groups
from statestore.table.verify import FileCheck, check_file

__all__ = ["Damage", "DamagedElements", "DamagedFile", "DamagedKeyed", "damaged_files", "look"]

_THREADS = 8


@dataclass(frozen=True)
class DamagedFile:
    """A file that is not what was written: its state, of it the base or the layer of changes that
    it is of, its handle, and what is wrong with it.
    """

    entry: Entry
    part: Entry
    handle: KeyedStateHandle | OperatorStateHandle
    broken: BrokenFile


@dataclass
class DamagedKeyed:
    """A keyed state with damaged files: per file what can be read, and what others have."""

    entry: KeyedEntry
    readable: dict[KeyedStateHandle, frozenset[int]] = field(default_factory=dict)
    found: FoundGroups = field(default_factory=FoundGroups)

    def lost(self) -> dict[int, int]:
        """Return the rows of each lost key group, in order: with changes, those in its files.

        A key group is lost when its base or one layer of its changes is; rows of a layer that count
        no more are no loss.
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

    def kept(self) -> frozenset[int]:
        """Return the key groups that have rows and are not lost."""
        return frozenset(group_rows(self.entry).keys() - self.lost().keys())


@dataclass
class DamagedElements:
    """An operator state with a damaged file: whether it can be read all the same, and who has it
    whole.
    """

    entry: OperatorEntry
    readable: bool
    found: FoundElements = field(default_factory=FoundElements)


Damage = DamagedKeyed | DamagedElements


def damaged_files(
    storage: Storage, manifest: Manifest, progress: Callable[[int, int], None]
) -> list[DamagedFile]:
    """Check every byte and row of every file, several at a time; return the damaged ones."""
    checks, owners = [], []
    for entry in manifest.entries:
        for part in entry.parts:
            first_row = 0
            for handle in part.handles:
                checks.append(FileCheck(storage, part, handle, first_row, deep=True))
                owners.append(entry)
                first_row += handle.rows
    found: list[DamagedFile] = []
    progress(0, len(checks))
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        for done, (owner, check, flaws) in enumerate(
            zip(owners, checks, pool.map(check_file, checks), strict=True), start=1
        ):
            progress(done, len(checks))
            if flaws is None:
                continue
            part, handle = check.entry, check.handle
            groups = handle.key_groups if isinstance(handle, KeyedStateHandle) else None
            broken = BrokenFile(
                file=f"{part.table.path}/{handle.path}",
                kind=flaws.kind,
                what=flaws.what,
                checkpoint_id=manifest.checkpoint_id,
                uid=part.state.uid,
                state=part.state.name,
                key_groups=groups,
            )
            found.append(DamagedFile(owner, part, handle, broken))
    return found


def look(
    storage: Storage,
    damaged: list[DamagedFile],
    older: OlderCheckpoints,
    *,
    fill: bool,
    keys: int,
) -> list[Damage]:
    """Return per damaged state what of it can be read, and what older checkpoints have."""
    states: dict[tuple[str, str], Damage] = {}
    for one_file in damaged:
        entry, part, handle = one_file.entry, one_file.part, one_file.handle
        name = entry.state.uid, entry.state.name
        if isinstance(entry, OperatorEntry):
            if name not in states:
                states[name] = DamagedElements(entry, are_elements_sound(storage, entry))
            continue
        assert isinstance(part, KeyedEntry)
        assert isinstance(handle, KeyedStateHandle)
        one = states.setdefault(name, DamagedKeyed(entry))
        assert isinstance(one, DamagedKeyed)
        one.readable[handle] = readable_groups(storage, part, handle)
    files = frozenset(one_file.broken.file for one_file in damaged)
    for damage in states.values():
        if isinstance(damage, DamagedKeyed):
            lost = damage.lost()
            damage.found = older.groups(damage.entry, lost, files, fill=fill, limit=keys)
        elif not damage.readable:
            damage.found = older.elements(damage.entry)
    return [*states.values()]
