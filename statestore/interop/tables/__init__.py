"""Tables of other systems, as the rows of a state: Parquet, Delta, CSV, and queries of DuckDB.

This package opens a table, and reads its column types and its rows as a stream. Turning the rows
into a state belongs in ``snapshot/bootstrap.py``. Tables of a store itself are read elsewhere.
"""

from statestore.interop.tables.source_table import SourceTable
from statestore.interop.tables.table_formats import open_query, open_table

__all__ = ["SourceTable", "open_query", "open_table"]
