"""Plan a query that has never run: the states that it needs, and where its sources begin.

Spark plans the query's first micro-batch without data, which shows the states that it needs.

The position of a source is the end of the micro-batch before the first one that the query runs. A
source that can tell its first position (Kafka, and all others of Spark's second source interface)
is asked for it, so that its own options apply. A Delta source begins with the version in its
options. A file source begins after the files that are not newer than a time.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statestore.errors import InvalidArgumentError, StorageError, UnsupportedTypeError
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.import_state import refuse_unsupported
from statestore.interop.spark.location import (
    FORMAT_VERSION,
    NO_END,
    PROVIDER,
    CheckpointLocation,
    OffsetLogEntry,
    provider_name,
)
from statestore.interop.spark.location_writer import check_shape
from statestore.interop.spark.operator_reader import SHUFFLE_PARTITIONS, Operator
from statestore.interop.spark.parts import list_parts, map_columns, read_stored_rows
from statestore.interop.spark.query_settings import ENCODING
from statestore.interop.spark.rewriter import check_spark
from statestore.interop.spark.state_reader import prepared_session
from statestore.interop.spark.wanted_states import (
    PlannedPart,
    WantedState,
    find_join_sides,
    list_wanted_states,
)
from statestore.spark.compat import COMMAND_INSTEAD, INSTALLED, Py4JJavaError, refuse_connect
from statestore.spark.error_cause import describe_cause
from statestore.spark.session_settings import session_settings
from statestore.storage import open_storage
from statestore.streaming.planned import source_folders, streaming_sources

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


if TYPE_CHECKING:
    from collections.abc import Iterator

_WATERMARK_NODE = "EventTimeWatermark"

_OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
# Spark 4.1 and later otherwise fail the micro-batch, because no task has written state.
_COMMIT_CHECK = "spark.sql.streaming.stateStore.commitValidation.enabled"
_FIRST_WITH_PACKAGE = (4, 1)

_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_OF_EMPTY_RELATIONS = tuple(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in ("PropagateEmptyRelation", "ConvertToLocalRelation", "EliminateLimits")
)


@dataclass(frozen=True, kw_only=True)
class PlannedQuery:
    """A query that has never run, as Spark planned it.

    Attributes:
        output_mode: ``append``, ``update`` or ``complete``.
        partitions: The session's number of shuffle partitions.
        provider: ``hdfs`` or ``rocksdb``, from the session.
        states: The states that the query begins with; a table can be given for each.
        sources: Where each source begins, in the order of the plan.
        fingerprint: A digest of the operators, the columns of their states, the sources and the
            settings. A different plan has a different fingerprint.
    """

    output_mode: str
    partitions: int
    provider: str
    states: tuple[WantedState, ...]
    sources: tuple[SourcePosition, ...]
    fingerprint: str
    query: DataFrame = field(repr=False, compare=False)
    parts: tuple[PlannedPart, ...] = field(repr=False, compare=False)
    files: tuple[tuple[str, bytes], ...] = field(repr=False, compare=False)

    @property
    def has_watermark(self) -> bool:
        """Whether the query defines a watermark, with ``withWatermark``."""
        plans = [self.query._jdf.queryExecution().analyzed()]
        while plans:
            plan = plans.pop()
            if plan.getClass().getSimpleName() == _WATERMARK_NODE:
                return True
            children = plan.children()
            plans += [children.apply(index) for index in range(children.size())]
        return False

    def offsets(self, ends: Sequence[str], watermark_ms: int) -> bytes:
        """Return the entry of micro-batch 0 in the offset log, with these ends of the sources."""
        entry = OffsetLogEntry.parse(dict(self.files)["offsets/0"])
        settings = json.loads(entry.settings) | {"batchWatermarkMs": watermark_ms}
        folders = (source.folder for source in self.sources)
        named = zip(folders, ends, strict=True)
        return replace(entry, settings=json.dumps(settings)).with_sources(named).encode()

    def commit(self, watermark_ms: int) -> bytes:
        """Return the entry of micro-batch 0 in the commit log."""
        version, _ = dict(self.files)["commits/0"].decode().split("\n")
        return f"{version}\n{json.dumps({'nextBatchWatermarkMs': watermark_ms})}".encode()

    def state(self, name: str) -> WantedState:
        """Return a state by ``operator/state``; InvalidArgumentError if there is no such state."""
        for state in self.states:
            if state.name == name:
                return state
        known = ", ".join(state.name for state in self.states)
        raise InvalidArgumentError(f"the query has no state {name!r}; it has {known}")


def plan_query(
    query: DataFrame, *, output_mode: str = "append", files_after: datetime | None = None
) -> PlannedQuery:
    """Let Spark plan the first micro-batch of a query, and return the states that it needs.

    No row of a source is read and nothing is written, except for temporary files. The session's
    settings apply: the state store provider, the formats of state, and the names of sources. Each
    source begins where its options say (Kafka's ``startingOffsets`` or ``startingTimestamp``,
    Delta's ``startingVersion`` or ``startingTimestamp``); a position such as ``latest`` is found
    now.

    Args:
        query: The streaming DataFrame that will be started with ``writeStream``.
        output_mode: The output mode that the query will have.
        files_after: For file sources, the time, with a zone. Files that are not newer count as
            read. By default all files are new.

    Returns:
        The plan. :func:`bootstrap_location` writes a location from it and from tables.

    Raises:
        InvalidArgumentError: If the DataFrame is not streaming, has no state, or Spark does not
            accept it. Also for ``files_after`` without a zone or a file source.
        UnsupportedTypeError: For an operator, a type or a source that is not supported.
        MissingDependencyError: If the state needs Spark's rewriter, and this Spark has none.
        StorageError: If a source does not tell its position, for example because no broker answers.
    """
    refuse_connect(query, "planning a query", COMMAND_INSTEAD)
    if not query.isStreaming:
        raise InvalidArgumentError(
            "the query must be a streaming DataFrame, made with spark.readStream"
        )
    with _scratch_folder() as folder:
        positions = find_positions(query, folder, files_after)
        return _plan(query, output_mode, positions, folder)


@contextmanager
def planned_location(
    query: DataFrame, output_mode: str, settings: Mapping[str, str], partitions: int
) -> Iterator[CheckpointLocation]:
    """Let Spark plan a query, and yield a temporary location with what it describes.

    No source is asked for a position. The location has the query's operators, the columns of their
    stores, and the plan of a micro-batch, as if the query ran with these settings. It has no
    operator if the query has no state.

    Args:
        query: The streaming DataFrame.
        output_mode: The output mode that the query will have.
        settings: Settings of the session while Spark plans.
        partitions: The number of shuffle partitions.

    Yields:
        The location, until the block ends.

    Raises:
        InvalidArgumentError: If the DataFrame is not streaming, or Spark does not accept it.
    """
    refuse_connect(query, "planning a query", COMMAND_INSTEAD)
    if not query.isStreaming:
        raise InvalidArgumentError(
            "the query must be a streaming DataFrame, made with spark.readStream"
        )
    unread = tuple(
        SourcePosition(folder=folder, source="", begins=NO_END, planned=NO_END)
        for folder in source_folders(query)
    )
    # These would remove operators, such as a limit, because the sources have no rows here.
    excluded = (str(query.sparkSession.conf.get(_EXCLUDED_RULES) or ""), *_OF_EMPTY_RELATIONS)
    settings = {**settings, _EXCLUDED_RULES: ",".join(filter(None, excluded))}
    with _scratch_folder() as folder, session_settings(query.sparkSession, settings):
        _plan_first_batch(query, output_mode, unread, folder, partitions)
        yield CheckpointLocation(open_storage(str(folder)))


def plan_again(planned: PlannedQuery) -> PlannedQuery:
    """Plan a query again with the session's present settings and the same positions."""
    with _scratch_folder() as folder:
        for name, content in planned.files:
            if name.startswith("sources/"):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return _plan(planned.query, planned.output_mode, planned.sources, folder)


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statestore-") as folder:
        yield Path(folder)


def _plan(
    query: DataFrame, output_mode: str, positions: Sequence[SourcePosition], folder: Path
) -> PlannedQuery:
    spark = query.sparkSession
    partitions = int(spark.conf.get(SHUFFLE_PARTITIONS) or 0)
    check_shape(partitions, None)
    executed = _plan_first_batch(query, output_mode, positions, folder, partitions)
    location = CheckpointLocation(open_storage(str(folder)))
    plan = location.plan(0)
    if not location.storage.list("state"):
        raise InvalidArgumentError(
            "the query has no stateful operator, so it begins without state: start it with a new "
            "checkpoint location"
        )
    operators = location.operators(0)
    refuse_unsupported(location, operators, plan)
    if plan.settings[ENCODING] != "unsaferow" and any(op.has_families for op in operators):
        raise UnsupportedTypeError(
            f"the session's {ENCODING} is {plan.settings[ENCODING]}, in which the state of a "
            f"transformWithState cannot be written: set it to unsaferow for the new query"
        )
    if any(operator.has_families for operator in operators):
        check_spark(spark)
    with prepared_session(spark, location, 0, operators) as url:
        parts = tuple(
            PlannedPart(part, map_columns(read_stored_rows(spark, url, 0, part), part))
            for operator in operators
            for part in list_parts(operator)
        )
    provider = provider_name(plan.settings)
    if provider not in ("hdfs", "rocksdb"):
        raise UnsupportedTypeError(f"the state store provider {provider} is not one of Spark's own")
    return PlannedQuery(
        output_mode=output_mode,
        partitions=partitions,
        provider=provider,
        states=list_wanted_states(parts, find_join_sides(executed)),
        sources=tuple(positions),
        fingerprint=_fingerprint(operators, parts, positions, plan.settings),
        query=query,
        parts=parts,
        files=(*location.files(0), *_source_logs(location)),
    )


def _source_logs(location: CheckpointLocation) -> Iterator[tuple[str, bytes]]:
    """Yield the files of all sources; ``files`` leaves out those after the end of the batch."""
    for name in location.storage.list("sources"):
        if not name.rpartition("/")[2].startswith("."):  # Hadoop's checksums
            yield name, location.storage.read(name)


def _fingerprint(
    operators: Sequence[Operator],
    parts: Sequence[PlannedPart],
    positions: Sequence[SourcePosition],
    settings: Mapping[str, str],
) -> str:
    """Return a digest of the properties that a location and its query must have in common."""
    document = {
        "operators": [[operator.number, operator.name] for operator in operators],
        "parts": [
            [
                *(planned.part.operator, planned.part.store, planned.part.state),
                *(planned.part.form, planned.part.has_ttl, planned.columns.key.json()),
                planned.columns.value.json() if isinstance(planned.columns, StoreColumns) else "",
            ]
            for planned in parts
        ],
        "sources": [[position.folder, position.source] for position in positions],
        "settings": {
            name: value
            for name, value in sorted(settings.items())
            if name not in (SHUFFLE_PARTITIONS, PROVIDER)  # which a location chooses itself
        },
    }
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:16]


