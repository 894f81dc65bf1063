"""Import and export the state of other systems, in their own formats.

Each system has its own package, which does not import the others. Flink's rules that are not about
its files belong in ``jobgraph``. Live queries belong in ``streaming``.
"""
