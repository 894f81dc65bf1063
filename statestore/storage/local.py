"""A folder of a local or mounted file system: commits by hard link, durable files, shared files.

The ``sync`` functions make files and folders durable, so that a power failure does not undo them.
:func:`link` gives a file a second name, so that two stores on one file system share it without a
copy.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage.base import Listed, NewFile, Storage, check_inside, report_os_errors

# The largest documents are manifests: one with a million files has about 300 MB.
_MOST_READ_BYTES = 2**31
# POSIX has the first two, and Windows the last one.
_READ = os.O_RDONLY | sum(getattr(os, f"O_{flag}", 0) for flag in ("NONBLOCK", "CLOEXEC", "BINARY"))
# Windows removes a dot at the end of a name, and some names are devices in each folder.
_NOT_ON_WINDOWS = re.compile(r"(?:^|/)(?:con|prn|aux|nul|com\d|lpt\d)(?:\.[^/]*)?(?:/|$)|\.(?:/|$)")
_SYNCED_AT_ONCE = 8
_OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# Errors of a file system without hard links, of two names on different file systems, and of files
# that belong to another user.
_CANNOT_LINK = (
    *(errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
    *(errno.EMLINK, errno.EACCES, errno.EROFS),
)


class LocalStorage:
    """A folder of a local or mounted file system that has hard links and fsync.

    The folder itself may be a symbolic link. A symbolic link below it is refused with its name,
    unless ``follow_links`` is set: it may lead out of the folder to somebody else's files. Anything
    that is neither a file nor a folder, such as a FIFO, is refused too.
    """

    streams = 1  # the operating system reads ahead

    def __init__(self, url: str, *, follow_links: bool = False) -> None:
        """Take a path or ``file://`` URL; nothing is created yet.

        Raises InvalidArgumentError for a URL that names another host, and for an empty path.
        """
        folder = _folder_of(_without_host(url))
        if not folder:  # such as an unset variable of a shell
            raise InvalidArgumentError("the path of a folder is empty; '.' is the current folder")
        self._root = Path(os.path.abspath(folder))  # noqa: PTH100 - keep symbolic links as given
        self._follow_links = follow_links
        self.url = str(self._root)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        with report_os_errors("read", path := self._file(name)), _open_regular(path) as file:
            if (length := os.fstat(file.fileno()).st_size) > _MOST_READ_BYTES:
                raise StorageError(
                    f"{path} has {length:,} bytes, more than any document of a store; recover "
                    "it from a backup"
                )
            return file.read()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file."""
        with report_os_errors("read", path := self._file(name)), _open_regular(path) as file:
            file.seek(start)
            return file.read(stop - start)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a synced temporary file and link it to its name: one winner, never a partial file.

        All parent folders are durable before the file is visible, no matter who created them. The
        name is durable before this returns, even if another writer's file has it.
        """
        with report_os_errors("write", target := self._file(name)):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = _temporary_path(target)
            try:
                temporary.write_bytes(data)
                sync_path(temporary)
                self._sync_way(target.parent)
                done = _link(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            sync_path(target.parent)
        return done

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder, without temporary files."""
        with report_os_errors("list", path := self._folder(folder)):
            names = [*self._walk(path)]
            return tuple(sorted([n for n in names if not n.rpartition("/")[2].startswith(".")]))

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all files below a folder, including temporary files."""
        with report_os_errors("list", path := self._folder(folder)):
            files = []
            for name in self._walk(path):
                try:
                    status = os.lstat(self._root / name)
                except FileNotFoundError:
                    continue  # it was deleted after the walk listed it
                modified_ms = status.st_mtime_ns // 1_000_000
                files.append(Listed(name, status.st_size, modified_ms))
            return tuple(sorted(files))

    def is_empty(self) -> bool:
        """Return whether the folder is empty except for hidden files and ``lost+found``.

        A file, or a path below a file, is not empty.
        """
        with report_os_errors("list", self.url):
            try:
                with os.scandir(self._root) as entries:
                    return all(entry.name.startswith((".", "lost+found")) for entry in entries)
            except FileNotFoundError:
                return True
            except NotADirectoryError:
                return False

    def folder_above(self, name: str) -> str | None:
        """Search each parent folder, by its real path."""
        for above in Path(os.path.realpath(self._root)).parents:
            with suppress(OSError):
                if (above / name).is_file():
                    return str(above)
        return None

    def delete(self, name: str) -> None:
        """Remove a file."""
        with report_os_errors("delete", path := self._file(name)):
            path.unlink(missing_ok=True)

    def size(self, name: str) -> int:
        """Return a file's length in bytes."""
        with report_os_errors("read", path := self._file(name)):
            return path.stat().st_size

    def renew(self, old: str, new: str) -> bool:
        """Give the file a second name, and set the time of both to now."""
        with report_os_errors("read", path := self._file(old)):
            return _young_link(path, self._file(new))

    def open_write(self, name: str) -> NewFile:
        """Open a new file for writing, and create its folders."""
        with report_os_errors("write", path := self._file(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            return _LocalFile(path)

    def open_read(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        with report_os_errors("read", path := self._file(name)):
            return _open_regular(path)

    def sync(self, names: Iterable[str]) -> None:
        """Sync the files and folders, and every folder on the path to them.

        Several files are synced in parallel. One file waits for its folders one after another.
        """
        with report_os_errors("sync files in", self.url):
            files: list[Path] = []
            changed: list[Path] = []
            for name in names:
                path = self._file(name.removesuffix("/"))
                if not name.endswith("/"):
                    files.append(path)
                elif path.is_dir():
                    changed.append(path)
            folders = set(changed)
            for path in (*files, *changed):
                below = path.relative_to(self._root).parents
                folders.update(self._root / folder for folder in below)
            paths = [*files, *sorted(folders, reverse=True)]
            if len(files) + len(changed) < 2:
                for path in paths:
                    sync_path(path)
                return
            sync_paths(paths)

    def native_path(self, name: str) -> str | None:
        """Return the absolute path."""
        return str(self._folder(name))

    def spark_url(self, name: str) -> str:
        """Return a ``file:`` URL."""
        return f"file:{self._folder(name)}"

    def hadoop_settings(self) -> dict[str, str]:
        """Return an empty dict: the path is sufficient."""
        return {}

    def delta_options(self) -> dict[str, str]:
        """Return an empty dict: the path is sufficient."""
        return {}

    def _sync_way(self, folder: Path) -> None:
        """Make the names of the folders on the path to ``folder`` durable, starting at the root.

        For the root itself, sync its own parents, so that writers of files in it need not.
        """
        if folder != self._root:
            above = folder.parent
            while above != self._root:
                sync_path(above)
                above = above.parent
            sync_path(above)
            return
        sync_parents(folder)

    def _walk(self, folder: Path) -> Iterator[str]:
        # Unlike a glob, this walk distinguishes an unreadable folder from an empty one. Folders are
        # read in the order of their names: a Flink job's chk-N right after the job's folder, and
        # not after its large folder "shared", when Flink may have replaced chk-N.
        folders = [folder]
        while folders:
            parent = folders.pop()
            below = parent.relative_to(self._root).as_posix()
            try:
                entries = os.scandir(parent)
            except FileNotFoundError:
                continue
            below_it = list[Path]()
            with entries:
                for entry in entries:
                    if entry.is_symlink() and not self._follow_links:
                        raise self._link_error(Path(entry.path))
                    if entry.is_dir():
                        below_it.append(Path(entry.path))
                    else:
                        yield entry.name if below == "." else f"{below}/{entry.name}"
            folders += sorted(below_it, reverse=True)

    def _file(self, name: str) -> Path:
        """Return the path of a file; StorageError if any part of it is a symbolic link."""
        relative = check_inside(name)
        if os.name == "nt" and _NOT_ON_WINDOWS.search(relative.lower()):
            raise InvalidArgumentError(
                f"{relative!r} cannot be a file name on Windows: rename the operator or state"
            )
        if not self._follow_links:
            path = self.url
            for part in relative.split("/"):
                path = f"{path}{os.sep}{part}"
                if os.path.islink(path):  # noqa: PTH114 - creating a Path per part is slow
                    raise self._link_error(Path(path))
        return self._root / relative

    def _folder(self, name: str) -> Path:
        return self._file(name) if name else self._root

    def _link_error(self, path: Path) -> StorageError:
        with report_os_errors("read", path):
            target = path.readlink()
        return StorageError(
            f"{path} is a symbolic link to {target}. A store does not read or change files behind "
            "links, because they may belong to others. Replace the link with the files, or allow "
            "all links below the store: storage_options={'follow_links': True}"
        )


def _without_host(url: str) -> str:
    """Return a URL of this host without the host name; InvalidArgumentError for another host."""
    match = re.match(r"(?:file|local)://([^/]+)(/.*)?$", url, re.DOTALL)
    if match is None:
        return url
    if match[1].lower() != "localhost":
        raise InvalidArgumentError(
            f"{url!r} names the host {match[1]!r}, but a file:// URL must be on this host; "
            f"begin the path with a third slash: file:///{match[1]}{match[2] or ''}"
        )
    return match[2] or "/"


def _folder_of(url: str) -> str:
    """Return the path of a URL, or a path itself, with the home folder for ``~``."""
    if os.sep != "/":
        import fsspec  # it knows the drives and hosts of Windows

        folder: str = fsspec.filesystem("file")._strip_protocol(url)
        return folder
    return os.path.expanduser(re.sub("^(?:file|local):(?://)?", "", url))  # noqa: PTH111


def _open_regular(path: Path) -> BinaryIO:
    """Open a file to read; StorageError for a FIFO, which would block, and other special files."""
    descriptor = os.open(path, _READ)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise StorageError(f"{path} is not a regular file but a FIFO, a socket or a device; delete it")


class _LocalFile:
    """A new file that is written under a temporary name, and renamed when it is closed."""

    def __init__(self, target: Path) -> None:
        self._target, self._temporary = target, _temporary_path(target)
        if target.exists():
            raise self._name_taken_error()
        self._file = self._temporary.open("xb")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any, /) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._file.close()
            try:
                done = _link(self._temporary, self._target)
            except StorageError:
                # Without hard links no store can exist here, but a restore's output can: it has
                # only one writer.
                self._temporary.rename(self._target)
                return
            if not done:
                raise self._name_taken_error()
        finally:
            self._temporary.unlink(missing_ok=True)

    def abandon(self) -> None:
        if self._file.closed:
            return
        with suppress(OSError):  # on a full disk, closing fails too
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _name_taken_error(self) -> FileExistsError:
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self._target))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self.close() if error_type is None else self.abandon()


