"""Flink's rules for a job in plain Python, which are tested against the real Flink classes.

The rules cover job graphs and operator ids; partitioners and the wiring of subtasks; the
redistribution of operator state; the parallelism of a batch vertex and the input of its subtasks;
the placement of subtasks in slots; and restarts of a failed job. No module here reads or writes a
store.
"""

from statestore.jobgraph.adaptive import ConsumedInput
from statestore.jobgraph.graph import Edge, JobGraph, Node
from statestore.jobgraph.operators import operator_id
from statestore.jobgraph.partitioners import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroup,
    Rebalance,
    Rescale,
    Shuffle,
)
from statestore.jobgraph.redistribution import RedistributionMode, redistribute
from statestore.jobgraph.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from statestore.jobgraph.restart import strategy_of as restart_strategy_of
from statestore.jobgraph.slots import assign_by_locality, place_subtasks, slots_per_group

__all__ = [
    "Broadcast",
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
    "NoRestart",
    "Node",
    "Rebalance",
    "RedistributionMode",
    "Rescale",
    "Shuffle",
    "assign_by_locality",
    "operator_id",
    "place_subtasks",
    "redistribute",
    "restart_strategy_of",
    "slots_per_group",
]
