"""Checkpoints of Spark's own stateful queries: shown, imported into a store, and exported from one.

``show_location``, ``import_checkpoint`` and ``export_checkpoint`` are the way in; the command is
``statestore spark``.
"""

from statestore.interop.spark.export_state import (
    ExportedCheckpoint,
    ExportedStore,
    export_checkpoint,
)
from statestore.interop.spark.import_state import ImportedCheckpoint, import_checkpoint
from statestore.interop.spark.show import (
    ShownLocation,
    ShownOperator,
    ShownStore,
    show_location,
)

__all__ = [
    "ExportedCheckpoint",
    "ExportedStore",
    "ImportedCheckpoint",
    "ShownLocation",
    "ShownOperator",
    "ShownStore",
    "export_checkpoint",
    "import_checkpoint",
    "show_location",
]
