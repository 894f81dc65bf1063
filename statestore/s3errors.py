"""What S3 answers, as errors of ours that say what to do; and files that raise them.

Of botocore's, aiohttp's and s3fs's errors not all are OSError, and s3fs turns some of S3's own into
a bare EINVAL. Here each becomes StorageError, its cause kept, or FileNotFoundError where the caller
asked for an object that is not there. Neither library is imported: errors go by their names.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from statestore.errors import StorageError

__all__ = ["S3File", "s3_code", "s3_errors"]

ADVICE = {
    "there is no such bucket; create it, or check the URL": {"NoSuchBucket"},
    "the server refuses these credentials, or they do not permit this; check the storage options "
    "key and secret, or the AWS_… variables and profile": {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403"),
        *("ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
    },
    "give the storage options key and secret, or set the variables AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY": {"NoCredentialsError", "PartialCredentialsError"},
    "check that the server runs, and the storage option endpoint_url; then try again": {
        *("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"),
        *("ReadTimeoutError", "ProxyConnectionError", "FSTimeoutError", "ClientPayloadError"),
    },
    "another put of it is under way; try again": {"ConditionalRequestConflict"},
    "the server has too much to do; try again later": {"SlowDown", "ServiceUnavailable", "503"},
    "check the storage options": {"TypeError", "ValueError", "ParamValidationError"},
}


@contextmanager
def s3_errors(action: str, where: str) -> Iterator[None]:
    """Turn any error of S3 into StorageError naming what was tried, where, and what to do.

    FileNotFoundError stays what it is while reading, unless it is the bucket that is missing.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        code = s3_code(error)
        if action == "read" and isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
        advice = [text for text, codes in ADVICE.items() if code in codes]
        said = " ".join(str(error).split()).rstrip(".") or code
        raise StorageError("; ".join([f"cannot {action} {where}: {said}", *advice])) from error


def s3_code(error: BaseException) -> str:
    """Return S3's own name of an error, which s3fs keeps as the cause, else that of its class."""
    response = getattr(error.__cause__ or error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", type(error).__name__))


class S3File(io.RawIOBase):
    """A file of s3fs whose errors are ours; after one, nothing of a new object appears."""

    def __init__(self, file: Any, where: str) -> None:
        """Take a file that s3fs opened as ``rb`` or ``xb``, and its URL for messages."""
        self._file, self._where = file, where
        self._reads: bool = file.mode == "rb"

    def readable(self) -> bool:
        """Return whether it was opened to read."""
        return self._reads

    def writable(self) -> bool:
        """Return whether it was opened to write."""
        return not self._reads

    def seekable(self) -> bool:
        """Return whether it can be read from any place; a new object is written front to back."""
        return self._reads

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a position; costs nothing until it is read from."""
        return int(self._file.seek(offset, whence))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        with s3_errors("read", self._where):
            return cast(bytes, self._file.read(-1 if size is None else size))

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; return how much."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any, /) -> int:
        """Take bytes; they are sent a part at a time."""
        with s3_errors("write", self._where), self._discarding():
            return int(self._file.write(data))

    def close(self) -> None:
        """Finish: a new object exists from here on, whole."""
        if self.closed:
            return
        super().close()
        with s3_errors("read" if self._reads else "write", self._where), self._discarding():
            self._file.close()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._file.closed = True
            # Parts that were sent would stay, unseen and billed.
            self._file.discard()
            raise
