"""Convert errors of a Python worker, which Spark reports as text, to errors of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from statestore.errors import ProcessorError

__all__ = ["worker_errors"]

_MESSAGE = re.compile(r"ProcessorError: (the (?:processor|function) of operator .*)")


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a worker's ProcessorError as a ProcessorError, and any other error unchanged."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        message = _MESSAGE.search(str(error))
        if message is None:
            raise
        raise ProcessorError(message[1]) from error
