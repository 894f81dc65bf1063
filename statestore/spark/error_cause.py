"""Find the reason in an error of Spark."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError

__all__ = ["describe_cause"]


def describe_cause(error: BaseException) -> str:
    """Return the innermost cause in the JVM, or the first line of the error.

    The outer errors of the JVM only say that a job, or a call from Python, failed.
    """
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        return _first_line(str(cause.toString()))
    return _first_line(str(error)) or type(error).__name__


def _first_line(text: str) -> str:
    return next(filter(str.strip, text.splitlines()), "")
