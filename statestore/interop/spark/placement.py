"""Refuse rows that Spark finds only in the partitions where they are.

Spark sends an event to the partition of its key, and looks for the key's state there. For a
processor in pandas, the key is converted to Python and back before Spark looks for it. A null
number becomes NaN, for example, and a time becomes another one if the session and Python have
different time zones. Then the row of the state is in the partition of the event's key, and has
another key. With another number of partitions, the two keys are in different partitions, and Spark
would find no state.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statestore.errors import UnsupportedTypeError
from statestore.interop.spark.families import GROUPING_KEY, FamilyColumns
from statestore.interop.spark.parts import Columns, StatePart


def refuse_misplaced_rows(rows: DataFrame, columns: Columns, part: StatePart) -> None:
    """Refuse rows of a store in other partitions than their keys imply.

    Args:
        rows: the rows of Spark's reader.
        columns: their columns.
        part: the store.

    Raises:
        UnsupportedTypeError: for such a row; the message has its key.
    """
    key = GROUPING_KEY if isinstance(columns, FamilyColumns) else "key"
    misplaced = rows.where(F.col("partition_id") != columns.owner_in_spark(part.partitions))
    text = F.to_json(F.col(key), {"ignoreNullFields": "false"})
    (first,) = misplaced.agg(F.first(text)).collect()
    if first[0] is not None:
        raise UnsupportedTypeError(
            f"store {part.store!r} of operator {part.uid} has a row in another partition than its "
            f"key implies, {first[0]}: the events that it belongs to have another key, and Spark "
            "would not find it in other partitions. transformWithStateInPandas does this to a null "
            "number in a key, and to a time if the time zones of the session and of Python "
            "differ. Start the query with a new location and without such keys, or with "
            "transformWithState"
        )
