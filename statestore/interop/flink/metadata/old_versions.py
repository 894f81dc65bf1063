"""Errors for formats that are older or newer than the supported ones, with the Flink version."""

from __future__ import annotations

from collections.abc import Mapping

from statestore.errors import FormatVersionError


def unsupported_version(
    name: str, what: str, version: int, written_by: Mapping[int, str]
) -> FormatVersionError:
    """Return the error for a version of a format that cannot be read.

    Args:
        name: the bytes in which it occurs, as named in messages.
        what: what has the version, such as ``keyed state``.
        version: the version.
        written_by: the Flink versions that wrote each older version of the format.
    """
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
