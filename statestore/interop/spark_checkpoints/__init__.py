"""Show, import and export checkpoints of Spark's own stateful queries.

The functions are ``show_location``, ``import_checkpoint``, ``export_checkpoint``,
``repartition_location`` and ``export_progress``. The command is ``statestore spark``. Reading and
writing a store with Spark belongs in ``statestore.spark``, and queries with state in a store in
``statestore.streaming``.
"""

from statestore.extras import needs_extra

with needs_extra("spark", "checkpoints of Spark's queries"):
    from statestore.interop.spark_checkpoints.export_state import (
        ExportedLocation,
        export_checkpoint,
    )
    from statestore.interop.spark_checkpoints.hand_over import ExportedProgress, export_progress
    from statestore.interop.spark_checkpoints.import_state import (
        ImportedCheckpoint,
        import_checkpoint,
    )
    from statestore.interop.spark_checkpoints.location_writer import ExportedStore
    from statestore.interop.spark_checkpoints.repartition import (
        RepartitionedLocation,
        repartition_location,
    )
    from statestore.interop.spark_checkpoints.show_location import (
        ShownLocation,
        ShownQueryOperator,
        ShownStore,
        ShownVariable,
        show_location,
    )

__all__ = [
    "ExportedLocation",
    "ExportedProgress",
    "ExportedStore",
    "ImportedCheckpoint",
    "RepartitionedLocation",
    "ShownLocation",
    "ShownQueryOperator",
    "ShownStore",
    "ShownVariable",
    "export_checkpoint",
    "export_progress",
    "import_checkpoint",
    "repartition_location",
    "show_location",
]
