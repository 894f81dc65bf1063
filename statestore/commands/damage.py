"""What is damaged in a checkpoint, what of it can be read, and what older ones have of the rest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from statestore.commands.older import FoundElements, FoundGroups, OlderCheckpoints
from statestore.commands.verify import BrokenFile
from statestore.model.handles import KeyedStateHandle, OperatorStateHandle
from statestore.model.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.storage import Storage
from statestore.table.groups import group_digests
from statestore.table.salvage import are_elements_sound, readable_groups
from statestore.table.verify import FileCheck, check_file

__all__ = ["Damage", "DamagedElements", "DamagedFile", "DamagedKeyed", "damaged_files", "look"]

_THREADS = 8


@dataclass(frozen=True)
class DamagedFile:
    """A file that is not what was written: its state, its handle, and what is wrong with it."""

    entry: Entry
    handle: KeyedStateHandle | OperatorStateHandle
    broken: BrokenFile


@dataclass
class DamagedKeyed:
    """A keyed state with damaged files: per file what can be read, and what others have."""

    entry: KeyedEntry
    readable: dict[KeyedStateHandle, frozenset[int]] = field(default_factory=dict)
    found: FoundGroups = field(default_factory=FoundGroups)

    def lost(self) -> dict[int, int]:
        """Return the rows of each lost key group, in order."""
        return {
            group: rows
            for handle, readable in self.readable.items()
            for group, rows, _ in group_digests(handle)
            if group not in readable
        }


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
    checks = []
    for entry in manifest.entries:
        first_row = 0
        for handle in entry.handles:
            checks.append(FileCheck(storage, entry, handle, first_row, deep=True))
            first_row += handle.rows
    found: list[DamagedFile] = []
    progress(0, len(checks))
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        for done, (check, flaws) in enumerate(
            zip(checks, pool.map(check_file, checks), strict=True), start=1
        ):
            progress(done, len(checks))
            if flaws is None:
                continue
            entry, handle = check.entry, check.handle
            groups = handle.key_groups if isinstance(handle, KeyedStateHandle) else None
            broken = BrokenFile(
                file=f"{entry.table.path}/{handle.path}",
                kind=flaws.kind,
                what=flaws.what,
                checkpoint_id=manifest.checkpoint_id,
                uid=entry.state.uid,
                state=entry.state.name,
                key_groups=groups,
            )
            found.append(DamagedFile(entry, handle, broken))
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
        entry, handle = one_file.entry, one_file.handle
        name = entry.state.uid, entry.state.name
        if isinstance(entry, OperatorEntry):
            if name not in states:
                states[name] = DamagedElements(entry, are_elements_sound(storage, entry))
            continue
        assert isinstance(handle, KeyedStateHandle)
        one = states.setdefault(name, DamagedKeyed(entry))
        assert isinstance(one, DamagedKeyed)
        one.readable[handle] = readable_groups(storage, entry, handle)
    files = frozenset(one_file.broken.file for one_file in damaged)
    for damage in states.values():
        if isinstance(damage, DamagedKeyed):
            lost = damage.lost()
            damage.found = older.groups(damage.entry, lost, files, fill=fill, limit=keys)
        elif not damage.readable:
            damage.found = older.elements(damage.entry)
    return [*states.values()]
