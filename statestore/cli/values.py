"""What the verbs return; ``documents.py`` turns it into JSON, ``text.py`` into text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statestore.errors import StateStoreError
from statestore.format.documents import Pin, Savepoint
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.maintenance.decide import DecidedParallelism
from statestore.maintenance.expire import ExpiredCheckpoints
from statestore.maintenance.gc import CollectedGarbage
from statestore.maintenance.repair import RepairedStore
from statestore.maintenance.verify import VerifyReport
from statestore.restore.export import ExportedCheckpoint
from statestore.restore.placement import OperatorPlacement
from statestore.restore.plan import RestorePlan
from statestore.restore.skew import RangeSkew
from statestore.settings import Setting

__all__ = [
    "CheckpointList",
    "CheckpointRow",
    "Collected",
    "Configuration",
    "Decided",
    "Expired",
    "FoundRows",
    "Pinned",
    "PlannedRestore",
    "Repaired",
    "Restored",
    "Result",
    "Saved",
    "ShownCheckpoint",
    "ShownGraph",
    "Unpinned",
    "Verified",
]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a verb found; ``problem`` is raised after the rest has been printed, and ``status`` is
    how the command ends without one.
    """

    problem: StateStoreError | None = None
    status: int = 0


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint of a list: its manifest, or why that cannot be read."""

    checkpoint_id: int
    manifest: Manifest | None
    error: StateStoreError | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointList(Result):
    """The visible checkpoints, oldest first, and what is held."""

    store: str
    now_ms: int
    rows: tuple[CheckpointRow, ...]
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShownCheckpoint(Result):
    """One checkpoint, or the selected states of it; ``plan`` is at its own parallelism."""

    store: str
    now_ms: int
    manifest: Manifest
    plan: RestorePlan


@dataclass(frozen=True, kw_only=True)
class ShownGraph(Result):
    """The job graph of a checkpoint, which has one."""

    store: str
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class PlannedRestore(Result):
    """Who would read what, and if hosts were named, where; with balanced ranges the skew of both
    ways.
    """

    store: str
    plan: RestorePlan
    placements: tuple[OperatorPlacement, ...] = ()
    skews: tuple[RangeSkew, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restored(Result):
    """What was written."""

    store: str
    exported: ExportedCheckpoint


@dataclass(frozen=True, kw_only=True)
class FoundRows(Result):
    """The rows of one key; ``key`` has the key columns in order."""

    store: str
    checkpoint_id: int
    entry: KeyedEntry
    key: tuple[Any, ...]
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Configuration(Result):
    """The settings in effect."""

    settings: tuple[Setting, ...]


@dataclass(frozen=True, kw_only=True)
class Repaired(Result):
    """What was mended, and what cannot be."""

    repaired: RepairedStore


@dataclass(frozen=True, kw_only=True)
class Expired(Result):
    """What was given up."""

    expired: ExpiredCheckpoints


@dataclass(frozen=True, kw_only=True)
class Collected(Result):
    """What was removed."""

    collected: CollectedGarbage


@dataclass(frozen=True, kw_only=True)
class Saved(Result):
    """A savepoint that was made or deleted; of a damaged one the checkpoint is not known."""

    store: str
    name: str
    checkpoint_id: int | None
    deleted: bool = False


@dataclass(frozen=True, kw_only=True)
class Pinned(Result):
    """A pin that was made."""

    store: str
    pin: Pin


@dataclass(frozen=True, kw_only=True)
class Unpinned(Result):
    """A pin that is gone."""

    store: str
    token: str


@dataclass(frozen=True, kw_only=True)
class Decided(Result):
    """A parallelism, and what it follows from."""

    decided: DecidedParallelism


@dataclass(frozen=True, kw_only=True)
class Verified(Result):
    """What was checked, and what is broken; ``problem`` says that something is."""

    report: VerifyReport
