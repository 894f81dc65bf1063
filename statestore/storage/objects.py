"""A prefix of a bucket, in which a conditional put commits a file: code shared by object stores.

The module of each service (``s3.py``, ``azure.py``, ``google.py``, ``hdfs.py``) implements a few
requests and explains their errors. Everything that is built on these requests is here.
"""

from __future__ import annotations

import functools
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, BinaryIO, ClassVar, NamedTuple, cast
from urllib.parse import quote, unquote

from statestore.errors import InvalidArgumentError, StorageError
from statestore.extras import needs_extra
from statestore.storage.addresses import GATEWAY_CODES, proxy_advice, refuse_credentials
from statestore.storage.base import DEFAULT_STREAMS, Listed, NewFile, check_inside
from statestore.storage.requests import (
    Failure,
    ObjectReader,
    ObjectWriter,
    Upload,
    object_errors,
)

_MOST_STREAMS = 1024
MARK = "statestore-put"
"""The name of the metadata that distinguishes a put's own object from another writer's."""
_PART_BYTES = 8 * 2**20
_UPLOAD = re.compile(r"(|.*/)\.([^/]+)\.upload-([^/]+)")
# A forked process must not drop a connection of its parent, because that would close it.
_HELD: list[Any] = []


class ListingPage(NamedTuple):
    """The objects of one page of a listing, and the token of the next page; None for the last."""

    items: tuple[Listed, ...]
    following: Any


