"""Rows from callers, as Arrow columns: coercion, lossless casts, equality, sorting, digests.

This package does not know files or stores. What a file contains is in :mod:`statestore.parquet`.
"""
