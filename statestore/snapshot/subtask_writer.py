"""Write a keyed state from many processes: each subtask writes its range, one coordinator commits.

The coordinator declares the state, and sends a :class:`KeyedWriter` to the processes in which the
subtasks run. Each subtask writes its rows there and answers with an ``Acknowledgement``. The
coordinator, which alone commits, passes these to ``checkpoint.acknowledge``. Files whose
acknowledgement never arrives are in no manifest, so no reader sees them.

An acknowledgement corresponds to Flink's ``AcknowledgeCheckpoint`` message, which carries the state
handles of a task. The value can be pickled, or sent as bytes over any wire.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from statestore.arguments import checked_methods
from statestore.engines.given_rows import read_rows, typed_rows
from statestore.engines.rows import ArrowRows, write_own_rows
from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.documents import Count, document_bytes, parse_document
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.manifest_json import keyed_from_json, keyed_to_json
from statestore.format.names import partition_file, ranged_file
from statestore.format.schema import same_columns
from statestore.format.state import Layout
from statestore.keys.groups import Assignment, KeyGroupRange
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.storage import Storage

FORMAT = "statestore-acknowledgement"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One attempt at one checkpoint of one store; ``token`` is unique to the attempt."""

    store_id: str
    checkpoint_id: int
    token: str