class ObjectStorage(ABC):
    """A prefix of a bucket; each call sees all earlier changes by other writers.

    Transient errors are retried a few times within seconds (``requests.py``).

    It is fork-safe and can be pickled with its options: a worker gets the same credentials.
    """

    scheme: ClassVar[str]
    """The scheme of its URLs."""

    extra: ClassVar[str]
    """The extra of this package that installs the client."""

    most_copied_bytes: ClassVar[int]
    """The largest object that can be copied on the server."""

    unanswered: ClassVar[AbstractSet[str]]
    """The codes of errors without an answer of the server."""

    part_bytes: ClassVar[int] = _PART_BYTES
    """The size of one part of an upload."""

    def __init__(
        self, url: str, options: Mapping[str, Any], streams: int = DEFAULT_STREAMS
    ) -> None:
        """Take a URL and options of the service's fsspec file system; nothing is read yet.

        ``streams`` is the number of concurrent range requests. Raises InvalidArgumentError
        if it is below one, or if a URL contains credentials, which would appear in messages.
        """
        if type(streams) is not int or not 1 <= streams <= _MOST_STREAMS:
            raise InvalidArgumentError(
                f"parallel_streams must be in 1..{_MOST_STREAMS}, not {streams!r}"
            )
        refuse_credentials(url)
        for settings in (options, options.get("client_kwargs") or {}):
            refuse_credentials(str(settings.get("endpoint_url")), is_endpoint=True)
        self.streams = streams
        self._prefix = url.partition("://")[2].strip("/")
        if not self._prefix:
            raise InvalidArgumentError(
                f"a store on {self.scheme}:// requires a bucket: {self.scheme}://bucket/prefix"
            )
        self.url = f"{self.scheme}://{self._prefix}"
        self._options: Mapping[str, Any] = options
        self._configure(options)
        self._open_filesystem()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # The connection

    def _open_filesystem(self) -> None:
        try:
            with needs_extra(self.extra, f"a store on {self.scheme}://"):
                self._opened = self._connect()
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"invalid storage options: {error}") from error
        self._process = os.getpid()
        if self._opened not in _HELD:
            _HELD.append(self._opened)

    @property
    def _fs(self) -> Any:
        """The connection of this process; a forked process opens its own."""
        if self._process != os.getpid():
            self._open_filesystem()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Omit the connection: a worker opens its own."""
        return {key: value for key, value in vars(self).items() if key != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open a connection in this process."""
        vars(self).update(state)
        self._open_filesystem()

    # The requests that each service implements

    def _configure(self, options: Mapping[str, Any]) -> None:  # noqa: B027 - most need none
        """Check the options before a connection is opened."""

    @abstractmethod
    def _connect(self) -> Any:
        """Return an open fsspec file system."""

    @abstractmethod
    def _get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return an object, or a range of it, in one request; a short object gives less."""

    @abstractmethod
    def _put(self, key: str, data: bytes) -> None:
        """Put an object in one request."""

    @abstractmethod
    def _put_new(self, key: str, data: bytes, mark: str) -> bool:
        """Put an object with the mark as metadata if the key is free; False if it is taken."""

    @abstractmethod
    def _mark_of(self, key: str) -> str | None:
        """Return the mark of an object."""

    @abstractmethod
    def _size_of(self, key: str) -> int:
        """Return an object's length. If the bucket is missing, the error names it."""

    @abstractmethod
    def _remove(self, key: str) -> None:
        """Delete an object; do nothing if it does not exist."""

    @abstractmethod
    def _copy(self, old: str, new: str) -> None:
        """Copy an object on the server."""

    @abstractmethod
    def _page(self, prefix: str, most: int, following: Any) -> ListingPage:
        """Return a page of objects with a key prefix; ``following`` is a page's token."""

    @abstractmethod
    def _begin(self, key: str) -> Upload:
        """Start an object that is sent in parts."""

    def _unfinished(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Yield key, id and start time of unfinished uploads, if the server keeps them."""
        return iter(())

    def _end_upload(self, key: str, upload: str) -> None:  # noqa: B027 - as above
        """Discard an unfinished upload on the server; do nothing if it does not exist."""

    @abstractmethod
    def _explain(self, error: Exception, action: str) -> Failure:
        """Return the meaning of an error."""

    @abstractmethod
    def _endpoint(self) -> str:
        """Return the URL of the server."""

    # Operations built on these requests

    def read(self, name: str) -> bytes:
        """Return the bytes of an object."""
        with self._errors("read", name):
            return self._get(self._key(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of an object, in one request."""
        with self._errors("read", name):
            return self._get(self._key(name), start, stop) if start < stop else b""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put on the condition that the object does not exist; only one writer succeeds.

        If an answer is lost, the put is retried and finds its own object. Each put therefore
        carries a mark that identifies its object.
        """
        mark = uuid.uuid4().hex
        key = self._key(name)
        with self._errors("write", name):
            if self._put_new(key, data, mark):
                return True
            try:
                return self._mark_of(key) == mark
            except Exception as error:
                if self._explain(error, "read").is_object_missing:
                    return False
                raise

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all objects below a folder, without folder markers."""
        with self._errors("list", folder):
            names = [item.name for page in self._pages(folder) for item in page]
        return tuple(sorted(name for name in names if not name.rpartition("/")[2].startswith(".")))

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all objects below a folder; their time is the server's.

        An unfinished upload appears as a hidden object of length 0; :meth:`delete` aborts it.
        """
        with self._errors("list", folder):
            items = [item for page in self._pages(folder) for item in page]
            return tuple(sorted([*items, *self._uploads(folder)]))

    def is_empty(self) -> bool:
        """Return whether no visible object has this prefix; it usually takes one request."""
        with self._errors("list", ""):
            return all(item.name.startswith(".") for page in self._pages("", 50) for item in page)

    def folder_above(self, name: str) -> str | None:
        """Look for an object of this name at each parent prefix, up to the bucket."""
        bucket, root = self._place()
        parts = root.split("/") if root else []
        for count in range(len(parts) - 1, -1, -1):
            above = "/".join(parts[:count])
            try:
                with self._errors("read", name):
                    self._size_of(f"{above}/{name}" if above else name)
            except (FileNotFoundError, StorageError):  # this user may not read the prefix
                continue
            return f"{self.scheme}://{bucket}/{above}".rstrip("/")
        return None

    def delete(self, name: str) -> None:
        """Delete an object, or abort an upload; do nothing if it does not exist."""
        upload = _UPLOAD.fullmatch(name)
        with self._errors("delete", name):
            if upload is None:
                self._remove(self._key(name))
            else:
                self._end_upload(self._key(upload[1] + upload[2]), unquote(upload[3]))

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""
        with self._errors("read", name):
            return self._size_of(self._key(name))

    def renew(self, old: str, new: str) -> bool:
        """Copy the object on the server, unless it exceeds the server's limit for a copy."""
        source, target = self._key(old), self._key(new)
        if self.size(old) > self.most_copied_bytes:
            return False
        with self._errors("read", old):
            self._copy(source, target)
        return True

    def open_write(self, name: str) -> NewFile:
        """Open a new object for writing; it is sent in parts and exists once it is closed."""
        key = self._key(name)
        return ObjectWriter(
            functools.partial(self._begin, key),
            functools.partial(self._put, key),
            functools.partial(self._errors, name=name),
            self.part_bytes,
        )

    def open_read(self, name: str) -> BinaryIO:
        """Open an object for reading; byte ranges are fetched on demand."""
        fetch = functools.partial(self.read_range, name)
        return cast(BinaryIO, ObjectReader(fetch, self.size(name)))

    def sync(self, names: Iterable[str]) -> None:  # noqa: B027 - nothing to do
        """Do nothing: every object that exists is durable."""

    def native_path(self, name: str) -> str | None:
        """Return None: an object has no local path."""
        return None

    def spark_url(self, name: str) -> str:
        """Return the URL in the form of Spark's connector to this service."""
        return self._full_url(name)

    def hadoop_settings(self) -> dict[str, str]:
        """Return an empty dict; services override it if they need settings."""
        return {}

    @abstractmethod
    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options, with the current credentials."""

    def _errors(self, action: str, name: str) -> AbstractContextManager[None]:
        return object_errors(action, self._full_url(name), self._explain_with_proxy)

    def _explain_with_proxy(self, error: Exception, action: str) -> Failure:
        """Return the meaning of an error; if the server did not answer, a proxy may be why."""
        failure = self._explain(error, action)
        if failure.code not in self.unanswered | GATEWAY_CODES:
            return failure
        advice = (failure.advice, proxy_advice(self._endpoint()))
        return replace(failure, advice="; ".join(filter(None, advice)) or None)

    def _pages(self, folder: str, most: int = 1000) -> Iterator[tuple[Listed, ...]]:
        """Yield the objects below a folder, page by page, without folder markers."""
        root, prefix = self._root(), self._folder_prefix(folder)
        for items in pages_of(functools.partial(self._page, prefix, most)):
            found = (item._replace(name=item.name[len(root) :]) for item in items)
            yield tuple(item for item in found if not _is_marker(item.name))

    def _uploads(self, folder: str) -> Iterator[Listed]:
        """Yield unfinished uploads as hidden files next to their names."""
        root = self._root()
        for key, upload, started_ms in self._unfinished(self._folder_prefix(folder)):
            yield Listed(hidden_name(key[len(root) :], quote(upload, safe="")), 0, started_ms)

    def _has_bucket(self) -> None:
        """Raise if the bucket does not exist; the error for a missing object does not tell."""
        self._page(self._root(), 1, None)

    def _place(self) -> tuple[str, str]:
        """Return the bucket, and the store's prefix in it without slashes at its ends."""
        bucket, _, root = self._prefix.partition("/")
        return bucket, root

    def _root(self) -> str:
        """Return the prefix of all keys of the store."""
        root = self._place()[1]
        return f"{root}/" if root else ""

    def _folder_prefix(self, folder: str) -> str:
        """Return the prefix of all keys below a folder."""
        return f"{self._root()}{check_inside(folder)}/" if folder else self._root()

    def _key(self, name: str) -> str:
        return f"{self._root()}{check_inside(name)}"

    def _full_url(self, name: str) -> str:
        return f"{self.url}/{check_inside(name)}" if name else self.url


def pages_of(ask: Callable[[Any], ListingPage]) -> Iterator[tuple[Listed, ...]]:
    """Yield the objects of all pages of a listing; ``ask`` returns the page of a token."""
    following = None
    while True:
        page = ask(following)
        yield page.items
        following = page.following
        if following is None:
            return


def hidden_name(key: str, upload: str) -> str:
    """Return the hidden name of an upload, in the folder of the object that it will create."""
    folder, slash, file = key.rpartition("/")
    return f"{folder}{slash}.{file}.upload-{upload}"


def _is_marker(name: str) -> bool:
    """Return whether the object is only a marker of a folder, or of the prefix itself."""
    return not name or name.endswith("/")
