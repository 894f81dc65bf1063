"""The inputs of a job: source offsets, their comparison with live ranges, and files of tables.

``kafka.py`` connects to a source, and ``table_files.py`` reads tables. The other
modules are pure functions. Storing and redistributing the offsets as operator state belong in
``snapshot`` and ``restore``.
"""
