"""Structured Streaming with its state in a store: :class:`StatefulQuery`, and state the other way,
from a store into Spark's own: :func:`initial_state`.
"""

from statestore.streaming.by_key import by_key
from statestore.streaming.changes import Changes
from statestore.streaming.initial import initial_state
from statestore.streaming.location import MicroBatch
from statestore.streaming.progress import Progress, starting_offsets
from statestore.streaming.query import StatefulQuery

__all__ = [
    "Changes",
    "MicroBatch",
    "Progress",
    "StatefulQuery",
    "by_key",
    "initial_state",
    "starting_offsets",
]
