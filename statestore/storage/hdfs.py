"""HDFS, over WebHDFS, by the connection of fsspec: its requests, and what its errors mean.

A put on a condition is a hidden file of another name, which is then renamed: the namenode renames a
file for one client at a time, and refuses when the new name is taken. So a file is there whole or
not at all. (A file that is created under its own name is seen while it is still empty.)

A request may be late: its answer was given up, it was sent again, and then the first one is done
all the same. So each attempt to write a file has a hidden name of its own, what was renamed is
known again by its identity, and bytes that may have been appended are not sent a second time.

A folder of HDFS is asked as a bucket is: keys are paths. What writes large files appends to them,
part by part, before they get their names.
"""

from __future__ import annotations

import getpass
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast
from urllib.parse import quote, urlsplit

import fsspec.config

from statestore.errors import InvalidArgumentError
from statestore.storage.base import Listed
from statestore.storage.objects import DEFAULT_STREAMS, ObjectStorage, Page
from statestore.storage.requests import (
    ATTEMPTS,
    CONNECT_SECONDS,
    NOT_REACHED,
    READ_SECONDS,
    Failure,
    Upload,
    advice_of,
    again,
)

__all__ = ["HdfsStorage"]

_WEB_PORT = 9870
# A datanode answers once the bytes are on others too, and the namenode has heard of all of them.
_WRITE_SECONDS = 30.0
_MISSING = "FileNotFoundException"
# A file whose last writer is being waited for: nothing was appended to it.
_HELD = {"AlreadyBeingCreatedException", "RecoveryInProgressException"}
_PASSING = {
    # Each goes by, as a namenode that starts.
    *("RetriableException", "SafeModeException", "StandbyException", "ServerNotActiveException"),
    *_HELD,
    *("500", "502", "503", "504"),
    *("ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError"),
    "ContentDecodingError",
}
_ADVICE = {
    "HDFS does not permit it; give the folder to this user, or name another one by the storage "
    "option user, or the variable HADOOP_USER_NAME": {
        *("AccessControlException", "SecurityException", "AuthorizationException", "403"),
    },
    "who asks is not known; check the storage options token and kerberos": {
        *("AuthenticationException", "InvalidToken", "401"),
    },
    "a quota of this folder is used up; raise it (hdfs dfsadmin -setSpaceQuota), or delete "
    "checkpoints": {
        *("DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"),
    },
    "the namenode is in safe mode, and takes no changes; look into its log, or wait": {
        "SafeModeException"
    },
    "this namenode is not the active one; name that by the storage option host": {
        "StandbyException"
    },
    NOT_REACHED.format(
        endpoint="port (or FSSPEC_WEBHDFS_PORT), that of the namenode's web server"
    ): {
        *("ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError"),
        *("ContentDecodingError", "InvalidURL", "404"),
    },
    "the server has too much to do; try again later": {"RetriableException", "503"},
    "check the storage options": {"TypeError", "ValueError", "IllegalArgumentException"},
}


class _Refused(OSError):
    """An answer that is an error: its status, and Hadoop's own name for it."""

    def __init__(self, status: int, answer: Any) -> None:
        try:
            said = answer.json()["RemoteException"]
            self.code, text = str(said["exception"]), str(said["message"])
        except (ValueError, KeyError, TypeError):
            self.code, text = str(status), f"HTTP {status} {answer.reason}"
        # Some messages go on with Java's stack.
        super().__init__(text.partition("\n")[0])


