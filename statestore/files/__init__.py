"""Rows to Parquet files and back: convert, check, sort, write, read, merge and look up.

A module belongs here if it handles the rows or the table of one state. Choosing the states of a
checkpoint and committing it belong in ``snapshot``, and choosing the files to read belongs in
``restore``. Spark DataFrames belong in ``spark``.
"""
