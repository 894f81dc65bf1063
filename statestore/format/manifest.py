"""The manifest of one checkpoint: the document that makes the checkpoint visible (I4, I5).

A manifest names, for every state, the table, its version, and each data file with key-group range,
rows, bytes, row groups and digests. A reader needs only the manifest and the data files, without a
table log or a listing. ``manifest_json.py`` implements the document's format, and docs/FORMAT.md
describes it.

A manifest also records, per job, the last batch that its checkpoint contains, so that a retried
batch is written only once. A checkpoint id is not sufficient, because commands such as ``edit`` use
ids too. Checkpoints that build on it inherit the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from statestore.display import counted, size_and_files
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.digest import RowSet, combine
from statestore.format.documents import Count
from statestore.format.handles import (
    FileRanges,
    Handle,
    KeyedStateHandle,
    OperatorStateHandle,
    Totals,
    file_ranges,
    read_all,
    totals_of,
)
from statestore.format.left_out import LeftOutState
from statestore.format.metrics import CheckpointMetrics
from statestore.format.state import KeyedState, OperatorState
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.operators import Operators
from statestore.keys.groups import KeyGroupRange, RangeAssignment

_MOST = 2**63 - 1


@dataclass(frozen=True)
class Batch:
    """One batch of a job, for which a snapshot is taken.

    Attributes:
    job: the name of the job. If it is empty, the job numbers its checkpoints itself, and ``number``
    is the id of the checkpoint.
    number: the number of the batch, 0 or more; later batches have greater numbers.
    """

    job: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of job {self.job!r}"


@dataclass(frozen=True)
class BatchRecord:
    """The last batch of a job that a checkpoint contains.

    Attributes:
        number: the number of the batch.
    checkpoint_id: the checkpoint taken for it. In a checkpoint that was copied from another store,
    it is the copy.
    """

    number: int
    checkpoint_id: int


def batch_of(batch: Any, checkpoint_id: int | None) -> Batch | None:
    """Return the batch that a snapshot is taken for.

    Args:
    batch: the caller's ``(job, number)``, or None.
    checkpoint_id: the id that the caller requests, or None.

    Returns:
    The batch. If only an id is given, it is the batch with that number of the unnamed job. None if
    neither is given.

    Raises:
    InvalidArgumentError: if ``batch`` is not a name and a number.
    """
    if batch is None:
        return None if checkpoint_id is None else Batch("", checkpoint_id)
    match batch:
        case (str(job), int(number)) if job and job.isprintable() and not isinstance(number, bool):
            if 0 <= number <= _MOST:
                return Batch(job, number)
    raise InvalidArgumentError(
        "a batch must be a job name and a batch number, for example ('totals', 7), not "
        f"{batch!r:.200}"
    )


def with_batch(
    inherited: Mapping[str, BatchRecord], batch: Batch | None, checkpoint_id: int
) -> dict[str, BatchRecord]:
    """Return the inherited records of a checkpoint, with the record of its own batch added."""
    own = {} if batch is None else {batch.job: BatchRecord(batch.number, checkpoint_id)}
    return {**inherited, **own}


TABLE_FORMATS = ("delta", "parquet")
TableFormat = Annotated[str, Meta(pattern=rf"\A({'|'.join(TABLE_FORMATS)})\Z")]


@dataclass(frozen=True)
class TableRef:
    """A table of the store: its format (``delta`` or ``parquet``), folder, and Delta version."""

    format: TableFormat
    path: str
    version: Count | None = None

    def name_of(self, handle: Handle) -> str:
        """Return the name of one of its data files, relative to the store."""
        return f"{self.path}/{handle.path}"

    def without_version(self) -> TableRef:
        """Return the reference for a checkpoint whose files are not in any table version."""
        return replace(self, version=None)


@dataclass(frozen=True)
class Writer:
    """The writer of a checkpoint: release, ``host:pid``, and a token that is new for every attempt.

    ``generation`` is the generation of its claim to the store (I6); 0 in stores of older releases.
    ``command`` is the command that brought state from outside of the store, such as ``bootstrap``,
    and None for a job. ``actor`` is who ran it: ``STATESTORE_ACTOR``, or else the user. It is None
    in checkpoints of older releases.
    """

    release: str
    name: str
    token: str
    generation: int = 0
    command: str | None = None
    actor: str | None = None

    def __str__(self) -> str:
        """Return ``writer host:pid (statestore 1.0, generation 3)``."""
        return f"writer {self.name} (statestore {self.release}, generation {self.generation})"


@dataclass(frozen=True)
class KeyedEntry:
    """A keyed state in a checkpoint; ``handles`` are in ascending order of key group.

    Empty key groups have no handle. If the handles are in a separate list, it is read on first
    access.

    With ``layers``, oldest first, the files of ``handles`` are the *base*, to which the changes of
    the layers are applied. ``merged`` describes the resulting rows, if the writer knew them.
    """

    state: KeyedState
    table: TableRef
    handles: Sequence[KeyedStateHandle]
    layers: tuple[Layer, ...] = ()
    merged: Merged | None = None

    @property
    def by_key_group(self) -> tuple[Sequence[KeyedStateHandle], FileRanges]:
        """The key groups of each file, to find the files of a key-group range."""
        if "_by_key_group" not in vars(self):
            read_all((self.handles,))  # not under cached_property's lock, which all states share
        return self._by_key_group

    @cached_property
    def _by_key_group(self) -> tuple[Sequence[KeyedStateHandle], FileRanges]:
        handles = self.handles[:]
        own = [handle.key_groups for handle in handles]
        ends = tuple([span.first for span in own]), tuple([span.last for span in own])
        return handles, file_ranges(*ends)

    @property
    def contents(self) -> RowSet | None:
        """Number and digest of the state's rows; None if they were not recorded for its changes."""
        if not self.layers:
            return RowSet(self.rows, self.digest)
        known = self.merged
        return known.rows if known is not None and known.file_digest == self.digest else None

    def recording(self, rows: RowSet | None) -> KeyedEntry:
        """Return the state with a record of its merged ``rows``, which are None if unknown."""
        known = rows if self.layers and self.state.ttl is None else None
        return replace(self, merged=None if known is None else Merged(known, self.digest))

    @cached_property
    def parts(self) -> tuple[KeyedEntry, ...]:
        """The entries with files: the base, then the rows of each layer as a state of its own."""
        return (replace(self, layers=(), merged=None), *(layer.entry for layer in self.layers))

    @property
    def rows(self) -> int:
        """The rows in its data files; with layers, the rows of base and changes together."""
        return self._totals.rows

    @property
    def changed_rows(self) -> int:
        """The rows in the files of its layers: upserts and delete markers."""
        return sum(layer.entry.rows for layer in self.layers)

    @property
    def files(self) -> int:
        """The number of its data files."""
        return self._totals.files

    @property
    def size_bytes(self) -> int:
        """The bytes of its data files."""
        return self._totals.size_bytes

    @property
    def digest(self) -> int:
        """The order-independent digest of all rows in its files (I7)."""
        return self._totals.digest

    @cached_property
    def _totals(self) -> Totals:
        """The totals of all data files; cached, because those of old layers are used often."""
        every = (totals_of(self.handles), *(layer.entry._totals for layer in self.layers))
        files, rows, size_bytes, digests = zip(*every, strict=True)
        return Totals(sum(files), sum(rows), sum(size_bytes), combine(digests))


