"""Store the state of a streaming job as tables, and restore it at any parallelism.

Start with ``StateStore.open(url)``. Names are imported on first use, and only ``spark_session``
imports Spark. Flink's rules for a job are in :mod:`statestore.jobgraph`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore._version import __version__

if TYPE_CHECKING:
    from statestore import errors
    from statestore.catalog.catalog import Checkpoint
    from statestore.engines.spark_modules import partition
    from statestore.engines.subtask_rows import key_groups, split_by_subtask
    from statestore.format.layers import CompactionRule
    from statestore.format.manifest import Manifest
    from statestore.format.state import StateKind, TimeToLive
    from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
    from statestore.keys.hashing import key_group_of
    from statestore.listeners import (
        CheckpointCommitted,
        CheckpointFailed,
        CheckpointListener,
        CheckpointRestored,
        CompactionFailed,
        CompactionListener,
    )
    from statestore.maintenance.batch_parallelism import choose_batch_parallelism
    from statestore.maintenance.diff_rule import DiffRule
    from statestore.maintenance.edit_keys import RowUpdate
    from statestore.maintenance.erase_subject import OperatorKey
    from statestore.parquet.writer import ParquetOptions
    from statestore.publishing.iceberg_table import IcebergTable
    from statestore.restarts import run_with_restarts
    from statestore.restore.plan import RestorePlan
    from statestore.restore.restart_time import RestoreSpeed
    from statestore.restore.restored import RestoredCheckpoint
    from statestore.snapshot.state_spec import Changes, StateOptions
    from statestore.snapshot.subtask_writer import Acknowledgement, KeyedWriter, SubtaskWriter
    from statestore.snapshot.writer import CheckpointWriter
    from statestore.spark.session import spark_session
    from statestore.storage.local_cache import CacheOptions
    from statestore.store import StateStore

__all__ = [
    "Acknowledgement",
    "CacheOptions",
    "Changes",
    "Checkpoint",
    "CheckpointCommitted",
    "CheckpointFailed",
    "CheckpointListener",
    "CheckpointRestored",
    "CheckpointWriter",
    "CompactionFailed",
    "CompactionListener",
    "CompactionRule",
    "DiffRule",
    "IcebergTable",
    "KeyGroupAssignment",
    "KeyGroupRange",
    "KeyedWriter",
    "Manifest",
    "OperatorKey",
    "ParquetOptions",
    "RestorePlan",
    "RestoreSpeed",
    "RestoredCheckpoint",
    "RowUpdate",
    "StateKind",
    "StateOptions",
    "StateStore",
    "SubtaskWriter",
    "TimeToLive",
    "__version__",
    "choose_batch_parallelism",
    "errors",
    "key_group_of",
    "key_groups",
    "partition",
    "run_with_restarts",
    "spark_session",
    "split_by_subtask",
]


_PLACES = {
    "Acknowledgement": "snapshot.subtask_writer",
    "CacheOptions": "storage.local_cache",
    "Changes": "snapshot.state_spec",
    "Checkpoint": "catalog.catalog",
    "CheckpointCommitted": "listeners",
    "CheckpointFailed": "listeners",
    "CheckpointListener": "listeners",
    "CheckpointRestored": "listeners",
    "CheckpointWriter": "snapshot.writer",
    "CompactionFailed": "listeners",
    "CompactionListener": "listeners",
    "CompactionRule": "format.layers",
    "DiffRule": "maintenance.diff_rule",
    "IcebergTable": "publishing.iceberg_table",
    "KeyGroupAssignment": "keys.groups",
    "KeyGroupRange": "keys.groups",
    "KeyedWriter": "snapshot.subtask_writer",
    "Manifest": "format.manifest",
    "OperatorKey": "maintenance.erase_subject",
    "ParquetOptions": "parquet.writer",
    "RestorePlan": "restore.plan",
    "RestoreSpeed": "restore.restart_time",
    "RestoredCheckpoint": "restore.restored",
    "RowUpdate": "maintenance.edit_keys",
    "StateKind": "format.state",
    "StateOptions": "snapshot.state_spec",
    "StateStore": "store",
    "SubtaskWriter": "snapshot.subtask_writer",
    "TimeToLive": "format.state",
    "choose_batch_parallelism": "maintenance.batch_parallelism",
    "key_group_of": "keys.hashing",
    "key_groups": "engines.subtask_rows",
    "partition": "engines.spark_modules",
    "run_with_restarts": "restarts",
    "split_by_subtask": "engines.subtask_rows",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use; only ``spark_session`` imports Spark."""
    if name == "errors":
        return import_module("statestore.errors")
    if name == "spark_session":
        from statestore.engines.spark_modules import spark_module

        return spark_module("session").spark_session
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"statestore.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
