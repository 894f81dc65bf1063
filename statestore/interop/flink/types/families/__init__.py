"""One module for each family of Flink's types, with everything that depends on the type.

A class derives from ``FlinkType`` (``base.py``) and is listed in ``TYPES`` of ``flink_types.py``.
A type without parameters is a ``ScalarForm`` in one of the ``scalar_*.py`` modules, listed in
``SCALARS`` of ``scalar.py``. Helpers that several families share are in ``value_lengths.py``,
``decode.py`` and ``encode.py``, one folder up.
"""
