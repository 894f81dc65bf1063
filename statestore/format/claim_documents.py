"""A writer's claim to a store: one small document per generation, each newer than all before (I6).

A claim is put once and never changed. docs/FORMAT.md describes the document.

The newest claim also has the store's writer version, which every writer must know. It is the format
version of the claim itself, so an older release refuses to claim the store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.json import decode as json_decode

from statestore.errors import FormatVersionError, MalformedManifestError
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

__all__ = [
    "WRITER_VERSION",
    "WRITER_VERSIONS",
    "Claim",
    "Upgrade",
    "claim_from_json",
    "claim_to_json",
]


CLAIM_FORMAT = "statestore-writer"
CLAIM_MEND = "'statestore repair' writes a new claim"

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
            raw, _Claim, name=name, form=CLAIM_FORMAT, newest=WRITER_VERSION, mend=CLAIM_MEND
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
