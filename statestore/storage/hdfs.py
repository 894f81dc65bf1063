"""HDFS over WebHDFS, with the connection of fsspec: its requests and its errors.

A conditional put writes a hidden file and renames it. The namenode renames a file for one client at
a time, and refuses if the new name is taken. So a file exists completely or not at all. (A file
that is created under its final name is visible while it is still empty.)

A request may execute late: its answer timed out, it was retried, and the first attempt is executed
anyway. So each attempt to write a file has its own hidden name. A renamed file is recognized by its
identity. Bytes that may have been appended already are not sent again.

An HDFS folder is used like a bucket, with paths as keys. Large files are appended to part by part
before they are renamed.
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
from statestore.storage.base import DEFAULT_STREAMS, Listed
from statestore.storage.objects import ListingPage, ObjectStorage, hidden_name
from statestore.storage.requests import (
    ATTEMPTS,
    CONNECT_SECONDS,
    NOT_REACHED,
    READ_SECONDS,
    Failure,
    Upload,
    advice_of,
    retry,
)

_WEB_PORT = 9870
# A datanode answers after the bytes are replicated and the namenode knows all of the replicas.
_WRITE_SECONDS = 30.0
_MISSING = "FileNotFoundException"
_BELOW_FILE = "(is not a directory)"  # the end of an error for a path below a file
# HDFS still waits for the last writer of the file: nothing was appended to it.
_HELD = {"AlreadyBeingCreatedException", "RecoveryInProgressException"}
# A datanode gave up waiting for the replicas of a block; the error has no name of its own.
_FEW_REPLICAS = "does not have enough number of replicas"
_UNANSWERED = {
    *("ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError"),
    *("ContentDecodingError", "ProxyError"),
}
_PASSING = {
    # Transient errors, for example while a namenode starts.
    *("RetriableException", "SafeModeException", "StandbyException", "ServerNotActiveException"),
    "NotReplicatedYetException",
    *_HELD,
    *("500", "502", "503", "504"),
    *_UNANSWERED,
}
_ADVICE = {
    (
        "HDFS does not permit it; give this user access to the folder, or choose another user "
        "with the storage option user or the variable HADOOP_USER_NAME"
    ): {
        *("AccessControlException", "SecurityException", "AuthorizationException", "403"),
    },
    "the client is not authenticated; check the storage options token and kerberos": {
        *("AuthenticationException", "InvalidToken", "401"),
    },
    (
        "a quota of this folder is exhausted; raise it (hdfs dfsadmin -setSpaceQuota), or delete "
        "checkpoints"
    ): {
        *("DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"),
    },
    "the namenode is in safe mode and accepts no changes; check its log, or wait": {
        "SafeModeException"
    },
    "this namenode is not the active one; pass the active one with the storage option host": {
        "StandbyException"
    },
    NOT_REACHED.format(
        endpoint="port (or FSSPEC_WEBHDFS_PORT), the one of the namenode's web server"
    ): {*_UNANSWERED, "InvalidURL", "404"},
    "the server is overloaded; try again later": {
        *("RetriableException", "NotReplicatedYetException", "503"),
    },
    "check the storage options": {"TypeError", "ValueError", "IllegalArgumentException"},
}


class _ResponseError(OSError):
    """An error response: its status, and Hadoop's name of the exception."""

    def __init__(self, status: int, answer: Any) -> None:
        try:
            exception = answer.json()["RemoteException"]
            self.code, text = str(exception["exception"]), str(exception["message"])
        except (ValueError, KeyError, TypeError):
            self.code, text = str(status), f"HTTP {status} {answer.reason}"
        if _FEW_REPLICAS in text:
            self.code = "NotReplicatedYetException"
        # Some messages continue with a Java stack trace.
        super().__init__(text.partition("\n")[0])


