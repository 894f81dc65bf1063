"""Requests to S3: how long each is waited for, and its answers as errors that say what to do."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage.base import without_credentials

__all__ = [
    "ATTEMPTS",
    "CONNECT_SECONDS",
    "READ_SECONDS",
    "S3Reader",
    "S3Writer",
    "attempts_of",
    "patient",
    "s3_code",
    "s3_errors",
    "whole",
]


# How long S3 is waited for, and how often it is asked: every wait has an end, in seconds.
#
# Two layers know how to try again, botocore (a request) and s3fs (a request, and once more around
# its body): together they would multiply, and take half an hour to name a server that is dead. So
# botocore alone repeats a request; s3fs is told to ask once; and an answer that breaks off in its
# body, of which botocore knows nothing, is asked for again here.
#
# A server that is gone is named within seconds: one that refuses connections after 7 s at most, one
# that does not answer them after 27 s, one that takes requests and stays silent after 47 s. (Where
# a connection that was kept open ends without an answer, aiohttp sends the request once more.)
# ``config_kwargs`` in the storage options replaces each setting on its own, by botocore's names.


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


# What S3 answers, as errors of ours that say what to do; its objects as files that raise them.
#
# Of botocore's, aiohttp's and s3fs's errors not all are OSError, and s3fs turns some of S3's own
# into a bare EINVAL. Here each becomes StorageError, its cause kept, or FileNotFoundError where the
# caller asked for an object that is not there. Neither library is imported: errors go by their
# names.


# What was tried again before it came out, of what is no answer of the server.
UNANSWERED = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"),
    *("ReadTimeoutError", "ProxyConnectionError", *BROKEN_OFF),
}
ADVICE = {
    "there is no such bucket; create it, or check the URL": {"NoSuchBucket"},
    "the server refuses these credentials, or they do not permit this; check the storage options "
    "key and secret, or the AWS_… variables and profile": {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403"),
        *("ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
    },
    "give the storage options key and secret, or set the variables AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY": {"NoCredentialsError", "PartialCredentialsError"},
    "check that the server runs, and the storage option endpoint_url; then try again": UNANSWERED,
    "another put of it is under way; try again": {"ConditionalRequestConflict"},
    "the server has too much to do; try again later": {"SlowDown", "ServiceUnavailable", "503"},
    "the server failed; look into its log, or try again later": {
        *("InternalError", "500", "BadGateway", "502", "GatewayTimeout", "504"),
    },
    "the server lacks what a store needs of S3; use another server, or a local folder": {
        *("NotImplemented", "501"),
    },
    "check the storage options": {"TypeError", "ValueError", "ParamValidationError"},
}


@contextmanager
def s3_errors(action: str, where: str, attempts: int) -> Iterator[None]:
    """Turn any error of S3 into StorageError naming what was tried, where, how often, and what to
    do.

    FileNotFoundError stays what it is while reading, unless it is the bucket that is missing.
    """
    start = time.monotonic()
    try:
        yield
    except (InvalidArgumentError, StorageError):
        raise
    except Exception as error:
        code = s3_code(error)
        if action == "read" and isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
        advice = [text for text, codes in ADVICE.items() if code in codes]
        text = str(error) or str(error.__cause__ or code)  # fsspec's timeout is silent
        said = without_credentials(" ".join(text.split()).rstrip("."))
        said += _tried(error, attempts, time.monotonic() - start)
        raise StorageError("; ".join([f"cannot {action} {where}: {said}", *advice])) from error


def s3_code(error: BaseException) -> str:
    """Return S3's own name of an error, which s3fs keeps as the cause, else that of its class."""
    response = getattr(error.__cause__ or error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", type(error).__name__))


def _tried(error: BaseException, attempts: int, seconds: float) -> str:
    """Return how often and how long it was tried, where it was tried again."""
    response = getattr(error.__cause__ or error, "response", None) or {}
    again = int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
    if again:
        return f" (tried {again + 1} times in {seconds:.1f} s)"
    if attempts > 1 and s3_code(error) in UNANSWERED:
        # botocore stops sooner when much has failed before, and does not say so.
        return f" (tried up to {attempts} times in {seconds:.1f} s)"
    return ""


class S3Reader(io.RawIOBase):
    """An object to read and seek in, fetched by byte ranges; wraps a file of s3fs."""

    def __init__(self, file: Any, where: str, attempts: int) -> None:
        """Take a file opened to read, its URL for messages, how often to ask for a range."""
        self._file, self._where, self._attempts = file, where, attempts

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a position; costs nothing until it is read from."""
        return int(self._file.seek(offset, whence))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        with s3_errors("read", self._where, self._attempts):
            read = functools.partial(self._file.read, -1 if size is None else size)
            return cast(bytes, whole(read, self._attempts))

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; return how much."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Let go of what was read ahead."""
        super().close()
        self._file.close()


class S3Writer(io.RawIOBase):
    """A new object, sent in parts while it is written; it exists once it is closed, whole.

    Not s3fs's own file, which finishes the object when it is merely dropped, also after an error,
    and at the end of the interpreter waits for ever for a thread that has ended before.
    """

    def __init__(
        self, call: Callable[..., dict[str, Any]], where: str, part_bytes: int, attempts: int
    ) -> None:
        """Take what asks S3 about this object, and how often at most; its URL for messages; and
        how much a part holds.
        """
        self._call, self._where, self._part_bytes = call, where, part_bytes
        self._attempts, self._size = attempts, 0
        self._waiting = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Take bytes; once they fill a part, it is sent."""
        if self.closed:
            raise ValueError(f"{self._where} is closed already")
        size = memoryview(data).nbytes
        self._waiting += data
        self._size += size
        with s3_errors("write", self._where, self._attempts), self._discarding():
            while len(self._waiting) >= self._part_bytes:
                self._send_part()
        return size

    def close(self) -> None:
        """Make the object appear."""
        if self.closed:
            return
        super().close()
        with s3_errors("write", self._where, self._attempts), self._discarding():
            if self._upload is None:
                self._call("put_object", Body=bytes(self._waiting))
                return
            if self._waiting:
                self._send_part()
            self._complete()

    def abandon(self) -> None:
        """Let nothing appear, and the parts that were sent go: they would stay, unseen and billed.

        What the server does not take back now, a collection does.
        """
        if not self.closed:
            super().close()
            self._take_back()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close it, or after an exception abandon it."""
        self.close() if kind is None else self.abandon()

    def __del__(self) -> None:
        """Send nothing: what was not closed shall not appear."""
        super().close()

    def _take_back(self) -> None:
        if self._upload is not None:
            with suppress(Exception):
                self._call("abort_multipart_upload", UploadId=self._upload)

    def _send_part(self) -> None:
        if self._upload is None:
            self._upload = str(self._call("create_multipart_upload")["UploadId"])
        number = len(self._parts) + 1
        body = bytes(self._waiting[: self._part_bytes])
        sent = self._call("upload_part", UploadId=self._upload, PartNumber=number, Body=body)
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        del self._waiting[: self._part_bytes]

    def _complete(self) -> None:
        parts = {"Parts": self._parts}
        try:
            self._call("complete_multipart_upload", UploadId=self._upload, MultipartUpload=parts)
        except OSError as error:
            # botocore lost the answer and asked again: what is complete is no upload any more. The
            # name is new and this file's alone, so an object of its length is this one.
            if s3_code(error) != "NoSuchUpload":
                raise
            if int(self._call("head_object")["ContentLength"]) != self._size:
                raise

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            super().close()
            self._take_back()
            raise
