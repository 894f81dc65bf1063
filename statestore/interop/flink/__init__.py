"""Savepoints and checkpoints of Flink jobs, read and written without a JVM.

``repack_savepoint`` gives one another number of key groups; the command is ``statestore flink``.
``savepoint`` opens them; what the other modules do is pure, over bytes.
"""

from statestore.interop.flink.repack import Repacked, RepackedOperator, repack_savepoint

__all__ = ["Repacked", "RepackedOperator", "repack_savepoint"]
