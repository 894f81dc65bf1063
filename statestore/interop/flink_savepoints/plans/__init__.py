"""Compiled plans of Flink SQL: the states that their operators keep, as columns of tables.

This package reads a plan, knows the state layout of each operator, and begins such a state with the
rows of a table. Converting rows to entries of a savepoint belongs in ``exporting``.
"""
