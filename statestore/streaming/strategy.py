"""How a query computes the changes of a micro-batch: with a function, or with a processor.

:class:`UpdateStrategy` is what a query needs from either. The strategy of a processor is
:class:`statestore.streaming.processor.Processing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statestore.errors import InvalidArgumentError
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.state_spec import Changes
from statestore.spark.cached_rows import coalesce_small
from statestore.streaming.keyed_update import ByKey
from statestore.streaming.planned import MicroBatch
from statestore.streaming.progress import Progress
from statestore.streaming.query_states import QueryState
from statestore.streaming.updates import Updated

__all__ = ["FunctionUpdate", "Update", "UpdateStrategy"]

Update = Callable[
    [DataFrame, Mapping[str, DataFrame], MicroBatch],
    "Mapping[str, DataFrame | Changes] | Updated",
]


class UpdateStrategy(Protocol):
    """The update of a query, and the states and keys that it needs."""

    @property
    def has_timers(self) -> bool:
        """Whether the passage of time alone can require an update."""

    @property
    def needs_keys(self) -> bool:
        """Whether a micro-batch without keys changes nothing, except the first one."""

    @property
    def deleted(self) -> tuple[str, ...]:
        """The names of stored states that the update has deleted."""

    def states(self, events: StructType) -> dict[str, QueryState]:
        """Return the states that the query keeps, for events of these columns."""

    def owns(self, name: str) -> bool:
        """Return whether a stored state of the operator is a state of this update."""

    def keys(
        self,
        keys: pa.Table,
        restored: RestoredCheckpoint | None,
        batch: MicroBatch,
        done: Progress,
    ) -> pa.Table:
        """Return the keys to process, from the keys of the events."""

    def outdated(self, restored: RestoredCheckpoint, done: Progress) -> list[str]:
        """Return the names of derived states that must be rebuilt."""

    def rebuild(
        self, name: str, restored: RestoredCheckpoint, batch: MicroBatch
    ) -> pa.RecordBatchReader | None:
        """Return the rows of a derived state, built again; None for a state that is not derived."""

    def run(
        self,
        events: DataFrame,
        states: Mapping[str, DataFrame],
        batch: MicroBatch,
        keep: Callable[[DataFrame], DataFrame],
        *,
        restored: RestoredCheckpoint | None,
        parallelism: int,
        is_first: bool,
    ) -> Updated:
        """Return the changes of a micro-batch, from its events and the stored rows of its keys."""


@dataclass(frozen=True)
class FunctionUpdate:
    """The update of a query that calls a function with DataFrames."""

    operator: str
    declared: Mapping[str, str | QueryState]
    update: Update

    has_timers = False
    needs_keys = False
    deleted = ()

    def states(self, events: StructType) -> dict[str, QueryState]:
        """Return the declared states."""
        return {
            name: state if isinstance(state, QueryState) else QueryState(state)
            for name, state in self.declared.items()
        }

    def owns(self, name: str) -> bool:
        """Return whether the state is declared."""
        return name in self.declared

    def keys(
        self,
        keys: pa.Table,
        restored: RestoredCheckpoint | None,
        batch: MicroBatch,
        done: Progress,
    ) -> pa.Table:
        """Return the keys of the events."""
        return keys

    def outdated(self, restored: RestoredCheckpoint, done: Progress) -> list[str]:
        """Return an empty list: no state is derived."""
        return []

    def rebuild(
        self, name: str, restored: RestoredCheckpoint, batch: MicroBatch
    ) -> pa.RecordBatchReader | None:
        """Return None: no state is derived."""
        return None

    def run(
        self,
        events: DataFrame,
        states: Mapping[str, DataFrame],
        batch: MicroBatch,
        keep: Callable[[DataFrame], DataFrame],
        *,
        restored: RestoredCheckpoint | None,
        parallelism: int,
        is_first: bool,
    ) -> Updated:
        """Return the function's result.

        Raises InvalidArgumentError for a result of another type, or rows of an unknown state.
        """
        held = {name: coalesce_small(rows) or keep(rows) for name, rows in states.items()}
        update = self.update
        if isinstance(update, ByKey):
            update = replace(update, operator=self.operator)
        updated = update(events, held, batch)
        if isinstance(updated, Mapping):
            updated = Updated(updated)
        if not isinstance(updated, Updated):
            raise InvalidArgumentError(
                f"update must return rows by state name, or Updated, not {type(updated).__name__}"
            )
        unknown = sorted(updated.changes.keys() - states.keys())
        if unknown:
            raise InvalidArgumentError(
                f"update returned rows of {unknown[0]!r}, but the query has the states "
                f"({', '.join(states)}); return rows of these states only"
            )
        return updated
