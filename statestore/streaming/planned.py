"""The plan of a micro-batch, as Spark wrote it to a query's checkpoint location.

Before Spark runs a micro-batch, it writes the end of each source's data into
``offsets/<batch id>``. The file has a line with the version, a line with metadata, and a line of
JSON for each source.

- In version 1 the sources are in the order of the query's plan.
- In version 2 each line begins with the source's name and a colon, in any order. Sources without a
  name have their numbers.

The position of a file source is a number. The files up to this position are listed in
``sources/<source>/<number>``. Every tenth time, a ``<number>.compact`` lists them together with all
earlier files. ``<source>`` is the source's name in both versions, or its number if it has no name.
The query's id is in ``metadata``, and lasts as long as the location. Spark does not fsync any of
these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.errors import InvalidArgumentError
from statestore.spark.compat import HAS_NAMED_SOURCES
from statestore.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TICKS = "statestore_ticks"
"""The name of the tick source in a query whose sources have names."""
NEEDS_NAMES = (
    "which requires spark.sql.streaming.offsetLog.formatVersion=2 from the first micro-batch on"
)
_POSITIONAL, _NAMED = b"v1", b"v2"
_TAIL_BYTES = 2**16


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as Spark planned it; the plan is the same however often it runs.

    Attributes:
        query: The query's id.
        number: The number of the micro-batch, counted from 0.
        ends: Where each source's data of this micro-batch ends, as JSON.
        planned_at_ms: When the micro-batch was planned, None if unknown.
        files: For each source that reads files, a digest of the names of its new files.
        before: The previous micro-batch, None for the first one, or if unknown.
        watermark_ms: The query's watermark when the micro-batch was planned, 0 without one.
        names: The sources' names in the order of ``ends``, empty if the sources have no names.
    """

    query: str
    number: int
    ends: tuple[str, ...] = ()
    planned_at_ms: int | None = None
    files: tuple[tuple[int, str], ...] = ()
    before: MicroBatch | None = None
    watermark_ms: int = 0
    names: tuple[str, ...] = ()


def source_folders(events: DataFrame) -> tuple[str, ...]:
    """Return the name of each source's folder in the checkpoint location, in the plan's order.

    The folder has the source's name, if there is one. Otherwise its name is a number. A source that
    the plan reads twice has only one number.

    Args:
        events: A streaming DataFrame.

    Returns:
        One name for each source.
    """
    return tuple(folder for folder, _ in streaming_sources(events))


def streaming_sources(events: DataFrame) -> Iterator[tuple[str, Any]]:
    """Yield each source of a query's plan as ``source_folders`` does, with Spark's relation."""
    leaves = events._jdf.queryExecution().analyzed().collectLeaves()
    distinct: list[Any] = []
    for leaf in map(leaves.apply, range(leaves.size())):
        if not leaf.isStreaming():
            continue
        if leaf not in distinct:
            distinct.append(leaf)
        yield _name_of(leaf) or str(distinct.index(leaf)), leaf


def relation_options(relation: Any) -> dict[str, str]:
    """Return the options of a source in a plan; rows that Spark planned before have none."""
    kind = relation.getClass().getSimpleName()
    if kind == "StreamingRelationV2":
        return dict(relation.extraOptions())
    if kind != "StreamingRelation":
        return {}
    pairs = relation.dataSource().options().toSeq()
    return {pair._1(): pair._2() for pair in map(pairs.apply, range(pairs.size()))}


def _name_of(source: Any) -> str | None:
    """Return the name that a query gave to a source, or None if it gave no name."""
    is_relation = source.getClass().getSimpleName().startswith("StreamingRelation")
    if not (HAS_NAMED_SOURCES and is_relation):  # rows that Spark planned before have no name
        return None
    name = source.sourceIdentifyingName().nameOpt()
    return None if name.isEmpty() else str(name.get())


def planned(
    location: Storage, number: int, *, ticks: bool = False, folders: Sequence[str] | None = None
) -> MicroBatch:
    """Return a micro-batch as Spark wrote it to a query's checkpoint location.

    Args:
        location: The query's checkpoint location.
        number: The number of the micro-batch.
        ticks: True if one source only reports the passage of time. It is left out of ``ends``.
        folders: The result of :func:`source_folders`. By default each source's folder is its
            number. Version 2 of the offsets contains the names.

    Returns:
        The micro-batch, together with the previous one.

    Raises:
        InvalidArgumentError: For a file of an unknown version, and for one that is missing or
            truncated, as after a power failure.
        StorageError: When the location cannot be read.
    """
    query = _query_id(location, _read(location, "metadata"))
    before = _planned(location, query, number - 1, None, ticks, folders) if number else None
    return _planned(location, query, number, before, ticks, folders)


