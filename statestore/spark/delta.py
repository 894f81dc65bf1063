"""The Delta backend: data files become the content of a Delta table by Delta's own transaction.

The files are already written, by whoever; a commit removes the table's old files from its log and
adds the new ones (Delta protocol, "Add File and Remove File"), in the JVM, by delta-spark. Removed
files stay on disk for the older checkpoints that name them: table properties hold VACUUM and log
clean-up off.

A commit also records (application, checkpoint id) as a Delta transaction identifier, so that
publishing the same checkpoint twice finds the first one's version instead of committing again.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statestore.errors import CommitConflictError, MissingDependencyError, StorageError
from statestore.files.delta_log import add_action, is_partitioned, statistics_columns
from statestore.format.manifest import Entry, OperatorEntry, TableRef
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Field, Schema, same_columns, schema_from_json
from statestore.format.state import POSITION, SUBTASK
from statestore.storage import Storage

__all__ = [
    "DeltaTable",
    "hand_on",
    "refuse_without_s3a",
]


# Spark's own access to a bucket: Delta's log is read and written by the JVM, through ``s3a``.
#
# What the store was told (endpoint, credentials) is handed on in the Hadoop configuration of the
# running Spark, under the bucket's own names. Spark's configuration, which it shows, logs and keeps
# in its event log, never holds it; of Hadoop's it shows nothing but keys whose values it blanks.
# The first file system that Spark opens for a bucket keeps its credentials for the life of the
# session.


# They log what is sent to the JVM, at level DEBUG.
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


def hand_on(spark: SparkSession, storage: Storage) -> None:
    """Let Spark read and write where the store lies; nothing happens on a local file system."""
    settings = storage.hadoop_settings()
    if not settings:
        return
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    with _silent():
        for name, value in settings.items():
            configuration.set(name, value)


def refuse_without_s3a(spark: SparkSession, storage: Storage) -> None:
    """Raise MissingDependencyError when a store lies in a bucket, and Spark has no ``s3a``."""
    if not storage.spark_url("").startswith("s3a:"):
        return
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(
            "org.apache.hadoop.fs.s3a.S3AFileSystem", True, False
        )
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise MissingDependencyError(
            "this Spark session cannot write a Delta table to a bucket: start it with "
            "spark_session(s3=True) (see conf/spark-s3.conf), or open the store with "
            "table_format='parquet', which needs no jar"
        ) from None


@contextmanager
def _silent() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled


# Kept checkpoints read files that the newest table version no longer has: nothing but the store's
# own clean-up may delete them. A hundred years is Delta's way to say never.
_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableDeletionVectors": "false",
    "delta.autoOptimize.optimizeWrite": "false",
    "delta.autoOptimize.autoCompact": "false",
}
_KEEPING = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")


class DeltaTable:
    """Publishes the states of one store as Delta tables."""

    format = "delta"
    keeps_log = True

    def __init__(self, spark: SparkSession, storage: Storage) -> None:
        """Take a session that has Delta, and ``s3a`` for a bucket; MissingDependencyError when it
        has not.
        """
        extensions = spark.conf.get("spark.sql.extensions", "") or ""
        if "io.delta" not in extensions:
            raise MissingDependencyError(
                "this Spark session has no Delta: build it with "
                "delta.configure_spark_with_delta_pip "
                "(see conf/spark-defaults.conf), or open the store with table_format='parquet', "
                "which needs no jar"
            )
        refuse_without_s3a(spark, storage)
        self._spark, self._storage = spark, storage
        self._jvm: Any = spark._jvm

    def publish(self, entry: Entry, checkpoint_id: int) -> TableRef:
        """Make the entry's files the table's newest version; return the table with that version.

        Raises CommitConflictError when somebody else changed the table meanwhile, or StorageError.
        """
        url = self._storage.spark_url(entry.table.path)
        # Delta asks for the session of the thread, and several threads publish.
        sessions = SparkSession._get_j_spark_session_class(self._jvm)
        sessions.setActiveSession(self._spark._jsparkSession)
        try:
            version = self._commit(url, entry, checkpoint_id)
        except (Py4JJavaError, PySparkException) as error:
            raise _named(error, entry) from error
        return replace(entry.table, version=version)

    def _commit(self, url: str, entry: Entry, checkpoint_id: int) -> int:
        delta = self._jvm.org.apache.spark.sql.delta
        parse = _scala_object(delta.actions, "Action").fromJson
        transaction = delta.DeltaLog.forTable(self._spark._jsparkSession, url).startTransaction()
        new = transaction.readVersion() < 0
        old = [] if new else list(_iterate(transaction.filterFiles()))
        # All of the table's files are replaced, so its columns and layout may be other ones than
        # before; and what keeps files for older checkpoints is set again where somebody unset it.
        if new or not _is_as_wanted(transaction.metadata(), entry):
            table_id = str(uuid.uuid4()) if new else transaction.metadata().id()
            metadata = parse(json.dumps(_metadata(entry, table_id)))
            transaction.updateMetadata(metadata, False)
        application = f"statestore:{entry.table.path}"
        published = transaction.txnVersion(application) == checkpoint_id
        if published and {file.path() for file in old} == {h.path for h in entry.handles}:
            return int(transaction.readVersion())
        # Delta takes no commit that adds and removes one file. One of which a deletion vector hides
        # rows is another one to it.
        named = {handle.path for handle in entry.handles}
        stay = {f.path() for f in old if f.path() in named and f.deletionVector() is None}
        actions = self._jvm.java.util.ArrayList()
        for action in self._new_actions(entry, stay, application, checkpoint_id):
            actions.add(parse(json.dumps(action)))
        for file in old:
            if file.path() not in stay:
                actions.add(file.remove())
        as_scala = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala
        operation = _scala_object(delta, "DeltaOperations$ManualUpdate")
        return int(transaction.commit(as_scala(actions).toSeq(), operation))

    def _new_actions(
        self, entry: Entry, stay: set[str], application: str, checkpoint_id: int
    ) -> Iterator[dict[str, Any]]:
        now_ms = int(time.time() * 1000)
        txn = {"appId": application, "version": checkpoint_id, "lastUpdated": now_ms}
        yield {"txn": txn}
        for handle in entry.handles:
            if handle.path not in stay:
                yield {"add": add_action(self._storage, entry, handle, now_ms)}


def _metadata(entry: Entry, table_id: str) -> dict[str, Any]:
    """Return the action that makes the table (Delta protocol, "Change Metadata")."""
    names = ",".join(f"`{name.replace('`', '``')}`" for name in statistics_columns(entry))
    metadata = {
        "id": table_id,
        "description": f"statestore: {entry.state}",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_table_schema(entry).to_json()),
        "partitionColumns": [KEY_GROUP] if is_partitioned(entry) else [],
        "configuration": _PROPERTIES | _features(entry) | {"delta.dataSkippingStatsColumns": names},
        "createdTime": int(time.time() * 1000),
    }
    return {"metaData": metadata}


def _features(entry: Entry) -> dict[str, str]:
    """Return what a table that was made without such columns is asked to support from now on."""
    zoneless = '"timestamp_ntz"' in json.dumps(entry.state.schema.to_json())
    return {"delta.feature.timestampNtz": "supported"} if zoneless else {}


def _table_schema(entry: Entry) -> Schema:
    """Return the table's columns: the stored ones after those that the store adds."""
    added = [Field(KEY_GROUP, "integer")]
    if isinstance(entry, OperatorEntry):
        added = [Field(SUBTASK, "integer"), Field(POSITION, "long")]
    return Schema((*added, *entry.state.schema.fields))


