"""Begin an operator state with the rows of a table, as a new checkpoint; all other states stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.engines.arrow_engine import is_schema
from statestore.engines.choice import rows_on_driver
from statestore.engines.row_check import CheckedRows
from statestore.errors import SchemaMismatchError, unknown_choice
from statestore.format.manifest import OperatorEntry
from statestore.format.schema import same_columns, type_text
from statestore.format.state import OperatorState
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.jobgraph.stored_operators import Operators
from statestore.snapshot.bootstrap import (
    BootstrappedState,
    PlannedColumn,
    PlannedState,
    newest_checkpoint,
    stored_error,
)
from statestore.snapshot.prior_checkpoints import PriorCheckpoints
from statestore.snapshot.state_request import operator_state
from statestore.snapshot.writer import CheckpointWriter

__all__ = ["ElementsPlan", "plan_bootstrap_elements"]


@dataclass(frozen=True)
class ElementsPlan:
    """An operator state to be made from a table's rows; nothing was read or written yet.

    ``planned`` is the state, ``stored`` is the one that the store has, and ``begin`` begins a
    checkpoint.
    """

    store: str
    planned: OperatorState
    stored: OperatorEntry | None
    begin: Callable[[], CheckpointWriter]

    @property
    def columns(self) -> tuple[PlannedColumn, ...]:
        """The columns of an element."""
        return tuple(
            PlannedColumn(name=field.name, type=type_text(field.type), role="value")
            for field in self.planned.schema.fields
        )

    @property
    def state(self) -> PlannedState:
        """The description of the state before any row is read."""
        return PlannedState(
            store=self.store,
            operator=self.planned.uid,
            state=self.planned.name,
            kind=self.planned.mode.value,
            hash_scheme=None,
            max_parallelism=None,
            columns=self.columns,
            replaced_rows=None if self.stored is None else self.stored.rows,
        )

    def check(self, rows: Any) -> CheckedRows:
        """Read all rows, and count them; an operator state can have each of them.

        Raises InvalidArgumentError for a value that the state cannot store.
        """
        return CheckedRows(
            rows=rows_on_driver(rows, str(self.planned)).num_rows,
            null_keys=0,
            null_key_examples=(),
            duplicates=0,
            duplicate_examples=(),
        )

    def write(self, rows: Any, *, replace_stored: bool = False) -> BootstrappedState:
        """Write all rows as the state, in a new checkpoint with all other states of the newest one.

        Args:
            rows: all elements, as in ``checkpoint.write_split``.
            replace_stored: whether the state may replace the one that the store has.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: if the store has the state, unless ``replace_stored`` is True, or
                if the elements are too large to be held in memory.
            SchemaMismatchError: if the rows have other columns than the plan, or than the stored
                state.
            CommitConflictError: if another writer has taken over the store.
        """
        planned = self.planned
        if self.stored is not None and not replace_stored:
            raise stored_error(planned, self.store)
        table = rows_on_driver(rows, str(planned))
        with self.begin() as checkpoint:  # another writer may have added the state since the plan
            checkpoint.record_command("bootstrap")
            if (planned.uid, planned.name) in checkpoint.left_out() and not replace_stored:
                raise stored_error(planned, self.store)
            write = {
                RedistributionMode.SPLIT: checkpoint.write_split,
                RedistributionMode.UNION: checkpoint.write_union,
                RedistributionMode.BROADCAST: checkpoint.write_broadcast,
            }[planned.mode]
            entry = write(planned.uid, planned.name, table)
            if not same_columns(entry.state.schema, planned.schema):
                raise SchemaMismatchError(
                    f"{planned} was planned with the columns ({planned.schema}), but the rows make "
                    f"({entry.state.schema}): plan it again"
                )
            checkpoint.carry_rest()
        return BootstrappedState(
            **vars(self.state),
            new_checkpoint_id=checkpoint.id,
            rows=entry.rows,
            files=len(entry.handles),
            size_bytes=sum(handle.size_bytes for handle in entry.handles),
        )


def plan_bootstrap_elements(
    catalog: Catalog | None,
    store: str,
    operator: str,
    state: str,
    rows: Any,
    mode: RedistributionMode | str,
    *,
    snapshot: Callable[..., CheckpointWriter],
) -> ElementsPlan:
    """Plan an operator state.

    Args:
        catalog: the store's catalog; None if the store does not exist.
        store: the store's URL.
        operator: the operator's uid.
        state: the state's name.
        rows: the elements, or their ``pyarrow.Schema``; only the columns are looked at.
        mode: how the elements are redistributed.
        snapshot: begins a checkpoint, as ``StateStore.snapshot``.

    Returns:
        The plan.

    Raises:
        InvalidArgumentError or UnsupportedTypeError: for a mode or columns that no operator state
            can have.
        SchemaMismatchError: for a conflict with the stored state.
    """
    try:
        mode = RedistributionMode(mode)
    except ValueError:
        raise unknown_choice("mode", mode, RedistributionMode) from None
    newest = None if catalog is None else newest_checkpoint(catalog)
    operators = Operators(1) if newest is None else newest.operators
    stored, entry = None, None
    if catalog is not None and newest is not None:
        stored = PriorCheckpoints(catalog, operators).operator(operator, state)
        names = {(entry.state.uid, entry.state.name): entry for entry in newest.operator}
        entry = names.get((operator, state))
    schema = rows if is_schema(rows) else rows_on_driver(rows).schema
    parallelism = operators.parallelism_of(operator)
    planned, _, _ = operator_state(operator, state, schema.empty_table(), mode, parallelism, stored)
    begin = partial(
        snapshot,
        parallelism=operators.parallelism,
        graph=operators.graph,
        ranges=None if newest is None else newest.ranges,
    )
    return ElementsPlan(store, planned, entry, begin)
