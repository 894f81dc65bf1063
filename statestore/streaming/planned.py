"""How Spark planned a micro-batch, as it wrote it to a query's checkpoint location.

Before Spark runs a micro-batch it writes into ``offsets/<batch id>`` where each source's data end:
a line of version, one of metadata, and one of JSON for each source. A source of files ends at a
number, and the files behind it are in ``sources/<source>/<number>``, or, every tenth time, together
with all before them in ``<number>.compact``. The query's id is in ``metadata``, and lasts as long
as the location. Spark syncs none of this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from statestore.errors import InvalidArgumentError
from statestore.storage import Storage

__all__ = ["MicroBatch", "planned"]

_VERSION = b"v1"
_TAIL_BYTES = 2**16


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as Spark planned it, which is the same however often it runs.

    ``query`` is the query's id, ``number`` counts from 0, ``ends`` say where each source's data of
    it end, as JSON, and ``planned_at_ms`` is when it was planned, None if that is not known.
    ``files`` have a digest for each source that reads files: of the names of those that are new.
    ``before`` is the micro-batch before it, None for the first, and where that is not known.
    ``watermark_ms`` is the query's watermark when it was planned, 0 for none.
    """

    query: str
    number: int
    ends: tuple[str, ...] = ()
    planned_at_ms: int | None = None
    files: tuple[tuple[int, str], ...] = ()
    before: MicroBatch | None = None
    watermark_ms: int = 0


def planned(location: Storage, number: int, *, ticks: bool = False) -> MicroBatch:
    """Return a micro-batch as Spark wrote it to a query's checkpoint location.

    With ``ticks`` its last source only says that time goes by, and has no place in ``ends``.

    Raises InvalidArgumentError for a file of another version than is known, and for one that is
    not there or cut off, as after a loss of power; or StorageError.
    """
    query = _json(location, "metadata", _read(location, "metadata")).get("id")
    if not isinstance(query, str):
        raise _broken(location, "metadata")
    before = _planned(location, query, number - 1, None, ticks) if number else None
    return _planned(location, query, number, before, ticks)


def _planned(
    location: Storage, query: str, number: int, before: MicroBatch | None, ticks: bool
) -> MicroBatch:
    name = f"offsets/{number}"
    lines = _read(location, name).splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise InvalidArgumentError(
            f"{location.url}/{name} begins with {lines[:1]}, not with {_VERSION!r}: it is cut off, "
            "or this release of Spark writes its offsets in another way"
        )
    plan = _json(location, name, lines[1])
    at, watermark = plan.get("batchTimestampMs"), plan.get("batchWatermarkMs")
    ends = tuple(line.decode() for line in (lines[2:-1] if ticks else lines[2:]))
    files = tuple(_files(location, ends))
    return MicroBatch(query, number, ends, at or None, files, before, watermark or 0)


def _files(location: Storage, ends: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for source, line in enumerate(ends):
        number = _log_offset(line)
        if number >= 0:
            paths = sorted(_new_files(location, f"sources/{source}/{number}", number))
            yield source, hashlib.sha256("\n".join(paths).encode()).hexdigest()


def _log_offset(line: str) -> int:
    """Return the number that a source of files ends at; -1 for any other, and before its first."""
    try:
        end = json.loads(line)
    except ValueError:
        return -1
    number = end.get("logOffset") if isinstance(end, dict) and len(end) == 1 else None
    return number if isinstance(number, int) else -1


def _new_files(location: Storage, name: str, number: int) -> list[str]:
    try:
        lines = location.read(name).splitlines()[1:]
        entries = [_json(location, name, line) for line in lines]
    except FileNotFoundError:
        entries = _last_entries(location, f"{name}.compact", number)
    if not entries:
        raise _broken(location, name)
    return [str(entry.get("path")) for entry in entries if entry.get("batchId") == number]


def _last_entries(location: Storage, name: str, number: int) -> list[dict[str, Any]]:
    """Return the last entries of a log, which can be long: those of a number, and some before."""
    try:
        size = location.size(name)
    except FileNotFoundError:
        raise _broken(location, name.removesuffix(".compact")) from None
    length = _TAIL_BYTES
    while True:
        start = max(size - length, 0)
        # The first line is the version, or cut off.
        lines = location.read_range(name, start, size).splitlines()[1:]
        entries = [_json(location, name, line) for line in lines]
        if start == 0 or (entries and entries[0].get("batchId") != number):
            return entries
        length *= 4


def _read(location: Storage, name: str) -> bytes:
    try:
        return location.read(name)
    except FileNotFoundError:
        raise _broken(location, name) from None


def _json(location: Storage, name: str, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _broken(location, name)
    return found


def _broken(location: Storage, name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{location.url}/{name} is not there, or not as Spark writes it: the query's checkpoint "
        "location has lost what was planned, as by a loss of power. Bring it back as it was, or "
        "start the query with a new checkpoint location, succeeds=True, and sources that begin "
        "where the state ends: its newest checkpoint has the positions"
    )
