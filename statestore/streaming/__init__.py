"""Structured Streaming with its state in a store: :class:`StatefulQuery`.

:func:`initial_state` does the opposite: it passes state from a store to Spark's own operators.
The checkpoints of Spark's own queries belong in :mod:`statestore.interop.spark`.
"""

from statestore.extras import needs_extra

with needs_extra("spark", "a StatefulQuery"):
    from statestore.snapshot.state_spec import Changes
    from statestore.streaming.outputs import initial_state, to_delta, to_kafka
    from statestore.streaming.planned import MicroBatch
    from statestore.streaming.progress import Progress, starting_offsets
    from statestore.streaming.query_options import (
        ProcessorOptions,
        QueryOptions,
        QueryState,
        RetentionPolicy,
    )
    from statestore.streaming.stateful_query import StatefulQuery
    from statestore.streaming.updates import Updated, by_key

__all__ = [
    "Changes",
    "MicroBatch",
    "ProcessorOptions",
    "Progress",
    "QueryOptions",
    "QueryState",
    "RetentionPolicy",
    "StatefulQuery",
    "Updated",
    "by_key",
    "initial_state",
    "starting_offsets",
    "to_delta",
    "to_kafka",
]
