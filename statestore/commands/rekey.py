"""Rekey: the keyed states of an operator over other key groups, as a new checkpoint.

Any other max parallelism, another hash scheme, or for a single state another key, made of columns
that it has. Each row is read once; the digest of all rows is the same before and after, because it
does not depend on which of their columns are the key. With a working folder a run that was ended
goes on where it was.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statestore.commands.derive import Deriver, refuse_older
from statestore.commands.edit import carry_others
from statestore.errors import CorruptionError, InvalidArgumentError, StateNotFoundError
from statestore.model.document import Node
from statestore.model.keygroups import effective_max_parallelism
from statestore.model.keyhash import HASH_SCHEMES
from statestore.model.manifest import KeyedEntry, Manifest
from statestore.model.manifest_json import keyed_from_json, keyed_to_json
from statestore.model.state import KeyedState
from statestore.storage import Storage
from statestore.table.arrow import key_types
from statestore.table.keyed import KeyedTarget
from statestore.table.reading import check_sizes
from statestore.table.respread import Spread, spread, write_range
from statestore.table.types import arrow_schema

__all__ = ["RekeyReport", "RekeyRequest", "RekeyedState", "rekey"]

Progress = Callable[[int, int], None]
_JOB, _SPREAD, _WRITTEN = "rekey.json", "spread.json", "written.json"


@dataclass(frozen=True, kw_only=True)
class RekeyRequest:
    """What the states of operator ``uid`` get; None leaves it as it is. ``key`` needs ``name``."""

    uid: str
    name: str | None = None
    max_parallelism: int | None = None
    key: tuple[str, ...] | None = None
    hash_scheme: str | None = None

    def __post_init__(self) -> None:
        """Refuse no change at all, and a key for states that are not named."""
        if (self.max_parallelism, self.key, self.hash_scheme) == (None, None, None):
            raise InvalidArgumentError(
                "give what is to change: max_parallelism, key or hash_scheme"
            )
        if self.key is not None and self.name is None:
            raise InvalidArgumentError(
                f"another key is one state's: give the name of the state of operator {self.uid!r}"
            )
        if self.hash_scheme is not None and self.hash_scheme not in HASH_SCHEMES:
            raise InvalidArgumentError(
                f"no hash scheme {self.hash_scheme!r}; there is {', '.join(HASH_SCHEMES)}"
            )


@dataclass(frozen=True, kw_only=True)
class RekeyedState:
    """A state before and after; ``digest`` is that of its rows, which did not change."""

    state: str
    rows: int
    digest: int
    key: tuple[str, ...]
    max_parallelism: int
    hash_scheme: str
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class RekeyReport:
    """What was done: the checkpoint that it was done to, the new one, and the states."""

    store: str
    checkpoint_id: int
    new_checkpoint_id: int
    uid: str
    states: tuple[RekeyedState, ...]


def rekey(
    deriver: Deriver,
    wanted: RekeyRequest,
    *,
    checkpoint: int | str,
    work: Path | None,
    progress: Progress,
) -> RekeyReport:
    """Make a new checkpoint with an operator's states over other key groups.

    ``work`` is an empty folder, or that of a run of the same that was ended; by default a temporary
    one, from which nothing goes on. ``progress`` hears of rows read and written, of twice as many.
    Raises CheckpointNotFoundError, StateNotFoundError, InvalidArgumentError, UnsupportedTypeError,
    ParallelismError, NullKeyError or DuplicateKeyError for what the new key makes of the rows,
    CorruptionError, CommitConflictError or StorageError. Nothing is visible of a run that fails.
    """
    manifest = deriver.catalog.load(checkpoint)
    entries = _chosen(manifest, wanted)
    states = [_state(entry, wanted) for entry in entries]
    _refuse_mixed(manifest, entries, states)
    counter = _Counter(2 * sum(entry.rows for entry in entries), progress)
    with ExitStack() as stack:
        if work is None:
            folder = tempfile.TemporaryDirectory(prefix="statestore-rekey-")
            work = Path(stack.enter_context(folder))
        _claim(work, _job(manifest, wanted, entries))
        with deriver.begin(manifest) as writer:
            refuse_older(deriver.catalog, checkpoint, manifest)
            number, _ = writer.planned
            done = []
            for place, (entry, state) in enumerate(zip(entries, states, strict=True)):
                run = _Run(deriver, entry, state, number, work / str(place), counter)
                done.append(run.finish())
            new = [f"{e.table.path}/{handle.path}" for e in done for handle in e.handles]
            writer.carry_written(done, new)
            carry_others(writer, manifest, {(e.state.uid, e.state.name) for e in done})
            writer.say_origin(_origin(manifest, wanted, done))
        _clear(work)
    return RekeyReport(
        store=deriver.catalog.storage.url,
        checkpoint_id=manifest.checkpoint_id,
        new_checkpoint_id=writer.id,
        uid=wanted.uid,
        states=tuple(map(_reported, done)),
    )


@dataclass
class _Counter:
    total: int
    progress: Progress
    done: int = 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(min(self.done, self.total), self.total)


@dataclass(frozen=True)
class _Run:
    """One state under way: what of it is in the working folder is not done again."""

    deriver: Deriver
    entry: KeyedEntry
    state: KeyedState
    number: int
    work: Path
    counter: _Counter

    def finish(self) -> KeyedEntry:
        """Return the state with its new files; CorruptionError unless its rows are the same."""
        self.work.mkdir(exist_ok=True)
        spilled = self._spilled()
        known = self._known()
        for place in range(len(known), spilled.ranges):
            handles = write_range(self.work, place, self.state, self._target())
            known.append(replace(self._empty(), handles=handles))
            _put(self.work / _WRITTEN, [keyed_to_json(one) for one in known])
            self.counter.add(known[-1].rows)
        handles = tuple(handle for one in known for handle in one.handles)
        done = replace(self._empty(), handles=handles)
        if (done.rows, done.digest) != (spilled.rows, spilled.digest):
            raise CorruptionError(
                f"{self.state} has {done.rows} rows with digest {done.digest:016x} after it was "
                f"written, and had {spilled.rows} with {spilled.digest:016x}; nothing was committed"
            )
        return done

    def _empty(self) -> KeyedEntry:
        return KeyedEntry(self.state, replace(self.entry.table, version=None), ())

    def _target(self) -> KeyedTarget:
        storage, options = self.deriver.catalog.storage, self.deriver.parquet
        return KeyedTarget(storage, self.entry.table.path, self.number, self.state, options)

    def _spilled(self) -> Spread:
        known = self.work / _SPREAD
        if known.exists():
            self.counter.add(self.entry.rows)
            return Spread(**json.loads(known.read_text()))
        storage = self.deriver.catalog.storage
        found = spread(storage, self.entry, self.state, self.work, self.counter.add)
        _put(known, vars(found))
        return found

    def _known(self) -> list[KeyedEntry]:
        """Return the ranges that were written before, as far as their files are still there."""
        path = self.work / _WRITTEN
        if not path.exists():
            return []
        node = Node(json.loads(path.read_text()), "$", str(path))
        known: list[KeyedEntry] = []
        for item in node.items():
            one = keyed_from_json(item, self.state.uid)
            if not _are_there(self.deriver.catalog.storage, one):
                break
            known.append(one)
            self.counter.add(one.rows)
        return known


def _are_there(storage: Storage, entry: KeyedEntry) -> bool:
    try:
        check_sizes(storage, [entry])
    except CorruptionError:
        return False
    return True


def _chosen(manifest: Manifest, wanted: RekeyRequest) -> list[KeyedEntry]:
    if wanted.name is not None:
        return [manifest.keyed_entry(wanted.uid, wanted.name)]
    entries = [entry for entry in manifest.keyed if entry.state.uid == wanted.uid]
    if not entries:
        known = ", ".join(sorted({repr(entry.state.uid) for entry in manifest.keyed})) or "none"
        raise StateNotFoundError(
            f"checkpoint {manifest.checkpoint_id} has no keyed state of operator {wanted.uid!r}; "
            f"operators with keyed state are {known}"
        )
    return entries


def _state(entry: KeyedEntry, wanted: RekeyRequest) -> KeyedState:
    """Return the state as it will be: the new key first, what was key and is none a value."""
    old = entry.state
    key = old.key if wanted.key is None else wanted.key
    for name in key:
        old.schema.type_of(name)  # names the columns when there is none
    first = (*key, *old.namespace, *old.entry)
    rest = [name for name in old.schema.names if name not in first]
    scheme = old.hash_scheme if wanted.hash_scheme is None else wanted.hash_scheme
    most = wanted.max_parallelism
    return replace(
        old,
        schema=old.schema.select((*dict.fromkeys(first), *rest)),
        key=key,
        key_types=key_types(arrow_schema(old.schema).empty_table(), key, scheme),
        hash_scheme=scheme,
        max_parallelism=old.max_parallelism
        if most is None
        else effective_max_parallelism(None, 1, most),
    )


def _refuse_mixed(
    manifest: Manifest, entries: Sequence[KeyedEntry], states: Sequence[KeyedState]
) -> None:
    """Refuse to leave states of the operator behind with another number of key groups."""
    chosen = {entry.state.name for entry in entries}
    for entry in manifest.keyed:
        other = entry.state
        if other.uid != states[0].uid or other.name in chosen:
            continue
        if other.max_parallelism != states[0].max_parallelism:
            raise InvalidArgumentError(
                f"{other} has max parallelism {other.max_parallelism}, and an operator has one: "
                "leave the name out to rekey all of its states"
            )


def _job(manifest: Manifest, wanted: RekeyRequest, entries: Sequence[KeyedEntry]) -> dict[str, Any]:
    files = [[handle.sha256 for part in e.parts for handle in part.handles] for e in entries]
    return {
        "store_id": manifest.store_id,
        "checkpoint": manifest.checkpoint_id,
        "wanted": [
            wanted.uid,
            wanted.name,
            wanted.max_parallelism,
            None if wanted.key is None else list(wanted.key),
            wanted.hash_scheme,
        ],
        "files": files,
    }


def _claim(work: Path, job: dict[str, Any]) -> None:
    """Say what the folder is for; refuse one that is for anything else."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / _JOB
    if path.exists():
        if json.loads(path.read_text()) != job:
            raise InvalidArgumentError(
                f"{work} is the working folder of another rekey; give an empty folder"
            )
    elif any(work.iterdir()):
        raise InvalidArgumentError(f"{work} is not empty; give an empty working folder")
    else:
        _put(path, job)


def _clear(work: Path) -> None:
    for path in sorted(work.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _put(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content))
    beside.replace(path)


def _origin(manifest: Manifest, wanted: RekeyRequest, done: Sequence[KeyedEntry]) -> dict[str, Any]:
    return {
        "command": "rekey",
        "checkpoint": manifest.checkpoint_id,
        "operator": wanted.uid,
        "states": [
            {
                "state": entry.state.name,
                "key": entry.state.key,
                "max_parallelism": entry.state.max_parallelism,
                "hash_scheme": entry.state.hash_scheme,
            }
            for entry in done
        ],
    }


def _reported(entry: KeyedEntry) -> RekeyedState:
    return RekeyedState(
        state=entry.state.name,
        rows=entry.rows,
        digest=entry.digest,
        key=entry.state.key,
        max_parallelism=entry.state.max_parallelism,
        hash_scheme=entry.state.hash_scheme,
        files=len(entry.handles),
        size_bytes=entry.size_bytes,
    )
