"""Detect state that a savepoint has already lost, or that a copy of its state would lose."""

from __future__ import annotations

from collections.abc import Iterator

from statestore.interop.flink.importing.refusals import Refused
from statestore.interop.flink.metadata.handles import IncrementalHandle, OperatorHandles
from statestore.interop.flink.read.savepoint import FlinkOperator, FlinkSavepoint
from statestore.interop.flink.types.flink_types import Scalar

_CHECKPOINT = b"org.apache.flink.runtime.checkpoint.CheckpointType"
_WINDOWS = (Scalar("TimeWindow"), Scalar("SqlTimeWindow"))
_RAW_STATES = (
    *("writer_raw_states", "streaming_committer_raw_states", "global_committer_raw_states"),
    *("pending-checkpoints", "next-transactional-id-hint", "next-transactional-id-hint-v2"),
)
"""Operator states of sinks that hold transactions: of ``SinkWriterOperator``,
``CommitterOperator``, write-ahead sinks, and the Kafka sink before ``KafkaSink``.
"""


def lost_timers(savepoint: FlinkSavepoint, operator: FlinkOperator) -> str | None:
    """Return a warning if timers are missing and may have been lost; otherwise None.

    A savepoint in RocksDB's native format contains only the timers that are stored in RocksDB
    (``RocksNativeFullSnapshotStrategy``). Heap timers are lost without a trace. A checkpoint has
    them as raw state. Time windows always have timers, which end them.
    """
    is_native = any(isinstance(part.handle, IncrementalHandle) for part in operator.parts)
    has_timers = any(state.kind == "timers" for state in operator.states)
    if not is_native or has_timers or _CHECKPOINT in savepoint.metadata.properties:
        return None
    lost = (
        "a native RocksDB savepoint does not contain them, so Flink would lose them too; take a "
        "canonical one"
    )
    if any(state.namespace in _WINDOWS for state in operator.states):
        return f"the timers of its windows are missing because they were on the heap: {lost}"
    return f"it has no timers; if the job has timers on the heap, {lost}"


def transactions(operator: OperatorHandles) -> Iterator[str]:
    """Yield the names of operator states that hold a sink's transactions."""
    for subtask in operator.subtasks:
        for part in subtask.operator.parts if subtask.operator is not None else ():
            if part.name in _RAW_STATES and part.offsets:
                yield part.name


def transactions_reason(names: str) -> str:
    """Return the reason why these states are refused."""
    return (
        f"{names} has open sink transactions, which a copy would commit again or miss: stop "
        "the job with a savepoint so that they are committed, or drop them (--drop "
        f"{Refused.TRANSACTIONS})"
    )
