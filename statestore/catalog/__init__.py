"""The documents that decide what exists: checkpoints, writers' claims, savepoints and pins.

A module belongs here if it puts, finds or hides such a document and needs no data file. Every
commit and every fencing check is here. Converting manifests to bytes belongs in ``format``, and
commands that delete data files belong in ``maintenance``.
"""
