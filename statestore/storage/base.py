"""The port: what a store needs of its file system, and how its errors come out."""

from __future__ import annotations

import errno
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.names import is_inside

__all__ = [
    "CONTAINER",
    "Listed",
    "NewFile",
    "Storage",
    "inside",
    "named",
    "put_once",
    "refuse_credentials",
    "refuse_unsafe",
    "without_credentials",
]


class Listed(NamedTuple):
    """A file of a listing: its name, its length, and when it was last written, in milliseconds
    since 1970 by the clock of the file system.
    """

    name: str
    size_bytes: int
    modified_ms: int


class NewFile(Protocol):
    """A file under way: it appears under its name, whole, when it is closed, and never before.

    A ``with`` block closes it at its end, and abandons it when it is left by an exception.
    """

    @property
    def closed(self) -> bool:
        """Whether it was closed or abandoned."""

    def write(self, data: Any, /) -> int:
        """Append bytes; return how many."""

    def flush(self) -> None:
        """Do nothing that a reader could see."""

    def close(self) -> None:
        """Make it appear; after an error it may be there, whole, or not. Twice is as once."""

    def abandon(self) -> None:
        """Let nothing appear; raises nothing. What cannot be removed is hidden, and for ``gc``."""

    def __enter__(self) -> Self:
        """Return the file."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close it, or after an exception abandon it."""


