"""The settings that all jobs share: the store, Spark, and the places that Spark reads and writes.

Each dataclass checks combinations of its fields and raises InvalidArgumentError;
``statestore.settings`` adds the position in the settings file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.restart import NoRestart, RestartStrategy
from statestore.parquet.writer import ParquetOptions
from statestore.rows.sorting import MEMORY_BYTES
from statestore.settings import setting
from statestore.storage import DEFAULT_STREAMS, refuse_credentials
from statestore.storage.local_cache import DEFAULT_LIMIT_BYTES, CacheOptions

__all__ = [
    "JobSettings",
    "SinkSettings",
    "SnapshotStoreSettings",
    "SourceSettings",
    "SparkSettings",
    "StoreSettings",
    "TableFormat",
    "in_bucket",
]

TableFormat = Literal["delta", "parquet"]


def in_bucket(url: str | None) -> bool:
    """Return whether a path or URL is on S3."""
    return (url or "").partition("://")[0] in ("s3", "s3a")


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Settings of every job: its restart strategy, by default none, and the port of its metrics.

    The settings file has the strategy as ``[restart-strategy]``, with Flink's options;
    ``jobs.restarts`` reads them. Without a port, no metrics are served. Port 0 stands for any
    free port.
    """

    metrics_port: int | None = setting(None, unit="port", low=0, high=65_535)
    restart_strategy: RestartStrategy = field(default_factory=NoRestart)


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """The location of the checkpoints, and a local folder that caches their data files.

    ``storage_options`` are passed to fsspec.
    """

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)
    local_cache: str | None = None
    local_cache_bytes: int = setting(DEFAULT_LIMIT_BYTES, unit="bytes", low=1)
    parallel_streams: int = setting(DEFAULT_STREAMS, unit="streams", low=1, high=1024)

    def __post_init__(self) -> None:
        """Refuse a URL with credentials, which would be printed with the settings."""
        refuse_credentials(self.url)

    @property
    def options(self) -> dict[str, Any]:
        """All settings except the URL, as ``StateStore.open`` takes them."""
        return {
            "storage_options": self.storage_options,
            "cache": (
                CacheOptions(self.local_cache, self.local_cache_bytes) if self.local_cache else None
            ),
            "parallel_streams": self.parallel_streams,
        }


@dataclass(frozen=True, kw_only=True)
class SnapshotStoreSettings(StoreSettings):
    """A store that is written: adds the table format, the layout, and Parquet options.

    The table format and the layout of keyed states are optional for a store that exists.
    """

    table_format: TableFormat | None = None
    layout: Literal["partitioned", "ranged", "auto"] | None = None
    row_group_rows: int = setting(65_536, unit="rows", low=1, high=2**31 - 1)
    row_group_bytes: int = setting(32 * 2**20, unit="bytes", low=1, high=2**31 - 1)
    memory_bytes: int = setting(MEMORY_BYTES, unit="bytes", low=2**20)
    zstd_level: int = setting(1, unit="level", low=1, high=22)

    @property
    def options(self) -> dict[str, Any]:
        """The options of :class:`StoreSettings`, and those for writing."""
        parquet = ParquetOptions(
            row_group_rows=self.row_group_rows,
            row_group_bytes=self.row_group_bytes,
            memory_bytes=self.memory_bytes,
            zstd_level=self.zstd_level,
        )
        return super().options | {
            "table_format": self.table_format,
            "layout": self.layout,
            "parquet": parquet,
        }


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """The Spark session that plain Python starts; without effect under spark-submit."""

    master: str = "local[*]"
    driver_memory: str | None = None
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The rows that Spark reads: a table, or a format with a path or options; then SQL over them.

    With ``group_by`` there is one row per group, and ``select`` defines its columns.
    """

    format: str | None = None
    path: str | None = None
    table: str | None = None
    schema: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    where: str | None = None
    group_by: tuple[str, ...] = ()
    select: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a source without a place, with two places, or with groups but no ``select``."""
        _check_place(self.format, self.path, self.table, self.options)
        if self.group_by and not self.select:
            raise InvalidArgumentError(
                "group_by requires select: name the columns of a group, for example count(*) AS n"
            )
        if self.table is not None and (self.format or self.schema):
            raise InvalidArgumentError(
                "a table has its own format and schema; remove format and schema"
            )


@dataclass(frozen=True, kw_only=True)
class SinkSettings:
    """The target that Spark writes: a table, or a format with a path or options.

    With ``per_subtask`` each subtask's rows are in a directory of their own.
    """

    format: str | None = None
    path: str | None = None
    table: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    mode: Literal["error", "overwrite", "append", "ignore"] = "error"
    per_subtask: bool = True

    def __post_init__(self) -> None:
        """Refuse a sink without a place, or with two places."""
        _check_place(self.format, self.path, self.table, self.options)

    @property
    def place(self) -> str:
        """The name of the target in messages."""
        return self.path or self.table or f"the {self.format} target"


def _check_place(
    format: str | None,  # noqa: A002 - Spark's word
    path: str | None,
    table: str | None,
    options: dict[str, Any],
) -> None:
    if path is not None and table is not None:
        raise InvalidArgumentError("both path and table are set; keep only one")
    if path is None and table is None and not options:
        raise InvalidArgumentError("neither path nor table is set; set one")
    if table is None and format is None:
        raise InvalidArgumentError(
            "format is missing; set it, for example to parquet, delta, csv or json"
        )
    for name, value in options.items():
        if not isinstance(value, str | int | float):
            raise InvalidArgumentError(
                f"the option {name!r} must be a string, a number, true or false, not {value!r}"
            )
