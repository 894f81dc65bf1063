"""Begin a query of Spark that has never run with state from tables.

Spark plans the query's first micro-batch without data, which shows the states that it needs. Rows
for them become a new checkpoint location. Reading and writing locations that queries wrote belongs
in the package above.
"""
