"""Read and write savepoints and checkpoints of Flink jobs without a JVM.

- ``open_savepoint`` opens a savepoint, and ``show_savepoint`` lists its contents.
- ``import_savepoint`` imports its state into a store.
- ``export_savepoint`` writes a checkpoint of a store as a savepoint.
- ``repack_savepoint`` rewrites a savepoint with another number of key groups.
- ``read_flink_plan`` reads a compiled plan of Flink SQL, and ``bootstrap_flink_state`` begins one
  of its states with the rows of a table.

Only ``savepoint`` and the modules that use it open files. The other modules are pure functions
over bytes. Flink's rules for a job belong in ``statestore.jobgraph``.
"""

from statestore.interop.flink_savepoints.exporting.export_state import (
    ExportedFlinkState,
    ExportedOperator,
    ExportedSavepoint,
    export_savepoint,
)
from statestore.interop.flink_savepoints.exporting.export_types import LeftOut
from statestore.interop.flink_savepoints.importing.import_record import (
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink_savepoints.importing.import_state import (
    ImportedSavepoint,
    import_savepoint,
)
from statestore.interop.flink_savepoints.importing.refusals import Refused
from statestore.interop.flink_savepoints.options import (
    ExportSelection,
    FlinkTarget,
    SavepointAccess,
    SavepointHints,
)
from statestore.interop.flink_savepoints.plans.bootstrap_plan import (
    FlinkBootstrap,
    bootstrap_flink_state,
    plan_flink_bootstrap,
)
from statestore.interop.flink_savepoints.plans.plan_file import (
    FlinkPlan,
    PlanOperator,
    read_flink_plan,
)
from statestore.interop.flink_savepoints.read.savepoint import (
    FlinkOperator,
    FlinkSavepoint,
    SavepointRows,
    StateEntries,
    open_savepoint,
)
from statestore.interop.flink_savepoints.read.show_savepoint import (
    ShownKeyedState,
    ShownOperator,
    ShownOperatorState,
    ShownSavepoint,
    show_savepoint,
)
from statestore.interop.flink_savepoints.write.repack import (
    RepackedOperator,
    RepackResult,
    repack_savepoint,
)

__all__ = [
    "ExportSelection",
    "ExportedFlinkState",
    "ExportedOperator",
    "ExportedSavepoint",
    "FlinkBootstrap",
    "FlinkOperator",
    "FlinkPlan",
    "FlinkSavepoint",
    "FlinkTarget",
    "ImportedOperator",
    "ImportedSavepoint",
    "ImportedState",
    "LeftOut",
    "PlanOperator",
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
    "bootstrap_flink_state",
    "export_savepoint",
    "import_savepoint",
    "open_savepoint",
    "plan_flink_bootstrap",
    "read_flink_plan",
    "repack_savepoint",
    "show_savepoint",
]