@dataclass(frozen=True)
class Merged:
    """The rows that result from the layers and the base.

    ``file_digest`` is the digest of all their files together. The figures are valid only for these
    files.
    """

    rows: RowSet
    file_digest: int


@dataclass(frozen=True)
class Layer:
    """Changes of a keyed state: upserts and delete markers, by key group.

    ``entry`` has the files, with the state of ``layers.change_state``. The layer has the changes up
    to checkpoint ``checkpoint_id``. ``depth`` is 0 for the changes of one checkpoint; a layer
    merged from others has the depth of these plus 1. Only its rows of the key groups in ``live``
    (ascending) still apply: all others are already in the base.
    """

    entry: KeyedEntry
    checkpoint_id: int
    depth: int
    live: tuple[KeyGroupRange, ...]


@dataclass(frozen=True)
class OperatorEntry:
    """An operator state in a checkpoint; ``counts[i]`` is the number of elements of old subtask i.

    Broadcast state is stored once, so ``counts`` has one item there.
    """

    state: OperatorState
    table: TableRef
    counts: tuple[int, ...]
    handles: tuple[OperatorStateHandle, ...]

    @property
    def parts(self) -> tuple[OperatorEntry, ...]:
        """The entries with files: the state itself."""
        return (self,)

    @property
    def rows(self) -> int:
        """The elements of the state."""
        return sum(self.counts)

    @property
    def files(self) -> int:
        """The number of its data files."""
        return len(self.handles)

    @property
    def size_bytes(self) -> int:
        """The bytes of its data files."""
        return sum(handle.size_bytes for handle in self.handles)

    @property
    def digest(self) -> int:
        """The order-independent digest of all its stored rows."""
        return combine([handle.digest for handle in self.handles])


Entry = KeyedEntry | OperatorEntry
E = TypeVar("E", bound=Entry)
StateName = tuple[str, str]
"""The uid of an operator, and the name of a state."""