class Storage(Protocol):
    """What a store needs of a file system. Names are relative, with ``/``; values can be
    pickled.

    A name that could lead elsewhere is refused with InvalidArgumentError before anything is done:
    see :func:`inside`. The empty one is the folder itself.
    """

    url: str

    streams: int
    """How many ranges a reader may ask for at once; with 1, asking ahead is of no use here."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; FileNotFoundError when there is none."""

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` up to ``stop``, fewer where the file ends before; may be
        called by several threads at once. FileNotFoundError when there is none.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Make ``name`` appear with ``data``, whole and durable; False when the name is taken."""

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder, sorted; none when it does not exist."""

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all files below a folder with length and time, sorted; the hidden ones as well,
        which :meth:`list` leaves out: also what is under way, or was when its writer was killed.
        """

    def is_empty(self) -> bool:
        """Return whether nothing lies here yet, hidden files aside; costs one short listing."""

    def folder_above(self, name: str) -> str | None:
        """Return the URL of the nearest folder above this one in which a file of this name lies,
        None if there is none, or none that can be looked at.
        """

    def delete(self, name: str) -> None:
        """Remove a file, also one that is under way; nothing happens when there is none."""

    def size(self, name: str) -> int:
        """Return a file's length in bytes; FileNotFoundError when there is none."""

    def renew(self, old: str, new: str) -> bool:
        """Give the bytes of a file a new name as well, whose time is now; they do not pass through
        here. False where that cannot be; FileNotFoundError when there is none of the old name.
        """

    def open_write(self, name: str) -> NewFile:
        """Return a file to write, whose name must be new; nothing is there before it is closed."""

    def open_read(self, name: str) -> BinaryIO:
        """Return a file to read and seek in; FileNotFoundError when there is none."""

    def sync(self, names: Iterable[str]) -> None:
        """Return when the written files would survive a loss of power."""

    def native_path(self, name: str) -> str | None:
        """Return a path that the operating system opens itself, None on an object store."""

    def spark_url(self, name: str) -> str:
        """Return the URL under which Spark's file systems know a file or folder."""

    def hadoop_settings(self) -> dict[str, str]:
        """Return what Spark's file systems need to know; it holds secrets, never show it."""

    def delta_options(self) -> dict[str, str]:
        """Return what delta-rs needs to know to reach ``url``; it holds secrets, never show it."""


def inside(name: str) -> str:
    """Return the name of a file; InvalidArgumentError for one that may not stay in its storage, as
    ``..``, an absolute path or a drive's letter do, or that means another one.
    """
    if not is_inside(name):
        raise InvalidArgumentError(
            f"{name!r} is not the name of a file in a store: it has parts between slashes, none of "
            "them empty, '.' or '..', no backslash, no NUL, and no drive"
        )
    return name


@contextmanager
def named(action: str, where: object) -> Iterator[None]:
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


# The put that a commit is: done only when the bytes are seen there.


def put_once(storage: Storage, name: str, data: bytes) -> bool:
    """Put a file if its name is free; return whether it holds ``data`` now, which was looked at.

    The answer of the put alone is not enough, either way: the client of an object store that lost
    the answer puts again, and then meets its own object; and a server, or a cache before it, may
    answer that it is done when it is not, which would make a checkpoint that nobody can see.
    Raises StorageError for that.
    """
    done = storage.put_if_absent(name, data)
    try:
        return storage.read(name) == data
    except FileNotFoundError:
        answer = "it was written" if done else "it exists"
        raise StorageError(
            f"cannot write {storage.url}/{name}: the file system answered that {answer}, and it is "
            "not there; nothing is visible of what would have been committed. Try again, and if it "
            "stays so, use another place for the store"
        ) from None


# One question to a file system before the first store on it: does put-if-absent hold?
#
# Every commit rests on it (I4). Servers that speak S3 but know no conditional put ignore its header
# and overwrite; some mounted file systems have no hard links. Both would lose a checkpoint of one
# of two writers, in silence; so a store is not made there.


_FIRST, _SECOND = b"first\n", b"second\n"


def refuse_unsafe(storage: Storage) -> None:
    """Put a hidden file twice, see the second put lose, and remove the file.

    Raises StorageError naming what the file system lacks, or that of a call that fails. Costs six
    requests on S3. A file that a crash leaves is hidden, and in nobody's way.
    """
    name = f".probe-{uuid.uuid4().hex[:16]}"
    won_first = storage.put_if_absent(name, _FIRST)
    won_second = storage.put_if_absent(name, _SECOND)
    try:
        kept = storage.read(name)
    except FileNotFoundError:
        raise StorageError(
            f"{storage.url}/{name} was deleted by somebody else, while it was tried whether a "
            "store can lie there; run it again"
        ) from None
    storage.delete(name)
    if (won_first, won_second, kept) == (True, False, _FIRST):
        return
    lacks = (
        "its server does not hold to a conditional put (If-None-Match: *, ifGenerationMatch=0)"
        if storage.native_path(name) is None
        else "a hard link replaces a file that exists, on this file system"
    )
    raise StorageError(
        f"{storage.url} cannot hold a store: {lacks}, so that of two writers both would seem to "
        "commit one checkpoint, and one of them would lose it; use another place for the store"
    )


# A URL is shown in messages, logs and documents, so it holds no credentials.


# As people write them and no parser reads them: a secret may hold any character, a slash too. A
# folder's name may have all of these, and has no scheme before it.
_FOLDER = re.compile(r"(file|local):///|[/.~]")
_CREDENTIALS = re.compile(r":/{1,2}.*:.*@|://[^/@]*@", re.DOTALL)
# The one ``@`` that holds none: a container of Azure, and the account that it is of.
CONTAINER = re.compile(
    r"abfss?://(?P<container>[a-z0-9$-]+)@(?P<account>[a-z0-9]+)\.(?:dfs|blob)\."
    r"(?P<suffix>[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?=/|$)"
)
_AUTHORITY = re.compile(r"://[^\s\"']*@")


def refuse_credentials(url: str, *, is_endpoint: bool = False) -> None:
    """Raise InvalidArgumentError for a URL that may hold a user's name or secret before an ``@``;
    the message has no part of it. An endpoint has no ``@`` at all.
    """
    url = CONTAINER.sub("://", url, count=1)
    found = "@" in url if is_endpoint else not _FOLDER.match(url) and _CREDENTIALS.search(url)
    if found:
        raise InvalidArgumentError(
            "credentials do not belong in a URL, which is shown in messages and logs; give them as "
            "storage options, or as the service's variables, such as key and secret or AWS_… (a "
            "URL of a store has no '@' but in abfss://container@account.dfs.core.windows.net)"
        )


def without_credentials(text: str) -> str:
    """Return what a library says, without what may be credentials in URLs that it quotes."""
    return _AUTHORITY.sub("://…@", text)
