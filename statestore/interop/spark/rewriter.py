"""Write state as RocksDB files with Spark's own class for changing the number of partitions.

Spark's StateRewriter reads each store of a checkpoint, passes the rows to a function, and writes
the function's result as a complete new version of the store. The function in this module ignores
the input and returns the caller's rows. So Spark itself writes every byte, with the key encoding of
each operator. This module does not depend on Spark's file formats.

Only the schema of the rewriter's input is used; the input is never computed. It comes from a
skeleton: a folder with a committed batch and the schemas, but no state. The new checkpoint cannot
be that folder, because its own commit must be written last.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    MissingDependencyError,
    ParallelismError,
    SchemaMismatchError,
    StateStoreError,
    StorageError,
)
from statestore.interop.spark.location import FORMAT_VERSION, OffsetLogEntry, provider_name
from statestore.spark.compat import COMMAND_INSTEAD, Py4JJavaError, refuse_connect
from statestore.spark.error_cause import SPARK_ERRORS, describe_cause

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from pyspark.sql import SparkSession

_KEY, _FAMILY, _DEFAULT = "partition_key", "column_family_name", "default"
_COLUMNS: Final = ("key_bytes", "value_bytes", _FAMILY)
_REWRITER: Final = "org.apache.spark.sql.execution.streaming.state.StateRewriter"
_PARAMETERS: Final = (
    "org.apache.spark.sql.SparkSession",
    "long",  # the batch to read
    "long",  # the batch to write
    "java.lang.String",  # the checkpoint to write
    "org.apache.hadoop.conf.Configuration",
    "scala.Option",  # the checkpoint to read
    "scala.Option",  # the function
    "scala.Option",  # logs of the checkpoint to write
)
# Folders below state/<operator> that describe the state, and contain no rows.
_METADATA_FOLDERS: Final = frozenset({"_metadata", "_stateSchema"})
# Operators that the rewriter does not know by name, and the operator with the same stores. The
# rewriter reads the name in the skeleton only.
_WRITTEN_LIKE: Final = {"StatefulStreamlineAggregate": "stateStoreSave"}

_Store = tuple[int, str]  # operator, and name of the store


def rewrite(
    spark: SparkSession, *, location: str, batch: int, frames: Mapping[_Store, DataFrame]
) -> Mapping[int, list[list[str]]] | None:
    """Write the state of a query after ``batch`` to a checkpoint that has no state yet.

    The checkpoint must already have the offsets of ``batch``, and the metadata and schemas of its
    operators, with the new number of partitions and the new provider. The commit is not written.
    Until the caller writes it, the checkpoint is not valid. After an error the folder cannot be
    used again.

    The session's configuration determines whether state has ids (format 2 of checkpoints), as it
    does for a query.

    Args:
        spark: A session of Spark 4.2, but not Spark Connect.
        location: The checkpoint's folder.
        batch: The last finished batch; the state is written as version ``batch + 1``.
        frames: The rows of each store, by operator id and store name. Their columns are
            ``key_bytes`` and ``value_bytes``, and also ``column_family_name`` if a store has
            several families. Each Spark partition becomes the state partition with the same number.
            The order of its rows stays.

    Returns:
        With format 2, the state ids for the commit. Each operator has a list of its partitions, and
        each partition a list with one id for each store. Otherwise None.

    Raises:
        MissingDependencyError: This version of Spark does not have the rewriter.
        InvalidArgumentError: ``frames`` does not have exactly the stores of the checkpoint.
        SchemaMismatchError: A frame does not have the columns of its store.
        ParallelismError: A frame does not have the number of partitions of its operator.
        IncompatibleStateError: The provider of the checkpoint is not RocksDB.
        StorageError: Spark failed; the message has the operator and the store.
    """
    check_spark(spark)
    from pyspark.java_gateway import ensure_callback_server_started  # pyspark-client has none

    session: Any = spark
    # Both calls start servers that the JVM needs. The first starts py4j's callback server in
    # Python, once per process and with daemon threads, as foreachBatch does. The second starts
    # Spark's coordinator, to which stores report their writes.
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    session.streams  # noqa: B018
    with TemporaryDirectory(prefix="statestore-") as folder:
        try:
            partitions = _copy_metadata(spark, location, batch, Path(folder))
        except SPARK_ERRORS as error:
            raise StorageError(
                f"cannot read the checkpoint {location}: {describe_cause(error)}"
            ) from error
        _check_stores(frames.keys(), partitions.keys(), location)
        rows = {
            store: _prepare_rows(frames[store], store, number)
            for store, number in partitions.items()
        }
        return _run_rewriter(
            session, location, batch, _local_uri(Path(folder)), _RowSource(session, rows)
        )


def check_spark(spark: SparkSession) -> None:
    """Raise MissingDependencyError unless this Spark has the supported version of the rewriter.

    The rewriter is not a public class, so each release may change it.
    """
    refuse_connect(spark, "writing the state of a query", COMMAND_INSTEAD)
    session: Any = spark
    version, jvm = spark.version, session._jvm
    needed = (
        "to write this state (session windows, transformWithState, or the second checkpoint "
        "format) to RocksDB, a class of Spark 4.2 or later is required"
    )
    try:
        constructors = jvm.java.lang.Class.forName(_REWRITER).getConstructors()
    except Py4JJavaError as error:
        raise MissingDependencyError(
            f"{needed}; this is Spark {version}, which has no {_REWRITER}: export with a "
            "newer Spark. State without column families can also be exported with provider hdfs"
        ) from error
    signatures = [
        tuple(parameter_type.getName() for parameter_type in constructor.getParameterTypes())
        for constructor in constructors
    ]
    if _PARAMETERS not in signatures:
        takes = " or ".join(f"({', '.join(types)})" for types in signatures)
        raise MissingDependencyError(
            f"{needed}; this is Spark {version}, whose {_REWRITER} takes {takes}"
        )


class _RowSource:
    """The function that the rewriter calls for each store, a ``scala.Function1``.

    The JVM calls it in the thread that waits for the rewriter.
    """

    def __init__(self, session: Any, rows: Mapping[_Store, DataFrame]) -> None:
        self.store: _Store | None = None  # the store that is being written
        self.error: Exception | None = None  # the Python error; the JVM keeps only its text
        self._session = session
        self._rows = dict(rows)

    def apply(self, read: Any) -> Any:
        """Return the rows for the store whose schema is ``read``."""
        try:
            return self._apply(read)
        except Exception as error:
            self.error = error
            raise

    def _apply(self, read: Any) -> Any:
        options = read.queryExecution().analyzed().collectLeaves().head().options()
        self.store = int(options.get("operatorId")), str(options.get("storeName"))
        # The rewriter does not use these rows again, so their plan can be released.
        frame = self._rows.pop(self.store)
        key = StructType.fromJson(json.loads(read.schema().json()))[_KEY].dataType
        # The rewriter's rows must have the shuffle key, but the rewriter does not read it.
        whole = frame.select(F.lit(None).cast(key).alias(_KEY), *_COLUMNS)
        required_schema, frame_schema = (
            read.schema().catalogString(),
            whole._jdf.schema().catalogString(),
        )
        if required_schema != frame_schema:
            raise SchemaMismatchError(
                f"{_describe_store(self.store)} requires rows of {required_schema}, not "
                f"{frame_schema}"
            )
        # The result must have the schema of ``read``, because Spark also compares nullability.
        rows = whole._jdf.queryExecution().toRdd()
        return self._session._jsparkSession.internalCreateDataFrame(rows, read.schema(), False)

    class Java:
        """The interface declaration for py4j."""

        implements: ClassVar = ["scala.Function1"]


def _run_rewriter(
    session: Any, location: str, batch: int, skeleton: str, row_source: _RowSource
) -> Mapping[int, list[list[str]]] | None:
    jvm, java = session._jvm, session._jsparkSession
    to_option = jvm.scala.Option.apply
    try:
        conf = java.sessionState().newHadoopConf()
        path = jvm.org.apache.hadoop.fs.Path(location)
        qualified = path.getFileSystem(conf).makeQualified(path).toString()
        state = jvm.org.apache.spark.sql.execution.streaming.state
        rewriter = state.StateRewriter(
            *(
                java,
                batch,
                batch,
                qualified,
                conf,
                to_option(skeleton),
                to_option(row_source),
                to_option(None),
            )
        )
        ids = rewriter.run()
        if ids.isEmpty():
            return None
        by_operator = jvm.scala.jdk.javaapi.CollectionConverters.asJava(ids.get())
        return {
            int(operator): [[str(store) for store in stores] for stores in by_operator[operator]]
            for operator in by_operator
        }
    except SPARK_ERRORS as error:
        if isinstance(row_source.error, StateStoreError):
            raise row_source.error from error
        what = (
            f"{_describe_store(row_source.store)} of {location}" if row_source.store else location
        )
        cause = row_source.error or error
        raise StorageError(
            f"Spark cannot write the state of {what}: {describe_cause(cause)}"
        ) from cause


def _copy_metadata(
    spark: SparkSession, location: str, batch: int, folder: Path
) -> dict[_Store, int]:
    """Copy the metadata and schemas of the state to ``folder``, with ``batch`` as committed.

    Operators get the names that the rewriter knows.

    Returns:
        The number of partitions of each store.
    """
    session: Any = spark
    hadoop = session._jvm.org.apache.hadoop.fs
    root = hadoop.Path(location)
    files = root.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    root = files.makeQualified(root)
    listed = files.listFiles(hadoop.Path(root, "state"), True)
    wanted = [f"offsets/{batch}"]
    while listed.hasNext():
        name = root.toUri().relativize(listed.next().getPath().toUri()).getPath()
        if _METADATA_FOLDERS & set(name.split("/")):
            wanted.append(name)
    for name in wanted:
        target = hadoop.Path(_local_uri(folder / name))
        files.copyToLocalFile(False, hadoop.Path(root, name), target, True)  # True: no checksums
    for description in folder.glob("state/*/_metadata/metadata"):
        text = description.read_text(encoding="utf-8")
        for name, known in _WRITTEN_LIKE.items():
            text = text.replace(f'"operatorName":"{name}"', f'"operatorName":"{known}"')
        description.write_text(text, encoding="utf-8")
    commit = folder / "commits" / str(batch)
    commit.parent.mkdir()
    version = spark.conf.get(FORMAT_VERSION)
    commit.write_text(f"v{version}\n" + json.dumps({"nextBatchWatermarkMs": 0}))
    _check_provider(folder / "offsets" / str(batch), location)
    stores = spark.read.format("state-metadata").load(_local_uri(folder)).collect()
    return {(row.operatorId, row.stateStoreName): row.numPartitions for row in stores}


def _check_provider(offsets: Path, location: str) -> None:
    provider = provider_name(OffsetLogEntry.parse(offsets.read_bytes()).conf)
    if provider != "rocksdb":
        raise IncompatibleStateError(
            f"Spark's rewriter supports only RocksDB, but the provider in {location} is {provider}"
        )


def _check_stores(passed: Set[_Store], known: Set[_Store], location: str) -> None:
    if passed == known:
        return
    has, got = (
        ", ".join(map(_describe_store, sorted(stores))) or "none" for stores in (known, passed)
    )
    raise InvalidArgumentError(
        f"rows were passed for {got}, but the stores of {location} are {has}; pass rows for "
        "exactly these stores"
    )


def _prepare_rows(frame: DataFrame, store: _Store, partitions: int) -> DataFrame:
    """Return the frame with its columns in order, as an RDD of its plan's rows."""
    if _FAMILY not in frame.columns:
        frame = frame.withColumn(_FAMILY, F.lit(_DEFAULT))
    if not set(_COLUMNS) <= set(frame.columns):
        required, actual = ", ".join(_COLUMNS), ", ".join(frame.columns)
        raise SchemaMismatchError(
            f"the rows for {_describe_store(store)} must have the columns {required}, not {actual}"
        )
    session: Any = frame.sparkSession
    ordered: Any = frame.select(*_COLUMNS)._jdf
    try:
        rows = ordered.queryExecution().toRdd()
        partition_count = int(rows.getNumPartitions())
    except SPARK_ERRORS as error:
        raise StorageError(
            f"cannot read the rows for {_describe_store(store)}: {describe_cause(error)}"
        ) from error
    if partition_count not in (partitions, 1):  # 1 if an operator has no shuffle key
        raise ParallelismError(
            f"{_describe_store(store)} has {partitions} partitions, but its rows are in "
            f"{partition_count}: repartition them"
        )
    java = session._jsparkSession
    return DataFrame(java.internalCreateDataFrame(rows, ordered.schema(), False), session)


def _local_uri(path: Path) -> str:
    """Return Hadoop's URI of a local path, independent of its default; it does not unescape."""
    return f"file://{path}"


def _describe_store(store: _Store) -> str:
    return f"operator {store[0]}, store {store[1]!r}"
