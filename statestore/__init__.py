"""The state of a streaming job as tables, restorable at any parallelism.

``StateStore.open(url)`` is the way in. Nothing here imports Spark.
"""

from statestore import errors
from statestore._version import __version__
from statestore.files.engines import partition
from statestore.flink.adaptive import ConsumedInput
from statestore.flink.graph import Edge, JobGraph, Node
from statestore.flink.operators import operator_id
from statestore.flink.partitioners import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroup,
    Rebalance,
    Rescale,
    Shuffle,
)
from statestore.flink.redistribution import RedistributionMode, redistribute
from statestore.flink.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from statestore.flink.restart import strategy_of as restart_strategy_of
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics
from statestore.format.state import StateKind, TimeToLive
from statestore.keys.groups import (
    KeyGroupAssignment,
    KeyGroupRange,
    default_max_parallelism,
    effective_max_parallelism,
)
from statestore.keys.hashing import key_group_of
from statestore.listeners import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointListener,
    CheckpointRestored,
)
from statestore.maintenance.decide import decide
from statestore.maintenance.verify import VerifyReport
from statestore.restarts import run_with_restarts
from statestore.restore.plan import RestorePlan
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.subtasks import Acknowledgement, KeyedWriter, SubtaskWriter
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore

__all__ = [
    "Acknowledgement",
    "Broadcast",
    "CheckpointCommitted",
    "CheckpointFailed",
    "CheckpointListener",
    "CheckpointMetrics",
    "CheckpointRestored",
    "CheckpointWriter",
    "ConsumedInput",
    "Custom",
    "Edge",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "Forward",
    "Global",
    "JobGraph",
    "KeyGroup",
    "KeyGroupAssignment",
    "KeyGroupRange",
    "KeyedWriter",
    "Manifest",
    "NoRestart",
    "Node",
    "Rebalance",
    "RedistributionMode",
    "Rescale",
    "RestorePlan",
    "RestoredCheckpoint",
    "Shuffle",
    "StateKind",
    "StateStore",
    "SubtaskWriter",
    "TimeToLive",
    "VerifyReport",
    "__version__",
    "decide",
    "default_max_parallelism",
    "effective_max_parallelism",
    "errors",
    "key_group_of",
    "operator_id",
    "partition",
    "redistribute",
    "restart_strategy_of",
    "run_with_restarts",
]