class HdfsStorage(ObjectStorage):
    """A folder of HDFS: ``hdfs://namenode:8020/folder``; with options of fsspec's WebHDFS."""

    scheme, extra = "hdfs", "hdfs"
    unanswered = frozenset(_UNANSWERED)
    most_copied_bytes: ClassVar[int] = -1  # WebHDFS cannot copy files on the server

    def __init__(
        self, url: str, options: Mapping[str, Any], streams: int = DEFAULT_STREAMS
    ) -> None:
        """Take an ``hdfs://`` URL and options; nothing is read yet.

        Raises InvalidArgumentError for a URL without a namenode and a folder.
        """
        super().__init__(url, options, streams)
        if not all(self._place()):
            raise InvalidArgumentError(
                "a store on HDFS requires a namenode and a folder: hdfs://namenode:8020/folder"
            )

    def _configure(self, options: Mapping[str, Any]) -> None:
        named: dict[str, Any] = {"host": urlsplit(self.url).hostname, "port": _WEB_PORT}
        # Values set here would override fsspec's own configuration, which other commands use.
        settings = {**fsspec.config.conf.get("webhdfs", {}), **options}
        if not {"user", "token", "kerberos"} & set(settings):
            # Hadoop's clients use the same user name on a cluster without Kerberos.
            named["user"] = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._options = named | settings

    def _connect(self) -> Any:
        from fsspec.implementations.webhdfs import WebHDFS  # it needs requests

        return WebHDFS(**self._options)

    def _request(self, method: str, operation: str, path: str, **parameters: Any) -> Any:
        """Send a request to the namenode, with retries, and return its answer."""
        return retry(
            lambda: self._request_once(method, operation, path, **parameters),
            ATTEMPTS,
            _is_transient,
        )

    def _request_once(self, method: str, operation: str, path: str, **parameters: Any) -> Any:
        """Send a request to the namenode once, and return its answer, possibly a redirect."""
        query = {"op": operation, **self._fs.pars, **parameters}
        return self._send(method, f"{self._fs.url}/{quote(path)}", params=query)

    def _bytes(self, method: str, answer: Any, data: bytes | None = None) -> Any:
        """Return the answer of the datanode that the namenode redirected to."""
        location = self._fs._apply_proxy(answer.headers["Location"])
        wait = READ_SECONDS if data is None else _WRITE_SECONDS
        return self._send(method, location, wait, data=data)

    def _send(self, method: str, url: str, wait: float = READ_SECONDS, **more: Any) -> Any:
        answer = self._fs.session.request(
            method, url, allow_redirects=False, timeout=(CONNECT_SECONDS, wait), **more
        )
        if answer.status_code >= 300 and answer.status_code != 307:
            raise _ResponseError(answer.status_code, answer)
        return answer

    def _get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        part = {} if start is None or stop is None else {"offset": start, "length": stop - start}

        def once() -> bytes:
            return cast(
                bytes, self._bytes("GET", self._request_once("GET", "OPEN", key, **part)).content
            )

        try:
            return retry(once, ATTEMPTS, _is_transient)
        except _ResponseError as error:
            if "out of the range" not in str(error):  # the file is shorter
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
            path = hidden_name(key, uuid.uuid4().hex)
            self._bytes("PUT", self._request_once("PUT", "CREATE", path, overwrite="false"), data)
            return path

        return retry(once, ATTEMPTS, _is_transient)

    def _rename(self, hidden: str, key: str, member: str, value: int) -> bool:
        """Return whether the hidden file now has its name; False if another file has it.

        If an answer was lost, the retry does not find the hidden file. Then the file ``key`` is the
        renamed one if this member of its status has the expected value. Otherwise the hidden file
        was deleted.
        """
        answer = self._request("PUT", "RENAME", hidden, destination=f"/{key}").json()
        if answer["boolean"]:
            return True
        if self._status_if_exists(hidden) is not None:
            return False
        status = self._status_if_exists(key)
        if status is None or status[member] != value:
            raise OSError(f"its hidden file {hidden} was deleted before it was renamed")
        return True

    def _mark_of(self, key: str) -> str | None:
        return None  # the rename itself tells who won

    def _size_of(self, key: str) -> int:
        return int(self._status(key)["length"])

    def _status(self, key: str) -> dict[str, Any]:
        return cast(dict[str, Any], self._request("GET", "GETFILESTATUS", key).json()["FileStatus"])

    def _status_if_exists(self, key: str) -> dict[str, Any] | None:
        try:
            return self._status(key)
        except _ResponseError as error:
            if error.code != _MISSING:
                raise
            return None

    def _remove(self, key: str) -> None:
        self._request("DELETE", "DELETE", key)

    def _copy(self, old: str, new: str) -> None:
        raise NotImplementedError("WebHDFS cannot copy files")

    def _page(self, prefix: str, most: int, following: Any) -> ListingPage:
        return ListingPage(tuple(self._below_folder(prefix.rstrip("/"))), None)

    def _below_folder(self, folder: str) -> Iterator[Listed]:
        after: dict[str, Any] = {}
        while True:
            try:
                answer = self._request("GET", "LISTSTATUS_BATCH", folder, **after).json()
            except _ResponseError as error:
                if error.code != _MISSING and _BELOW_FILE not in str(error):
                    raise
                return  # it does not exist, or was deleted meanwhile
            listing = answer["DirectoryListing"]
            statuses = listing["partialListing"]["FileStatuses"]["FileStatus"]
            for item in statuses:
                if not item["pathSuffix"]:
                    return  # the folder is a file
                path = f"{folder}/{item['pathSuffix']}"
                if item["type"] == "DIRECTORY":
                    yield from self._below_folder(path)
                else:
                    yield Listed(path, int(item["length"]), int(item["modificationTime"]))
            if not listing["remainingEntries"] or not statuses:
                return
            after = {"startAfter": statuses[-1]["pathSuffix"]}

    def _begin(self, key: str) -> Upload:
        return _AppendUpload(self, key)

    def _end_upload(self, key: str, upload: str) -> None:
        self._remove(hidden_name(key, upload))

    def _explain(self, error: Exception, action: str) -> Failure:
        code = _code(error)
        tried = f"{ATTEMPTS} times" if _is_transient(error) else ""
        return Failure(code, advice_of(code, _ADVICE), tried, code == _MISSING)

    def _endpoint(self) -> str:
        return str(self._fs.url)

    def delta_options(self) -> dict[str, str]:
        """Return an empty dict: delta-rs reads Hadoop's configuration and asks the namenode."""
        return {}


