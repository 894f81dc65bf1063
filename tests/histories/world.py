"""A store with its own clock, its expected content, and the changes that a command may make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.format.compaction_policy import CompactionRule
from statestore.format.names import (
    KEY_GROUP,
    STORE_FILE,
    manifest_path,
    pin_path,
    savepoint_path,
    tombstone_path,
)
from statestore.keys.groups import check_parallelism
from statestore.maintenance.gc_mark import files_of
from statestore.parquet.writer import ParquetOptions
from statestore.storage import Listed, LocalStorage, Storage
from statestore.storage.base import NewFile
from statestore.store import StateStore
from statestore.testing.faults import FaultyStorage
from statestore.testing.reference import ReferenceCheckpoint, ReferenceStore, canonical

__all__ = ["HOUR", "MINIMUM_AGE", "ClockedStorage", "Interrupted", "May", "World"]

HOUR = 3_600_000
MINIMUM_AGE = 24 * HOUR
# Changes of three rows stay in layers for several checkpoints.
COMPACTION = CompactionRule(merge_layers=2, share=1.5, most_share=2)


UNDER_WAY = re.compile(r"(|.*/)\.([^/]+)\.[0-9a-f]{32}")


class ClockedStorage(LocalStorage):
    """A folder whose files get their times from a clock that the test sets."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.now_ms = 10**12
        self._written: dict[str, int] = {}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if done:
            self._written[name] = self.now_ms
        return done

    def open_write(self, name: str) -> NewFile:
        self._written[name] = self.now_ms
        return super().open_write(name)

    def listed(self, folder: str) -> tuple[Listed, ...]:
        return tuple(
            item._replace(modified_ms=self._written[UNDER_WAY.sub(r"\1\2", item.name)])
            for item in super().listed(folder)
        )


class Interrupted(FaultyStorage):
    """A storage that runs another command, completely, before one of its calls."""

    def __init__(self, storage: Storage, at: int, happens: Callable[[], Any]) -> None:
        super().__init__(storage)
        self._at, self._happens = at, happens
        self.happened = False

    def meet(self, operation: str, name: str, do: Callable[[], Any], wrong: Any = None) -> Any:
        if not self.happened and len(self.calls) + 1 >= self._at:
            self.happened = True
            self._happens()
        return super().meet(operation, name, do, wrong)


@dataclass(kw_only=True)
class May:
    """The changes that a command may make. If it ends without an error, it must make all
    of them.
    """

    commit: dict[int, ReferenceCheckpoint] = field(default_factory=dict)
    expire: set[int] = field(default_factory=set)
    save: set[tuple[str, int]] = field(default_factory=set)
    let_go: set[str] = field(default_factory=set)
    pin: set[tuple[int, int]] = field(default_factory=set)
    unpin: set[str] = field(default_factory=set)

    def add(self, other: May) -> None:
        """Also allow the changes of another command."""
        self.commit |= other.commit
        self.expire |= other.expire
        self.save |= other.save
        self.let_go |= other.let_go
        self.pin |= other.pin
        self.unpin |= other.unpin


