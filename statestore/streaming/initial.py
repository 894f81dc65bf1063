"""A stored keyed state as the initial state of one that Spark keeps itself."""

from __future__ import annotations

from pyspark.sql import GroupedData

from statestore.commands.restore import RestoredKeyedState

__all__ = ["initial_state"]


def initial_state(state: RestoredKeyedState) -> GroupedData:
    """Return a restored state as ``initialState=`` of ``transformWithState`` and
    ``transformWithStateInPandas`` takes it: its stored rows, grouped by key.

    Spark exchanges them once, by its own hash of the key, when the query starts for the first time.
    Raises InvalidArgumentError when the store was opened without Spark.
    """
    return state.dataframe().drop("key_group").groupBy(*state.entry.state.key)
