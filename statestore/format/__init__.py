"""The documents of a store as values and as JSON, and the names of all files.

Modules here are pure: they take values or bytes, and return values or bytes. docs/FORMAT.md
specifies the same format. Reading or writing a file belongs in ``catalog`` and ``parquet``. Rows
and Arrow columns belong in ``rows``.
"""
