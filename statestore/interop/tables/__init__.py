"""Tables of other systems, as the rows of a state: Parquet, Delta, CSV, and queries of DuckDB.

What belongs here: opening a table, its column types, and its rows as a stream. What does not: how
rows become a state (``snapshot/bootstrap.py``), and tables of a store itself.
"""

from statestore.interop.tables.duckdb_query import open_query
from statestore.interop.tables.source_table import SourceTable
from statestore.interop.tables.table_formats import open_table

__all__ = ["SourceTable", "open_query", "open_table"]
