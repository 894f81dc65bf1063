"""A writer's claim to a store: one small document per generation, each newer than all before (I6).

A claim is put once and never changed. docs/FORMAT.md describes the document.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from statestore.errors import (
    MalformedManifestError,
)
from statestore.format.documents import CheckpointId, Count, Moment, document_bytes, parse_document

__all__ = ["Claim", "claim_from_json", "claim_to_json"]


CLAIM_FORMAT = "statestore-writer"
CLAIM_VERSION = 1
CLAIM_MEND = "'statestore repair' writes a new claim"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A writer's claim to a store: its generation (the fencing token), the writer and the time.

    ``announced_id`` is the greatest checkpoint id that this writer or an earlier one announced
    although smaller ids are free; 0 without an announcement.
    """

    generation: Count
    name: str
    token: str
    release: str
    claimed_at_ms: Moment
    announced_id: CheckpointId

    def __str__(self) -> str:
        """Return ``writer host:pid (statestore 1.0, generation 3, since 2026-01-31 …)``."""
        since = datetime.fromtimestamp(self.claimed_at_ms / 1000, UTC)
        return (
            f"writer {self.name} (statestore {self.release}, generation {self.generation}, "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC)"
        )


def claim_to_json(claim: Claim) -> bytes:
    """Return the document of a claim, UTF-8."""
    return document_bytes(
        {"format": CLAIM_FORMAT, "format_version": CLAIM_VERSION, **asdict(claim)}
    )


def claim_from_json(raw: bytes, *, name: str, generation: int) -> Claim:
    """Parse a claim; ``name`` is the document's name in errors.

    Raises MalformedManifestError, also if it is not the claim of ``generation``, or
    FormatVersionError.
    """
    claim = parse_document(
        raw, Claim, name=name, form=CLAIM_FORMAT, newest=CLAIM_VERSION, mend=CLAIM_MEND
    )
    if claim.generation != generation:
        raise MalformedManifestError(
            f"{name} at $.generation: the file contains the claim of generation "
            f"{claim.generation}, which belongs under another name"
        )
    return claim
