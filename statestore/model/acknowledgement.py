"""What a subtask tells the coordinator when its part of a keyed state is written.

As in Flink, where a task answers a checkpoint's trigger with an ``AcknowledgeCheckpoint`` message
that carries its state handles. The value can be pickled, or sent as bytes over any wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.format.documents import document_bytes, parse_document
from statestore.format.manifest import KeyedEntry
from statestore.format.manifest_json import keyed_from_json, keyed_to_json

__all__ = ["Acknowledgement", "Attempted"]

FORMAT = "statestore-acknowledgement"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt at one checkpoint of one store; ``token`` is new for every attempt."""

    store_id: str
    checkpoint_id: int
    token: str


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The files that ``subtask`` wrote of a keyed state: those in ``entry``, in order of key group.

    None, when none of the state's keys belong to the subtask.
    """

    attempt: Attempted
    subtask: int
    entry: KeyedEntry

    @property
    def rows(self) -> int:
        """The rows that were written."""
        return self.entry.rows

    def to_json(self) -> bytes:
        """Return a UTF-8 JSON document, whose last member is the SHA-256 of what is before it."""
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
            }
        )

    @classmethod
    def from_json(cls, raw: bytes) -> Acknowledgement:
        """Return the acknowledgement that :meth:`to_json` wrote.

        Raises MalformedManifestError with the place, or FormatVersionError.
        """
        root = parse_document(raw, name="an acknowledgement", form=FORMAT, newest=FORMAT_VERSION)
        attempt = Attempted(
            root.at("store_id").text(), root.at("checkpoint_id").number(), root.at("token").text()
        )
        uid = root.at("uid").text()
        return cls(attempt, root.at("subtask").number(), keyed_from_json(root.at("keyed"), uid))