class World:
    """The store, and the reference with its expected content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = ClockedStorage(str(folder / "store"))
        self.reference = ReferenceStore()
        self.taken_ms: dict[int, int] = {}

    @property
    def now_ms(self) -> int:
        return self.storage.now_ms

    def store(self, storage: Storage | None = None) -> StateStore:
        """Return the store as another process opens it, over its own storage. Each list of files is
        a separate document.
        """
        store = StateStore.from_storage(
            storage or self.storage,
            table_format="parquet",
            compaction=COMPACTION,
            parquet=ParquetOptions(list_bytes=1),
        )
        return StateStore(replace(store.parts, now_ms=lambda: self.storage.now_ms))

    def time_ns(self) -> int:
        """Return the time like the module ``time``."""
        return self.now_ms * 1_000_000

    def older_than(self, hours: int) -> set[int]:
        """Return the visible checkpoints that are at least this old."""
        limit_ms = self.now_ms - hours * HOUR
        return {number for number in self.reference.visible if self.taken_ms[number] <= limit_ms}

    def catalog(self) -> Catalog:
        return Catalog.open(self.storage, create=False)

    def settle(self, may: May, *, done: bool) -> None:
        """Check that only allowed changes happened, and with ``done``, that all of them did.

        Afterwards the reference equals the store.
        """
        reference, catalog = self.reference, self.catalog()
        visible = set(catalog.checkpoint_ids())
        new, gone = visible - set(reference.visible), set(reference.visible) - visible
        assert max(visible) >= max(reference.visible, default=0), "the newest has expired"
        assert new <= set(may.commit), f"{new} became visible"
        assert gone <= may.expire, f"{gone} are not visible any more"
        firm = {n for name, n in reference.savepoints.items() if name not in may.let_go}
        for token, (number, until_ms) in reference.pins.items():
            firm |= {number} if until_ms > self.now_ms and token not in may.unpin else set()
        assert not gone & firm, f"{gone & firm} were held"
        saved = {
            savepoint.name: savepoint.checkpoint_id for savepoint in catalog.holds.savepoints()
        }
        for name in saved.keys() | reference.savepoints.keys():
            was, now = reference.savepoints.get(name), saved.get(name)
            allowed = {was, *([None] if name in may.let_go else [])}
            allowed |= {number for saved_as, number in may.save if saved_as == name}
            assert now in allowed, f"savepoint {name} was {was} and is {now}"
        pins = {p.token: (p.checkpoint_id, p.until_ms) for p in catalog.holds.pins()}
        for token, pin in pins.items():
            assert reference.pins.get(token, pin) == pin
            assert token in reference.pins or pin in may.pin, f"pin {token} was made by nobody"
        for token, (_, until_ms) in reference.pins.items():
            assert token in pins or token in may.unpin or until_ms <= self.now_ms
        if done:
            assert set(may.commit) <= visible
            assert not may.expire & visible
            assert may.save <= set(saved.items())
            assert not may.let_go & set(saved)
            assert may.pin <= set(pins.values())
            assert not may.unpin & set(pins)
        for number in new:
            reference.commit(may.commit[number], number)
            self.taken_ms[number] = self.now_ms
        for number in gone:
            reference.expire(number)
        reference.savepoints, reference.pins = saved, pins

    def check(self, numbers: Iterable[int], parallelism: int) -> None:
        """Read kept checkpoints and compare their rows with the reference (I7, I9)."""
        kept = self.reference.kept(self.now_ms)
        store = self.store()
        names = {number: name for name, number in self.reference.savepoints.items()}
        for number in numbers:
            if number in self.reference.visible:
                same(store, number, kept[number], parallelism)
            elif number in names:
                same(store, names[number], kept[number], parallelism)
            else:  # pinned, and expired at the same moment: only its manifest can be read
                manifest = self.catalog().manifest(number)
                for name in files_of(manifest):
                    assert self.storage.size(name) > 0

    def check_exactly_what_lives(self) -> None:
        """Check that there are no files except the live ones (no dead file stays)."""
        reference, catalog = self.reference, self.catalog()
        kept = reference.kept(self.now_ms)
        expected = {STORE_FILE, *self.storage.list("writers")}
        expected |= {manifest_path(number) for number in kept}
        expected |= {tombstone_path(number) for number in reference.expired}
        expected |= {savepoint_path(name) for name in reference.savepoints}
        expected |= {pin_path(token) for token in reference.pins}
        expected |= {name for number in kept for name in files_of(catalog.manifest(number))}
        assert {item.name for item in self.storage.listed("")} == expected


def same(
    store: StateStore, checkpoint: int | str, known: ReferenceCheckpoint, parallelism: int
) -> None:
    """Assert that a checkpoint restores with the reference's rows and elements."""
    restored = store.restore(checkpoint=checkpoint, parallelism=check_parallelism(parallelism))
    for (uid, name), keyed in known.keyed.items():
        for subtask in range(parallelism):
            found = restored.keyed(uid, name).to_arrow(subtask).to_pylist()
            expected = keyed.subtask(subtask, parallelism)
            assert sorted(map(_row, found)) == sorted(map(_row, expected))
    for uid, name in known.operator:
        for subtask in range(parallelism):
            found = restored.operator_state(uid, name).subtask(subtask)
            assert found == list(known.elements(uid, name, subtask, parallelism))


def _row(row: dict[str, Any]) -> str:
    return repr((row[KEY_GROUP], canonical({k: v for k, v in row.items() if k != KEY_GROUP})))