def _is_as_wanted(metadata: Any, entry: Entry) -> bool:
    """Return whether the table has the entry's columns and layout, and keeps its old files."""
    columns = schema_from_json(json.loads(metadata.schemaString()))
    kept = {name: metadata.configuration().get(name) for name in _KEEPING}
    return (
        same_columns(columns, _table_schema(entry))
        and bool(metadata.partitionColumns().nonEmpty()) is is_partitioned(entry)
        and all(
            value.isDefined() and value.get() == _PROPERTIES[name] for name, value in kept.items()
        )
    )


def _scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _iterate(sequence: Any) -> Iterable[JavaObject]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _named(error: Py4JJavaError | PySparkException, entry: Entry) -> Exception:
    text = str(error)
    # py4j's first line says which of our calls it was, the second what happened.
    lines = [line for line in text.splitlines() if not line.startswith("An error occurred while")]
    first = lines[0].lstrip(": ") if lines else type(error).__name__
    if "Concurrent" in text or "DELTA_CONCURRENT" in text or "MetadataChanged" in text:
        return CommitConflictError(
            f"another writer changed the Delta table of {entry.state} while this checkpoint was "
            "being committed; nothing of this one is visible. Take the snapshot again"
        )
    return StorageError(
        f"the Delta table of {entry.state} cannot be written: {first} (an entry that its log lacks "
        "is put again by 'statestore repair')"
    )
