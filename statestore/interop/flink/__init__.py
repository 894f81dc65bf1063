"""Savepoints and checkpoints of Flink jobs, read and written without a JVM.

``repack_savepoint`` gives one another number of key groups, ``export_savepoint`` makes one of a
checkpoint of a store; the commands are those of ``statestore flink``. ``savepoint`` opens them;
what most of the other modules do is pure, over bytes.
"""

from statestore.interop.flink.export_state import ExportedSavepoint, export_savepoint
from statestore.interop.flink.repack import Repacked, RepackedOperator, repack_savepoint

__all__ = [
    "ExportedSavepoint",
    "Repacked",
    "RepackedOperator",
    "export_savepoint",
    "repack_savepoint",
]
