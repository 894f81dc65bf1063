"""Check what a power failure left of the stores of a program."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from statestore import StateStore
from statestore.errors import StateStoreError
from statestore.format.names import is_leftover
from tests.power.content import Promises, StorePromises, content_of
from tests.power.disk import Tree, write_tree

__all__ = ["problems_of"]


def problems_of(tree: Tree, promises: Promises, image: Path, *, go_on: bool) -> list[str]:
    """Return every promise that the files of a disk break.

    Args:
        tree: the files.
        promises: the promises that the program had made.
        image: a folder for the files; it is replaced.
        go_on: whether each store must also take its next checkpoint, and collect garbage.

    Returns:
        The broken promises.
    """
    shutil.rmtree(image, ignore_errors=True)
    write_tree(tree, image)
    problems = [
        f"{path} is not what it was"
        for path, digest in promises.files.items()
        if hashlib.sha256(tree.get(path) or b"").hexdigest() != digest
    ]
    for name, promised in promises.stores.items():
        try:
            found = _broken(image / name, promised)
            if go_on and not found and promised.rekeying is not None:
                found = _cannot_resume(image, name, promised, promised.rekeying)
            if go_on and not found:
                found = _stuck(image / name, promised)
        except (StateStoreError, OSError, ValueError) as error:
            found = [f"{type(error).__name__}: {error}"]
        problems += [f"{name}: {problem}" for problem in found]
    return problems


def _broken(folder: Path, promised: StorePromises) -> list[str]:
    """Return the promises about checkpoints that are broken."""
    if not (folder / "statestore.json").exists():
        return ["the store is lost"] if promised.visible else []
    store = StateStore.open(str(folder))
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
        if keep.find_key(operator, key).found:  # torn files, which cannot be searched, may exist
            problems.append(f"key {key!r} was reported as gone and is there")
    return problems


def _unreadable_tables(store: StateStore) -> list[str]:
    """Return the Delta tables of the newest checkpoint that delta-rs cannot read."""
    tables = [entry.table for entry in store.manifest().entries if entry.table.format == "delta"]
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
