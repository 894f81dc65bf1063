"""Which Flink does what: the formats of each version, its Kryo, and the serializers it lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from statestore.errors import FormatVersionError, InvalidArgumentError

KRYO_2, KRYO_5 = 2, 5
"""The versions of Kryo in Flink 1 and Flink 2."""

_KRYO_OF_FLINK = {1: KRYO_2, 2: KRYO_5}
_FLINK_OF_METADATA = {4: 1, 5: 2, 6: 2}
"""The major version of Flink that writes a version of ``_metadata``.

Flink 1.15 and before wrote earlier versions, and an export writes version 3 for Flink 1 and 2.
"""

_VERSION = re.compile(r"([12])(\.\d+)*")
_SIMPLE_SNAPSHOTS = {1: "1.6 or before"}
_WRITTEN_BY: Mapping[str, Mapping[int, str]] = {
    "keyed state": {3: "1.3", 4: "1.4 and 1.5", 5: "1.6"},
    "operator state": {2: "1.3 and 1.4", 3: "1.5", 4: "1.6"},
    "timers": {1: "1.4 to 1.7"},
    "a serializer snapshot AvroSerializerSnapshot": {1: "1.7 or before"},
}
"""The Flink versions that wrote each version of a format that is too old to be read."""

REMOVED_IN_FLINK_2: Mapping[bytes, tuple[str, str]] = {
    b"org.apache.flink.api.scala.typeutils.": (
        "a serializer of Flink's Scala API",
        "Restore the savepoint with a job of Flink 1 that copies this state to a POJO or Row",
    ),
    b"org.apache.flink.cep.nfa.sharedbuffer.SharedBufferNode$SharedBufferNodeSerializer$": (
        "the serializer of CEP's buffer of Flink 1.13 or before",
        "Restore the savepoint with a job of Flink 1.20, and take a new one",
    ),
}
"""Serializers that Flink 2 does not have, by the beginning of a class name, and what to do."""


def find_flink_major(metadata_version: int) -> int | None:
    """Return the major version of Flink that wrote a savepoint, 1 or 2, from its ``_metadata``.

    It is None if the version of ``_metadata`` does not tell it.
    """
    return _FLINK_OF_METADATA.get(metadata_version)


def find_kryo_version(metadata_version: int) -> int | None:
    """Return which version of Kryo wrote a savepoint; None if its ``_metadata`` do not tell it."""
    flink = find_flink_major(metadata_version)
    return None if flink is None else _KRYO_OF_FLINK[flink]


def parse_flink_major(version: str | None, what: str) -> int | None:
    """Return 1 or 2 for a version of Flink in text, such as ``2.3``; None if it is not given.

    Raises InvalidArgumentError for another text, in which ``what`` names the version.
    """
    if version is None:
        return None
    match = _VERSION.fullmatch(version)
    if match is None:
        raise InvalidArgumentError(
            f"{what} is {version!r}, which is not a version of Flink 1 or 2, such as 2.3"
        )
    return int(match[1])


def unsupported_version(name: str, what: str, version: int) -> FormatVersionError:
    """Return the error for a version of a format that cannot be read.

    Args:
        name: the bytes in which it occurs, as named in messages.
        what: what has the version, such as ``keyed state``. Without a format of its own, it is a
            serializer snapshot without a body.
        version: the version.
    """
    written_by = _WRITTEN_BY.get(what, _SIMPLE_SNAPSHOTS)
    if version in written_by:
        return too_old(name, f"{what} of version {version}", written_by[version])
    return FormatVersionError(
        f"{name} has {what} of version {version}, which Flink 1.3 to 2.3 do not write. If a newer "
        "Flink wrote it, use a newer release of statestore; otherwise the file is damaged"
    )


def too_old(name: str, what: str, flink: str) -> FormatVersionError:
    """Return the error for a format that only Flink before 1.8 wrote.

    ``name`` is the bytes in which it occurs, ``what`` the format and ``flink`` the Flink versions
    that wrote it.
    """
    return FormatVersionError(
        f"{name} has {what}, which Flink {flink} wrote. Savepoints of Flink 1.8 and later can be "
        "read. Restore the job with a Flink of 1.8 to 1.16, and take a new savepoint"
    )
