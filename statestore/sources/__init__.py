"""What a job reads: source offsets, their comparison with live ranges, and the files of tables.

``kafka.py`` connects to a source, ``batch_inputs.py`` and ``table_files.py`` read tables. The other
modules are pure functions. Storing and redistributing the offsets as operator state belong in
``snapshot`` and ``restore``.
"""
