"""An error of Spark is called damage only if it says so, and its cause is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from statestore.spark.error_cause import SPARK_ERRORS, describe_cause, is_damage

STATE = "[CANNOT_LOAD_STATE_STORE."


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        ("java.io.EOFException", "Stream ended prematurely", True),
        ("java.io.FileNotFoundException", "File state/0/0/2.delta does not exist", True),
        ("java.io.FileNotFoundException", "state/0/0/2.delta (Permission denied)", False),
        ("java.io.FileNotFoundException", "state/0/0/2.delta (Too many open files)", False),
        ("java.io.FileNotFoundException", "/tmp/blockmgr-1/0a/shuffle_0_0_0.data", False),
        ("java.io.IOException", "Stream is corrupted", True),
        ("java.io.IOException", "No space left on device", False),
        ("java.net.ConnectException", "Connection refused", False),
        ("java.lang.OutOfMemoryError", "Java heap space", False),
        ("java.lang.ClassNotFoundException", "org.apache.hadoop.fs.s3a.S3AFileSystem", False),
        ("java.lang.IllegalStateException", f"{STATE}UNEXPECTED_FILE_SIZE] 0 bytes", True),
        ("java.lang.IllegalStateException", f"{STATE}UNRELEASED_THREAD_ERROR] 1", False),
        ("java.lang.IllegalStateException", f"{STATE}ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY]", False),
        ("java.lang.IllegalStateException", "[MALFORMED_LOG_FILE] no version", True),
        ("java.lang.IllegalStateException", "[UNSUPPORTED_DATATYPE] time(6)", False),
        ("org.rocksdb.RocksDBException", "No space left on device", False),
    ],
)
def test_the_innermost_cause_tells_damage(
    spark: SparkSession, name: str, message: str, expected: bool
) -> None:
    jvm: Any = spark._jvm
    cause = jvm
    for part in name.split("."):
        cause = getattr(cause, part)
    outer = jvm.java.lang.RuntimeException(f"{STATE}UNCATEGORIZED]", cause(message))
    error = Py4JJavaError("", outer)
    assert is_damage(error) is expected
    assert describe_cause(error) == f"{name}: {message}"


def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError("no license")


def test_the_error_of_a_worker_is_named(spark: SparkSession) -> None:
    with pytest.raises(SPARK_ERRORS) as caught:
        spark.range(1).mapInArrow(fail, "id long").collect()
    assert describe_cause(caught.value) == "ValueError: no license"
    assert not is_damage(caught.value)


def test_the_error_of_an_expression_is_named(spark: SparkSession) -> None:
    with pytest.raises(SPARK_ERRORS) as caught:
        spark.range(1).select(F.raise_error(F.lit("no room"))).collect()
    assert "no room" in describe_cause(caught.value)
    assert not is_damage(caught.value)
