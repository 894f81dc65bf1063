"""How long S3 is waited for, and how often it is asked: every wait has an end, in seconds.

Two layers know how to try again, botocore (a request) and s3fs (a request, and once more around
its body): together they would multiply, and take half an hour to name a server that is dead. So
botocore alone repeats a request; s3fs is told to ask once; and an answer that breaks off in its
body, of which botocore knows nothing, is asked for again here.

A server that is gone is named within seconds: one that refuses connections after 7 s at most, one
that does not answer them after 27 s, one that takes requests and stays silent after 47 s. (Where
a connection that was kept open ends without an answer, aiohttp sends the request once more.)
``config_kwargs`` in the storage options replaces each setting on its own, by botocore's names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from statestore.errors import InvalidArgumentError

__all__ = ["ATTEMPTS", "CONNECT_SECONDS", "READ_SECONDS", "attempts_of", "patient", "whole"]

Answer = TypeVar("Answer")

# Four in all: waits of up to 1, 2 and 4 s lie between them, at random, so that writers who were
# told to slow down together do not come back together. More would make a dead server slow to name.
ATTEMPTS = 4
# A server in reach accepts in a fraction of a second; a lost packet is sent again after 1 and 3 s.
CONNECT_SECONDS = 5.0
# Between two pieces of an answer, not for all of it: large files take as long as they take. S3's
# first byte comes in well under a second; 10 s leave room for one that is busy.
READ_SECONDS = 10.0
# botocore's newer way: it also repeats all that AWS calls transient, and after many failures in a
# row asks less often.
MODE = "standard"

# An answer that began, and then broke off, stood still, or is no XML.
BROKEN_OFF = {
    # fsspec's own name for a body that stands still; its threads wait without a limit otherwise.
    "FSTimeoutError",
    *("ClientPayloadError", "ResponseStreamingError", "AioReadTimeoutError"),
    *("IncompleteRead", "IncompleteReadError", "ResponseParserError"),
}


def patient(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return s3fs options with these settings where they leave botocore's open.

    Raises InvalidArgumentError when ``config_kwargs`` is no table.
    """
    given = options.get("config_kwargs") or {}
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            "the storage option config_kwargs is a table of names and values"
        )
    config = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "retries": {"mode": MODE, "total_max_attempts": ATTEMPTS},
    }
    return {**options, "config_kwargs": config | dict(given)}


def attempts_of(options: Mapping[str, Any]) -> int:
    """Return how often a request is sent at most, as the options of :func:`patient` say."""
    retries = options["config_kwargs"]["retries"]
    if not isinstance(retries, Mapping):  # botocore refuses it, in its own words
        return 1
    # botocore's max_attempts are those after the first.
    return int(retries.get("total_max_attempts", retries.get("max_attempts", ATTEMPTS - 1) + 1))


def whole(call: Callable[[], Answer], attempts: int) -> Answer:
    """Return what a call reads; ask again when the answer breaks off, at most so often in all."""
    for attempt in itertools.count(1):
        try:
            return call()
        except Exception as error:
            broken_off = _broken_off(error)
            if broken_off is None:
                raise
            if attempt >= attempts:
                raise broken_off from broken_off.__cause__
            # s3fs has waited a moment already.
    raise AssertionError("an answer or an error came before this")


def _broken_off(error: BaseException | None) -> BaseException | None:
    """Return what broke off; s3fs's files trip over fsspec's timeout, which then lies beneath."""
    while error is not None and type(error).__name__ not in BROKEN_OFF:
        error = error.__context__
    return error
