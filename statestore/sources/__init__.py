"""Source offsets: operator state with positions, and its comparison with a source's live ranges.

Only ``kafka.py`` connects to a source. The other modules are pure functions. Storing and
redistributing the offsets as operator state belong in ``snapshot`` and ``restore``.
"""
