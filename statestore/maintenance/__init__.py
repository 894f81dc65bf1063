"""Operations on kept checkpoints: derive new ones, verify, compare, hold, expire and collect.

Each operation is a module, which both ``StateStore`` and the command call; the parts of a large one
are modules in the same folder, such as ``gc_mark.py``. An operation never changes a committed data
file: it makes a new checkpoint with ``derive.py``, or hides and deletes old ones. Taking a job's
checkpoint belongs in ``snapshot``, and options and output in ``cli``.
"""
