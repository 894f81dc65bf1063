"""The checksums that Hadoop keeps next to a file of a local file system, in ``.<name>.crc``.

The file has a header with the number of bytes of a chunk, and then the CRC-32 of each chunk
(Hadoop's ``ChecksumFileSystem``).
"""

from __future__ import annotations

import zlib
from pathlib import Path

from statestore.storage import Storage

_MAGIC, _HEADER_BYTES, _SUM_BYTES = b"crc\0", 8, 4


def differing_checksums(storage: Storage, name: str) -> str | None:
    """Compare a file with its checksums; the file is read in chunks.

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
