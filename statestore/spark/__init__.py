"""Spark: its Java and sessions, key hashes as columns, partitioning, writing, reading, tasks.

A module belongs here if it starts Spark, or handles the rows of a state as a DataFrame. Streaming
queries belong in ``streaming``, and checkpoints of Spark's own queries in
``interop.spark``. Hash schemes are defined in ``keys``, and repeated here as columns.
"""
