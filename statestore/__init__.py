"""The state of a streaming job as tables, restorable at any parallelism.

``StateStore.open(url)`` is the way in. Nothing here imports Spark, but for ``spark_session``, which
is imported when it is asked for. Flink's rules for a job are in :mod:`statestore.flink`.
"""

from typing import TYPE_CHECKING, Any

from statestore import errors
from statestore._version import __version__
from statestore.files.engines import partition, spark_module
from statestore.files.writer import ParquetOptions
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
)
from statestore.maintenance.decide import decide
from statestore.restarts import run_with_restarts
from statestore.restore.plan import RestorePlan
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.subtasks import Acknowledgement, KeyedWriter, SubtaskWriter
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore

if TYPE_CHECKING:
    from statestore.spark.session import spark_session

__all__ = [
    "Acknowledgement",
    "CheckpointCommitted",
    "CheckpointFailed",
    "CheckpointListener",
    "CheckpointRestored",
    "CheckpointWriter",
    "CompactionRule",
    "KeyGroupAssignment",
    "KeyGroupRange",
    "KeyedWriter",
    "Manifest",
    "ParquetOptions",
    "RestorePlan",
    "RestoredCheckpoint",
    "StateKind",
    "StateStore",
    "SubtaskWriter",
    "TimeToLive",
    "__version__",
    "decide",
    "errors",
    "key_group_of",
    "partition",
    "run_with_restarts",
    "spark_session",
]


def __getattr__(name: str) -> Any:
    """Import Spark when its session is asked for, and not before."""
    if name == "spark_session":
        return spark_module("session").spark_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