class _Document(Struct, frozen=True):
    store_id: str
    checkpoint_id: Count
    token: str
    subtask: Count
    uid: str
    keyed: Any
    statistics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The files that ``subtask`` wrote of a keyed state: the handles of ``entry``, by key group.

    Files are absent if none of the state's keys belong to the subtask.
    """

    attempt: AttemptId
    subtask: int
    entry: KeyedEntry

    @property
    def rows(self) -> int:
        """The number of written rows."""
        return self.entry.rows

    def to_json(self) -> bytes:
        """Return a UTF-8 JSON document whose last member is the SHA-256 of the preceding bytes."""
        return document_bytes(
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "store_id": self.attempt.store_id,
                "checkpoint_id": self.attempt.checkpoint_id,
                "token": self.attempt.token,
                "subtask": self.subtask,
                "uid": self.entry.state.uid,
                "keyed": keyed_to_json(self.entry),
                "statistics": [handle.statistics for handle in self.entry.handles],
            },
            self.from_json,
        )

    @classmethod
    def from_json(cls, raw: bytes) -> Acknowledgement:
        """Return the acknowledgement that :meth:`to_json` wrote.

        Args:
            raw: the document.

        Raises:
            MalformedManifestError: with the place in the document.
            FormatVersionError: for a document of a format that this release does not know.
        """
        name = "an acknowledgement"
        read = parse_document(raw, _Document, name=name, form=FORMAT, newest=FORMAT_VERSION)
        attempt = AttemptId(read.store_id, read.checkpoint_id, read.token)
        entry = keyed_from_json(read.keyed, read.uid, name, ".keyed")
        # otherwise Delta statistics are read from the files
        if len(read.statistics) == len(entry.handles):
            known = zip(entry.handles, read.statistics, strict=True)
            handles = [replace(handle, statistics=text) for handle, text in known]
            entry = replace(entry, handles=tuple(handles))
        return cls(attempt, read.subtask, entry)


_TOKEN = re.compile(r"-([0-9a-f]{16}(?:-[0-9]+)?)\.parquet")


@checked_methods
@dataclass(frozen=True)
class KeyedWriter:
    """A keyed state that its subtasks write; it can be pickled, with the store's credentials.

    ``assignment`` maps subtasks to key groups, by Flink's even ranges or by the checkpoint's own.
    ``target`` is None if an earlier attempt has committed the checkpoint; then the subtasks ignore
    their rows and write nothing.
    """

    attempt: AttemptId
    entry: KeyedEntry
    assignment: Assignment
    target: KeyedTarget | None

    @property
    def parallelism(self) -> int:
        """The number of subtasks that write."""
        return self.assignment.parallelism

    def subtask(self, subtask: int) -> SubtaskWriter:
        """Return the writer of one subtask.

        Args:
            subtask: its number, from 0.

        Returns:
            The writer; it can be pickled.

        Raises:
            InvalidArgumentError: if the subtask does not exist.
        """
        if self.target is not None:
            self.assignment.range_of(subtask)
        return SubtaskWriter(self, subtask)


@dataclass(frozen=True)
class SubtaskWriter:
    """Writes the part of a keyed state that one subtask owns; it can be pickled."""

    state: KeyedWriter
    subtask: int

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return self.state.assignment.range_of(self.subtask)

    def write(self, rows: Any) -> Acknowledgement:
        """Write all of the subtask's rows, in this process.

        A repeated call, for example after a lost answer, writes new files. It refuses a stream,
        which can be read only once. After an error, no file is left behind.

        Args:
            rows: an Arrow table, its batches, a frame with Arrow's C interface, or a list of
                dictionaries, with the declared columns in any order.

        Returns:
            The answer that the coordinator needs for :meth:`CheckpointWriter.acknowledge`.

        Raises:
            InvalidArgumentError: for a row that another subtask owns.
            NullKeyError, DuplicateKeyError or SchemaMismatchError: for rows that the state cannot
                take.
            StorageError: if the store cannot be written.
        """
        target, entry = self.state.target, self.state.entry
        if target is not None:
            entry = replace(entry, handles=self._write(rows, target))
        return Acknowledgement(self.state.attempt, self.subtask, entry)

    def _write(self, given: Any, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
        state = target.state
        known = read_rows(given, str(state), target.options.stream_bytes)
        rows = typed_rows(known, lambda untyped: untyped.exact(state))
        if not isinstance(rows, ArrowRows):
            raise InvalidArgumentError(
                f"the rows of subtask {self.subtask} of {state} must be in its process, not in "
                f"{type(given).__name__}; pass toArrow()"
            )
        schema = rows.schema
        if sorted(schema.names) != sorted(state.schema.names) or not same_columns(
            schema.select(state.schema.names), state.schema
        ):
            raise SchemaMismatchError(
                f"{state} is declared with the columns ({state.schema}), but subtask "
                f"{self.subtask} writes ({schema}); give the rows of every subtask the declared "
                "columns"
            )
        return write_own_rows(rows, self.subtask, self.state.assignment, target)


@dataclass
class PendingSubtasks:
    """The coordinator's record of the subtasks of a state that have answered, with their files."""

    writer: KeyedWriter
    storage: Storage
    _by_subtask: dict[int, Acknowledgement] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def entry(self) -> KeyedEntry:
        """The state with the files acknowledged so far, ordered by key group."""
        known = sorted(self._by_subtask.items())
        handles = tuple(
            handle for _, acknowledgement in known for handle in acknowledgement.entry.handles
        )
        return replace(self.writer.entry, handles=handles)

    @property
    def missing(self) -> list[int]:
        """The subtasks that have not answered."""
        return [i for i in range(self.writer.parallelism) if i not in self._by_subtask]

    def add(self, acknowledgement: Acknowledgement) -> bool:
        """Add an acknowledgement; return whether the checkpoint takes its files.

        The first answer of a subtask counts. A repetition of it changes nothing. If a subtask was
        run twice, the files of its second answer are deleted.
        """
        self._check(acknowledgement)
        with self._lock:
            first = self._by_subtask.setdefault(acknowledgement.subtask, acknowledgement)
        if first == acknowledgement:
            return True
        kept = {handle.path for handle in first.entry.handles}
        for handle in acknowledgement.entry.handles:
            if handle.path not in kept:
                self.storage.delete(self.writer.entry.table.name_of(handle))
        return False

    def refuse_missing(self) -> None:
        """Raise InvalidArgumentError, with their numbers, if subtasks have not answered."""
        if missing := self.missing:
            raise InvalidArgumentError(
                f"{self.writer.entry.state} is not complete: no acknowledgement from "
                f"subtask{'s' if len(missing) > 1 else ''} {_some(missing)} of "
                f"{self.writer.parallelism} was received. Every subtask must write, even without "
                "rows, and checkpoint.acknowledge must receive each acknowledgement before the "
                "block ends"
            )

    def _check(self, acknowledgement: Acknowledgement) -> None:
        """Refuse an acknowledgement that this state's subtask cannot have written.

        Such an acknowledgement would lose its files, or delete files of others.
        """
        known = self.writer
        if replace(acknowledgement.entry, handles=()) != known.entry:
            raise InvalidArgumentError(
                f"the acknowledgement is for a {acknowledgement.entry.state} whose columns, key, "
                "layout or table differ from this checkpoint's; write it with this checkpoint's "
                "subtask writer"
            )
        own = known.assignment.range_of(acknowledgement.subtask)
        ranged = known.entry.state.layout is Layout.RANGED
        name = ranged_file if ranged else partition_file
        for handle in acknowledgement.entry.handles:
            token = _TOKEN.search(handle.path)
            first = handle.key_groups.first
            expected = token and name(known.attempt.checkpoint_id, first, token[1])
            if handle.path != expected or own.intersect(handle.key_groups) != handle.key_groups:
                raise InvalidArgumentError(
                    f"the acknowledgement of subtask {acknowledgement.subtask}, which owns key "
                    f"groups {own} of {known.entry.state}, lists the file {handle.path} with key "
                    f"groups {handle.key_groups}; no subtask with this range wrote that file "
                    "for this checkpoint"
                )


def _some(numbers: Iterable[int]) -> str:
    first, *rest = [str(number) for number in numbers]
    more = f" and {len(rest) - 9} more" if len(rest) > 9 else ""
    return ", ".join([first, *rest[:9]]) + more
