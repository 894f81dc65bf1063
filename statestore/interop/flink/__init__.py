"""Savepoints and checkpoints of Flink jobs, read and written without a JVM.

``open_savepoint`` opens one, ``show_savepoint`` says what is in it, ``import_savepoint`` takes its
state into a store, ``export_savepoint`` makes one of a checkpoint of a store, and
``repack_savepoint`` gives one another number of key groups; the command is ``statestore flink``.
Files are opened by ``savepoint`` and what is above it; what the other modules do is pure, over
bytes.
"""

from statestore.interop.flink.export_state import (
    ExportedOperator,
    ExportedSavepoint,
    ExportedState,
    export_savepoint,
)
from statestore.interop.flink.export_types import LeftOut
from statestore.interop.flink.import_state import ImportedSavepoint, import_savepoint
from statestore.interop.flink.record import ImportedOperator, ImportedState, SavepointRecord
from statestore.interop.flink.refusals import Refused
from statestore.interop.flink.repack import Repacked, RepackedOperator, repack_savepoint
from statestore.interop.flink.savepoint import (
    FlinkOperator,
    Savepoint,
    StateEntries,
    StateRows,
    open_savepoint,
)
from statestore.interop.flink.show import (
    ShownKeyedState,
    ShownOperator,
    ShownOperatorState,
    ShownSavepoint,
    show_savepoint,
)

__all__ = [
    "ExportedOperator",
    "ExportedSavepoint",
    "ExportedState",
    "FlinkOperator",
    "ImportedOperator",
    "ImportedSavepoint",
    "ImportedState",
    "LeftOut",
    "Refused",
    "Repacked",
    "RepackedOperator",
    "Savepoint",
    "SavepointRecord",
    "ShownKeyedState",
    "ShownOperator",
    "ShownOperatorState",
    "ShownSavepoint",
    "StateEntries",
    "StateRows",
    "export_savepoint",
    "import_savepoint",
    "open_savepoint",
    "repack_savepoint",
    "show_savepoint",
]
