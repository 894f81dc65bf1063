"""State tables: the Delta log of a state's data files, and the plain Parquet table without a log.

The data files themselves are written in :mod:`statestore.parquet`.
"""
