"""Fencing: of all writers that ever opened a store, only the newest may commit (I4, I6).

A writer claims the next free generation, which is a fencing token, by putting a file if absent. A
writer that finds a newer claim than its own has been replaced: it was presumed dead, or another
writer was started in parallel. It must not commit again, no matter how long it was paused.

**Why a check before the put is enough.** Between the check and the put of its manifest, a writer
may stall for any time, and its successor may commit meanwhile. The late put still cannot hide the
successor's checkpoints, because the late writer's id is never above the successor's:

* An id is fixed when a checkpoint begins. It is the newest id in the store plus one, or a greater
  id that was announced in a claim (:meth:`Fence.announce`).
* The successor claims after the check; otherwise the check would have found its claim. It reads the
  newest id after its claim, and uses no id below an announced one. Each claim passes the announced
  id on to the next. So each id of the successor is at least the stalled writer's.
* If the ids are equal, put-if-absent lets one of the two win, and the other gets an error. If the
  successor's id is greater, the late checkpoint has a smaller id, and the latest checkpoint remains
  the successor's.

**Why the writer's own claim is read too.** A store that is restored from a backup lacks the claims
made after the backup, and other writers claim their generations again. A claim is identified by its
token, not by its generation. So a writer commits only while the claim of its generation is its own.

**Why earlier claims can be deleted.** Garbage collection deletes the claims of writers that were
replaced long ago, in ascending order (``maintenance/gc.py``). A writer whose own claim is
gone has been replaced. A writer may also pause before it puts its claim, until the next generation
was claimed by others and deleted again. Its put succeeds then. Therefore it looks for the preceding
claim after its put. If that is gone, or is not the one that the writer has read, other claims
followed it, and the writer looks for the newest claim again.

The late writer does not report success either. It checks for a successor after its put as well,
because the successor's checkpoints may lack the late checkpoint's contents. A successor that claims
after that check finds the late checkpoint.

**Why a writer does not list all checkpoints for its next one.** The checkpoint that a writer has
committed is the newest one as long as its claim is the newest. A successor claims before it
commits, and the id of a late checkpoint is not greater. So a writer that has checked its claim only
looks whether its last checkpoint still exists: an older copy of the store, which was put back,
lacks it. A writer lists all checkpoints for its first one, after a put that failed, and after a
fork: the forked process may end a snapshot of this one, with the same claim.

**The document.** A claim is one small document per generation. It is put once and never changed.
docs/FORMAT.md describes it. The newest claim also has the store's writer version, which every
writer must know. It is the format version of the claim itself, so an older release refuses to claim
the store.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.json import decode as json_decode

from statestore.catalog.catalog import refuse_newer_format
from statestore.errors import (
    CommitConflictError,
    FormatVersionError,
    InvalidArgumentError,
    LateCommitError,
    MalformedManifestError,
    StateStoreError,
    StorageError,
)
from statestore.format.documents import (
    CheckpointId,
    Count,
    Header,
    Moment,
    document_bytes,
    member_error,
    parse_document,
    report_place,
)
from statestore.format.names import WRITERS, generation_of, writer_path
from statestore.storage import Storage, put_once

CLAIM_FORMAT = "statestore-writer"
CLAIM_REMEDY = "'statestore repair' writes a new claim"

WRITER_VERSIONS = {1: "0.1.0", 2: "0.2.0"}
"""The writer versions, each with the oldest release that knows it.

Version 2 added the claim's ``needs_release`` and ``upgrade``."""