def name_of(entry: Entry) -> StateName:
    """Return operator uid and name of a state."""
    return entry.state.uid, entry.state.name


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint: its id, its parallelism, and its states.

    ``graph`` is the graph of the job that wrote it, if it was given; an operator then has the
    parallelism of its node. ``origin`` is the record of the command that made the checkpoint from
    another one (docs/FORMAT.md): plain JSON values, including ``command`` and ``checkpoint``.
    ``ranges`` has the operators whose subtasks did not own Flink's even ranges of key groups.
    ``metrics`` has the durations and amounts; None if an older release wrote it. ``left_out`` names
    the state that its source had and the checkpoint lacks (I16). ``batches`` has, per job, the last
    batch that the checkpoint contains; None if an older release wrote it. ``follows`` is the
    checkpoint that a job or command added this one to. It is None for the first one, if there is an
    ``origin``, and if an older release wrote it.
    """

    store_id: str
    checkpoint_id: int
    parallelism: int
    started_at_ms: int
    created_at_ms: int
    writer: Writer
    keyed: tuple[KeyedEntry, ...]
    operator: tuple[OperatorEntry, ...]
    graph: JobGraph | None = None
    origin: Mapping[str, Any] | None = None
    ranges: Mapping[str, RangeAssignment] = field(default_factory=dict)
    metrics: CheckpointMetrics | None = None
    left_out: tuple[LeftOutState, ...] = ()
    batches: Mapping[str, BatchRecord] | None = None
    follows: int | None = None

    def __post_init__(self) -> None:
        """Sort the states by operator; the order within an operator stays as stored."""
        object.__setattr__(self, "keyed", tuple(sorted(self.keyed, key=_uid)))
        object.__setattr__(self, "operator", tuple(sorted(self.operator, key=_uid)))

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All states, keyed first."""
        return (*self.keyed, *self.operator)

    @property
    def uids(self) -> tuple[str, ...]:
        """The operator uids, sorted."""
        return tuple(sorted({entry.state.uid for entry in self.entries}))

    @property
    def job(self) -> str | None:
        """The name of the job whose batch the checkpoint was taken for, or None if it has none."""
        records = (self.batches or {}).items()
        own = (job for job, record in records if record.checkpoint_id == self.checkpoint_id)
        return next(own, None) or None

    @cached_property
    def operators(self) -> Operators:
        """Parallelism and operator id of each operator."""
        return Operators(self.parallelism, self.graph)

    @property
    def rows(self) -> int:
        """The rows of all states."""
        return sum(entry.rows for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        """The bytes of all data files."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def files(self) -> int:
        """The number of data files."""
        return sum(entry.files for entry in self.entries)

    @property
    def took_ms(self) -> int:
        """The duration of the checkpoint; by the wall clock if it was not measured."""
        if self.metrics is not None:
            return self.metrics.took_ms
        return max(0, self.created_at_ms - self.started_at_ms)

    @cached_property
    def parts(self) -> tuple[Entry, ...]:
        """The entries with files of all states: bases and layers of changes."""
        return tuple([part for entry in self.entries for part in entry.parts])

    def __repr__(self) -> str:
        return f"Manifest({self})"

    def __str__(self) -> str:
        """Return the checkpoint's number, parallelism and size."""
        return (
            f"checkpoint {self.checkpoint_id}: parallelism {self.parallelism}, "
            f"{counted(self.rows, 'row')}, {size_and_files(self.size_bytes, self.files)}"
            + ("; part of its source is left out" if self.left_out else "")
        )

    def keyed_entry(self, operator: str, state: str) -> KeyedEntry:
        """Return a keyed state.

        Args:
            operator: the operator's uid.
            state: the state's name.

        Returns:
            The state with its files.

        Raises:
            StateNotFoundError: if it does not exist; it lists the existing states.
        """
        return _find(self, operator, state, self.keyed)

    def operator_entry(self, operator: str, state: str) -> OperatorEntry:
        """Return an operator state.

        Args:
            operator: the operator's uid.
            state: the state's name.

        Returns:
            The state with its files.

        Raises:
            StateNotFoundError: if it does not exist; it lists the existing states.
        """
        return _find(self, operator, state, self.operator)

    def find(self, operator: str, state: str) -> Entry:
        """Return a state, keyed or operator.

        Args:
            operator: the operator's uid.
            state: the state's name.

        Returns:
            The state with its files.

        Raises:
            StateNotFoundError: if it does not exist; it lists the existing states.
        """
        return _find(self, operator, state, self.entries)


def _uid(entry: Entry) -> str:
    return entry.state.uid


def _find(manifest: Manifest, uid: str, name: str, among: tuple[E, ...]) -> E:
    for entry in among:
        if name_of(entry) == (uid, name):
            return entry
    raise StateNotFoundError(_not_found_text(manifest, uid, name))


def _not_found_text(manifest: Manifest, uid: str, name: str) -> str:
    where = f"checkpoint {manifest.checkpoint_id}"
    if uid not in manifest.uids:
        return f"no operator {uid!r} in {where}; it has {_names(iter(manifest.uids))}"
    for entry in manifest.entries:
        if name_of(entry) == (uid, name):
            sort = "keyed" if isinstance(entry, KeyedEntry) else "operator"
            method = "keyed" if sort == "keyed" else "operator_state"
            return (
                f"{name!r} of operator {uid!r} in {where} is {sort} state; in Python, read it "
                f"with .{method}(…)"
            )
    states = (e.state.name for e in manifest.entries if e.state.uid == uid)
    return f"no state {name!r} in operator {uid!r} of {where}; it has {_names(states)}"


def _names(names: Iterator[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"
