"""Parquet data files, written: exact counts, digest and checksum of every one.

Rows are flushed a row group at a time; what the file's handle needs is known when it is closed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import InvalidArgumentError
from statestore.storage import Storage
from statestore.storage.base import NewFile, named
from statestore.table.digest import rows_digest
from statestore.table.encodings import Encodings, leaf_paths
from statestore.table.footers import footer_of

__all__ = ["FileWriter", "ParquetOptions"]

# A row group ends with a key group once it has this part of the rows that it may have: more of
# them cost footer, fewer make subtasks that share one read it twice.
_GROUPS_PER_ROW_GROUP = 16


@dataclass(frozen=True)
class ParquetOptions:
    """How data files are written: rows a row group holds at most, and zstd's level (1 fast, 22
    small).

    ``layout`` is that of keyed states: ``partitioned``, ``ranged`` or ``auto``.
    """

    row_group_rows: int = 65_536
    row_group_bytes: int = 32 * 1024 * 1024
    zstd_level: int = 1
    layout: str = "partitioned"
    file_bytes: int = 128 * 2**20
    """After so many bytes a ranged file ends at the next key group."""

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for what is out of bounds."""
        bounds = {"row_group_rows": 2**31 - 1, "row_group_bytes": 2**31 - 1, "zstd_level": 22}
        for name, most in (bounds | {"file_bytes": 2**63 - 1}).items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidArgumentError(f"{name} lies in 1..{most}, not {value!r}")


class FileWriter:
    """One data file being written; :meth:`close` returns what its handle needs."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        schema: pa.Schema,
        options: ParquetOptions,
        encodings: Encodings | None = None,
    ) -> None:
        """Create the file ``name`` of the store; StorageError when that fails.

        ``encodings`` is shared by files of one state, whose columns are alike.
        """
        self.name = name
        self._encodings = encodings or Encodings()
        self._sink = _Sink(storage.open_write(name), f"{storage.url}/{name}")
        self._options = options
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._row_groups = 0
        self._rows = 0
        self._digest = 0
        self._schema = schema
        self._opened: pq.ParquetWriter | None = None

    @property
    def written_bytes(self) -> int:
        """Bytes that have reached the file so far."""
        return self._sink.size

    def write(self, batch: pa.RecordBatch, digest: int | None = None) -> None:
        """Append rows; they are flushed a whole row group at a time.

        ``digest`` is that of the rows without what the store adds to them; by default of all.
        """
        self._digest += rows_digest(batch) if digest is None else digest
        self._rows += batch.num_rows
        while self._pending_rows + batch.num_rows >= self._options.row_group_rows:
            room = self._options.row_group_rows - self._pending_rows
            self._pending.append(batch.slice(0, room))
            self._flush()
            batch = batch.slice(room)
        if batch.num_rows:
            self._pending.append(batch)
            self._pending_rows += batch.num_rows
            self._pending_bytes += batch.nbytes
            if self._pending_bytes >= self._options.row_group_bytes:
                self._flush()

    def end_group(self) -> None:
        """End a row group here if it has some size: a key group ends, and a reader may begin."""
        if self._pending_rows >= max(self._options.row_group_rows // _GROUPS_PER_ROW_GROUP, 1):
            self._flush()

    def close(self) -> dict[str, Any]:
        """Finish the file and return rows, size_bytes, row_groups, digest, sha256 and footer."""
        if self._pending or self._opened is None:
            self._flush()
        assert self._opened is not None
        self._sink.keep()
        self._opened.close()
        self._sink.close()
        return {
            "rows": self._rows,
            "size_bytes": self._sink.size,
            "row_groups": self._row_groups,
            "digest": self._digest % 2**64,
            "sha256": self._sink.sha256.hexdigest(),
            "footer": footer_of(self._sink.kept),
        }

    def abandon(self) -> None:
        """Leave nothing of the file."""
        if self._opened is not None:
            # Or Arrow would try to write a footer to a closed file when it is collected.
            self._opened.is_open = False
        self._sink.abandon()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema)
        if self._opened is None:
            self._opened = self._open(table)
        if table.num_rows:
            self._opened.write_table(table, row_group_size=table.num_rows)
            self._row_groups += 1
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        """Return Arrow's writer; the file's first rows say how its columns are encoded."""
        chosen = self._encodings.of(first)
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=self._options.zstd_level,
            use_dictionary=[path for path in leaf_paths(self._schema) if path not in chosen],
            column_encoding=chosen,
            write_page_checksum=True,
            # Spark, Delta and DuckDB read the logical types; Arrow's own would only be weight.
            store_schema=False,
        )


class _Sink:
    """A file that Arrow writes to; it counts and hashes what passes."""

    def __init__(self, raw: NewFile, where: str) -> None:
        self._raw, self._where = raw, where
        self._abandoned = False
        self._keeps = False
        self.kept = b""
        self.size = 0
        self.sha256 = hashlib.sha256()

    def keep(self) -> None:
        """Keep what is written from now on, besides: the footer, which comes last."""
        self._keeps = True

    @property
    def closed(self) -> bool:
        return self._raw.closed and not self._abandoned

    def write(self, data: bytes) -> int:
        if self._abandoned:  # Arrow writes a footer to the last
            return len(data)
        with named("write", self._where):
            self._raw.write(data)
        self.sha256.update(data)
        self.size += len(data)
        if self._keeps:
            self.kept += bytes(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._abandoned:
            with named("write", self._where):
                self._raw.flush()

    def abandon(self) -> None:
        self._abandoned = True
        self._raw.abandon()

    def close(self) -> None:
        with named("write", self._where):
            self._raw.close()
