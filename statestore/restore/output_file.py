"""One new file as a command's result: it appears under its name when it is complete."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage import LocalStorage
from statestore.storage.local import sync_if_supported, sync_path

__all__ = ["check_output_file", "output_file"]


def check_output_file(path: Path, *, replace: bool) -> None:
    """Check the place of a file before any work is done for its contents.

    Args:
        path: The file.
        replace: Whether the file may exist.

    Raises:
        InvalidArgumentError: the place is inside a store or in no existing folder, or it is taken.
    """
    refuse_inside_store(LocalStorage(str(path)), "the file")
    if not path.parent.is_dir():
        raise InvalidArgumentError(
            f"cannot write {path}: there is no folder {path.parent}; create it, or choose another"
        )
    if path.is_dir():
        raise InvalidArgumentError(f"cannot write {path}: it is a folder; add the name of a file")
    if not replace and path.exists():
        raise InvalidArgumentError(f"{path} exists; remove it, or choose another name")


@contextmanager
def output_file(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when the block ends without an error; it is durable then.

    Args:
        path: The file.
        replace: Whether the file may exist.

    Yields:
        The open file, under another name.

    Raises:
        InvalidArgumentError: as :func:`check_output_file`.
        StorageError: the file cannot be written.
    """
    check_output_file(path, replace=replace)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with part.open("xb") as file:
            yield file
        with sync_if_supported():
            sync_path(part)
        part.replace(path)
        with sync_if_supported():
            sync_path(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