WRITER_VERSION = max(WRITER_VERSIONS)
"""The newest writer version that this release knows."""


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """The claim that raised the writer version: its generation, and the version before it."""

    generation: Count
    previous_version: Count


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A writer's claim to a store: its generation (the fencing token), the writer and the time.

    ``announced_id`` is the greatest checkpoint id that this writer or an earlier one announced
    although smaller ids are free; 0 without an announcement.

    ``writer_version`` is the store's writer version. Each claim has the version of the previous
    one, except the claim of an upgrade. ``upgrade`` is None in version 1.
    """

    generation: Count
    name: str
    token: str
    release: str
    claimed_at_ms: Moment
    announced_id: CheckpointId
    writer_version: int = 1
    upgrade: Upgrade | None = None

    def __str__(self) -> str:
        """Return ``writer host:pid (statestore 1.0, generation 3, since 2026-01-31 …)``."""
        since = datetime.fromtimestamp(self.claimed_at_ms / 1000, UTC)
        return (
            f"writer {self.name} (statestore {self.release}, generation {self.generation}, "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC)"
        )


class _Claim(Header, frozen=True, kw_only=True):
    generation: Count
    name: str
    token: str
    release: str
    claimed_at_ms: Moment
    announced_id: CheckpointId
    upgrade: Upgrade | None = None

    def claim(self) -> Claim:
        """Return the claim as a value. Raises ValidationError if ``upgrade`` does not fit."""
        upgrade = self.upgrade
        if (upgrade is None) is not (self.format_version == 1):
            raise member_error(".upgrade", "it must exist exactly from format version 2 on")
        if upgrade is not None and not (
            1 <= upgrade.generation <= self.generation
            and 1 <= upgrade.previous_version < self.format_version
        ):
            raise member_error(".upgrade", "it must name an earlier claim and a lower version")
        return Claim(
            generation=self.generation,
            name=self.name,
            token=self.token,
            release=self.release,
            claimed_at_ms=self.claimed_at_ms,
            announced_id=self.announced_id,
            writer_version=self.format_version,
            upgrade=upgrade,
        )


class _NeedsRelease(Struct, frozen=True):
    needs_release: str | None = None


def claim_to_json(claim: Claim) -> bytes:
    """Return the document of a claim, UTF-8; InvalidArgumentError if no reader could read it."""
    members = asdict(claim)
    version, upgrade = members.pop("writer_version"), members.pop("upgrade")
    if upgrade is not None:
        members |= {"needs_release": WRITER_VERSIONS[version], "upgrade": upgrade}
    return document_bytes(
        {"format": CLAIM_FORMAT, "format_version": version, **members},
        lambda raw: claim_from_json(raw, name="the claim", generation=claim.generation),
    )


def claim_from_json(raw: bytes, *, name: str, generation: int) -> Claim:
    """Parse a claim; ``name`` is the document's name in errors.

    Raises MalformedManifestError, also if it is not the claim of ``generation``, or
    FormatVersionError, which names the release that is needed.
    """
    try:
        document = parse_document(
            raw, _Claim, name=name, form=CLAIM_FORMAT, newest=WRITER_VERSION, remedy=CLAIM_REMEDY
        )
    except FormatVersionError as error:
        needs = json_decode(raw, type=_NeedsRelease).needs_release
        if needs is None:
            raise
        raise FormatVersionError(
            f"{error}; to write to this store, statestore {needs} or later is needed"
        ) from error
    if document.generation != generation:
        raise MalformedManifestError(
            f"{name} at $.generation: the file contains the claim of generation "
            f"{document.generation}, which belongs under another name"
        )
    with report_place(name):
        return document.claim()


_log = logging.getLogger(__name__)
_LOOKS = 5

ACTOR_VARIABLE = "STATESTORE_ACTOR"
_LONGEST_ACTOR = 200


def process_name() -> str:
    """Return this process as ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def actor_name() -> str:
    """Return who takes the checkpoints and deletes the files of this process.

    It is the environment variable ``STATESTORE_ACTOR``, or else the user of the process. Raises
    InvalidArgumentError for text that is too long or not printable.
    """
    actor = os.environ.get(ACTOR_VARIABLE) or _user_name()
    if len(actor) > _LONGEST_ACTOR or not actor.isprintable():
        raise InvalidArgumentError(
            f"the actor {actor!r:.80} must be printable text of at most {_LONGEST_ACTOR} "
            f"characters; set {ACTOR_VARIABLE} to the name that checkpoints and deletions record"
        )
    return actor


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user may have a number only
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


