"""Bytes by name: the only module that knows where a store lies, and the only home of fsspec.

A store needs of its file system: read, list, delete, write a new file, and ``put_if_absent``, which
makes a name appear whole or not at all, for exactly one of several writers. That last one is what
every commit rests on (I4), so it is ours per file system, not fsspec's generic check-then-write:

* a local (or mounted) file system: a temporary file, synced, then a hard link to its name;
* S3: a conditional put (``If-None-Match: *``).

Other file systems are refused when a store is opened, instead of being trusted. Errors of the file
system come out as StorageError with the cause kept, except FileNotFoundError, which says just that.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import fsspec
from fsspec.utils import get_protocol

from statestore.errors import InvalidArgumentError, MissingDependencyError, StorageError
from statestore.s3io import S3Reader, S3Writer, s3_code, s3_errors

__all__ = ["LocalStorage", "S3Storage", "Storage", "open_storage"]


class Storage(Protocol):
    """What a store needs of a file system. Names are relative, with ``/``; values can be
    pickled.
    """

    url: str

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; FileNotFoundError when there is none."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Make ``name`` appear with ``data``, whole and durable; False when the name is taken."""

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder, sorted; none when it does not exist."""

    def is_empty(self) -> bool:
        """Return whether nothing lies here yet, hidden files aside; costs one short listing."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens when there is none."""

    def size(self, name: str) -> int:
        """Return a file's length in bytes; FileNotFoundError when there is none."""

    def open_write(self, name: str) -> BinaryIO:
        """Return a file to write; it may be visible before it is closed, so its name must be
        new.
        """

    def open_read(self, name: str) -> BinaryIO:
        """Return a file to read and seek in; FileNotFoundError when there is none."""

    def sync(self, names: Iterable[str]) -> None:
        """Return when the written files would survive a loss of power."""

    def native_path(self, name: str) -> str | None:
        """Return a path that the operating system opens itself, None on an object store."""

    def spark_url(self, name: str) -> str:
        """Return the URL under which Spark's file systems know a file or folder."""


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage behind a path or URL; ``options`` go to fsspec (credentials, endpoint, …).

    Raises InvalidArgumentError for a file system on which put-if-absent is not known to hold.
    """
    protocol = get_protocol(url)
    if protocol in ("file", "local"):
        return LocalStorage(url)
    if protocol in ("s3", "s3a"):
        return S3Storage(url, options or {})
    raise InvalidArgumentError(
        f"a store cannot lie on {protocol}://: it is not known to put a file only if it is absent, "
        "which commits rest on; use a local path or s3://"
    )


@contextmanager
def named(action: str, where: str) -> Iterator[None]:
    """Turn an error of the file system into StorageError naming what was tried, and where."""
    try:
        yield
    except FileNotFoundError as error:
        if action == "read":
            raise
        raise StorageError(f"cannot {action} {where}: {error}") from error
    except PermissionError as error:
        raise StorageError(f"cannot {action} {where}: permission denied") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StorageError(f"cannot {action} {where}: the disk is full") from error
        raise StorageError(f"cannot {action} {where}: {error}") from error


class LocalStorage:
    """A folder of a local or mounted file system that has hard links and fsync."""

    def __init__(self, url: str) -> None:
        """Take a path or ``file://`` URL; nothing is created yet."""
        root = fsspec.filesystem("file")._strip_protocol(url)
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 - keep symbolic links as given
        self.url = str(self._root)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        with named("read", self._full(name)):
            return (self._root / name).read_bytes()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a synced temporary file and link it to its name: one winner, never a partial
        file.
        """
        target = self._root / name
        with named("write", self._full(name)):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}"
            try:
                temporary.write_bytes(data)
                _fsync(temporary)
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            _fsync(target.parent)
        return True

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder, temporary ones of ours left out."""
        with named("list", self._full(folder)):
            # Unlike a glob, this walk tells an unreadable folder from an empty one.
            found = [
                Path(parent, name).relative_to(self._root).as_posix()
                for parent, _, names in os.walk(self._root / folder, onerror=_unless_missing)
                for name in names
                if not name.startswith(".")
            ]
            return tuple(sorted(found))

    def is_empty(self) -> bool:
        """Return whether the folder holds nothing but hidden files and what a new disk holds."""
        with named("list", self.url):
            try:
                with os.scandir(self._root) as entries:
                    return all(entry.name.startswith((".", "lost+found")) for entry in entries)
            except FileNotFoundError:
                return True

    def delete(self, name: str) -> None:
        """Remove a file."""
        with named("delete", self._full(name)):
            (self._root / name).unlink(missing_ok=True)

    def size(self, name: str) -> int:
        """Return a file's length in bytes."""
        with named("read", self._full(name)):
            return (self._root / name).stat().st_size

    def open_write(self, name: str) -> BinaryIO:
        """Return a new file, its folders made."""
        with named("write", self._full(name)):
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            return (self._root / name).open("xb")

    def open_read(self, name: str) -> BinaryIO:
        """Return a file to read."""
        with named("read", self._full(name)):
            return (self._root / name).open("rb")

    def sync(self, names: Iterable[str]) -> None:
        """Sync the files, then every folder on the way to them."""
        with named("sync files in", self.url):
            folders: set[Path] = set()
            for name in names:
                _fsync(self._root / name)
                below = (self._root / name).relative_to(self._root).parents
                folders.update(self._root / folder for folder in below)
            for path in sorted(folders, reverse=True):
                _fsync(path)

    def native_path(self, name: str) -> str | None:
        """Return the absolute path."""
        return self._full(name)

    def spark_url(self, name: str) -> str:
        """Return a ``file:`` URL."""
        return f"file:{self._root / name}"

    def _full(self, name: str) -> str:
        return str(self._root / name)


