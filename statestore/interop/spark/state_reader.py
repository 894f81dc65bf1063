"""Read the rows of a query's state with Spark's own reader, to import or to verify them.

Spark reads a location as if it described its operators and its settings correctly. Nothing is
written to the location, whose query may be running. Instead Spark reads it through Hadoop's ViewFs,
which joins several folders under one URL: the location, and a temporary folder with the
descriptions to replace. Only Spark's driver reads descriptions, so this folder can be local.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pyspark
from pyspark.sql import SparkSession

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    MissingDependencyError,
    StorageError,
)
from statestore.interop.spark.descriptions import rewrite_description, schema_folder
from statestore.interop.spark.location import FORMAT_VERSION, CheckpointLocation
from statestore.interop.spark.operator_reader import Operator
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.compat import INSTALLED, refuse_connect
from statestore.spark.error_cause import SPARK_ERRORS, describe_cause, is_damage
from statestore.spark.session_settings import session_settings

_FIRST_WITH_STATE_IDS, _FIRST_WITH_NAMED_OFFSETS, _FIRST_WITH_FAMILIES = (4, 1), (4, 2), (4, 2)
# If this is on, Spark looks up each row of a changelog in RocksDB to count the rows.
_COUNTS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


@contextmanager
def prepared_session(
    spark: SparkSession, location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> Iterator[str]:
    """Prepare a session so that Spark can read the state of a micro-batch within a block.

    Args:
        spark: the session.
        location: the location.
        batch: a committed micro-batch.
        operators: the operators of the location, empty if their descriptions are correct.

    Yields:
        The URL with which Spark must read.

    Raises:
        InvalidArgumentError: for a session of Spark Connect, which lacks the necessary access.
        MissingDependencyError: if this Spark is older than a format of the location.
        DamagedFileError: if a file that Spark reads within the block is missing or damaged.
        StorageError: if Spark fails within the block for any other reason.
    """
    refuse_connect(spark, "reading the state of a query")
    _refuse_newer_format(location, batch, operators)
    if set(location.spark_url) & {" ", "%"}:
        raise InvalidArgumentError(
            f"Spark's state reader cannot open {location.url} because it misinterprets spaces "
            "and '%' in the name of a folder. Copy or link the folder to another name"
        )
    configure_storage_access(spark, location.storage)
    _ = spark.streams  # starts the coordinator of state stores, which Spark's reader needs
    settings = {FORMAT_VERSION: str(location.commit(batch).version), _COUNTS: "false"}
    try:
        with (
            session_settings(spark, settings),
            _described_location(spark, location, batch, operators) as url,
        ):
            yield url
    except SPARK_ERRORS as error:
        what, cause = f"micro-batch {batch} in {location.url}", describe_cause(error)
        if is_damage(error):
            raise DamagedFileError(
                f"Spark cannot read the state of {what}: a file of it is missing or damaged. "
                f"Choose an older intact micro-batch (Spark reports {cause})"
            ) from error
        raise StorageError(
            f"Spark failed while it processed the state of {what}, and reported no damaged file: "
            f"{cause}. Remove this cause, and repeat the command"
        ) from error


def _refuse_newer_format(
    location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> None:
    formats = {
        "version 2 of the offset log": location.plan(batch).sources is not None
        and INSTALLED < _FIRST_WITH_NAMED_OFFSETS,
        "version 2 of the checkpoint format": location.commit(batch).version > 1
        and INSTALLED < _FIRST_WITH_STATE_IDS,
        **{
            f"column families of operator {operator.number} ({operator.name})": INSTALLED
            < _FIRST_WITH_FAMILIES
            for operator in operators
            if operator.has_families
        },
    }
    for name, is_newer in formats.items():
        if is_newer:
            raise MissingDependencyError(
                f"{location.url} has {name}, which the state reader of Spark {pyspark.__version__} "
                "does not support; use Spark 4.2 or later"
            )


@contextmanager
def _described_location(
    spark: SparkSession, location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> Iterator[str]:
    """Yield a URL with which Spark can read all operators of a micro-batch within a block."""
    name = f"statestore-{uuid4().hex}"
    url = f"viewfs://{name}"
    files = dict(pair for operator in operators for pair in _list_replaced(operator, url))
    partitions = [store.partitions for operator in operators for store in operator.stores]
    if partitions:
        files |= location.corrected_plan(batch, max(partitions))
    if not files:
        yield location.spark_url
        return
    table = f"fs.viewfs.mounttable.{name}"
    with TemporaryDirectory(prefix="statestore-") as root:
        links = {f"{table}.linkFallback": location.spark_url}
        for file, content in files.items():
            path = Path(root, file)
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
            folder = re.sub("(_metadata|offsets)/.*", r"\1", file)
            links[f"{table}.link./{folder}"] = f"file://{root}/{folder}"
        with session_settings(spark, links):
            try:
                yield f"{url}/"
            finally:
                _close_file_system(spark, url)


def _list_replaced(operator: Operator, url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files that Spark must read instead of the stored ones."""
    yield from operator.corrections.items()
    if operator.moved_from is not None:
        folder = schema_folder(url, operator.number)
        yield operator.metadata, rewrite_description(operator.description, folder)


def _close_file_system(spark: SparkSession, url: str) -> None:
    """Remove the file system of a URL from Hadoop's cache, which would keep it forever."""
    session: Any = spark
    conf = session._jsparkSession.sessionState().newHadoopConf()
    session._jvm.org.apache.hadoop.fs.Path(f"{url}/").getFileSystem(conf).close()
