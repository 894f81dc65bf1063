"""Show some rows of a DataFrame in an error message."""

from __future__ import annotations

from pyspark.sql import DataFrame

from statestore.rows.lossless_cast import shorten

__all__ = ["example_rows"]

_MOST_EXAMPLES = 3


def example_rows(rows: DataFrame) -> tuple[str, ...]:
    """Return the first rows as text; they are computed now."""
    first = rows.limit(_MOST_EXAMPLES).collect()
    return tuple(shorten(str(row.asDict(recursive=True))) for row in first)