class _AppendUpload:
    """A hidden file that is appended to, and renamed at the end."""

    def __init__(self, storage: HdfsStorage, key: str) -> None:
        """Start without a file; no request is sent yet."""
        self._storage, self._key, self._size = storage, key, 0
        self._path = ""

    def send(self, body: bytes) -> None:
        if self._path:
            retry(lambda: self._append(body), ATTEMPTS, lambda error: _code(error) in _HELD)
        else:
            self._path = self._storage._create(self._key, body)
        self._size += len(body)

    def _append(self, body: bytes) -> None:
        """Append a part.

        If the answer is lost, the file's length shows whether the part was appended. If it was not,
        the request may still execute late, so it is not retried: the part would be appended twice.
        """
        storage = self._storage
        answer = storage._request("POST", "APPEND", self._path)
        try:
            storage._bytes("POST", answer, body)
        except Exception:
            if storage._size_of(self._path) != self._size + len(body):
                raise

    def complete(self, last: bytes) -> None:
        if last or not self._path:
            self.send(last)
        if self._has_its_name():
            return
        # As on an object store, writing a name again replaces the old file.
        self._storage._remove(self._key)
        if not self._has_its_name():
            raise FileExistsError("another writer is writing this file")

    def _has_its_name(self) -> bool:
        return self._storage._rename(self._path, self._key, "length", self._size)

    def abort(self) -> None:
        if self._path:
            self._storage._remove(self._path)


def _code(error: BaseException) -> str:
    return str(getattr(error, "code", None) or type(error).__name__)


def _is_transient(error: Exception) -> bool:
    return _code(error) in _PASSING