def _plan_first_batch(
    query: DataFrame,
    output_mode: str,
    positions: Sequence[SourcePosition],
    location: Path,
    partitions: int,
) -> Any:
    """Write the files of a query's first micro-batch to a local folder, except the state's rows.

    Spark plans a micro-batch again if the offset log has an entry of it, with the ends in the
    entry. An entry in which each source ends where it begins is therefore a micro-batch without
    data. It is written to the folder, where the query is started. Spark describes the query's
    stateful operators there before it calls the sink. The sink is a function that ignores its
    rows. So no source and no static table is read, and no state is written.

    Returns:
        Spark's physical plan of the micro-batch.

    Raises:
        InvalidArgumentError: if Spark does not accept the query, with Spark's reason.
    """
    spark = query.sparkSession
    files = {
        "metadata": json.dumps({"id": str(uuid4())}).encode(),
        "offsets/0": _build_offsets(query, positions, partitions),
    }
    for name, content in files.items():
        path = location / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    version = spark.conf.get(FORMAT_VERSION)
    # In the second format Spark requires an id of the state of each task, and there is none.
    settings = {
        SHUFFLE_PARTITIONS: str(partitions),
        FORMAT_VERSION: "1",
        _COMMIT_CHECK: "false",
    }
    try:
        with session_settings(spark, settings):
            started = (
                query.writeStream.outputMode(output_mode)
                .foreachBatch(_ignore_rows)
                .option("checkpointLocation", f"file://{location}")
                .trigger(once=True)
                .start()
            )
            started.awaitTermination()
    except (PySparkException, Py4JJavaError) as error:
        raise InvalidArgumentError(
            f"Spark cannot plan the query in output mode {output_mode!r}: {describe_cause(error)}"
        ) from error
    commit = location / "commits" / "0"
    commit.parent.mkdir(exist_ok=True)
    commit.with_name(".0.crc").unlink(missing_ok=True)
    commit.write_text(f"v{version}\n" + json.dumps({"nextBatchWatermarkMs": 0}))
    for operator in (location / "state").glob("*"):
        # A location has files of each partition, or of the first one only.
        first = operator / "0"
        first.mkdir(exist_ok=True)
        (first / "empty").touch()
    return started._jsq.streamingQuery().lastExecution().executedPlan()


def _build_offsets(query: DataFrame, positions: Sequence[SourcePosition], partitions: int) -> bytes:
    """Return an entry of the offset log without data, with the session's settings."""
    spark: Any = query.sparkSession
    package = spark._jvm.org.apache.spark.sql.execution.streaming
    if INSTALLED >= _FIRST_WITH_PACKAGE:
        package = package.checkpointing
    now = int(time.time() * 1000)
    conf = spark._jsparkSession.conf()
    metadata = json.loads(package.OffsetSeqMetadata.apply(0, now, conf).json())
    metadata["conf"][SHUFFLE_PARTITIONS] = str(partitions)
    entry = OffsetLogEntry(f"v{spark.conf.get(_OFFSET_LOG, '1')}", json.dumps(metadata), ())
    return entry.with_sources((each.folder, each.planned) for each in positions).encode()


def _ignore_rows(_rows: DataFrame, _batch: int) -> None:
    """Do nothing with the rows of a micro-batch."""
