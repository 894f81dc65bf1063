"""Engines that turn rows into sorted files of a keyed state, and the choice between them.

Spark's engine is in :mod:`statestore.spark`, because only that package imports pyspark.
"""
