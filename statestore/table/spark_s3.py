"""Spark's own access to a bucket: Delta's log is read and written by the JVM, through ``s3a``.

What the store was told (endpoint, credentials) is handed on in the Hadoop configuration of the
running Spark, under the bucket's own names. Spark's configuration, which it shows, logs and keeps
in its event log, never holds it; of Hadoop's it shows nothing but keys whose values it blanks. The
first file system that Spark opens for a bucket keeps its credentials for the life of the session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from statestore.errors import MissingDependencyError
from statestore.storage import Storage

__all__ = ["hand_on", "refuse_without_s3a"]

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
