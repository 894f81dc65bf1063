"""From a key to its owner: key types, Flink's hash schemes, key groups and key-group ranges.

Modules here are pure: they do not use files or Spark. Only the modules ``arrow*.py`` use Arrow and
numpy. The same hashes as Spark columns are in ``spark``. A rule that needs more than keys and
ranges, such as the placement of subtasks, belongs in ``jobgraph`` or ``restore``.
"""
