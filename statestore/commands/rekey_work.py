"""The working folder of a rekey: of one run at a time, and what an ended one leaves for the next.

A run holds the lock of a file in the folder. The system lets go of it when the process dies,
however that happens, and not before: who stalls keeps the folder, and nobody has to guess whether a
run is dead. A file system that has no locks is refused. Where a network file system is mounted with
locks of each host alone, runs of two hosts could still meet: they would find by digest what they do
to each other's rows, and neither deletes a file of the store that the other one has named.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from statestore.errors import CorruptionError, InvalidArgumentError, StorageError
from statestore.storage.base import named

__all__ = ["WorkingFolder", "working_folder"]

_LOCK, _JOB = "rekey.lock", "rekey.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkingFolder:
    """A folder, and the documents in it; ``kept`` says that another run may go on from it."""

    path: Path
    kept: bool

    def below(self, name: str) -> WorkingFolder:
        """Return a folder inside it, made if it is to be made."""
        (self.path / name).mkdir(exist_ok=True)
        return WorkingFolder(self.path / name, self.kept)

    def read(self, name: str) -> Any:
        """Return a document, None when there is none; CorruptionError when it is cut off."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CorruptionError(
                f"{path} was not written to its end; give an empty working folder"
            ) from error

    def put(self, name: str, content: Any) -> None:
        """Write a document whole or not at all."""
        beside = (self.path / name).with_suffix(".new")
        beside.write_text(json.dumps(content))
        beside.replace(self.path / name)


@contextmanager
def working_folder(path: Path | None, job: dict[str, Any]) -> Iterator[WorkingFolder]:
    """Yield the working folder, or a temporary one, for a block that does ``job``; it is empty when
    the block has ended without an error.

    Raises InvalidArgumentError for a folder that another run holds, that is of another job, or that
    holds anything else, and StorageError for one that cannot be used, also within the block.
    """
    with ExitStack() as held:
        if path is None:
            own = tempfile.TemporaryDirectory(prefix="statestore-rekey-")
            folder = WorkingFolder(Path(held.enter_context(own)), kept=False)
        else:
            folder = WorkingFolder(path, kept=True)
        with named("use the working folder", str(folder.path)):
            if folder.kept:
                _take(folder, job, held)
            yield folder
        if folder.kept:
            _clear(folder.path)


def _take(folder: WorkingFolder, job: dict[str, Any], held: ExitStack) -> None:
    """Hold the folder, and say in it what it is for."""
    folder.path.mkdir(parents=True, exist_ok=True)
    _refuse_strangers(folder)
    _lock(folder.path / _LOCK, held)
    _refuse_strangers(folder)
    known = folder.read(_JOB)
    if known is None:
        folder.put(_JOB, job)
    elif known != job:
        raise InvalidArgumentError(
            f"{folder.path} is the working folder of another rekey; give an empty folder"
        )


def _refuse_strangers(folder: WorkingFolder) -> None:
    """Refuse a folder that is no working folder yet, and is not empty."""
    own = {_LOCK, Path(_JOB).with_suffix(".new").name}
    others = {path.name for path in folder.path.iterdir()} - own
    if others and _JOB not in others:
        raise InvalidArgumentError(f"{folder.path} is not empty; give an empty working folder")


def _lock(path: Path, held: ExitStack) -> None:
    """Hold a file against every other process, and say in it who does."""
    while True:
        # Opened to be written: a network file system locks no other.
        file: BinaryIO = held.enter_context(path.open("a+b"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read(200).decode(errors="replace") or "another process"
            raise InvalidArgumentError(
                f"another rekey is at work in {path.parent}: {holder}; wait until it has ended, or "
                "end it, or give another working folder"
            ) from None
        except OSError as error:
            raise StorageError(
                f"cannot lock {path}: {error.strerror}; give a working folder on a file system "
                "that has locks"
            ) from error
        if _is_named(path, file):
            break
    file.truncate(0)
    file.write(f"{socket.gethostname()}:{os.getpid()}".encode())
    file.flush()


def _is_named(path: Path, file: BinaryIO) -> bool:
    """Return whether the file is there still: who held it before may have deleted it at its end."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _clear(work: Path) -> None:
    """Empty the folder, the lock last; what has been committed is not taken back by a failure."""
    try:
        for path in sorted(work.rglob("*"), reverse=True):
            if path.name != _LOCK:
                path.rmdir() if path.is_dir() else path.unlink()
        (work / _LOCK).unlink()
    except OSError as error:
        _log.warning("the working folder %s could not be emptied: %s; delete it", work, error)
