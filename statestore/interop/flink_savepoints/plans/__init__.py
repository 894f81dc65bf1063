"""Compiled plans of Flink SQL: the states that their operators keep, as columns of tables.

What belongs here: reading a plan, the state layout of each operator, and the bootstrap of such a
state from a table. What does not: how rows become entries of a savepoint (``exporting``).
"""
