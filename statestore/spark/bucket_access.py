"""Spark's own access to a bucket, through ``s3a``.

Spark reads Delta tables in the bucket, and keeps the checkpoints of queries there.

The store's endpoint and credentials are passed on in the Hadoop configuration of the running
Spark, under the bucket's own names. Spark shows and logs its own configuration, and keeps it in
its event log, so it never holds a credential. It shows only redacted values of the Hadoop
configuration. The first file system that Spark opens for a bucket keeps its credentials
for the lifetime of the session.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from statestore.spark.compat import has_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.storage import Storage

# At level DEBUG, these loggers log the data that is sent to the JVM.
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


def configure_storage_access(spark: SparkSession, storage: Storage) -> None:
    """Let Spark itself access the store's storage; does nothing for a local file system.

    It also does nothing for Spark Connect, whose server alone has a Hadoop configuration.
    """
    settings = storage.hadoop_settings() if has_jvm(spark) else {}
    if not settings:
        return
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    with _silence_output():
        for name, value in settings.items():
            configuration.set(name, value)


@contextmanager
def _silence_output() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled
