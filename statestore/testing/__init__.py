"""Test suites and storages for authors of a storage or table backend, and for tests of jobs.

It is installed with the package, so it must not import ``tests``. The tests of this project, and
the servers that they start, belong in ``tests``.
"""
