"""The result of an update: the changes of a micro-batch to states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from statestore.snapshot.state_spec import Changes

__all__ = ["Updated"]


@dataclass(frozen=True)
class Updated:
    """The result of an update: changes by state, and rows for the query's ``output``.

    ``shared`` has DataFrames that several changes derive from. Each is computed once, and cached
    until the micro-batch is committed.
    """

    changes: Mapping[str, DataFrame | Changes]
    output: DataFrame | None = None
    shared: Sequence[DataFrame] = ()
