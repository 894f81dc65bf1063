"""A state's data files as an Iceberg table names them: URL, partition, and statistics.

The statistics come from a file's footer, whose checksum is compared with the manifest's first. Only
key columns have bounds, as in a Delta log. Floating-point columns have none, because readers
disagree on NaN. If a row group has values of a column but no bounds, the file has no bounds of that
column. A file of an older release has no checksum of its footer, and therefore no bounds: a wrong
bound would hide rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq

from statestore.delta.log_entry import partition_columns
from statestore.errors import InvalidArgumentError
from statestore.extras import needs_extra
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry
from statestore.listeners import Progress
from statestore.parquet.reader import open_data
from statestore.parquet.statistics import (
    LONGEST_TEXT,
    positions_of,
    statistics_columns,
    upper_bound_text,
)
from statestore.storage import Storage, refuse_credentials

with needs_extra("iceberg", "an Iceberg table"):
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.typedef import Record
    from pyiceberg.types import DateType, PrimitiveType, StringType, TimestampType, TimestamptzType

_READ_AT_ONCE = 8
_TIMES = (DateType(), TimestampType(), TimestamptzType())


def readers_url(storage: Storage, given: str | None) -> str:
    """Return the URL of the store for readers of the table, without a slash at its end.

    Args:
        storage: The store's files.
        given: The URL that the caller gives; by default it follows from the store's URL.

    Returns:
        A URL with a scheme that Iceberg's readers know.

    Raises:
        InvalidArgumentError: The URL has no scheme, has credentials, or has a character that
            readers interpret in different ways.
    """
    url = storage.spark_url("") if given is None else given
    url = url.replace("s3a://", "s3://", 1).rstrip("/")
    if url.startswith("file:/") and not url.startswith("file://"):
        url = f"file://{url.removeprefix('file:')}"
    refuse_credentials(url)
    if "://" not in url:
        raise InvalidArgumentError(
            f"{url!r} is not a URL that readers of a table can open: begin it with a scheme such "
            "as s3:// or file://"
        )
    if any(character in url for character in "?#%"):
        raise InvalidArgumentError(
            f"readers of Iceberg tables interpret '?', '#' and '%' in {url!r} in different ways; "
            "move the store to a folder without these characters"
        )
    return url


def files_by_url(entry: Entry, url: str) -> dict[str, Handle]:
    """Return the handles of a state's files by URL; ``url`` is the store's."""
    return {f"{url}/{entry.table.name_of(handle)}": handle for handle in entry.handles}


def describe_files(
    storage: Storage,
    entry: Entry,
    files: dict[str, Handle],
    schema: IcebergSchema,
    spec_id: int,
    progress: Progress,
) -> list[DataFile]:
    """Read the footers of files; return their descriptions for the table's metadata, in order.

    Raises:
        CorruptionError: A file is missing or damaged.
        StorageError: A file cannot be read.
    """
    described: list[DataFile] = []
    progress(0, len(files))

    def describe(file: tuple[str, Handle]) -> DataFile:
        return _described(storage, entry, *file, schema, spec_id)

    with ThreadPoolExecutor(max_workers=_READ_AT_ONCE) as pool:
        for data_file in pool.map(describe, files.items()):
            described.append(data_file)
            progress(len(described), len(files))
    return described


def _described(
    storage: Storage, entry: Entry, url: str, handle: Handle, schema: IcebergSchema, spec_id: int
) -> DataFile:
    with open_data(storage, entry.table.path, handle) as file:
        metadata = file.parquet.metadata
    partition = Record()
    if isinstance(handle, KeyedStateHandle) and partition_columns(entry):
        partition = Record(handle.key_groups.first)
    columns = statistics_columns(entry.state) if handle.footer is not None else ()
    values, nulls, lowest, highest = {}, {}, {}, {}
    for name, chunks in _chunks_of(metadata, [column.name for column in columns]):
        field = schema.find_field(name)
        data_type = field.field_type
        assert isinstance(data_type, PrimitiveType)
        bounds = _bounds(chunks, data_type)
        if bounds is None:
            continue
        values[field.field_id] = metadata.num_rows
        nulls[field.field_id] = sum(chunk.null_count for chunk in chunks)
        lowest[field.field_id], highest[field.field_id] = bounds
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=metadata.num_rows,
        file_size_in_bytes=handle.size_bytes,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=lowest,
        upper_bounds=highest,
        split_offsets=list(_row_group_starts(metadata)),
        key_metadata=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=spec_id,
    )


def _chunks_of(
    metadata: pq.FileMetaData, names: Iterable[str]
) -> Iterator[tuple[str, list[pq.Statistics]]]:
    """Yield the statistics of each row group for the columns that the file has."""
    positions = positions_of(metadata)
    groups = range(metadata.num_row_groups)
    for name in names:
        if name in positions:
            yield name, [metadata.row_group(i).column(positions[name]).statistics for i in groups]


def _bounds(chunks: list[Any], data_type: PrimitiveType) -> tuple[bytes, bytes] | None:
    """Return the bounds of a column in Iceberg's form; None if they are unknown."""
    if not chunks or not all(chunk and chunk.has_null_count for chunk in chunks):
        return None
    # num_values counts values that are not null.
    filled = [chunk for chunk in chunks if chunk.num_values or chunk.has_min_max]
    if not filled or not all(chunk.has_min_max for chunk in filled):
        return None
    if data_type in _TIMES:
        # Python has no date before the year 1 or after 9999; the raw number always exists.
        low, high = min(chunk.min_raw for chunk in filled), max(chunk.max_raw for chunk in filled)
    else:
        low, high = min(chunk.min for chunk in filled), max(chunk.max for chunk in filled)
    if data_type == StringType():
        low, high = low[:LONGEST_TEXT], upper_bound_text(high)
    return to_bytes(data_type, low), to_bytes(data_type, high)


def _row_group_starts(metadata: pq.FileMetaData) -> Iterator[int]:
    for number in range(metadata.num_row_groups):
        first = metadata.row_group(number).column(0)
        yield first.dictionary_page_offset or first.data_page_offset
