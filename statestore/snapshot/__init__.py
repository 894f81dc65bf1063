"""Take a checkpoint: begin, write or carry states, write changes, compact, and commit.

A module belongs here if it is part of an attempt to commit a new checkpoint of a job. Writing one
file belongs in ``parquet``, and claims and manifests belong in ``catalog``. Operations that make a
checkpoint from another one belong in ``maintenance``.
"""