_PUT = "statestore-put"
_PUTS = 5
# S3 takes 10,000 parts of 5 MiB or more: one file of a store holds up to 80 GB.
_PART_BYTES = 8 * 2**20
_READ_AHEAD_BYTES = 4 * 2**20
# Closing a connection that a forked process inherited would close its parent's; so none is dropped.
_HELD: list[Any] = []


class S3Storage:
    """A prefix of a bucket, through s3fs; each call sees what other writers did before it.

    Fork-safe, and pickled with its options: a worker gets the credentials it was given here.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Take an ``s3://`` (or ``s3a://``) URL and s3fs options; nothing is read yet.

        Raises InvalidArgumentError when a URL holds credentials, which would end up in messages.
        """
        self._prefix = url.partition("://")[2].strip("/")
        given = (options, options.get("client_kwargs") or {})
        urls = (self._prefix.partition("/")[0], *(str(some.get("endpoint_url")) for some in given))
        if any("@" in text for text in urls):
            raise InvalidArgumentError(
                "credentials do not belong in a URL, which is shown in messages and logs; give "
                "them as the storage options key and secret, or as AWS_… variables"
            )
        if not self._prefix:
            raise InvalidArgumentError("a store on S3 needs a bucket: s3://bucket/prefix")
        # A cached listing would hide what others wrote; more than one request at a time is of no
        # use for objects as small as ours, and makes s3fs ask for the size of each before.
        self._options = {"max_concurrency": 1, **options, "use_listings_cache": False}
        self.url = f"s3://{self._prefix}"
        self._open_filesystem()

    def __repr__(self) -> str:
        return f"S3Storage({self.url!r})"

    def _open_filesystem(self) -> None:
        try:
            self._opened: Any = fsspec.filesystem("s3", **self._options)
        except ImportError as error:
            raise MissingDependencyError(
                "a store on S3 needs s3fs: pip install 'statestore[s3]'"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the storage options do not fit: {error}") from error
        self._process = os.getpid()
        if self._opened not in _HELD:
            _HELD.append(self._opened)

    @property
    def _fs(self) -> Any:
        """The connection of this process: one that a fork inherited is another's."""
        if self._process != os.getpid():
            self._open_filesystem()
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind: a worker opens its own."""
        return {key: value for key, value in vars(self).items() if key != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open a connection of this process."""
        vars(self).update(state)
        self._open_filesystem()

    def read(self, name: str) -> bytes:
        """Return the bytes of an object."""
        with s3_errors("read", self._full(name)):
            return cast(bytes, self._fs.cat_file(self._key(name)))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put with ``If-None-Match: *``; S3 answers 412 to all but one.

        A put whose answer was lost is sent again by botocore, and meets itself: each carries a
        mark that tells its own object from another writer's.
        """
        mark = uuid.uuid4().hex
        with s3_errors("write", self._full(name)):
            for attempt in itertools.count(1):
                try:
                    self._call(
                        "put_object", name, Body=data, IfNoneMatch="*", Metadata={_PUT: mark}
                    )
                    return True
                except OSError as error:
                    # 409: another put of this name is under way, and may yet fail.
                    if s3_code(error) == "ConditionalRequestConflict" and attempt < _PUTS:
                        continue
                    if s3_code(error) not in ("PreconditionFailed", "412"):
                        raise
                break
            try:
                return bool(self._call("head_object", name)["Metadata"].get(_PUT) == mark)
            except FileNotFoundError:
                return False

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all objects below a folder; markers of folders are left out."""
        with s3_errors("list", self._full(folder)):
            names = [name for page in self._pages(folder) for name in page]
        return tuple(sorted(name for name in names if not name.rpartition("/")[2].startswith(".")))

    def is_empty(self) -> bool:
        """Return whether no object has this prefix, hidden ones aside; mostly one request."""
        with s3_errors("list", self.url):
            return all(name.startswith(".") for page in self._pages("", 50) for name in page)

    def delete(self, name: str) -> None:
        """Remove an object; S3 does not mind when there is none."""
        with s3_errors("delete", self._full(name)):
            self._call("delete_object", name)

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""
        with s3_errors("read", self._full(name)):
            try:
                return int(self._call("head_object", name)["ContentLength"])
            except FileNotFoundError:
                self._bucket_exists()
                raise

    def open_write(self, name: str) -> BinaryIO:
        """Return an object to write, sent in parts; it exists once it is closed."""
        call = functools.partial(self._call, name=name)
        return cast(BinaryIO, S3Writer(call, self._full(name), _PART_BYTES))

    def open_read(self, name: str) -> BinaryIO:
        """Return an object to read, fetched by byte ranges as it is read."""
        size = self.size(name)
        with s3_errors("read", self._full(name)):
            file = self._fs.open(self._key(name), "rb", block_size=_READ_AHEAD_BYTES, size=size)
            return cast(BinaryIO, S3Reader(file, self._full(name)))

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: an object that exists is durable."""

    def native_path(self, name: str) -> str | None:
        """Return None: there is no path."""
        return None

    def spark_url(self, name: str) -> str:
        """Return an ``s3a:`` URL, as hadoop-aws reads it."""
        return f"s3a://{self._key(name)}"

    def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        bucket, key, _ = self._fs.split_path(self._key(name))
        return cast(dict[str, Any], self._fs.call_s3(method, Bucket=bucket, Key=key, **arguments))

    def _pages(self, folder: str, page: int = 1000) -> Iterator[tuple[str, ...]]:
        bucket, root, _ = self._fs.split_path(self._prefix)
        root = f"{root}/" if root else ""
        wanted = {"Bucket": bucket, "Prefix": f"{root}{folder}/" if folder else root}
        while True:
            found = self._fs.call_s3("list_objects_v2", MaxKeys=page, **wanted)
            keys = [item["Key"] for item in found.get("Contents", ())]
            yield tuple(key[len(root) :] for key in keys if not key.endswith("/"))
            if not found["IsTruncated"]:
                return
            wanted["ContinuationToken"] = found["NextContinuationToken"]

    def _bucket_exists(self) -> None:
        """Raise when not even the bucket exists, which the answer about an object did not say."""
        next(self._pages("", 1))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".rstrip("/")

    def _full(self, name: str) -> str:
        return f"s3://{self._key(name)}"


def _unless_missing(error: OSError) -> None:
    """Raise what a walk met, unless the folder is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
