"""The options of a query that belong together, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statestore.arguments import checked_fields
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest

__all__ = ["DEFAULTS", "ProcessorOptions", "QueryOptions", "RetentionPolicy"]


@checked_fields
@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints a query keeps; savepoints and pins are always kept.

    Attributes:
        keep: the number of checkpoints that are kept when older ones expire.
        every: older checkpoints expire each time when the id is a multiple of this number.

    Raises:
        InvalidArgumentError: for a number below 1.
    """

    keep: int
    every: int = 16

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        for name, number in (("keep", self.keep), ("every", self.every)):
            if number < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {number}")


@checked_fields
@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """Options of a query that most queries do not need.

    Attributes:
        source: the operator under which the query keeps its progress.
        succeeds: True if the query continues the state of a query with another checkpoint location.
            Its sources must start where that query ended.
        cache_bytes: the most bytes of decoded files that the driver, or each Spark Python worker
            that looks rows up, caches for the next micro-batch; by default 256 MiB.
        retention: which checkpoints are kept; by default all.
        on_commit: called with the manifest of each checkpoint.
        leave_out: states that an import left out and that the query starts without, as ``operator``
            or ``operator/state``.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    source: str = "source"
    succeeds: bool = False
    cache_bytes: int = 256 * 2**20
    retention: RetentionPolicy | None = None
    on_commit: Callable[[Manifest], object] | None = None
    leave_out: Collection[str] = ()


DEFAULTS = QueryOptions()


@checked_fields
@dataclass(frozen=True, kw_only=True)
class ProcessorOptions:
    """How Spark's ``transformWithState`` would call a processor.

    Attributes:
        output_schema: the columns of the rows that the processor yields.
        output_mode: ``Append`` or ``Update``.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``. ``EventTime`` requires events with
            a watermark.
        pandas: True if the processor was written for ``transformWithStateInPandas``.
        initial_state: rows for ``handleInitialState``, with the columns ``key``.
        max_parallelism: the number of key groups. The default is the stored number, or Flink's
            default for a new state.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    output_schema: str | StructType
    output_mode: str
    time_mode: str
    pandas: bool = False
    initial_state: DataFrame | None = None
    max_parallelism: int | None = None
