"""Publish a state of a checkpoint as a table of another catalog, without a copy of its files.

This package has the columns of such a table, the description of its data files, the commit to the
catalog, and the hold that keeps the files. The Delta log inside a store is part of a checkpoint and
belongs in ``delta/``. Tables as a source of rows belong in ``interop/tables``.
"""
