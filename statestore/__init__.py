"""The state of a streaming job as tables, restorable at any parallelism.

``StateStore.open(url)`` is the way in. Nothing here imports Spark.
"""

from statestore import errors
from statestore._version import __version__
from statestore.commands.restore import RestoredCheckpoint
from statestore.commands.snapshot import CheckpointWriter
from statestore.commands.verify import VerifyReport
from statestore.model.keygroups import (
    KeyGroupAssignment,
    KeyGroupRange,
    default_max_parallelism,
    effective_max_parallelism,
)
from statestore.model.keyhash import key_group_of
from statestore.model.manifest import Manifest
from statestore.model.operator_id import operator_id
from statestore.model.plan import RestorePlan
from statestore.model.redistribution import RedistributionMode, redistribute
from statestore.model.state import StateKind
from statestore.store import StateStore

__all__ = [
    "CheckpointWriter",
    "KeyGroupAssignment",
    "KeyGroupRange",
    "Manifest",
    "RedistributionMode",
    "RestorePlan",
    "RestoredCheckpoint",
    "StateKind",
    "StateStore",
    "VerifyReport",
    "__version__",
    "default_max_parallelism",
    "effective_max_parallelism",
    "errors",
    "key_group_of",
    "operator_id",
    "redistribute",
]
