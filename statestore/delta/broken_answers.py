"""Repeat reads of Delta tables whose answers break off.

delta-rs repeats a request that gets no answer, or a server's error. It does not repeat a request
whose answer breaks off: it reports the lost connection. A network or server that closes connections
would otherwise end the checkpoint that reads a log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import DeltaError

from statestore.storage.requests import ATTEMPTS, retry

__all__ = ["is_broken_off", "retry_broken_answers"]

R = TypeVar("R")

# The reasons that delta-rs's client for HTTP gives for an answer without its end.
_BROKEN_OFF = ("request or response body error", "error decoding response body")


def retry_broken_answers(call: Callable[[], R]) -> R:
    """Return the result of a call that reads a Delta table, or that may be repeated after reading.

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