def _temporary_path(target: Path) -> Path:
    """Return a unique hidden name in the same folder."""
    return target.parent / f".{target.name}.{uuid.uuid4().hex}"


def _link(temporary: Path, target: Path) -> bool:
    """Give a file its name; False if the name is taken."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        # The file is ours and new, so the file system refuses the hard link itself.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise StorageError(
            f"cannot write {target}: this file system does not support hard links, which "
            "commits require (FAT, and some network and cloud mounts, have none); use "
            "another place for the store"
        ) from error
    return True


@contextmanager
def sync_if_supported() -> Iterator[None]:
    """Allow a file system that cannot sync files or folders, as some mounted services."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def sync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable.

    Windows cannot open folders, and syncs only files that are open for writing.
    """
    if not _OPENS_FOLDERS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if _OPENS_FOLDERS else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_paths(paths: Sequence[Path]) -> None:
    """Make many files and folders durable.

    Threads sync them in parallel, so that one commit of the file system's journal covers several.
    """
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as pool:
        deque(pool.map(sync_path, paths), maxlen=0)


def sync_parents(folder: Path) -> None:
    """Make the name of a folder durable, and those of its parents up to the mount point."""
    device = folder.stat().st_dev
    for above in folder.parents:
        if above.stat().st_dev != device:
            return  # nothing was created above the mount point
        with suppress(PermissionError):  # nor in folders that this user cannot read
            sync_path(above)


def can_link(source: Storage, target: Storage) -> bool:
    """Return whether files of ``source`` can probably be hard-linked into ``target``.

    Both must be folders of the same file system. Object stores cannot share files.
    """
    old, new = source.native_path(""), target.native_path("")
    if old is None or new is None:
        return False
    with report_os_errors("access", target.url):
        return _device_of(Path(old)) == _device_of(Path(new))


def _device_of(path: Path) -> int:
    existing = next(each for each in (path, *path.parents) if each.exists())
    return existing.stat().st_dev


def link(source: Storage, old: str, target: Storage, new: str, *, touches: bool = True) -> bool:
    """Give a file of ``source`` a second name in ``target``, and with ``touches`` the current time.

    The file stays until both names are deleted. False if the file system cannot do it, or the name
    is taken. Raises FileNotFoundError if the source does not have the file, or StorageError.
    """
    old_path, new_path = source.native_path(old), target.native_path(new)
    if old_path is None or new_path is None:
        return False
    with report_os_errors("read", f"{target.url}/{new}"):
        return _young_link(Path(old_path), Path(new_path), touches=touches)


def _young_link(old: Path, new: Path, *, touches: bool = True) -> bool:
    """Give a file a second name and create its folders.

    False if the file system cannot do it, or the name is taken. Raises OSError.

    A garbage collection that lists the new name must see a recent time. Both names share one time,
    so it is set before the second name is created, unless nobody collects there.
    """
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        if touches:
            os.utime(old)
        os.link(old, new)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _CANNOT_LINK:
            return False
        raise
    return True