class Fence:
    """One writer's claim to a store; it is made when the writer first writes."""

    def __init__(self, storage: Storage, *, release: str) -> None:
        """Prepare to claim for a release of statestore; nothing is claimed yet."""
        self._storage, self._release = storage, release
        self._claim: Claim | None = None
        self._document = b""
        self._process = os.getpid()
        self._make_locks()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self.one_commit = threading.Lock()
        """Held from the last check for other checkpoints until the manifest is put."""

    def claim(self, *, announce: bool = False) -> Claim:
        """Return this writer's claim: the first call makes it, every other call checks it.

        A process that was forked from the claiming process is another writer, and claims for
        itself. With ``announce``, a warning is logged before another writer is replaced, unless
        that writer is this process, or a process of this host that has ended. Callers that will not
        write use it.

        A claim fences the active writer. So nothing is claimed if the newest claim or the newest
        checkpoint has a format version that this release does not support. The check does not
        cover a checkpoint that is committed between it and the claim; ``upgrade`` prevents that
        case too.

        Raises CommitConflictError as :meth:`check` does, MalformedManifestError if the newest claim
        cannot be read, FormatVersionError for a newer format, or StorageError.
        """
        if self._process != os.getpid():
            # A thread of the parent may hold the locks, and that thread does not exist in this
            # process.
            self._process, self._claim = os.getpid(), None
            self._make_locks()
        with self._lock:
            claim = self._claim
            if claim is None:
                refuse_newer_format(self._storage)
            while claim is None:
                generation, raw = self.newest()
                newest = self._parse(generation, raw) if generation else None
                if announce and newest is not None and not _has_ended(newest):
                    _log.warning(
                        (
                            "%s is taken over from %s: a job that still runs there cannot commit "
                            "until it reopens the store"
                        ),
                        *(self._storage.url, newest),
                    )
                claim = self._put(generation + 1, newest, raw)
        self.check()
        return claim

    def check(self) -> None:
        """Raise CommitConflictError if this writer was replaced.

        That is the case if a newer generation was claimed (the error says by whom and when), or if
        this writer's generation now belongs to another writer.

        It costs two requests: the next generation is claimed before any later one, and its claim
        is deleted after this writer's.
        """
        mine, document = self._own_claim()
        if mine is not None and self._is_replaced(mine, document):
            raise self._replaced_error(mine)

    def current_token(self) -> str:
        """Return the token of this writer's claim; empty if it has none, or was replaced.

        It costs the requests of :meth:`check`.
        """
        mine, document = self._own_claim()
        if mine is None or self._process != os.getpid() or self._is_replaced(mine, document):
            return ""
        return mine.token

    @property
    def token(self) -> str:
        """The token of this writer's claim, which must be made."""
        claim, _ = self._own_claim()
        assert claim is not None, "claim() must be called first"
        return claim.token

    def check_after_put(self, checkpoint_id: int) -> None:
        """Raise LateCommitError if a newer generation was claimed before a checkpoint was put.

        The checkpoint is visible, but the successor's checkpoints may lack its contents.
        """
        mine, document = self._own_claim()
        if mine is not None and self._is_replaced(mine, document):
            raise LateCommitError(
                f"{self._successor_text()} has taken over {self._storage.url} from this writer "
                f"(generation {mine.generation}) while checkpoint {checkpoint_id} was being "
                "committed. The checkpoint is visible, but later checkpoints may lack its "
                "changes. Check 'statestore list', reopen the store and take the snapshot again"
            )

    def announced_ids(self, *, above: int) -> tuple[int, ...]:
        """Return the ids above ``above`` that were announced by this writer and earlier ones.

        Raises MalformedManifestError or FormatVersionError for a claim that cannot be read, or
        CommitConflictError if this writer was replaced so long ago that earlier claims are deleted.
        """
        claim, ids = self._claim, []
        while claim is not None and claim.announced_id > above:
            ids.append(claim.announced_id)
            claim = self._before(claim)
        return tuple(sorted(set(ids)))

    def announce(self, checkpoint_id: int) -> Claim:
        """Claim the next generation, and announce that a greater id than the next one will be used.

        Raises CommitConflictError if another writer has claimed that generation.
        """
        return self._follow_own(announced_id=checkpoint_id)

    def set_writer_version(self, version: int) -> Claim:
        """Claim the next generation with another writer version, which later claims inherit.

        Raises CommitConflictError if another writer has claimed that generation.
        """
        mine = self.claim()
        upgrade = Upgrade(generation=mine.generation + 1, previous_version=mine.writer_version)
        return self._follow_own(
            writer_version=version, upgrade=upgrade if version > mine.writer_version else None
        )

    def newest_claim(self) -> Claim | None:
        """Return the newest claim, of any writer; None if no claim exists.

        Raises MalformedManifestError or FormatVersionError if it cannot be read, or StorageError.
        """
        generation, raw = self.newest()
        return self._parse(generation, raw) if generation else None

    def read(self, generation: int) -> Claim:
        """Return the claim of a generation, which must exist; errors as :meth:`newest_claim`."""
        return self._parse(generation, self._storage.read(writer_path(generation)))

    def newest(self) -> tuple[int, bytes]:
        """Return generation and document of the newest claim, as :func:`read_newest` does."""
        return read_newest(self._storage)

    def follow(self, before: Claim, raw: bytes) -> Claim | None:
        """Claim the generation after a claim with an unreadable document, ``raw``.

        Returns None if that generation is taken.
        """
        with self._lock:
            return self._put(before.generation + 1, before, raw)

    def _before(self, claim: Claim) -> Claim | None:
        if claim.generation == 1:
            return None
        try:
            return self.read(claim.generation - 1)
        except FileNotFoundError:  # a successor has used the announced id
            raise self._replaced_error(claim) from None

    def _own_claim(self) -> tuple[Claim | None, bytes]:
        """Return the claim and its document, after an announcement in another thread is complete.

        Otherwise the newer claim of that announcement would look like a successor's.
        """
        with self._lock:
            return self._claim, self._document

    def _follow_own(self, **changed: Any) -> Claim:
        """Claim the generation after this writer's own, with changed members."""
        with self._lock:
            mine = self._claim
            assert mine is not None, "claim() must be called first"
            claim = self._put(mine.generation + 1, replace(mine, **changed), self._document)
            if claim is None:
                raise self._replaced_error(mine)
            return claim

    def _parse(self, generation: int, raw: bytes) -> Claim:
        name = f"{self._storage.url}/{writer_path(generation)}"
        return claim_from_json(raw, name=name, generation=generation)

    def _put(self, generation: int, before: Claim | None, previous: bytes) -> Claim | None:
        """Claim a generation, and pass on the announced id and the writer version.

        ``previous`` is the document of the preceding generation. Returns None if the generation is
        taken, or was taken by a claim that has been deleted.
        """
        claim = Claim(
            generation=generation,
            name=process_name(),
            token=uuid.uuid4().hex,
            release=self._release,
            claimed_at_ms=time.time_ns() // 1_000_000,
            announced_id=before.announced_id if before else 0,
            writer_version=before.writer_version if before else 1,
            upgrade=before.upgrade if before else None,
        )
        name, raw = writer_path(generation), claim_to_json(claim)
        if not put_once(self._storage, name, raw) or not self._follows(generation, previous):
            return None
        self._claim, self._document = claim, raw
        return claim

    def _follows(self, generation: int, previous: bytes) -> bool:
        """Return whether no later claim existed when this generation's claim was put."""
        if generation == 1:
            return _newest_generation(self._storage) == 1
        return self._claim_at(generation - 1) == previous

    def _is_replaced(self, mine: Claim, document: bytes) -> bool:
        """Return whether the next generation is claimed, or this one belongs to another writer."""
        if self._claim_at(mine.generation + 1) is not None:
            return True
        return self._claim_at(mine.generation) != document

    def _claim_at(self, generation: int) -> bytes | None:
        try:
            return self._storage.read(writer_path(generation))
        except FileNotFoundError:
            return None

    def _replaced_error(self, mine: Claim) -> CommitConflictError:
        return CommitConflictError(
            f"{self._successor_text()} has taken over {self._storage.url} from this writer "
            f"(generation {mine.generation}); nothing of this checkpoint is visible, and this "
            "writer can no longer commit. To continue here instead of with the other writer, "
            "reopen the store: StateStore.open(…)"
        )

    def _successor_text(self) -> str:
        try:
            newest = self.newest_claim()
        except (StateStoreError, FileNotFoundError):
            return "a writer with an unreadable claim"
        return "a process that replaced the store" if newest is None else str(newest)


def read_newest(storage: Storage) -> tuple[int, bytes]:
    """Return generation and document of the newest claim; 0 and no bytes if no claim exists.

    The document may be damaged. Raises StorageError, also if a claim is listed repeatedly but does
    not exist.
    """
    for _ in range(_LOOKS):
        generation = _newest_generation(storage)
        if generation == 0:
            return 0, b""
        try:
            return generation, storage.read(writer_path(generation))
        except FileNotFoundError:  # it was replaced, and deleted after the listing
            continue
    raise StorageError(
        f"{storage.url}/{writer_path(generation)} does not exist, although the file system's "
        "listing has it: this file system's listings are unreliable, so use another place for "
        "the store"
    )


def _newest_generation(storage: Storage) -> int:
    generations = [generation_of(name) for name in storage.list(WRITERS)]
    return max((generation for generation in generations if generation), default=0)


def _has_ended(claim: Claim) -> bool:
    """Return whether a writer is this process, or a process of this host that has ended."""
    host, _, number = claim.name.rpartition(":")
    if host != socket.gethostname() or not number.isdigit():
        return False
    if int(number) == os.getpid():
        return True
    if os.name == "nt":  # os.kill(…, 0) would be Ctrl-C
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
