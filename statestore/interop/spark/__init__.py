"""Show, import and export checkpoints of Spark's own stateful queries.

The functions are ``show_location``, ``import_checkpoint``, ``export_checkpoint``,
``repartition_location``, ``export_progress``, and for a query that has never run ``plan_query`` and
``bootstrap_location``. The command is ``statestore spark``. Reading and writing a store with Spark
belongs in ``statestore.spark``, and queries with state in a store in ``statestore.streaming``.
"""

from statestore.extras import needs_extra

with needs_extra("spark", "checkpoints of Spark's queries"):
    from statestore.interop.spark.bootstrap_location import (
        BootstrappedLocation,
        bootstrap_location,
    )
    from statestore.interop.spark.export_state import (
        ExportedLocation,
        RepartitionedLocation,
        export_checkpoint,
        repartition_location,
    )
    from statestore.interop.spark.hand_over import ExportedProgress, export_progress
    from statestore.interop.spark.import_state import ImportedCheckpoint, import_checkpoint
    from statestore.interop.spark.location_writer import ExportedStore
    from statestore.interop.spark.planned_query import PlannedQuery, SourcePosition, plan_query
    from statestore.interop.spark.query_settings import SparkTarget
    from statestore.interop.spark.show_location import (
        ShownLocation,
        ShownQueryOperator,
        ShownStore,
        ShownVariable,
        show_location,
    )
    from statestore.interop.spark.wanted_states import WantedColumn, WantedState

__all__ = [
    "BootstrappedLocation",
    "ExportedLocation",
    "ExportedProgress",
    "ExportedStore",
    "ImportedCheckpoint",
    "PlannedQuery",
    "RepartitionedLocation",
    "ShownLocation",
    "ShownQueryOperator",
    "ShownStore",
    "ShownVariable",
    "SourcePosition",
    "SparkTarget",
    "WantedColumn",
    "WantedState",
    "bootstrap_location",
    "export_checkpoint",
    "export_progress",
    "import_checkpoint",
    "plan_query",
    "repartition_location",
    "show_location",
]
