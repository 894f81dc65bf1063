"""Check the invariants after every change of a file, from the files alone.

* A visible or held checkpoint is complete: each file exists with the length and SHA-256 in the
  manifest, and its rows are the rows that its writer intended. A checkpoint counts as held if an
  actor was notified of the hold.
* Rows that were reported as committed are in the newest checkpoint, unless they were purged or were
  in a damaged file. No row counts twice.
* The newest checkpoint id never decreases. Only an expiry or a purge removes a checkpoint.
* No writer commits after a newer writer has replaced it.
* A claim has the writer version of the previous one, except during an upgrade.
* If a writer is notified that its checkpoint is not visible, this is true.
* Purged or forgotten rows are in no kept checkpoint, under any name of the operator.
* A state exists once: a renamed operator has it only under its new name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from tests.simulate.documents import (
    COUNT,
    KEY,
    Checkpoint,
    Others,
    Rows,
    checkpoint_of,
    document_of,
    others_of,
    rows_of,
)
from tests.simulate.history import OperationLog
from tests.simulate.scheduler import Scheduler, Stopped

__all__ = ["Checker", "Raw", "Seen"]

DATA = ("operators/", "files/")
CHECKPOINT = re.compile(r"checkpoints/([0-9]{10})\.(json|expired)")
CLAIM = re.compile(r"writers/([0-9]{10})\.json")
HOLD = re.compile(r"(savepoints|pins)/([^/.][^/]*)\.json")
# the prefix of the hash in a copy's name
COPIED = re.compile(r"-([0-9a-f]{16})-[0-9a-f]{16}\.parquet$")
MARGIN_MS = 600_000  # clocks differ, so a lease is not relied on this long before its end
GIVES_UP = ("expire", "purge", "forget", "query", "quiet")


@dataclass(frozen=True)
class Raw:
    """The names of all files, and the bytes of one; KeyError or OSError if it is missing."""

    names: Callable[[], list[str]]
    read: Callable[[str], bytes]


@dataclass
class Seen:
    """One store: its contents, and the promises that were made about it."""

    manifests: dict[int, Checkpoint] = field(default_factory=dict)
    # including checkpoints that no longer exist
    known: dict[int, Checkpoint] = field(default_factory=dict)
    tombstones: set[int] = field(default_factory=set)
    # by name: number, end of the lease
    holds: dict[str, tuple[int, int]] = field(default_factory=dict)
    meant: dict[str, Rows] = field(default_factory=dict)  # by the writer's token
    meant_others: dict[str, Others] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)  # the keys
    # holds that an actor was notified of, with the time
    held: dict[str, int] = field(default_factory=dict)
    since: dict[str, tuple[int, int]] = field(default_factory=dict)
    purged: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    newest: int = 0

    @property
    def visible(self) -> set[int]:
        return set(self.manifests) - self.tombstones

    @property
    def tokens(self) -> dict[int, str]:
        """The token of each visible checkpoint."""
        return {number: self.manifests[number].token for number in self.visible}

    @property
    def savepoints(self) -> dict[str, int]:
        """The checkpoint of each savepoint, by name."""
        named = {savepoint_of(path): number for path, (number, _) in self.holds.items()}
        return {name: number for name, number in named.items() if name is not None}

    def kept(self, now_ms: int) -> set[int]:
        """Return the checkpoints that must be complete."""
        told = {self.holds[name] for name in self.held if name in self.holds}
        return self.visible | {n for n, until_ms in told if until_ms - MARGIN_MS > now_ms}


class Checker:
    """All stores of a run, and the first violation."""

    def __init__(self, scheduler: Scheduler, raw: Callable[[], Raw], log: OperationLog) -> None:
        """Start without any store; ``log`` gets the changes that it notices."""
        self.stores: dict[str, Seen] = {}
        self.wrong_is: tuple[str, str] | None = None
        self._scheduler, self._raw, self._log = scheduler, raw, log
        # an object becomes visible complete; a file is visible while it is written
        self.whole_files = False
        self._sha256: dict[str, str] = {}  # the SHA-256 of data files, by their name in any store

    def seen(self, store: str) -> Seen:
        """Return the knowledge about a store."""
        return self.stores.setdefault(store, Seen())

    def latest(self, store: str) -> Checkpoint | None:
        """Return the newest visible checkpoint with its rows."""
        seen = self.seen(store)
        return seen.manifests[max(seen.visible)] if seen.visible else None

    def wrong(self, kind: str, text: str) -> NoReturn:
        """Record a violation and end the run."""
        if self.wrong_is is None:
            doing = self._scheduler.current.doing if self._scheduler.current else "nobody"
            self.wrong_is = kind, f"{text} (while: {doing})"
        self._scheduler.stopped = True
        raise Stopped

    # --- Reports of actors
    # ----------------------------------------------------------------------------

    def committed(self, store: str, number: int, token: str, key: str) -> None:
        """Record that a writer was notified of its commit, with the row ``key``."""
        seen = self.seen(store)
        found = seen.known.get(number)
        if found is None or found.token != token:
            self.wrong("not there", f"checkpoint {number} of {store} was reported, and is another")
        seen.reported.add(key)
        self._buried(store)

    def counted(self, store: str, keys: list[str]) -> None:
        """Record that a query's source has advanced past events of the newest checkpoint."""
        self.seen(store).reported |= set(keys)
        self._buried(store)

    def refused(self, store: str, token: str) -> None:
        """Record that a writer was notified that nothing of its checkpoint is visible."""
        seen = self.seen(store)
        for number in seen.visible:
            if seen.manifests[number].token == token:
                self.wrong("there", f"checkpoint {number} of {store} is visible, said not to be")

    def holding(self, store: str, path: str, number: int) -> None:
        """Record that an actor was notified that a savepoint or pin holds a checkpoint."""
        seen = self.seen(store)
        seen.held[path] = self._scheduler.now_ms
        if seen.holds.get(path, (0, 0))[0] != number:
            self.wrong("no hold", f"{path} of {store} was reported, and does not hold {number}")
        self._whole(store, number)

    def is_purged(self, store: str, key: str) -> None:
        """Record that an actor was notified that no kept checkpoint has a key any longer."""
        self.seen(store).purged.add(key)
        self._purged(store)

    # --- Changes of files
    # -----------------------------------------------------------------------------

    def changed(self, name: str) -> None:
        """Check a file that was put, written or deleted."""
        if self._scheduler.stopped:
            return
        store, _, rest = name.partition("/")
        seen = self.seen(store)
        if match := CHECKPOINT.fullmatch(rest):
            self._checkpoint(store, int(match[1]), rest)
        elif HOLD.fullmatch(rest):
            self._hold(seen, store, rest)
        elif match := CLAIM.fullmatch(rest):
            self._claim(store, int(match[1]), rest)
        elif rest.startswith(DATA):
            if self.whole_files and rest not in seen.lost:
                self._uncut(name, rest)
            for number in sorted(seen.kept(self._scheduler.now_ms)):
                if rest in (seen.manifests.get(number) or seen.known[number]).files:
                    self._whole(store, number)

    def _uncut(self, name: str, rest: str) -> None:
        """Check that a new object is complete, as far as a manifest or its name specifies it."""
        said = COPIED.search(rest)
        wanted = self._sha256.get(rest, said[1] if said else "")
        data = self._read(name)
        if data is not None and not hashlib.sha256(data).hexdigest().startswith(wanted):
            self.wrong("cut", f"{name} appeared with other bytes than it is to have")

    def look_again(self, *, power_was_lost: bool = False) -> None:
        """Check everything again: files have appeared or disappeared without notification."""
        names = sorted(self._raw().names())
        for seen in self.stores.values():
            seen.manifests.clear()
            seen.tombstones.clear()
            seen.holds.clear()
            seen.newest = 0 if power_was_lost else seen.newest
        for name in [n for n in names if n.endswith(".expired")] + names:
            store, _, rest = name.partition("/")
            if not rest.startswith(DATA):
                self._remember(store, rest)
        for store in list(self.stores):
            self.look(store)

    def brought_back(self, store: str) -> None:
        """Clear the promises about a store that was replaced with an older copy."""
        seen = self.seen(store)
        reported, seen.reported, seen.newest, seen.known = seen.reported, set(), 0, {}
        self.look_again()
        newest = self.latest(store)
        seen.reported = reported & set((newest and newest.rows) or {})

    def look(self, store: str) -> None:
        """Check that all required files exist."""
        seen = self.seen(store)
        if seen.visible:
            self._latest(store)
        for number in sorted(seen.kept(self._scheduler.now_ms)):
            self._whole(store, number)
        self._buried(store)

    def files_with(self, store: str, key: str) -> list[str]:
        """Return the data files of a store that have a row of a key or are truncated."""
        raw = self._raw()
        names = [name for name in raw.names() if name.startswith(f"{store}/")]
        data = [(name, raw.read(name)) for name in names if name.endswith(".parquet")]
        return sorted(name for name, content in data if key in _keys_in(content, key))

    def missing_holds(self, store: str) -> list[str]:
        """Return the lost holds: an actor was notified of them, and no actor has removed them."""
        seen = self.seen(store)
        return sorted(name for name in seen.held if name not in seen.holds)

    def _remember(self, store: str, rest: str) -> None:
        seen = self.seen(store)
        data = self._read(f"{store}/{rest}")
        if match := CHECKPOINT.fullmatch(rest):
            number = int(match[1])
            if match[2] == "expired":
                seen.tombstones |= {number} if data is not None else set()
                return
            found = checkpoint_of(data, self._reader(store)) if data is not None else None
            if found is None:
                seen.manifests.pop(number, None)
            else:
                seen.manifests[number] = found
                if number not in seen.known or seen.known[number].token != found.token:
                    seen.known[number] = found
                self._sha256 |= {name: sha256 for name, (_, sha256) in found.files.items()}
                found.rows, found.others = seen.known[number].rows, seen.known[number].others
        elif HOLD.fullmatch(rest):
            document = _json(data)
            if document is None:
                seen.holds.pop(rest, None)
            else:
                number, until = int(document["checkpoint_id"]), document.get("until_ms", 2**62)
                seen.holds[rest] = number, int(until)
                if seen.since.get(rest, (0, 0))[0] != number:
                    seen.since[rest] = number, self._scheduler.now_ms

    def _checkpoint(self, store: str, number: int, rest: str) -> None:
        seen = self.seen(store)
        before, tombstones = seen.visible, seen.tombstones.copy()
        self._remember(store, rest)
        gone, new = before - seen.visible, seen.visible - before
        if new:
            self._log.manifest_put(store, number, seen.manifests[number].token)
        if seen.tombstones - tombstones:
            self._log.tombstone_put(store, number)
        who = self._scheduler.current.doing if self._scheduler.current else ""
        if gone and not who.startswith(GIVES_UP):
            self.wrong("given up", f"checkpoint {sorted(gone)} of {store} expired by nobody's rule")
        if gone and who.startswith("expire"):
            self._unheld(seen, store, gone)
        if new:
            self._whole(store, number)
            found = seen.manifests[number]
            self._meant(store, found)
            self._in_order(store, found)
            # the result is newer than the previous contents
            if found.origin.get("command") in ("copy", "fork"):
                seen.reported &= set(found.rows or ())
        if new or gone:
            self._latest(store)
            self._buried(store)
            self._purged(store)
        for kept in seen.kept(self._scheduler.now_ms) - set(seen.manifests):
            self.wrong("held", f"the manifest of checkpoint {kept} of {store} is gone, and held")

    def _unheld(self, seen: Seen, store: str, gone: set[int]) -> None:
        """Check that an expired checkpoint was not held when the expiry began.

        A purge moves a savepoint to the checkpoint that it writes in place of the held one. An
        expiry that began before may expire that one, which the savepoint then keeps.
        """
        task = self._scheduler.current
        for name, told_ms in seen.held.items():
            number, until_ms = seen.holds.get(name, (0, 0))
            is_over = until_ms - MARGIN_MS <= self._scheduler.now_ms
            began_ms = max(told_ms, seen.since.get(name, (0, 0))[1])
            if number in gone and not is_over and task and began_ms < task.began_ms:
                self.wrong("expired", f"checkpoint {number} of {store} has expired, held by {name}")

    def _claim(self, store: str, generation: int, rest: str) -> None:
        """Check that a new claim keeps the writer version, which only an upgrade may change."""
        claim, before = (
            _json(self._read(f"{store}/{name}"))
            for name in (rest, f"writers/{generation - 1:010}.json")
        )
        if claim is None or before is None:
            return
        old, new = before["format_version"], claim["format_version"]
        task = self._scheduler.current
        if new != old and not (task and task.doing.startswith("upgrade ")):
            self.wrong("version", f"claim {generation} of {store} has version {new}, not {old}")

    def _hold(self, seen: Seen, store: str, rest: str) -> None:
        before = seen.holds.get(rest)
        self._remember(store, rest)
        if before != (now := seen.holds.get(rest)) and (name := savepoint_of(rest)):
            if now is None:
                self._log.savepoint_deleted(store, name)
            else:
                self._log.savepoint_put(store, name, now[0])
        if rest in seen.held and rest in seen.holds:
            self._whole(store, seen.holds[rest][0])

    def _latest(self, store: str) -> None:
        seen = self.seen(store)
        newest = max(seen.visible, default=0)
        if newest < seen.newest:
            self.wrong("back", f"the newest checkpoint of {store} was {seen.newest}, is {newest}")
        seen.newest = newest

    def _whole(self, store: str, number: int) -> None:
        seen = self.seen(store)
        found = seen.manifests.get(number)
        if found is None:
            self.wrong("held", f"checkpoint {number} of {store} is gone, and held")
        data = {}
        for name, (size, sha256) in found.files.items():
            content = self._read(f"{store}/{name}")
            if content is None:
                if self._lost_lawfully(store, name):
                    return
                self.wrong("missing", f"checkpoint {number} of {store} has lost {name}")
            if len(content) != size or hashlib.sha256(content).hexdigest() != sha256:
                if self._lost_lawfully(store, name):
                    return
                self.wrong("damaged", f"checkpoint {number} of {store}: other bytes in {name}")
            data[name] = content
        if found.rows is None:
            found.rows, found.others = rows_of(found, data), others_of(found, data)

    def _lost_lawfully(self, store: str, name: str) -> bool:
        return name in self.seen(store).lost

    def _meant(self, store: str, found: Checkpoint) -> None:
        seen, rows = self.seen(store), found.rows
        labels = [operator["uid"] for operator in found.operators if operator["keyed"]]
        if len(labels) > 1:
            self.wrong("split", f"checkpoint {found.number} of {store} has the state of {labels}")
        meant = seen.meant.get(found.token, self._derived(store, found))
        if rows is None:
            return
        for key in sorted(meant.keys() ^ rows.keys()) if meant is not None else ():
            what = "has not" if meant and key in meant else "has"
            self.wrong("rows", f"checkpoint {found.number} of {store} {what} {key}, not as meant")
        others = seen.meant_others.get(found.token, self._derived_others(store, found))
        if others is not None and found.others != others:
            text = f"checkpoint {found.number} of {store} has {found.others}, not {others}"
            self.wrong("other states", text)
        twice = sorted(key for key, row in rows.items() if row[COUNT] != 1)
        if twice:
            self.wrong("twice", f"checkpoint {found.number} of {store} counts {twice[0]} again")

    def _in_order(self, store: str, found: Checkpoint) -> None:
        """Check that no writer has committed after a newer writer has replaced it."""
        for number in self.seen(store).visible:
            other = self.seen(store).manifests[number]
            below, above = sorted((found, other), key=lambda one: one.number)
            if below.generation > above.generation:
                self.wrong("fenced", f"{above.number} of {store} is of a writer that was replaced")
            if below.generation == above.generation and below.writer != above.writer:
                self.wrong("fenced", f"{below.number} and {above.number} of {store}: two writers")

    def _derived(self, store: str, found: Checkpoint) -> Rows | None:
        """Return the rows that a derived checkpoint must have."""
        command = found.origin.get("command")
        if command not in ("compact", "rekey", "purge", "forget"):
            return None
        seen = self.seen(store)
        parent = seen.known.get(int(found.origin["checkpoint"]))
        if parent is None or parent.rows is None:
            return None
        if command in ("compact", "rekey"):
            return parent.rows
        return {key: row for key, row in parent.rows.items() if not key.startswith("purged")}

    def _derived_others(self, store: str, found: Checkpoint) -> Others | None:
        """Return the other states that a derived checkpoint must have."""
        command = found.origin.get("command")
        if command not in ("compact", "rekey", "purge", "forget", "edit"):
            return None
        parent = self.seen(store).known.get(int(found.origin["checkpoint"]))
        return None if parent is None or parent.rows is None else parent.others

    def _buried(self, store: str) -> None:
        seen, newest = self.seen(store), self.latest(store)
        must = seen.reported - seen.purged - seen.lost
        if newest is None:
            if must:
                self.wrong("gone", f"{store} shows no checkpoint any more")
            return
        if newest.rows is None:
            return
        for key in sorted(must - set(newest.rows)):
            if not key.startswith("purged"):
                self.wrong(
                    "buried",
                    f"{key} was committed to {store}, and its newest checkpoint "
                    f"{newest.number} ({newest.origin.get('command', 'a job')}'s) lacks it",
                )

    def _purged(self, store: str) -> None:
        seen = self.seen(store)
        for number in seen.visible if seen.purged else ():
            for key in sorted(seen.purged & set(seen.manifests[number].rows or ())):
                self.wrong("purged", f"checkpoint {number} of {store} has {key}, which was purged")

    def _reader(self, store: str) -> Callable[[str], bytes | None]:
        return lambda rest: self._read(f"{store}/{rest}")

    def _read(self, name: str) -> bytes | None:
        try:
            return self._raw().read(name)
        except (KeyError, OSError):
            return None


def savepoint_of(path: str) -> str | None:
    """Return the name of a savepoint by the path of its document; None for a pin."""
    match = HOLD.fullmatch(path)
    return match[2] if match and match[1] == "savepoints" else None


def _keys_in(content: bytes, cut: str) -> set[str]:
    """Return the keys in a data file, or none for elements; ``cut`` if its end is missing."""
    try:
        rows = pq.ParquetFile(BytesIO(content)).read(use_threads=False)
    except pa.ArrowInvalid:
        return {cut}
    return set(rows[KEY].to_pylist()) if KEY in rows.column_names else set()


def _json(data: bytes | None) -> dict[str, Any] | None:
    return None if data is None else document_of(data)
