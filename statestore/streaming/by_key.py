"""An update written for one key at a time, in pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["by_key"]

Function = Callable[[tuple[Any, ...], "pd.DataFrame", "pd.DataFrame"], "pd.DataFrame"]


def by_key(
    key: str | Sequence[str], schema: str, function: Function
) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """Return an update for :class:`StatefulQuery` that calls ``function`` for each touched key.

    ``function(key, events, state)`` gets the key's events of the micro-batch and its stored rows,
    none for a new key, and returns the rows that it has from now on, in the columns of ``schema``.
    """
    names = (key,) if isinstance(key, str) else tuple(key)

    def update(events: DataFrame, state: DataFrame) -> DataFrame:
        pairs = events.groupBy(*names).cogroup(state.groupBy(*names))
        return pairs.applyInPandas(function, schema)

    return update
