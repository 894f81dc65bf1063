"""Import and export the state of other systems, in their own formats.

Each system has its own packages, which do not import those of another system. Flink's rules that
are not about its files belong in ``jobgraph``. Live queries belong in ``streaming``.
"""
