"""Check what a power failure left of the stores of a program."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from statestore import OperatorKey, StateStore
from statestore.errors import StateStoreError
from statestore.format.names import WRITERS, generation_of, is_leftover
from statestore.interop.spark.location import UNFINISHED
from tests.power.content import Promises, StorePromises, content_of
from tests.power.disk import Image, Tree, hash_of
from tests.power.queries import OUTPUT, output_problems, restart_problems
from tests.power.tables import table_problems

__all__ = ["Checker"]

_ERRORS = (StateStoreError, OSError, ValueError)


class Checker:
    """Checks one content of the disk after another."""

    def __init__(self, folder: Path) -> None:
        """Take a folder for the files; anything in it will be deleted."""
        self._image = Image(folder)
        self._known: dict[tuple[str, bytes, int], list[str]] = {}

    def problems(self, tree: Tree, promises: Promises, *, go_on: bool, is_whole: bool) -> list[str]:
        """Return every promise that the files of a disk break.

        Args:
            tree: the files.
            promises: the promises that the program had made.
            go_on: whether each store must also take its next checkpoint, and collect garbage.
            is_whole: whether the disk has lost nothing.

        Returns:
            The broken promises. A store whose files and promises did not change since another
            content is not read again.
        """
        problems = [
            f"{path} is not what it was"
            for path, digest in promises.files.items()
            if hashlib.sha256(tree.get(path) or b"").hexdigest() != digest
        ]
        for folder, files in promises.locations.items():
            problems += _usable_too_early(tree, folder, files, promises.files)
        for folder, facts in promises.tables.items():
            self._image.show(tree)
            problems += table_problems(self._image.folder / folder, facts, go_on=go_on)
            if go_on:
                self._image.forget()
        for name, promised in promises.stores.items():
            own = (f"{name}/", OUTPUT) if promised.restarts else (f"{name}/",)
            key = name, hash_of(tree, own), promised.number
            if key not in self._known:
                self._image.show(tree)
                self._known[key] = self._checked(name, promised)
            found = self._known[key]
            if go_on and not found:
                self._image.show(tree)
                self._image.forget()
                found = self._going_on(name, promised, is_whole)
            problems += [f"{name}: {problem}" for problem in found]
        return problems

    def _checked(self, name: str, promised: StorePromises) -> list[str]:
        try:
            found = _broken(self._image.folder / name, promised)
            if not found and promised.restarts is not None:
                found = output_problems(self._image.folder, name, promised.restarts)
            return found
        except _ERRORS as error:
            return [f"{type(error).__name__}: {error}"]

    def _going_on(self, name: str, promised: StorePromises, is_whole: bool) -> list[str]:
        folder = self._image.folder
        try:
            found = []
            if promised.restarts is not None:
                found = restart_problems(folder, name, promised.restarts, is_whole=is_whole)
            if promised.rekeying is not None:
                found = _cannot_resume(folder, name, promised, promised.rekeying)
            return found or _stuck(folder / name, promised)
        except _ERRORS as error:
            return [f"{type(error).__name__}: {error}"]


def _usable_too_early(
    tree: Tree, folder: str, final: Mapping[str, str], complete: Mapping[str, str]
) -> list[str]:
    """Return what is wrong with a checkpoint location that Spark may start with, or not.

    ``final`` are the files of the usable location, and ``complete`` the files promised by now.
    """
    own = {
        path: data
        for path, data in tree.items()
        if data is not None and path.startswith(f"{folder}/")
        if path in final or "/." not in path  # Spark ignores hidden files, except checksums
    }
    is_blocked = any(data.startswith(UNFINISHED) for data in own.values())
    if final.keys() <= complete.keys():
        return [f"{folder} is blocked again for Spark"] if is_blocked else []
    if is_blocked or not own:
        return []
    broken = [name for name in final if name not in own]
    broken += [name for name in own if hashlib.sha256(own[name]).hexdigest() != final.get(name)]
    return [f"Spark can start with {folder}, where {name} is not whole" for name in broken]


def _broken(folder: Path, promised: StorePromises) -> list[str]:
    """Return the promises about checkpoints that are broken."""
    if not (folder / "statestore.json").exists():
        return ["the store is lost"] if promised.visible else []
    store = StateStore.open(str(folder))
    if gaps := _gaps_of_claims(folder):
        return [f"claim {number} is missing between others" for number in gaps]
    visible = store.checkpoints()
    missing = promised.visible.keys() - set(visible) if promised.stays else set()
    problems = [f"checkpoint {number} was committed and is lost" for number in sorted(missing)]
    problems += [
        f"checkpoint {number} had expired and is visible"
        for number in sorted(promised.gone.intersection(visible))
    ]
    for number in visible:
        found, known = content_of(store, number), promised.visible.get(number)
        if found != known if known is not None else found not in promised.possible:
            problems.append(f"checkpoint {number} has other content: {found}")
    if visible:
        report = store.maintenance.verify("all", deep=True)
        problems += [f"{broken.file}: {', '.join(broken.what)}" for broken in report.broken]
        problems += _unreadable_tables(store) if promised.stays else []
    keep = store.maintenance
    if promised.savepoints is not None:
        savepoints = {one.name: one.checkpoint_id for one in keep.savepoints()}
        if savepoints != promised.savepoints:
            problems.append(f"the savepoints are {savepoints}, not {promised.savepoints}")
    for operator, key in promised.purged:
        # Torn files, which cannot be searched, may exist.
        if keep.find_subject(OperatorKey(operator, key)).found:
            problems.append(f"key {key!r} was reported as gone and is there")
    return problems


def _gaps_of_claims(folder: Path) -> list[int]:
    """Return the missing generations between existing ones, with which a writer seems current."""
    names = [f"{WRITERS}/{path.name}" for path in folder.glob(f"{WRITERS}/*")]
    there = {number for name in names if (number := generation_of(name))}
    return [number + 1 for number in sorted(there)[:-1] if number + 1 not in there]


def _unreadable_tables(store: StateStore) -> list[str]:
    """Return the Delta tables of the newest checkpoint that delta-rs cannot read."""
    tables = [
        entry.table
        for entry in store.checkpoint().manifest.entries
        if entry.table.format == "delta"
    ]
    problems = []
    for table in tables:
        if table.version is not None:
            try:
                DeltaTable(f"{store.url}/{table.path}", version=table.version).file_uris()
            except DeltaError as error:
                problems.append(f"version {table.version} of table {table.path}: {error}")
    return problems


def _cannot_resume(
    image: Path, name: str, promised: StorePromises, rekeying: Mapping[str, Any]
) -> list[str]:
    """Run an interrupted rekey again; return what is wrong with its result."""
    store = StateStore.open(str(image / name))
    if set(store.checkpoints()) != promised.visible.keys():
        return []  # it had committed
    work = image / rekeying["work"]
    done = store.maintenance.rekey("users", work=work, **rekeying["options"])
    assert done.new_checkpoint_id is not None
    if content_of(store, done.new_checkpoint_id) != rekeying["content"]:
        return ["a rekey that was run again has other content"]
    return [] if not [*work.iterdir()] else [f"{work} is not empty after a rekey"]


def _stuck(folder: Path, promised: StorePromises) -> list[str]:
    """Take the next checkpoint and collect garbage; return what is wrong afterwards."""
    store = StateStore.open(str(folder), compaction=None)  # its files would be young
    exists = (folder / "statestore.json").exists()
    before = {n: content_of(store, n) for n in store.checkpoints()} if exists else {}
    with store.snapshot(parallelism=1) as checkpoint:
        if before:
            checkpoint.carry_rest()
        else:
            rows = [{"k": 1}, {"k": 2}]
            checkpoint.write_keyed("next", "state", rows, key="k", max_parallelism=2)
    if checkpoint.id in before.keys() | promised.gone:
        return [f"the id {checkpoint.id} was used twice"]
    store.maintenance.gc(minimum_age="0")
    after = {number: content_of(store, number) for number in store.checkpoints()}
    problems = [
        f"checkpoint {number} changed when the store went on"
        for number, content in before.items()
        if after.get(number) != content
    ]
    if before and after[checkpoint.id] != before[max(before)]:
        problems.append(
            f"the next checkpoint has {after[checkpoint.id]}, not {before[max(before)]}"
        )
    report = store.maintenance.verify("all", deep=True)
    problems += [f"{broken.file}: {', '.join(broken.what)}" for broken in report.broken]
    left = [file.name for file in store.parts.storage.listed("") if is_leftover(file.name)]
    again = store.maintenance.gc(minimum_age="0", dry_run=True)
    dead = again.removed.files + again.leftovers
    problems += [f"{dead} dead files stay after a garbage collection"] if dead else []
    return problems + [f"{name} stays after a garbage collection" for name in left]
