"""A subtask's message to the coordinator that its part of a keyed state is written.

It corresponds to Flink's ``AcknowledgeCheckpoint`` message, which carries the state handles of a
task. The value can be pickled, or sent as bytes over any wire.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct

from statestore.format.documents import Count, document_bytes, parse_document
from statestore.format.manifest import KeyedEntry
from statestore.format.manifest_json import keyed_from_json, keyed_to_json

__all__ = ["Acknowledgement", "AttemptId"]


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
