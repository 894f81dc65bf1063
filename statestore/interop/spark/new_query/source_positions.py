"""Where the sources of a query that has never run begin to read.

The position of a source is the end of the micro-batch before the first one that the query runs. A
source that can tell its first position (Kafka, and all others of Spark's second source interface)
is asked for it, so that its own options apply. A Delta source begins with the version in its
options. A file source begins after the files that are not newer than a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statestore.errors import InvalidArgumentError, StorageError, UnsupportedTypeError
from statestore.spark.error_cause import describe_cause
from statestore.streaming.planned import streaming_sources

_NO_FILES = json.dumps({"logOffset": -1})
_FIRST_FILES = json.dumps({"logOffset": 0})
_FIRST_INTERFACE, _SECOND_INTERFACE = "StreamingRelation", "StreamingRelationV2"
_BEFORE_FIRST_FILE = -1  # the index in a version of a Delta table


@dataclass(frozen=True, kw_only=True)
class SourcePosition:
    """Where a source begins.

    Attributes:
        folder: The source's name, or its number if it has none.
        source: Spark's description of the source.
        begins: The position in the form of Spark's offset log, as JSON.
        planned: The position with which Spark can plan a micro-batch without data.
        files: For a file source, the files that count as read; otherwise None.
    """

    folder: str
    source: str
    begins: str
    planned: str
    files: int | None = None


def offset_log_entry(
    version: str,
    metadata: Mapping[str, Any],
    positions: Sequence[SourcePosition],
    ends: Sequence[str],
) -> bytes:
    """Return an entry of the offset log with an end for each source.

    ``version`` is ``v1`` or ``v2``, whose lines begin with the name of a source.
    """
    lines: Sequence[str] = ends
    if version != "v1":
        named = {position.folder: end for position, end in zip(positions, ends, strict=True)}
        lines = [f"{name}:{end}" for name, end in named.items()]
    return "\n".join([version, json.dumps(metadata), *lines]).encode()


def find_positions(
    query: DataFrame, location: Path, files_after: datetime | None
) -> tuple[SourcePosition, ...]:
    """Return the position of each source in the order of the plan.

    Some sources write files below ``location/sources``, which belong to the query's location.

    Args:
        query: The streaming DataFrame.
        location: A local folder.
        files_after: The time, with a zone, from which on changed files are new. By default all
            files are new.

    Returns:
        One position for each source of the plan. A source that the plan reads twice has two.

    Raises:
        InvalidArgumentError: For ``files_after`` without a zone, or without a file source.
        UnsupportedTypeError: For a source that cannot tell its first position.
        StorageError: If a source fails, for example because no broker answers.
    """
    if files_after is not None and files_after.tzinfo is None:
        raise InvalidArgumentError(
            f"files_after must have a time zone, as in datetime.now(UTC), not {files_after}"
        )
    session: Any = query.sparkSession
    jvm = session._jvm
    known: dict[str, SourcePosition] = {}
    positions = []
    for folder, relation in streaming_sources(query):
        if folder not in known:
            known[folder] = _find_position(jvm, folder, relation, location, files_after)
        positions.append(known[folder])
    if files_after is not None and all(position.files is None for position in positions):
        raise InvalidArgumentError(
            "files_after was given, but the query reads no files; it has "
            f"{', '.join(position.source for position in positions) or 'no streaming source'}"
        )
    return tuple(positions)


def _find_position(
    jvm: Any, folder: str, relation: Any, location: Path, files_after: datetime | None
) -> SourcePosition:
    path = f"file://{location}/sources/{folder}"
    kind = relation.getClass().getSimpleName()
    if kind == _SECOND_INTERFACE and not _reads_micro_batches(jvm, relation):
        if relation.v1Relation().isEmpty():
            raise _unsupported(folder, f"table {relation.table().name()}")
        relation = relation.v1Relation().get()  # which Spark reads instead
        kind = relation.getClass().getSimpleName()
    try:
        if kind == _SECOND_INTERFACE:
            scan = relation.table().newScanBuilder(relation.extraOptions()).build()
            return _first_position(folder, scan.toMicroBatchStream(path))
        if kind != _FIRST_INTERFACE:
            raise _unsupported(folder, kind)
        source = relation.dataSource().createSource(path)
        kind = source.getClass().getSimpleName()
        if kind == "FileStreamSource":
            return _file_position(jvm, folder, source, location, files_after)
        if kind == "DeltaSource":
            return _delta_position(folder, source)
    except (PySparkException, Py4JJavaError) as error:
        raise StorageError(
            f"source {folder} of the query does not tell where it begins: {describe_cause(error)}"
        ) from error
    raise _unsupported(folder, kind)


def _reads_micro_batches(jvm: Any, relation: Any) -> bool:
    capability = jvm.org.apache.spark.sql.connector.catalog.TableCapability.MICRO_BATCH_READ
    return bool(relation.table().capabilities().contains(capability))


def _unsupported(folder: str, kind: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"source {folder} of the query is a {kind}, for which no first position can be written. "
        "Supported are files, Delta tables, Kafka, and each source of Spark's second source "
        "interface that can be read in micro-batches"
    )


def _first_position(folder: str, stream: Any) -> SourcePosition:
    """Return the position of a source that knows its first position."""
    try:
        begins = str(stream.initialOffset().json())
    finally:
        stream.stop()
    return SourcePosition(folder=folder, source=stream.toString(), begins=begins, planned=begins)


def _file_position(
    jvm: Any, folder: str, source: Any, location: Path, files_after: datetime | None
) -> SourcePosition:
    """Let the source list its files, and keep those that are not newer than the time."""
    begins, read = _NO_FILES, 0
    if files_after is not None:
        streaming = jvm.org.apache.spark.sql.connector.read.streaming
        source.latestOffset(None, streaming.ReadLimit.allAvailable())
        log = location / "sources" / folder / "0"
        read = _keep_read_files(log, files_after) if log.exists() else 0
        begins = _FIRST_FILES if read else _NO_FILES
    return SourcePosition(
        folder=folder, source=source.toString(), begins=begins, planned=_NO_FILES, files=read
    )


def _keep_read_files(log: Path, files_after: datetime) -> int:
    """Remove new files from the log of a source; return the number of the others."""
    version, *entries = log.read_text(encoding="utf-8").splitlines()
    latest = int(files_after.timestamp() * 1000)
    read = [entry for entry in entries if json.loads(entry)["timestamp"] <= latest]
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)  # of the longer log
    if read:
        log.write_text("\n".join([version, *read]), encoding="utf-8")
    else:
        log.unlink()
    return len(read)


def _delta_position(folder: str, source: Any) -> SourcePosition:
    """Return the position before the first file of the version in the source's options.

    Without such a version the source begins with all rows of the table's newest version.
    """
    version = source.getStartingVersion()
    is_snapshot = bool(version.isEmpty())
    begins = json.dumps(
        {
            "sourceVersion": 1,
            "reservoirId": source.tableId(),
            "reservoirVersion": (
                source.snapshotAtSourceInit().version() if is_snapshot else version.get()
            ),
            "index": _BEFORE_FIRST_FILE,
            "isStartingVersion": is_snapshot,
        },
        separators=(",", ":"),
    )
    return SourcePosition(folder=folder, source=source.toString(), begins=begins, planned=begins)
