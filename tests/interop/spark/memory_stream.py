"""A stream of texts that a test adds to, like the streams of Spark's own tests.

A query that was started with such a stream counts the calls of ``add``. So a query of Spark's
published checkpoint locations can continue with it after the same number of calls.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statestore.spark.compat import INSTALLED

__all__ = ["MemoryStream"]

_FIRST_IN_RUNTIME = (4, 1)


class MemoryStream:
    """Texts in a column ``value``; each call of :meth:`add` is one position of the source."""

    def __init__(self, spark: SparkSession) -> None:
        self._session: Any = spark
        jvm: Any = self._session._jvm
        package = jvm.org.apache.spark.sql.execution.streaming
        session = self._session._jsparkSession
        if INSTALLED >= _FIRST_IN_RUNTIME:
            package = package.runtime
        else:
            session = session.sqlContext()
        encoder = jvm.org.apache.spark.sql.Encoders.STRING()
        self._stream = package.MemoryStream(0, session, jvm.scala.Option.apply(1), encoder)

    def add(self, *texts: str) -> None:
        """Add texts."""
        jvm: Any = self._session._jvm
        values = jvm.java.util.ArrayList()
        for text in texts:
            values.add(text)
        self._stream.addData(jvm.scala.jdk.javaapi.CollectionConverters.asScala(values))

    def rows(self) -> DataFrame:
        """Return the stream."""
        return DataFrame(self._stream.toDF(), self._session)
