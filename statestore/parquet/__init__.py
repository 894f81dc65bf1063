"""Data files: Parquet files of keyed state and operator state, written and read in pieces.

A file is described by a handle of :mod:`statestore.format`. Changes are merged with their base in
:mod:`statestore.layers`.
"""
