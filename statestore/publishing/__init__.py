"""Publish a state of a checkpoint as a table of another catalog, without a copy of its files.

What belongs here: the columns of such a table, the description of its data files, the catalog's
commit, and the hold that keeps the files. What does not: the Delta log inside a store, which is
part of a checkpoint (``delta/``), and tables as a source of rows (``interop/tables``).
"""
