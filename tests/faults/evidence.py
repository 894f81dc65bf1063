"""Check a killed job's store without Spark: every checkpoint is intact, and none is lost."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from statestore.errors import StateStoreError, StoreNotFoundError
from statestore.format.names import KEY_GROUP
from statestore.rows.digests import rows_digest
from statestore.store import StateStore
from tests.faults.job import offsets, per_country, totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.format.manifest import Entry

__all__ = ["Evidence"]


class Evidence:
    """The known checkpoints of a store from earlier kills, and the checks after each kill."""

    def __init__(self, url: Path) -> None:
        """Start without known checkpoints."""
        self.lost: set[int] = set()
        self.half: set[int] = set()
        self.problems: list[str] = []
        self.visible: tuple[int, ...] = ()
        self._url, self._store = url, StateStore.open(str(url))
        self._manifests: dict[int, bytes] = {}
        self._left: set[Path] = set()

    def take(self, said: Iterable[int]) -> tuple[int, ...]:
        """Check the store after a kill, and return the new checkpoints.

        ``said`` has the checkpoints that the job reported. I4, I6: these exist, all earlier ones
        still exist with the same manifest, and the ids are 1, 2, 3 without a gap.
        """
        known = self.visible
        try:
            self.visible = self._store.checkpoints()
        except StoreNotFoundError:
            self.visible = ()
        for number in sorted({*known, *said} - {*self.visible}):
            self.lost.add(number)
            self.problems.append(f"checkpoint {number} was there, and is not any more")
        if self.visible != tuple(range(1, len(self.visible) + 1)):
            self.problems.append(f"the checkpoints are {self.visible}: a number was left out")
            self.half.update(self.visible[-1:])
        new = tuple(number for number in self.visible if number not in known)
        for number in self.visible:
            raw = self._manifest(number).read_bytes()
            if self._manifests.setdefault(number, raw) != raw:
                self.problems.append(f"the manifest of checkpoint {number} was changed")
                self.lost.add(number)
        return new

    def read(self, numbers: Iterable[int]) -> None:
        """Read checkpoints completely and compare bytes, digests, and the content that each number
        determines (I5, I10).
        """
        for number in numbers:
            try:
                found = list(self._wrong(number))
            except (StateStoreError, OSError) as error:
                found = [repr(error)]
            if found:
                self.half.add(number)
                self.problems += [f"checkpoint {number}: {problem}" for problem in found]

    def moment(self) -> str:
        """Describe the files that the killed attempt left."""
        number = len(self.visible) + 1
        files = set((self._url / "operators").rglob(f"{number:010}-*.parquet")) - self._left
        self._left |= files
        logs = sum(_published(log) == number for log in self._url.rglob("_delta_log"))
        if not files:
            return "between two snapshots, or before its first file"
        return f"{len(files)} files written, {logs} of 3 tables of that number published"

    def _wrong(self, number: int) -> Iterable[str]:
        restored = self._store.restore(checkpoint=number, parallelism=1 + number % 4)
        for entry in restored.manifest.entries:
            yield from self._wrong_files(entry)
        for name, rows in (("totals", totals(number)), ("per_country", per_country(number))):
            keyed = restored.keyed("users", name)
            found, digest = [], 0
            for subtask in range(restored.parallelism):
                table = keyed.to_arrow(subtask).drop_columns([KEY_GROUP])
                digest = (digest + sum(map(rows_digest, table.to_batches()))) % 2**64
                found += table.to_pylist()
            if digest != keyed.digest:
                yield f"{name} has digest {digest:016x}, the manifest says {keyed.digest:016x}"
            if _multiset(found) != _multiset(rows):
                yield f"{name} holds {found}"
        for subtask in range(restored.parallelism):
            elements = restored.operator_state("source", "offsets").subtask(subtask)
            if elements != [e for of_subtask in offsets(number) for e in of_subtask]:
                yield f"offsets of subtask {subtask} are {elements}"

    def _wrong_files(self, entry: Entry) -> Iterable[str]:
        folder = self._url / entry.table.path
        for handle in entry.handles:
            raw = (folder / handle.path).read_bytes()
            if hashlib.sha256(raw).hexdigest() != handle.sha256:
                yield f"{handle.path} has other bytes than were written"
        table = DeltaTable(folder, version=entry.table.version)
        published = {Path(uri).name for uri in table.file_uris()}
        if published != {Path(handle.path).name for handle in entry.handles}:
            yield f"version {entry.table.version} of {entry.table.path} holds other files"

    def _manifest(self, number: int) -> Path:
        return self._url / "checkpoints" / f"{number:010}.json"


def _published(log: Path) -> int:
    """Return the newest checkpoint that was published to a table, or 0."""
    commits = sorted(log.glob("*.json"))
    lines = commits[-1].read_text().splitlines() if commits else []
    return max((json.loads(line).get("txn", {}).get("version", 0) for line in lines), default=0)


def _multiset(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)
