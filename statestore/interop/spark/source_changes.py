"""Change the sources of a query while a new location is written for it.

Spark finds the position of a source in the offset log by its number in the plan (version 1), or by
its name (version 2). A query whose plan has other sources cannot continue with the old log, or
reads positions of another source. Here sources are renamed, renumbered, removed and added in all
entries of the log, together with their folders below ``sources``. A new source has no position, so
that Spark lets it begin where its options say.

The Kafka offsets of a query are also a state, a view of the log. If the state was changed, the
offsets are written into the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.spark.import_record import QUERY, QueryRecord
from statestore.interop.spark.location import NO_END, OffsetLogEntry
from statestore.interop.spark.query_settings import SOURCE_NAMES, SparkTarget
from statestore.sources.offsets import SourceOffset, changed_offsets, starting_offsets_json
from statestore.streaming.progress import (
    NAMES,
    OFFSETS,
    POSITIONS,
    kafka_offsets,
    kafka_topics,
    same_ends,
)


def change_sources(record: QueryRecord, target: SparkTarget) -> QueryRecord:
    """Return a record whose logs have other sources.

    If all sources get names, the offset log gets version 2, which Spark 4.2 and later read.

    Raises:
        InvalidArgumentError: For a source that the query does not have, two sources with one name,
            numbers with a gap, names for some of the sources only, and a query without sources.
        UnsupportedTypeError: If the query reads a source twice, as in a self-join: its folder does
            not tell which position belongs to it.
    """
    if target.has_same_sources:
        return record
    plan = f"offsets/{record.batch}"
    entry = record.offsets_entry(record.batch)
    old = [name for name, _ in entry.sources]
    _refuse_shared_folders(record, entry)
    new = _new_names(old, target)
    names = [*filter(None, new.values()), *target.added_sources]
    is_named = not all(map(str.isdecimal, names))
    new_version = "v2" if is_named or entry.version == "v2" else "v1"
    was_named = not all(map(str.isdecimal, old))
    settings = {} if is_named == was_named else {SOURCE_NAMES: str(is_named).lower()}
    logs = dict(_change_logs(record.logs, new, target.added_sources, new_version, settings))
    sources = OffsetLogEntry.parse(logs[plan]).sources
    return replace(
        record,
        logs=tuple(logs.items()),
        ends=tuple(end for _, end in sources),
        names=tuple(name for name, _ in sources) if is_named else (),
    )


def write_positions(record: QueryRecord) -> QueryRecord:
    """Return a record whose last micro-batch ends at the Kafka offsets of its state (I17).

    Raises:
        InvalidArgumentError: For offsets that no source can have, or whose source is unknown. Also
            if another view of the log was changed, or if a planned micro-batch begins at the old
            offsets.
    """
    plan = f"offsets/{record.batch}"
    entry = record.offsets_entry(record.batch)
    ends = dict(entry.sources)
    own = dict(zip(record.names or ends, record.ends, strict=False))
    if own.keys() != ends.keys() or not same_ends([ends[name] for name in own], own.values()):
        raise InvalidArgumentError(
            f"states {POSITIONS!r} and {NAMES!r} of operator {QUERY!r} differ from the plan of "
            f"micro-batch {record.batch} in state 'logs', of which they are a copy. Change Kafka "
            f"offsets in state {OFFSETS!r}, and export a checkpoint in which the others are "
            "unchanged"
        )
    subject = f"state {OFFSETS!r} of operator {QUERY!r}"
    known = kafka_offsets(tuple(ends.values()))
    offsets = None if record.offsets is None else changed_offsets(record.offsets, known, subject)
    if offsets is None:
        return record
    if f"offsets/{record.batch + 1}" in dict(record.logs):
        raise InvalidArgumentError(
            f"{subject} was changed, but micro-batch {record.batch + 1} is already planned from "
            "the old offsets. Start the query with its location until the micro-batch is finished, "
            "import again, and change the offsets then; or export a checkpoint in which they are "
            "unchanged"
        )
    by_source = _assign_offsets(ends, offsets, subject)
    ends |= {name: starting_offsets_json(found) for name, found in by_source.items()}
    content = entry.with_sources(ends.items()).encode()
    logs = tuple((name, content if name == plan else data) for name, data in record.logs)
    return replace(record, logs=logs, ends=tuple(ends[name] for name in own))


def _assign_offsets(
    ends: Mapping[str, str], offsets: Sequence[SourceOffset], subject: str
) -> dict[str, list[SourceOffset]]:
    """Return the offsets of each Kafka source: it has the topic, or is the only Kafka source."""
    topics = {name: found for name, end in ends.items() if (found := kafka_topics(end)) is not None}
    assigned: dict[str, list[SourceOffset]] = {name: [] for name in topics}
    for offset in offsets:
        names = [name for name, found in topics.items() if offset.topic in found] or [*topics]
        if len(names) != 1:
            raise InvalidArgumentError(
                f"{subject}: it is unknown which source reads topic {offset.topic!r}, because "
                f"{len(names)} sources of the query could. Export a checkpoint in which the "
                "offsets are unchanged, or start the query with a new location"
            )
        assigned[names[0]].append(offset)
    for name, old in topics.items():
        if old and not assigned[name]:
            raise InvalidArgumentError(
                f"{subject} has no offset of {', '.join(old)}, so it is unknown where "
                f"source {name} continues; write the offset of each partition"
            )
    return {name: found for name, found in assigned.items() if found}


def _refuse_shared_folders(record: QueryRecord, entry: OffsetLogEntry) -> None:
    """Refuse two sources at the same position, which have one folder of logs between them."""
    if entry.version == "v2":
        return
    folders = {name.split("/")[1] for name, _ in record.logs if name.startswith("sources/")}
    for number, end in enumerate(entry.lines):
        others = [other for other in range(number) if entry.lines[other] == end]
        if str(number) not in folders and any(str(other) in folders for other in others):
            raise UnsupportedTypeError(
                f"the query of {record.location or 'this location'} reads source {others[0]} "
                "twice, so its sources cannot be changed"
            )


def _new_names(old: Sequence[str], target: SparkTarget) -> dict[str, str | None]:
    """Return the new name of each old source, None for one that is removed."""
    unknown = [name for name in target.renamed_sources if name not in old]
    if unknown:
        raise InvalidArgumentError(
            f"the query has no source {unknown[0]!r}; it has {', '.join(old)} (a number is the "
            "position of a source without a name)"
        )
    given = [*filter(None, target.renamed_sources.values()), *target.added_sources]
    silent = [name for name in old if name not in target.renamed_sources]
    if all(map(str.isdecimal, (*given, *silent))):
        free = [str(number) for number in range(len(given) + len(silent))]
        new = _assign_numbers(old, target, [name for name in free if name not in given])
    else:
        new = {name: target.renamed_sources.get(name, name) for name in old}
    _refuse_wrong_names([*filter(None, new.values()), *target.added_sources])
    return new


def _assign_numbers(
    old: Sequence[str], target: SparkTarget, free: Sequence[str]
) -> dict[str, str | None]:
    """Give the free numbers to the sources that have none, in the old order."""
    rest = iter(free)
    return {
        name: target.renamed_sources[name] if name in target.renamed_sources else next(rest, name)
        for name in old
    }


def _refuse_wrong_names(names: Sequence[str]) -> None:
    if not names:
        raise InvalidArgumentError("a query must have a source, but all sources are removed")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(f"two sources would have the name {twice[0]!r}")
    numbers = sorted(int(name) for name in names if name.isdecimal())
    if numbers and len(numbers) < len(names):
        raise InvalidArgumentError(
            f"either all sources have names, or none: {', '.join(names)}. Name the others, too"
        )
    if numbers and numbers != [*range(len(numbers))]:
        raise InvalidArgumentError(
            f"the sources would have the numbers {', '.join(map(str, numbers))}; they must be 0 to "
            f"{len(numbers) - 1}"
        )
    for name in names:
        if not name or set(name) & set(":/\n"):
            raise InvalidArgumentError(f"{name!r} is not a valid name of a source")


def _change_logs(
    logs: Sequence[tuple[str, bytes]],
    new: Mapping[str, str | None],
    added: Sequence[str],
    version: str,
    settings: Mapping[str, str],
) -> Iterator[tuple[str, bytes]]:
    for name, content in logs:
        folder, _, rest = name.partition("/")
        if folder == "offsets":
            yield name, _change_offsets(content, new, added, version, settings)
        elif folder == "sources":
            source, _, file = rest.partition("/")
            if new.get(source, source) is not None:
                yield f"sources/{new.get(source, source)}/{file}", content
        else:
            yield name, content


def _change_offsets(
    content: bytes,
    new: Mapping[str, str | None],
    added: Sequence[str],
    version: str,
    settings: Mapping[str, str],
) -> bytes:
    entry = OffsetLogEntry.parse(content)
    ends = {renamed: end for name, end in entry.sources if (renamed := new.get(name)) is not None}
    if version == "v1":
        ends |= dict.fromkeys(added, NO_END)
        ends = {str(number): ends[str(number)] for number in range(len(ends))}
    if settings:
        entry = entry.with_conf({**entry.conf, **settings})
    return replace(entry, version=version).with_sources(ends.items()).encode()
