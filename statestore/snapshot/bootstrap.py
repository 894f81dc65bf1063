"""Begin a state with the rows of a table, as a new checkpoint; all other states stay.

Before any row is read, a plan says which columns the state has, with which types, and whether the
store already has the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.engines.given_rows import is_schema, read_rows, rows_on_driver
from statestore.engines.row_check import CheckedRows, check_rows
from statestore.engines.rows import ArrowRows
from statestore.errors import InvalidArgumentError, unknown_choice
from statestore.format.manifest import Entry, Manifest
from statestore.format.schema import Field, type_text
from statestore.format.state import KeyedState, OperatorState
from statestore.jobgraph.operators import Operators
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.pending_checkpoint import PriorCheckpoints, StoredFacts
from statestore.snapshot.state_spec import StateOptions, StateSpec, keyed_state, operator_state
from statestore.snapshot.state_writer import add_time_column, with_types
from statestore.snapshot.writer import CheckpointWriter


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
class BootstrappedState:
    """A state that was made from a table, or in a dry run, the state that would be made.

    ``kind`` is the kind of keyed state, or the redistribution mode of operator state, which has no
    ``hash_scheme`` and ``max_parallelism``. ``replaced_rows`` is the number of rows that the state
    had before; None for a new state. A dry run has no ``new_checkpoint_id``. ``checked`` are the
    counts of its rows, unless only their schema was given.
    """

    store: str
    operator: str
    state: str
    kind: str
    hash_scheme: str | None
    max_parallelism: int | None
    columns: tuple[PlannedColumn, ...]
    replaced_rows: int | None
    new_checkpoint_id: int | None = None
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    checked: CheckedRows | None = None

    def __str__(self) -> str:
        """Return the state's name in messages."""
        kind = "" if self.max_parallelism is not None else f"{self.kind} "
        return f"{kind}state {self.state!r} of operator {self.operator!r}"


@dataclass(frozen=True)
class _Base:
    """The newest checkpoint of the store, and the checkpoints before it."""

    newest: Manifest
    history: PriorCheckpoints


@dataclass(frozen=True)
class _Plan:
    """The state to make, the one that the store has, and how its rows are checked and written."""

    state: KeyedState | OperatorState
    stored: Entry | None
    check: Callable[[], CheckedRows]
    write: Callable[[CheckpointWriter], Entry]


def bootstrap(
    catalog: Catalog | None,
    store: str,
    operator: str,
    state: str,
    rows: Any,
    options: StateOptions,
    *,
    mode: RedistributionMode | str | None,
    replaces: bool,
    dry_run: bool,
    also: Callable[[CheckpointWriter], None] | None,
    layout: str | None,
    parquet: ParquetOptions,
    snapshot: Callable[..., CheckpointWriter],
) -> BootstrappedState:
    """Make a state of a table's rows; see ``StateStore.bootstrap``.

    ``catalog`` is None if the store does not exist. ``replaces`` says whether the rows may replace
    a state that the store has. ``snapshot`` begins a checkpoint, as ``StateStore.snapshot``.
    """
    base = None if catalog is None else _base_of(catalog)
    operators = Operators(1) if base is None else base.newest.operators
    if mode is None:
        spec = StateSpec.of(operator, state, options)
        plan = _plan_keyed(spec, options, rows, operators, base, layout, parquet)
    elif options:
        raise InvalidArgumentError(
            f"state {state!r} of operator {operator!r} is operator state, because it has a mode, "
            f"and operator state has no keys: remove {', '.join(f'{name}=' for name in options)}"
        )
    else:
        plan = _plan_elements(operator, state, rows, mode, operators, base)
    planned = _planned_state(store, plan)
    if dry_run:
        checked = None if is_schema(rows) else plan.check()
        return replace(planned, checked=checked, rows=0 if checked is None else checked.rows)
    if plan.stored is not None and not replaces:
        raise _stored_error(plan.state, store)
    with snapshot(
        parallelism=operators.parallelism,
        graph=operators.graph,
        ranges=None if base is None else base.newest.ranges,
    ) as checkpoint:
        checkpoint.collected.record(command="bootstrap")
        # Another writer may have added the state since the newest checkpoint was read.
        if (operator, state) in checkpoint.left_out() and not replaces:
            raise _stored_error(plan.state, store)
        if also is not None:
            also(checkpoint)
        entry = plan.write(checkpoint)
        checkpoint.carry_rest()
    return replace(
        planned,
        new_checkpoint_id=checkpoint.id,
        rows=entry.rows,
        files=len(entry.handles),
        size_bytes=sum(handle.size_bytes for handle in entry.handles),
    )