def refuse_truncated_id(location: Storage) -> None:
    """Refuse a location whose file with the query's id is truncated, as after a power failure.

    Spark's own error does not name the file.

    Raises:
        InvalidArgumentError: if the file exists, but has no id.
        StorageError: when the location cannot be read.
    """
    try:
        content = location.read("metadata")
    except FileNotFoundError:
        return  # a new location
    _query_id(location, content)


def _query_id(location: Storage, content: bytes) -> str:
    query = _json(location, "metadata", content).get("id")
    if not isinstance(query, str):
        raise _broken(location, "metadata")
    return query


def _planned(
    location: Storage,
    query: str,
    number: int,
    before: MicroBatch | None,
    ticks: bool,
    folders: Sequence[str] | None,
) -> MicroBatch:
    name = f"offsets/{number}"
    lines = _read(location, name).splitlines()
    if len(lines) < 2 or lines[0] not in (_POSITIONAL, _NAMED):
        raise InvalidArgumentError(
            f"{location.url}/{name} begins with {lines[:1]} instead of {_POSITIONAL!r} or "
            f"{_NAMED!r}: it is truncated, or this Spark release uses another format for offsets"
        )
    plan = _json(location, name, lines[1])
    batch_time_ms, watermark = plan.get("batchTimestampMs"), plan.get("batchWatermarkMs")
    texts = [line.decode() for line in lines[2:]]
    if lines[0] == _NAMED:
        try:
            sources = split_sources(texts)
        except ValueError:
            raise _broken(location, name) from None
    else:
        own = [*folders] if folders is not None else [*map(str, range(len(texts)))]
        if len(own) != len(texts):
            raise InvalidArgumentError(
                f"{location.url}/{name} has the end positions of {len(texts)} sources, but "
                f"the query has {len(own)}: start it with its original sources, or with a new "
                "checkpoint location"
            )
        sources = [*zip(own, texts, strict=True)]
    if ticks:
        named = [source for source in sources if source[0] == TICKS]
        sources.remove(named[0] if named else sources[-1])
    files = tuple(_files(location, sources))
    names, ends = (tuple(part) for part in zip(*sources, strict=True)) if sources else ((), ())
    names = () if all(map(str.isdecimal, names)) else names
    return MicroBatch(
        query, number, ends, batch_time_ms or None, files, before, watermark or 0, names
    )


def split_sources(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the sources' names and ends in version 2 of the offsets.

    Numbered sources are sorted by their numbers.

    Raises:
        ValueError: for a line without a name, or a name that occurs twice.
    """
    sources = [(name, end) for name, colon, end in (line.partition(":") for line in lines) if colon]
    if len(dict(sources)) < len(lines):
        raise ValueError("a line has no name of a source, or two have the same one")
    if all(name.isdecimal() for name, _ in sources):
        sources.sort(key=lambda source: int(source[0]))
    return sources


def _files(location: Storage, sources: Sequence[tuple[str, str]]) -> Iterator[tuple[int, str]]:
    """Yield a digest of the new files' names for each source that reads files."""
    for source, (folder, end) in enumerate(sources):
        number = _log_offset(end)
        if number >= 0:
            paths = sorted(_new_files(location, f"sources/{folder}/{number}", number))
            yield source, hashlib.sha256("\n".join(paths).encode()).hexdigest()


def _log_offset(line: str) -> int:
    """Return the position of a file source; -1 for other sources, and before the first file."""
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
    """Return the last entries of a long log: all with this number, and some earlier ones."""
    try:
        size = location.size(name)
    except FileNotFoundError:
        raise _broken(location, name.removesuffix(".compact")) from None
    length = _TAIL_BYTES
    while True:
        start = max(size - length, 0)
        # The first line is the version, or incomplete.
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
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _broken(location, name)
    return document


def _broken(location: Storage, name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{location.url}/{name} is missing or not in Spark's format: the query's checkpoint "
        "location has lost a planned micro-batch, for example in a power failure, or named "
        f"sources have another order, {NEEDS_NAMES}. Restore the location, or start the query "
        "with a new checkpoint location, QueryOptions(succeeds=True), and sources that begin "
        "where the state ends; its newest checkpoint has the positions"
    )
