"""Savepoints and checkpoints of Flink jobs, read and written without a JVM.

``open_savepoint`` opens one, ``show_savepoint`` says what is in it, and ``repack_savepoint`` gives
it another number of key groups; the command is ``statestore flink``. Files are opened by
``savepoint`` and what is above it; what the other modules do is pure, over bytes.
"""

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
    "FlinkOperator",
    "Repacked",
    "RepackedOperator",
    "Savepoint",
    "ShownKeyedState",
    "ShownOperator",
    "ShownOperatorState",
    "ShownSavepoint",
    "StateEntries",
    "StateRows",
    "open_savepoint",
    "repack_savepoint",
    "show_savepoint",
]
