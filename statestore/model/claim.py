"""A writer's claim to a store: one small document per generation, each newer than all before (I6).

A claim is put once and never changed. docs/FORMAT.md describes the document.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from statestore.errors import MalformedManifestError
from statestore.model.document import document_bytes, parse_document
from statestore.model.paths import GREATEST_ID

__all__ = ["Claim", "claim_from_json", "claim_to_json"]

FORMAT = "statestore-writer"
FORMAT_VERSION = 1
MEND = "'statestore repair' claims the store anew"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Who took the store over, and when.

    ``announced_id`` is the greatest checkpoint id that this writer, or one before it, has said it
    will use although smaller ids are free; 0 when none has.
    """

    generation: int
    name: str
    token: str
    release: str
    claimed_at_ms: int
    announced_id: int

    def __str__(self) -> str:
        """Return ``writer host:pid (statestore 1.0, generation 3, since 2026-01-31 …)``."""
        since = datetime.fromtimestamp(self.claimed_at_ms / 1000, UTC)
        return (
            f"writer {self.name} (statestore {self.release}, generation {self.generation}, "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC)"
        )


def claim_to_json(claim: Claim) -> bytes:
    """Return the document of a claim, UTF-8."""
    return document_bytes({"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(claim)})


def claim_from_json(raw: bytes, *, name: str, generation: int) -> Claim:
    """Return the claim of a document; ``name`` is what errors call it.

    Raises MalformedManifestError, also when it is not the claim of ``generation``, or
    FormatVersionError.
    """
    root = parse_document(raw, name=name, form=FORMAT, newest=FORMAT_VERSION, mend=MEND)
    claim = Claim(
        generation=root.at("generation").number(),
        name=root.at("name").text(),
        token=root.at("token").text(),
        release=root.at("release").text(),
        claimed_at_ms=root.at("claimed_at_ms").time(),
        announced_id=root.at("announced_id").number(GREATEST_ID),
    )
    if claim.generation != generation:
        raise MalformedManifestError(
            f"{name} at $.generation: it is the claim of generation {claim.generation}, under "
            "another name"
        )
    return claim
