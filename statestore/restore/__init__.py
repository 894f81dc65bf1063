"""Read a checkpoint: target, plan, restored state, lookups, export, SQL, history and placement.

Modules here choose which subtask reads which files, and present the rows. They change nothing in a
store. Decoding files belongs in ``parquet``, merging them in ``layers``, and the Spark side of a
restore in ``spark``.
"""