class HdfsStorage(ObjectStorage):
    """A folder of HDFS: ``hdfs://namenode:8020/folder``; with options of fsspec's WebHDFS."""

    scheme, extra = "hdfs", "hdfs"
    most_copied_bytes: ClassVar[int] = -1  # nothing is copied without its bytes passing through

    def __init__(
        self, url: str, options: Mapping[str, Any], streams: int = DEFAULT_STREAMS
    ) -> None:
        """Take an ``hdfs://`` URL and options; nothing is read yet.

        Raises InvalidArgumentError for a URL without a namenode and a folder.
        """
        super().__init__(url, options, streams)
        if not all(self._place()):
            raise InvalidArgumentError(
                "a store on HDFS needs a namenode and a folder: hdfs://namenode:8020/folder"
            )

    def _configure(self, options: Mapping[str, Any]) -> None:
        named: dict[str, Any] = {"host": urlsplit(self.url).hostname, "port": _WEB_PORT}
        # What is named here would win over fsspec's own settings, which commands go by.
        given = {**fsspec.config.conf.get("webhdfs", {}), **options}
        if not {"user", "token", "kerberos"} & set(given):
            # As Hadoop's own clients are known to a cluster without Kerberos.
            named["user"] = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._options = named | given

    def _connect(self) -> Any:
        from fsspec.implementations.webhdfs import WebHDFS  # it needs requests

        return WebHDFS(**self._options)

    def _ask(self, method: str, operation: str, path: str, **parameters: Any) -> Any:
        """Return the namenode's answer; it is asked again."""
        return again(lambda: self._once(method, operation, path, **parameters), ATTEMPTS, _passes)

    def _once(self, method: str, operation: str, path: str, **parameters: Any) -> Any:
        """Return the namenode's answer, which may be where the bytes are."""
        asked = {"op": operation, **self._fs.pars, **parameters}
        return self._send(method, f"{self._fs.url}/{quote(path)}", params=asked)

    def _bytes(self, method: str, asked: Any, data: bytes | None = None) -> Any:
        """Return the answer of the datanode that the namenode has named."""
        there = self._fs._apply_proxy(asked.headers["Location"])
        wait = READ_SECONDS if data is None else _WRITE_SECONDS
        return self._send(method, there, wait, data=data)

    def _send(self, method: str, url: str, wait: float = READ_SECONDS, **more: Any) -> Any:
        answer = self._fs.session.request(
            method, url, allow_redirects=False, timeout=(CONNECT_SECONDS, wait), **more
        )
        if answer.status_code >= 300 and answer.status_code != 307:
            raise _Refused(answer.status_code, answer)
        return answer

    def _get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        part = {} if start is None or stop is None else {"offset": start, "length": stop - start}

        def once() -> bytes:
            return cast(bytes, self._bytes("GET", self._once("GET", "OPEN", key, **part)).content)

        try:
            return again(once, ATTEMPTS, _passes)
        except _Refused as error:
            if "out of the range" not in str(error):  # it ends before
                raise
            return b""

    def _put(self, key: str, data: bytes) -> None:
        upload = self._begin(key)
        try:
            upload.complete(data)
        except BaseException:
            upload.abort()
            raise

    def _put_new(self, key: str, data: bytes, mark: str) -> bool:
        hidden = self._create(key, data)
        if self._rename(hidden, key, "fileId", self._status(hidden)["fileId"]):
            return True
        self._remove(hidden)
        return False

    def _create(self, key: str, data: bytes) -> str:
        """Write a hidden file; return its path."""

        def once() -> str:
            path = _hidden(key, uuid.uuid4().hex)
            self._bytes("PUT", self._once("PUT", "CREATE", path, overwrite="false"), data)
            return path

        return again(once, ATTEMPTS, _passes)

    def _rename(self, hidden: str, key: str, member: str, value: int) -> bool:
        """Return whether the hidden file has its name now; False when another has it.

        An answer may have been lost, and the next one be of no file: then the file of this name is
        the hidden one if this member of its status is. If it is not, somebody has deleted that.
        """
        answer = self._ask("PUT", "RENAME", hidden, destination=f"/{key}").json()
        if answer["boolean"]:
            return True
        if self._found(hidden) is not None:
            return False
        found = self._found(key)
        if found is None or found[member] != value:
            raise OSError(f"its hidden file {hidden} was deleted before it had its name")
        return True

    def _mark_of(self, key: str) -> str | None:
        return None  # who has won knows it from the rename

    def _size_of(self, key: str) -> int:
        return int(self._status(key)["length"])

    def _status(self, key: str) -> dict[str, Any]:
        return cast(dict[str, Any], self._ask("GET", "GETFILESTATUS", key).json()["FileStatus"])

    def _found(self, key: str) -> dict[str, Any] | None:
        try:
            return self._status(key)
        except _Refused as error:
            if error.code != _MISSING:
                raise
            return None

    def _remove(self, key: str) -> None:
        self._ask("DELETE", "DELETE", key)

    def _copy(self, old: str, new: str) -> None:
        raise NotImplementedError("WebHDFS copies nothing")

    def _page(self, prefix: str, most: int, following: Any) -> Page:
        return Page(tuple(self._below_folder(prefix.rstrip("/"))), None)

    def _below_folder(self, folder: str) -> Iterator[Listed]:
        after: dict[str, Any] = {}
        while True:
            try:
                answer = self._ask("GET", "LISTSTATUS_BATCH", folder, **after).json()
            except _Refused as error:
                if error.code != _MISSING:
                    raise
                return  # there is none, or it was deleted since
            listing = answer["DirectoryListing"]
            found = listing["partialListing"]["FileStatuses"]["FileStatus"]
            for item in found:
                path = f"{folder}/{item['pathSuffix']}"
                if item["type"] == "DIRECTORY":
                    yield from self._below_folder(path)
                else:
                    yield Listed(path, int(item["length"]), int(item["modificationTime"]))
            if not listing["remainingEntries"] or not found:
                return
            after = {"startAfter": found[-1]["pathSuffix"]}

    def _begin(self, key: str) -> Upload:
        return _Appended(self, key)

    def _end_upload(self, key: str, upload: str) -> None:
        self._remove(_hidden(key, upload))

    def _explain(self, error: Exception, action: str) -> Failure:
        code = _code(error)
        tried = f"{ATTEMPTS} times" if _passes(error) else ""
        return Failure(code, advice_of(code, _ADVICE), tried, code == _MISSING)

    def delta_options(self) -> dict[str, str]:
        """Return none: delta-rs asks the namenode itself, as Hadoop's configuration says."""
        return {}