def _base_of(catalog: Catalog) -> _Base | None:
    visible, _ = catalog.visible_and_newest()
    if not visible:
        return None
    newest = catalog.load_header(visible[-1])
    return _Base(newest, PriorCheckpoints(catalog, newest.operators))


def _plan_keyed(
    spec: StateSpec,
    options: StateOptions,
    rows: Any,
    operators: Operators,
    base: _Base | None,
    layout: str | None,
    parquet: ParquetOptions,
) -> _Plan:
    stored, entry = StoredFacts(None, None), None
    if base is not None:
        stored = base.history.stored(spec.operator, spec.state)
        entry = base.history.keyed_in(base.newest, spec.operator, spec.state)
    rows = read_rows(rows, str(spec), parquet.stream_bytes)
    spec = spec.completed(stored.state, operators, layout)
    ttl = spec.kept_ttl(stored.state)
    timed = add_time_column(  # only its type matters
        with_types(rows, spec, stored.state), ttl, stored.state, now_ms=0
    )
    state = keyed_state(
        spec,
        timed,
        ttl=ttl,
        parallelism=operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=(),
    )

    def check() -> CheckedRows:
        if not isinstance(timed, ArrowRows):
            raise InvalidArgumentError(
                f"the rows of a DataFrame for {spec} are checked only while they are written: "
                "write them, which leaves nothing behind if a row is refused"
            )
        return check_rows(timed, state, parquet)

    def write(checkpoint: CheckpointWriter) -> Entry:
        return checkpoint.write_keyed(spec.operator, spec.state, rows, **options)

    return _Plan(state, entry, check, write)


def _plan_elements(
    uid: str,
    name: str,
    rows: Any,
    mode: RedistributionMode | str,
    operators: Operators,
    base: _Base | None,
) -> _Plan:
    try:
        mode = RedistributionMode(mode)
    except ValueError:
        raise unknown_choice("mode", mode, RedistributionMode) from None
    stored, entry = None, None
    if base is not None:
        stored = base.history.operator(uid, name)
        known = {(entry.state.uid, entry.state.name): entry for entry in base.newest.operator}
        entry = known.get((uid, name))
    table = rows.empty_table() if is_schema(rows) else rows_on_driver(rows, f"state {name!r}")
    parallelism = operators.parallelism_of(uid)
    none = table.schema.empty_table()
    state, _, _ = operator_state(uid, name, none, mode, parallelism, stored)

    def check() -> CheckedRows:
        """Count the elements; an operator state can have each of them."""
        return CheckedRows(
            rows=table.num_rows,
            null_keys=0,
            null_key_examples=(),
            duplicates=0,
            duplicate_examples=(),
        )

    def write(checkpoint: CheckpointWriter) -> Entry:
        writes = {
            RedistributionMode.SPLIT: checkpoint.write_split,
            RedistributionMode.UNION: checkpoint.write_union,
            RedistributionMode.BROADCAST: checkpoint.write_broadcast,
        }
        return writes[mode](uid, name, table)

    return _Plan(state, entry, check, write)


def _planned_state(store: str, plan: _Plan) -> BootstrappedState:
    """Return the description of a state before any row is read."""
    state, stored = plan.state, plan.stored
    keyed = state if isinstance(state, KeyedState) else None
    return BootstrappedState(
        store=store,
        operator=state.uid,
        state=state.name,
        kind=(state.kind if isinstance(state, KeyedState) else state.mode).value,
        hash_scheme=None if keyed is None else keyed.hash_scheme,
        max_parallelism=None if keyed is None else keyed.max_parallelism,
        columns=tuple(_planned_column(field, keyed) for field in state.schema.fields),
        replaced_rows=None if stored is None else stored.rows,
    )


def _planned_column(field: Field, keyed: KeyedState | None) -> PlannedColumn:
    column = PlannedColumn(name=field.name, type=type_text(field.type), role="value")
    if keyed is None:
        return column
    if field.name in keyed.key:
        hashed_as = keyed.key_types[keyed.key.index(field.name)]
        return replace(column, role="key", hashed_as=hashed_as)
    if field.name in keyed.namespace:
        return replace(column, role="namespace")
    if field.name in keyed.entry:
        return replace(column, role="entry")
    is_time = keyed.ttl is not None and field.name == keyed.ttl.column
    return replace(column, role="time") if is_time else column


def _stored_error(state: KeyedState | OperatorState, store: str) -> InvalidArgumentError:
    """Return the error for a state that the store has and that may not be replaced."""
    return InvalidArgumentError(
        f"{store} already has {state}: choose another name, replace its rows (--replace, or "
        "replace=True), or change single rows with 'statestore edit'"
    )
