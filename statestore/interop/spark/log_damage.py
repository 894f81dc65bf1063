"""Find damaged logs of a query: files of a few lines that an export writes again unchanged."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from statestore.errors import DamagedFileError
from statestore.storage import Storage

_SCHEMA_VERSION = b"\0\2v2"

_MAGIC, _HEADER_BYTES, _SUM_BYTES = b"crc\0", 8, 4


def refuse_damaged_log(storage: Storage, name: str) -> None:
    """Compare a file with the checksums that Hadoop keeps next to it.

    Raises:
        DamagedFileError: if the file differs from its checksums.
    """
    if (sums_name := differing_checksums(storage, name)) is not None:
        raise DamagedFileError(
            f"{storage.url}/{name} differs from its checksum in {sums_name}. Replace it with "
            "an intact copy; if it was changed on purpose, delete the checksum"
        )


def refuse_damaged_source_log(storage: Storage, name: str, content: bytes) -> None:
    """Check a file of a source for lines that are cut off, missing or not JSON.

    Spark's own sources write the line ``v1``, in older formats after a zero byte, and then lines of
    JSON. Files in another format are not checked.

    Raises:
        DamagedFileError: if the file is empty, or has other lines.
    """
    lines = content.removeprefix(b"\0").splitlines()
    if content.strip(b"\0") and lines[0] != b"v1" and not lines[0].startswith(b"\0"):
        return
    try:
        if lines[:1] != [b"v1"] or len(lines) == 1:
            raise ValueError("a line is missing")
        for line in lines[1:]:
            json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"{storage.url}/{name} is damaged, so the query cannot continue from this "
            f"micro-batch: {error}. Replace it with an intact copy"
        ) from error


def refuse_damaged_schema(storage: Storage, name: str, content: bytes) -> None:
    """Check that the description of a store's columns ends after the columns of the value.

    The file has two texts. Each is a number of pieces, and each piece follows its length. Spark
    does not notice bytes that follow the second one. Other versions of the file are not checked.

    Raises:
        DamagedFileError: if the file is shorter or longer.
    """
    if not content.startswith(_SCHEMA_VERSION):
        return
    position = len(_SCHEMA_VERSION)
    for _text in ("key", "value"):
        pieces = int.from_bytes(content[position : position + 4], "big")
        position += 4
        while pieces and position < len(content):
            position += 2 + int.from_bytes(content[position : position + 2], "big")
            pieces -= 1
    if position != len(content):
        raise DamagedFileError(
            f"{storage.url}/{name} is damaged: it has {len(content):,} bytes instead of "
            f"{position:,}. Replace it with an intact copy"
        )


def differing_checksums(storage: Storage, name: str) -> str | None:
    """Compare a file with its checksums in ``.<name>.crc``; the file is read in chunks.

    Hadoop's ``ChecksumFileSystem`` keeps the checksums next to a file of a local file system. They
    begin with the number of bytes of a chunk, and then the CRC-32 of each chunk follows.

    Args:
        storage: the storage of the file. Only local ones have checksums.
        name: the name of the file.

    Returns:
        The name of the file with the checksums, if the file differs from them; None if it equals
        them, or has none.

    Raises:
        FileNotFoundError: if the file does not exist, but its checksums do.
    """
    native = storage.native_path(name)
    if native is None:
        return None
    path = Path(native)
    sums_path = path.with_name(f".{path.name}.crc")
    sums = sums_path.read_bytes() if sums_path.is_file() else b""
    if len(sums) < _HEADER_BYTES or not sums.startswith(_MAGIC):
        return None  # Hadoop ignores a file without this header, too
    chunk_bytes = max(int.from_bytes(sums[len(_MAGIC) : _HEADER_BYTES], "big"), 1)
    with path.open("rb") as file:
        actual = b"".join(
            zlib.crc32(chunk).to_bytes(_SUM_BYTES, "big")
            for chunk in iter(lambda: file.read(chunk_bytes), b"")
        )
    return None if actual == sums[_HEADER_BYTES:] else sums_path.name
