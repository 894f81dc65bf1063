"""Begin a keyed state with the rows of a table, as a new checkpoint; all other states stay.

The plan says which columns the state has, with which types, before any row is read. It also says
whether the store already has the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from statestore.catalog.catalog import Catalog
from statestore.engines.choice import engine_of, reread
from statestore.engines.row_check import CheckedRows, check_rows
from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.schema import type_text
from statestore.format.state import KeyedState, Layout, OperatorState
from statestore.jobgraph.stored_operators import Operators
from statestore.parquet.writer import ParquetOptions
from statestore.rows.input_rows import StreamedRows
from statestore.snapshot.prepare import add_time_column
from statestore.snapshot.prior_checkpoints import PriorCheckpoints, StoredFacts
from statestore.snapshot.state_request import keyed_state
from statestore.snapshot.state_spec import StateOptions, StateSpec
from statestore.snapshot.state_ttl import kept_ttl
from statestore.snapshot.writer import CheckpointWriter

__all__ = [
    "BootstrapPlan",
    "BootstrappedState",
    "PlannedColumn",
    "PlannedState",
    "newest_checkpoint",
    "plan_bootstrap",
    "stored_error",
]


@dataclass(frozen=True, kw_only=True)
class PlannedColumn:
    """A column of the new state.

    ``type`` is in Delta's notation, such as ``long``. ``role`` is ``key``, ``namespace``,
    ``entry``, ``time`` (of the last use, for a TTL) or ``value``. ``hashed_as`` is the type that a
    key column is hashed as; None for other columns.
    """

    name: str
    type: str
    role: str
    hashed_as: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedState:
    """A state that will be made from a table.

    ``kind`` is the kind of keyed state, or the redistribution mode of operator state, which has no
    ``hash_scheme`` and ``max_parallelism``. ``replaced_rows`` is the number of rows that the state
    had before; None for a new state.
    """

    store: str
    operator: str
    state: str
    kind: str
    hash_scheme: str | None
    max_parallelism: int | None
    columns: tuple[PlannedColumn, ...]
    replaced_rows: int | None


@dataclass(frozen=True, kw_only=True)
class BootstrappedState(PlannedState):
    """A state that was made from a table, in checkpoint ``new_checkpoint_id``."""

    new_checkpoint_id: int
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class BootstrapPlan:
    """A keyed state to be made from a table's rows; nothing was read or written yet.

    ``planned`` is the state, ``stored`` is the one that the store has, and ``begin`` begins a
    checkpoint.
    """

    store: str
    planned: KeyedState
    stored: KeyedEntry | None
    options: StateOptions
    parquet: ParquetOptions
    begin: Callable[[], CheckpointWriter]

    @property
    def columns(self) -> tuple[PlannedColumn, ...]:
        """The columns of the state, in their stored order."""
        state = self.planned
        hashed = dict(zip(state.key, state.key_types, strict=True))
        return tuple(
            PlannedColumn(
                name=field.name,
                type=type_text(field.type),
                role=_role(field.name, state),
                hashed_as=hashed.get(field.name),
            )
            for field in state.schema.fields
        )

    @property
    def state(self) -> PlannedState:
        """The description of the state before any row is read."""
        planned = self.planned
        return PlannedState(
            store=self.store,
            operator=planned.uid,
            state=planned.name,
            kind=planned.kind.value,
            hash_scheme=planned.hash_scheme,
            max_parallelism=planned.max_parallelism,
            columns=self.columns,
            replaced_rows=None if self.stored is None else self.stored.rows,
        )

    def check(self, rows: Any) -> CheckedRows:
        """Read all rows, and count the rows that the state cannot store; nothing is written.

        Args:
            rows: all rows of the state, but no Spark DataFrame, whose rows :meth:`write` checks.

        Returns:
            The number of rows, of null keys and of duplicates, with examples.

        Raises:
            InvalidArgumentError: for a DataFrame, and for a value that the state cannot store.
            StorageError: if the temporary folder for the sort cannot be written.
        """
        subject = str(self.planned)
        rows = reread(rows, subject, self.parquet.stream_bytes)
        engine, known = engine_of(rows, subject)
        if not isinstance(known, pa.Table | StreamedRows):
            raise InvalidArgumentError(
                f"the rows of a DataFrame for {subject} are checked only while they are written: "
                "write them, which leaves nothing behind if a row is refused"
            )
        known = add_time_column(engine, known, self.planned.ttl, self.planned, now_ms=0)
        return check_rows(known, self.planned, self.parquet)

    def write(
        self,
        rows: Any,
        *,
        replace_stored: bool = False,
        also: Callable[[CheckpointWriter], None] | None = None,
    ) -> BootstrappedState:
        """Write all rows as the state, in a new checkpoint with all other states of the newest one.

        Args:
            rows: all rows of the state, as in ``checkpoint.write_keyed``.
            replace_stored: whether the state may replace the one that the store has.
            also: called with the checkpoint before the state is written; it can write other states.

        Returns:
            The state.

        Raises:
            InvalidArgumentError: if the store has the state, unless ``replace_stored`` is True.
            NullKeyError or DuplicateKeyError: for rows that the state cannot have.
            SchemaMismatchError: if the rows have other columns than the plan, or than the stored
                state.
            CommitConflictError: if another writer has taken over the store.
        """
        name = (self.planned.uid, self.planned.name)
        if self.stored is not None and not replace_stored:
            raise stored_error(self.planned, self.store)
        with self.begin() as checkpoint:  # another writer may have added the state since the plan
            checkpoint.record_command("bootstrap")
            if name in checkpoint.left_out() and not replace_stored:
                raise stored_error(self.planned, self.store)
            if also is not None:
                also(checkpoint)
            entry = checkpoint.write_keyed(*name, rows, **self.options)
            _refuse_other_plan(entry.state, self.planned)
            checkpoint.carry_rest()
        return BootstrappedState(
            **vars(self.state),
            new_checkpoint_id=checkpoint.id,
            rows=entry.rows,
            files=len(entry.handles),
            size_bytes=sum(handle.size_bytes for handle in entry.handles),
        )


def _role(name: str, state: KeyedState) -> str:
    roles = {"key": state.key, "namespace": state.namespace, "entry": state.entry}
    of_column = (role for role, names in roles.items() if name in names)
    is_time = state.ttl is not None and name == state.ttl.column
    return next(of_column, "time" if is_time else "value")


def stored_error(state: KeyedState | OperatorState, store: str) -> InvalidArgumentError:
    """Return the error for a state that the store has and that may not be replaced."""
    return InvalidArgumentError(
        f"{store} already has {state}: choose another name, replace its rows (--replace, or "
        "replace=True), or change single rows with 'statestore edit'"
    )


def _refuse_other_plan(written: KeyedState, planned: KeyedState) -> None:
    """Refuse rows that would become another state than the planned one."""
    as_planned = replace(written, layout=Layout.RANGED)
    if as_planned != replace(planned, layout=Layout.RANGED):
        raise SchemaMismatchError(
            f"{written} was planned with the columns ({planned.schema}) and "
            f"{planned.max_parallelism} key groups, but the rows make ({written.schema}) and "
            f"{written.max_parallelism} key groups: plan it again"
        )


def plan_bootstrap(
    catalog: Catalog | None,
    store: str,
    operator: str,
    state: str,
    rows: Any,
    options: StateOptions,
    *,
    layout: str | None,
    parquet: ParquetOptions,
    snapshot: Callable[..., CheckpointWriter],
) -> BootstrapPlan:
    """Plan a state.

    Args:
        catalog: the store's catalog; None if the store does not exist.
        store: the store's URL.
        operator: the operator's uid.
        state: the state's name.
        rows: the rows, or a schema; only its columns are looked at.
        options: what describes the state.
        layout: the store's layout.
        parquet: how the files are written.
        snapshot: begins a checkpoint, as ``StateStore.snapshot``.

    Returns:
        The plan.

    Raises:
        InvalidArgumentError, UnsupportedTypeError, ParallelismError or SchemaMismatchError: as
            ``checkpoint.write_keyed``.
    """
    newest = None if catalog is None else newest_checkpoint(catalog)
    operators = Operators(1) if newest is None else newest.operators
    stored, entry = StoredFacts(None, None), None
    if catalog is not None and newest is not None:
        history = PriorCheckpoints(catalog, operators)
        stored = history.stored(operator, state)
        entry = history.keyed_in(newest, operator, state)
    spec = StateSpec.of(operator, state, options).completed(stored.state, operators, layout)
    engine, known = engine_of(rows, str(spec))
    ttl = kept_ttl(spec.ttl, stored.state.ttl if stored.state else None, spec.renamed)
    known = add_time_column(engine, known, ttl, stored.state, now_ms=0)  # only its type matters
    planned = keyed_state(
        spec,
        engine,
        known,
        ttl=ttl,
        row_count=None,
        parallelism=operators.parallelism_of(operator),
        stored=stored,
        so_far=(),
    )
    begin = partial(
        snapshot,
        parallelism=operators.parallelism,
        graph=operators.graph,
        ranges=None if newest is None else newest.ranges,
    )
    return BootstrapPlan(store, planned, entry, options, parquet, begin)


def newest_checkpoint(catalog: Catalog) -> Manifest | None:
    """Return the newest checkpoint of a store, None if it has none."""
    visible, _ = catalog.visible_and_newest()
    return catalog.load(visible[-1]) if visible else None
