"""Read and write savepoints and checkpoints of Flink jobs without a JVM.

- ``open_savepoint`` opens a savepoint, and ``show_savepoint`` lists its contents.
- ``import_savepoint`` imports its state into a store.
- ``export_savepoint`` writes a checkpoint of a store as a savepoint.
- ``repack_savepoint`` rewrites a savepoint with another number of key groups.
- ``collect_flink_files`` deletes files of checkpoints that nothing names.

Only ``savepoint``, ``checkpoint_gc`` and the modules that use them open files. The other modules
are pure functions over bytes. Flink's rules for a job belong in ``statestore.jobgraph``.
"""

from statestore.interop.flink.checkpoint_gc import CollectedFlinkFiles, collect_flink_files
from statestore.interop.flink.exporting.export_state import (
    ExportedFlinkState,
    ExportedOperator,
    ExportedSavepoint,
    export_savepoint,
)
from statestore.interop.flink.exporting.export_types import LeftOut
from statestore.interop.flink.exporting.repack import (
    RepackedOperator,
    RepackResult,
    repack_savepoint,
)
from statestore.interop.flink.importing.import_record import (
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.importing.import_state import ImportedSavepoint, import_savepoint
from statestore.interop.flink.options import (
    ExportSelection,
    FlinkTarget,
    SavepointAccess,
    SavepointHints,
)
from statestore.interop.flink.read.keyed_states import SavepointRows, StateEntries
from statestore.interop.flink.read.plausibility import ImplausibleState
from statestore.interop.flink.read.refusals import Refused
from statestore.interop.flink.read.savepoint import FlinkOperator, FlinkSavepoint, open_savepoint
from statestore.interop.flink.read.show_savepoint import (
    ShownKeyedState,
    ShownOperator,
    ShownOperatorState,
    ShownSavepoint,
    show_savepoint,
)
from statestore.interop.flink.types.key_recipes import register_key_hash

__all__ = [
    "CollectedFlinkFiles",
    "ExportSelection",
    "ExportedFlinkState",
    "ExportedOperator",
    "ExportedSavepoint",
    "FlinkOperator",
    "FlinkSavepoint",
    "FlinkTarget",
    "ImplausibleState",
    "ImportedOperator",
    "ImportedSavepoint",
    "ImportedState",
    "LeftOut",
    "Refused",
    "RepackResult",
    "RepackedOperator",
    "SavepointAccess",
    "SavepointHints",
    "SavepointRecord",
    "SavepointRows",
    "ShownKeyedState",
    "ShownOperator",
    "ShownOperatorState",
    "ShownSavepoint",
    "StateEntries",
    "collect_flink_files",
    "export_savepoint",
    "import_savepoint",
    "open_savepoint",
    "register_key_hash",
    "repack_savepoint",
    "show_savepoint",
]