class _Appended:
    """A hidden file that grows, and gets its name at the end."""

    def __init__(self, storage: HdfsStorage, key: str) -> None:
        """Begin with no file: nothing is asked yet."""
        self._storage, self._key, self._size = storage, key, 0
        self._path = ""

    def send(self, body: bytes) -> None:
        if self._path:
            again(lambda: self._append(body), ATTEMPTS, lambda error: _code(error) in _HELD)
        else:
            self._path = self._storage._create(self._key, body)
        self._size += len(body)

    def _append(self, body: bytes) -> None:
        """Append a part. Where its answer is lost, the file's length says whether it is there; if
        it is not, it may still come, and two of it would be another file.
        """
        storage = self._storage
        asked = storage._ask("POST", "APPEND", self._path)
        try:
            storage._bytes("POST", asked, body)
        except Exception:
            if storage._size_of(self._path) != self._size + len(body):
                raise

    def complete(self, last: bytes) -> None:
        if last or not self._path:
            self.send(last)
        if self._has_its_name():
            return
        # As on an object store, who writes a name again replaces what it had.
        self._storage._remove(self._key)
        if not self._has_its_name():
            raise FileExistsError("another writer writes this file")

    def _has_its_name(self) -> bool:
        return self._storage._rename(self._path, self._key, "length", self._size)

    def abort(self) -> None:
        if self._path:
            self._storage._remove(self._path)


def _hidden(key: str, upload: str) -> str:
    folder, slash, file = key.rpartition("/")
    return f"{folder}{slash}.{file}.upload-{upload}"


def _code(error: BaseException) -> str:
    return str(getattr(error, "code", None) or type(error).__name__)


def _passes(error: Exception) -> bool:
    return _code(error) in _PASSING
