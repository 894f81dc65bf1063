"""The footer of a data file, by which Arrow finds every row: found, checked, and only then parsed.

Over a damaged footer Arrow loses rows without a word, or aborts the process. So its bytes are held
against the manifest's checksum before Arrow sees one of them, and what it counts against what the
manifest counts: of files of older releases, which have no such checksum, that is all there is.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import DamagedFileError
from statestore.format.handles import Footer, Handle

__all__ = [
    "END_BYTES",
    "MAGIC",
    "check_columns",
    "check_rows",
    "footer_bytes",
    "footer_of",
    "read_footer",
]

END_BYTES, MAGIC = 8, b"PAR1"
"""Parquet ends with the length of what is before, and a mark."""
_SUM_DIGITS = 32


def footer_of(written: bytes) -> Footer:
    """Return the footer with which these bytes of a new file end."""
    length = footer_bytes(written[-END_BYTES:])
    return Footer(length, _sum_of(written[len(written) - length :]))


def footer_bytes(end: bytes | memoryview) -> int:
    """Return how long the footer is of a file with this end; ValueError if it is not Parquet."""
    if len(end) != END_BYTES or bytes(end[-len(MAGIC) :]) != MAGIC:
        raise ValueError("its end is not that of a Parquet file")
    return END_BYTES + int.from_bytes(end[: -len(MAGIC)], "little")


def read_footer(file: Any, where: str, handle: Handle) -> pq.FileMetaData:
    """Return what the footer of an open file says, once its bytes and counts are the handle's.

    ``file`` is as long as the handle says. Raises DamagedFileError, calling the file ``where``.
    """
    size = handle.size_bytes
    if handle.footer is None:
        file.seek(size - END_BYTES)
        length = footer_bytes(file.read(END_BYTES))
    else:
        length = handle.footer.size_bytes
    if length > size - len(MAGIC):
        raise ValueError("its end is not that of a Parquet file")
    file.seek(size - length)
    raw = file.read(length)
    if handle.footer is not None and _sum_of(raw) != handle.footer.sha256:
        raise DamagedFileError(
            f"{where} ends with another footer than was written: its SHA-256 is "
            f"{_sum_of(raw)[:16]}…, the manifest says {handle.footer.sha256[:16]}…; restore an "
            "older checkpoint, or bring the file back from a copy"
        )
    metadata = pq.read_metadata(pa.BufferReader(raw))
    _check_counts(metadata, where, handle)
    return metadata


def check_rows(where: str, found: int, stated: int, *, stated_by: str = "its footer") -> None:
    """Raise DamagedFileError unless as many rows came out of a file as something says."""
    if found != stated:
        raise DamagedFileError(
            f"{where} gave {found} rows where {stated_by} says {stated}; restore an older "
            "checkpoint, or bring the file back from a copy"
        )


def check_columns(where: str, found: pa.Schema, stated: pa.Schema) -> None:
    """Raise DamagedFileError unless a file has some columns, each once and of the stated type."""
    alike = all(
        len(found.get_all_field_indices(field.name)) == 1 and found.field(field.name).equals(field)
        for field in stated
    )
    if not alike:
        raise DamagedFileError(
            f"{where} has the columns ({_columns(found)}), the manifest says ({_columns(stated)}); "
            "restore an older checkpoint, or bring the file back from a copy"
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _check_counts(metadata: pq.FileMetaData, where: str, handle: Handle) -> None:
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for what, found, stated in (
        ("rows", metadata.num_rows, handle.rows),
        ("row groups", len(groups), handle.row_groups),
        ("rows in its row groups", sum(groups), handle.rows),
    ):
        if found != stated or min(groups, default=1) < 1:
            raise DamagedFileError(f"{where} has {found} {what}, the manifest says {stated}")


def _sum_of(raw: Any) -> str:
    return hashlib.sha256(raw).hexdigest()[:_SUM_DIGITS]
