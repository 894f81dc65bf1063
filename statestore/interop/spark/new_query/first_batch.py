"""Let Spark plan the first micro-batch of a query without data, and keep what it writes.

Spark plans a micro-batch again if the offset log has an entry of it, with the ends in the entry. An
entry in which each source ends where it begins is therefore a micro-batch without data. It is
written to a temporary folder, where the query is started. Spark describes the query's stateful
operators there before it calls the sink. The sink is a function that ignores its rows. So no source
and no static table is read, and no state is written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statestore.errors import InvalidArgumentError
from statestore.interop.spark.location import FORMAT_VERSION
from statestore.interop.spark.new_query.source_positions import SourcePosition, offset_log_entry
from statestore.interop.spark.operator_reader import SHUFFLE_PARTITIONS
from statestore.spark.compat import INSTALLED
from statestore.spark.error_cause import describe_cause
from statestore.spark.session_settings import session_settings

_OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
# Spark 4.1 and later otherwise fail the micro-batch, because no task has written state.
_COMMIT_CHECK = "spark.sql.streaming.stateStore.commitValidation.enabled"
_FIRST_WITH_PACKAGE = (4, 1)


def plan_first_batch(
    query: DataFrame,
    output_mode: str,
    positions: Sequence[SourcePosition],
    location: Path,
    partitions: int,
) -> Any:
    """Write the files of a query's first micro-batch to a local folder, except the state's rows.

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
    version = f"v{spark.conf.get(_OFFSET_LOG, '1')}"
    ends = [position.planned for position in positions]
    return offset_log_entry(version, metadata, positions, ends)


def _ignore_rows(_rows: DataFrame, _batch: int) -> None:
    """Do nothing with the rows of a micro-batch."""
