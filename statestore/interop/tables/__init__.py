"""Tables of other systems, as the rows of a state: Parquet, Delta, CSV, and queries of DuckDB.

What belongs here: opening a table, its column types, and its rows as a stream. What does not: how
rows become a state (``snapshot/bootstrap.py``), and tables of a store itself.
"""

from statestore.interop.tables.source import SourceTable
from statestore.interop.tables.sources import open_query, open_table

__all__ = ["SourceTable", "open_query", "open_table"]
