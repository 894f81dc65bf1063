"""Find the cause of an error of Spark, such as a damaged file, and show rows in a message."""

from __future__ import annotations

import re
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statestore.rows.lossless_cast import shorten
from statestore.spark.compat import Py4JError, Py4JJavaError

SPARK_ERRORS: Final = (Py4JError, PySparkException)
"""The errors of calls to Spark: PySpark converts some errors of the JVM to its own classes."""

# Classes of the JVM for content that is missing, cut off, or not in its format.
_DAMAGE_CLASSES: Final = re.compile(
    r"(EOF|FileNotFound|NoSuchFile|Checksum|UTFDataFormat|MalformedInput|Zip|Zstd(IO)?|LZ[4F]"
    r"|Snappy(IO)?|JsonParse|Mapping|DataFormat)Exception$"
)
# Spark's error conditions for the content of its state. Others have another cause, such as memory.
_DAMAGE_CONDITIONS: Final = re.compile(
    r"\[(CANNOT_LOAD_STATE_STORE\.(CANNOT_(FIND|READ)_\w+|INVALID_CH\w+|UNEXPECTED_FILE_SIZE"
    r"|(KEY|VALUE)_ROW_\w+|SNAPSHOT_PARTITION_ID_NOT_FOUND)"
    r"|STATE_STORE_((KEY|VALUE)_ROW_FORMAT_VALIDATION_FAILURE|ROW_CHECKSUM_\w+|UNEXPECTED_EMPTY\w+)"
    r"|CHECKPOINT_FILE_CHECKSUM_\w+|MALFORMED_LOG_FILE"
    r"|STDS_NO_PARTITION_DISCOVERED_IN_STATE_STORE)\]"
)
# Messages of an IOException about a compressed stream.
_DAMAGE_MESSAGES: Final = re.compile(r"Stream is corrupted|failed to read chunk|FAILED_TO_UNCOMP")
# The JVM raises FileNotFoundException for these, and for lost files of a shuffle, too.
_NO_DAMAGE: Final = re.compile(r"Permission denied|Too many open files|/blockmgr-")


def describe_cause(error: BaseException) -> str:
    """Return the innermost cause in the JVM, or the error of a Python worker, in one line.

    The outer errors of the JVM only say that a job, or a call from Python, failed.
    """
    cause = _innermost(error)
    text = str(error) if cause is None else str(cause.toString())
    _, found, text = text.partition("\n\nJVM stacktrace:")[0].rpartition("Traceback (most recent")
    # A worker's error follows the indented lines of its traceback.
    lines = (line for line in text.splitlines() if not found or not line.startswith(" "))
    return next(filter(str.strip, lines), type(error).__name__)


def is_damage(error: BaseException) -> bool:
    """Return whether Spark failed because a file is missing or damaged.

    Only such errors are named. Any other error, such as a missing class, a lack of memory or
    access, or a failed worker, says nothing about the files.
    """
    cause = _innermost(error)
    if cause is None:
        return False
    message = str(cause.getMessage())
    if _NO_DAMAGE.search(message):
        return False
    name = str(cause.getClass().getSimpleName())
    if name == "RocksDBException":
        status = cause.getStatus()
        return status is not None and str(status.getCode().toString()) == "Corruption"
    return bool(
        _DAMAGE_CLASSES.search(name)
        or _DAMAGE_CONDITIONS.match(message)
        or _DAMAGE_MESSAGES.search(message)
    )


def _innermost(error: BaseException) -> Any:
    """Return the innermost throwable of the JVM; None if the error is not from the JVM."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    cause = cause or getattr(error, "_origin", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return cause


_MOST_EXAMPLES = 3


def example_rows(rows: DataFrame) -> tuple[str, ...]:
    """Return the first rows as text; they are computed now."""
    first = rows.limit(_MOST_EXAMPLES).collect()
    return tuple(shorten(str(row.asDict(recursive=True))) for row in first)
