"""What a micro-batch does to a state."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

__all__ = ["Changes"]


@dataclass(frozen=True)
class Changes:
    """What an update does to the state: rows that come, and keys or entries that go.

    They are those of ``checkpoint.keyed(…).changes``. ``shared`` is a DataFrame that several of
    them are made of: it is computed once, and kept until the micro-batch is committed.
    """

    upserts: DataFrame | None = None
    deletes: DataFrame | None = None
    cleared: DataFrame | None = None
    shared: DataFrame | None = None
