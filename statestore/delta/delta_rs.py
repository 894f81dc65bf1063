"""Workarounds for delta-rs: reads whose answers break off, and forked processes.

delta-rs repeats a request that gets no answer, or a server's error. It does not repeat a request
whose answer breaks off: it reports the lost connection. A network or server that closes connections
would otherwise end the checkpoint that reads a log.

delta-rs runs its work on threads that a forked child does not inherit. It notices this, and ends
each call in a Rust panic, which ``except Exception`` does not catch. A forked child is therefore
detected before it changes anything.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from statestore.errors import InvalidArgumentError
from statestore.storage.requests import ATTEMPTS, retry

R = TypeVar("R")

# The reasons that delta-rs's client for HTTP gives for an answer without its end.
_BROKEN_OFF = ("request or response body error", "error decoding response body")


def retry_broken_answers(call: Callable[[], R]) -> R:
    """Return the result of a call to delta-rs that may be repeated, such as a read.

    The call is repeated a few times, after random waits, if an answer broke off.

    Args:
        call: reads a table. It may also write, if a repeated call recognizes its own earlier write.

    Returns:
        The result.

    Raises:
        Exception: the error of the last attempt.
    """
    return retry(call, ATTEMPTS, is_broken_off)


def is_broken_off(error: Exception) -> bool:
    """Return whether delta-rs reports an answer that broke off."""
    return isinstance(error, DeltaError | OSError) and any(
        reason in str(error) for reason in _BROKEN_OFF
    )


_IMPORTED_IN: Final = os.getpid()
_PANIC: Final = "PanicException"


def refuse_forked(url: str) -> None:
    """Refuse a Delta table in a process that was forked after its parent had used delta-rs.

    Args:
        url: the store or table, for the message.

    Raises:
        InvalidArgumentError: if delta-rs does not run in this process.
    """
    process = os.getpid()
    if process != _IMPORTED_IN and not _runs(process):
        raise InvalidArgumentError(
            f"process {process} cannot use the Delta tables of {url}: it was forked from a "
            "process that had already used Delta, and a forked process does not have Delta's "
            "threads. Nothing was claimed or written. Start processes with 'spawn' "
            "(multiprocessing.get_context('spawn')), or open the store with "
            "table_format='parquet'"
        )


@cache
def _runs(process: int) -> bool:
    """Return whether delta-rs works in this process; only a call can tell.

    The answer is cached only for ``process``, because its children may differ.
    """
    with tempfile.TemporaryDirectory(prefix="statestore-") as folder:
        try:
            DeltaTable(folder)
        except TableNotFoundError:
            return True
        except BaseException as error:
            if type(error).__name__ == _PANIC:  # the exception's class cannot be imported
                return False
            raise
    return True
