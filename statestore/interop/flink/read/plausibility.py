"""Find what a savepoint may have lost, and what can be read but is probably damaged.

Flink's files have no checksums of values (``FullSnapshotAsyncWriter``, ``HeapSnapshotStrategy``).
So a flipped bit can give another valid value. Two signs of that are cheap to check: a last access
that no job can have had, and a class of Flink that no Flink has.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from statestore.interop.flink.metadata.handles import IncrementalHandle
from statestore.interop.flink.metadata.snapshot_format import FLINK
from statestore.interop.flink.read.keyed_states import FlinkState, ListState, TimerState
from statestore.interop.flink.read.operator_state import OperatorStateInfo
from statestore.interop.flink.read.savepoint import FlinkOperator, FlinkSavepoint
from statestore.interop.flink.types.base import nested_types
from statestore.interop.flink.types.internal_types import UnknownType
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.serializer_snapshots import DAMAGED_CLASS

_CHECKPOINT = b"org.apache.flink.runtime.checkpoint.CheckpointType"
_WINDOWS = (Scalar("TimeWindow"), Scalar("SqlTimeWindow"))
_FIRST_TTL_MS = 1_533_772_800_000  # 2018-08-09: Flink 1.6, the first release with a TTL
_DAY_MS = 24 * 3_600_000  # a generous difference between two clocks
_YEAR_MS = 31_556_952_000


@dataclass(frozen=True, kw_only=True)
class ImplausibleState:
    """A state that was read, with a sign that it is damaged.

    ``sign`` is ``time`` for times of last access outside of the life of any job, and ``class`` for
    an unknown class of Flink. ``problem`` describes the sign.
    """

    operator: str
    state: str
    sign: Literal["time", "class"]
    problem: str


def access_bounds(state: FlinkState, values: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield the earliest and the latest last access in decoded values of a state with a TTL.

    Yields nothing if there are no values.
    """
    elements = values.flatten() if isinstance(state, ListState) else values
    bounds = pc.min_max(pc.struct_field(elements, "last_access")).as_py()
    if bounds["min"] is not None:
        yield bounds["min"], bounds["max"]


def find_implausible_times(
    operator: str, state: str, bounds: Collection[tuple[int, int]]
) -> Iterator[ImplausibleState]:
    """Yield a warning if the last accesses of a state are outside of the life of any job.

    ``bounds`` are the earliest and the latest one of each part of the state.
    """
    if not bounds:
        return
    earliest, latest = min(bounds)[0], max(end for _, end in bounds)
    if earliest >= _FIRST_TTL_MS and latest <= time.time_ns() // 1_000_000 + _DAY_MS:
        return
    years = [1970 + instant // _YEAR_MS for instant in (earliest, latest)]
    yield ImplausibleState(
        operator=operator,
        state=state,
        sign="time",
        problem=(
            f"its last accesses are from the years {years[0]} to {years[1]}, but no Flink before "
            "2018 had a TTL, and none can be in the future: it is probably damaged"
        ),
    )


def find_implausible_classes(
    operator: FlinkOperator, described: Iterable[OperatorStateInfo]
) -> Iterator[ImplausibleState]:
    """Yield a warning for each state that has an unknown class of Flink in its types.

    ``described`` are the operator states.
    """
    keyed = ((state.name, (state.key, state.namespace, state.value)) for state in operator.states)
    elements = ((info.name, (info.key, info.value)) for info in described)
    for state, types in chain(keyed, elements):
        names = (part.class_name for part in nested_types(types) if isinstance(part, UnknownType))
        for name in dict.fromkeys(names):
            if name.startswith(FLINK):
                problem = f"its class {name!r} is unknown: {DAMAGED_CLASS}"
                yield ImplausibleState(
                    operator=operator.title, state=state, sign="class", problem=problem
                )


def lost_timers(savepoint: FlinkSavepoint, operator: FlinkOperator) -> str | None:
    """Return a warning if timers are missing and may have been lost; otherwise None.

    A savepoint in RocksDB's native format contains only the timers that are stored in RocksDB
    (``RocksNativeFullSnapshotStrategy``). Heap timers are lost without a trace. A checkpoint has
    them as raw state. Time windows always have timers, which end them.
    """
    is_native = any(isinstance(part.handle, IncrementalHandle) for part in operator.parts)
    has_timers = any(isinstance(state, TimerState) for state in operator.states)
    if not is_native or has_timers or _CHECKPOINT in savepoint.metadata.properties:
        return None
    lost = (
        "a native RocksDB savepoint does not contain them, so Flink would lose them too; take a "
        "canonical one"
    )
    if any(state.namespace in _WINDOWS for state in operator.states):
        return f"the timers of its windows are missing because they were on the heap: {lost}"
    return f"it has no timers; if the job has timers on the heap, {lost}"
