"""Read a checkpoint: target, plan, restored state, export, SQL, history, placement and skew.

Modules here choose which subtask reads which files, and present the rows. They change nothing in a
store. Decoding and merging files belong in ``files``, and the Spark side of a restore belongs in
``spark``.
"""
