"""Begin a state of a Flink SQL job with the rows of a table, as its compiled plan describes it.

The state's columns, key, kind, hash and TTL come from the plan. The plan is recorded in the store,
so that an export writes the state with the plan's types. States of the plan that have no table yet
are recorded as left out, so an export names them.

The table must fit the state. All differences of columns are named before a row is read. A value
that its column cannot hold is named with its row while the rows are read, before anything of the
state is visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statestore.arguments import checked
from statestore.engines.given_rows import read_rows, typed_rows
from statestore.engines.rows import ArrowRows
from statestore.errors import (
    CheckpointNotFoundError,
    IncompatibleStateError,
    InvalidArgumentError,
    SchemaMismatchError,
    StoreNotFoundError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.state import TimeToLive
from statestore.interop.flink.columns.part_columns import empty_key
from statestore.interop.flink.importing.import_record import RECORD
from statestore.interop.flink_plans.layouts import (
    LAST_ACCESS,
    NO_KEY,
    POSITION,
    PlanColumn,
    PlanState,
)
from statestore.interop.flink_plans.plan_file import (
    FlinkPlan,
    read_flink_plan,
    read_plan_record,
    refuse_other_plan,
    write_plan_record,
)
from statestore.restore.restored import RestoredCheckpoint
from statestore.rows.fit_columns import fit_column
from statestore.snapshot.bootstrap import BootstrappedState
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore

_TIME = "TIME_WITHOUT_TIME_ZONE"
_LENGTHS = ("CHAR", "VARCHAR", "BINARY", "VARBINARY")
_MICROS, _NANOS = 6, 9
_MILLIS = 3
_POSITIONS = pa.int64()


def refuse_other_columns(schema: pa.Schema, state: PlanState, table: str) -> None:
    """Raise SchemaMismatchError, which names each column that differs from the state's.

    Args:
        schema: the columns of the table.
        state: the state that the table is to become.
        table: the table's name, for the message.
    """
    differences = list(_differences(schema, state))
    if differences:
        raise SchemaMismatchError(
            f"{table} cannot become {state}: {'; '.join(differences)}. Select and cast its "
            "columns, for example with --sql; 'statestore flink plan' lists the columns"
        )


def _differences(schema: pa.Schema, state: PlanState) -> Iterator[str]:
    names = schema.names
    for column in state.table_columns:
        count = names.count(column.name)
        if count != 1:
            how = "is missing" if count == 0 else f"occurs {count} times"
            yield f"the column {column.name!r} ({column.type}) {how}"
        elif not _fits(schema.field(column.name).type, column):
            own = schema.field(column.name).type
            yield f"the column {column.name!r} is {own}, but the plan has {column.type}"
    known = {column.name for column in state.table_columns} | {*state.optional_columns}
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"the column {name!r} is not in the plan"


def _fits(source: pa.DataType, column: PlanColumn) -> bool:
    """Return whether a column can represent at least some values of a type."""
    if column.logical.root == _TIME:
        return bool(pa.types.is_time(source))
    try:
        fit_column(pa.chunked_array([], source), column.stored, name=column.name, nearest=False)
    except InvalidArgumentError:
        return False
    return True


def stored_schema(schema: pa.Schema, state: PlanState) -> pa.Schema:
    """Return the stored columns of a state that is made from a table."""
    fields = [pa.field(column.name, column.stored) for column in state.columns]
    if not state.key.fields:
        fields.insert(0, pa.field(NO_KEY, _no_key_type(state)))
    if state.has_lists:
        fields.append(pa.field(POSITION, _POSITIONS))
    if state.ttl_ms and LAST_ACCESS in schema.names:
        fields.append(schema.field(LAST_ACCESS))
    return pa.schema(fields)


def _no_key_type(state: PlanState) -> pa.DataType:
    return pa.bool_() if state.is_single else pa.int32()


def convert_rows(rows: pa.Table, state: PlanState, table: str, first_row: int) -> pa.Table:
    """Return rows of a table as rows of a state.

    Args:
        rows: rows of the table.
        state: the state.
        table: the table's name, for messages.
        first_row: the number of rows of the table before these.

    Returns:
        The rows with the columns of :func:`stored_schema`.

    Raises:
        InvalidArgumentError: for a value that its column cannot hold, with its row.
    """
    schema = stored_schema(rows.schema, state)
    columns = {}
    for column in state.columns:
        values = rows.column(column.copy_of or column.name)
        converted = _convert_column(values, column, table, first_row)
        _refuse_other_values(converted, column, table, first_row)
        columns[column.name] = converted
    if not state.key.fields:
        columns[NO_KEY] = pa.chunked_array([pa.repeat(empty_key(_no_key_type(state)), len(rows))])
    if state.has_lists:
        columns[POSITION] = _positions(rows, table, first_row)
    if LAST_ACCESS in schema.names:
        columns[LAST_ACCESS] = rows.column(LAST_ACCESS)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _convert_column(
    values: pa.ChunkedArray, column: PlanColumn, table: str, first_row: int
) -> pa.ChunkedArray:
    if column.logical.root == _TIME:  # the store has no type for it
        return values.cast(pa.time64("ns")).cast(pa.int64())
    return fit_column(
        values,
        column.stored,
        name=column.name,
        subject=table,
        nearest=False,
        first_row=first_row,
    )


def _positions(rows: pa.Table, table: str, first_row: int) -> pa.ChunkedArray:
    """Return the positions of rows with equal sort keys; 0 for all if there is no such column."""
    if POSITION not in rows.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(0, _POSITIONS), len(rows))])
    places = fit_column(
        rows.column(POSITION), _POSITIONS, name=POSITION, subject=table, first_row=first_row
    )
    _refuse(places.is_null(), POSITION, "is null", table, first_row)
    return places


def _refuse_other_values(
    values: pa.ChunkedArray, column: PlanColumn, table: str, first_row: int
) -> None:
    """Refuse values of the column's Arrow type that its SQL type does not have."""
    logical = column.logical
    if column.is_required:
        _refuse(
            values.is_null(),
            column.name,
            f"is null, but the plan has {column.type}",
            table,
            first_row,
        )
    if column.least is not None:
        wrong = pc.less(values, column.least)
        _refuse(wrong, column.name, f"is less than {column.least}", table, first_row)
    if logical.root in _LENGTHS and logical.precision < (1 << 31) - 1:
        lengths = (pc.utf8_length if pa.types.is_string(values.type) else pc.binary_length)(values)
        text = f"is longer than {column.type}"
        _refuse(pc.greater(lengths, logical.precision), column.name, text, table, first_row)
    step = _step(column)
    if step > 1:
        whole = values.cast(pa.int64())
        rest = pc.subtract(whole, pc.multiply(pc.divide(whole, step), step))
        text = f"has more digits of the second than {column.type}"
        _refuse(pc.not_equal(rest, 0), column.name, text, table, first_row)


def _step(column: PlanColumn) -> int:
    """Return the step of a time type in stored units; each value must be a multiple of it."""
    logical = column.logical
    if logical.root == _TIME:  # Flink has milliseconds of a TIME, whatever its precision
        return int(10 ** (_NANOS - min(logical.precision, _MILLIS)))
    if logical.root.startswith("TIMESTAMP"):
        return int(10 ** max(_MICROS - logical.precision, 0))
    return 1


def _refuse(wrong: pa.ChunkedArray, name: str, text: str, table: str, first_row: int) -> None:
    """Raise InvalidArgumentError for the first value that is wrong."""
    place = pc.index(wrong.fill_null(False), True).as_py()
    if place >= 0:
        raise InvalidArgumentError(
            f"row {first_row + place + 1} of {table} has a value in the column {name!r} that "
            f"{text}: correct the row"
        )


@checked
def bootstrap_flink_state(
    store: StateStore,
    plan: FlinkPlan,
    operator: str,
    state: str,
    rows: Any,
    *,
    max_parallelism: int | None = None,
    replace: bool = False,
    dry_run: bool = False,
    table: str = "the table",
) -> BootstrappedState:
    """Begin a state of a Flink SQL job with the rows of a table, as a new checkpoint.

    All other states of the newest checkpoint stay. ``export_savepoint`` writes the states of a plan
    as a savepoint, from which ``EXECUTE`` of the plan starts::

        plan = read_flink_plan("job.json")
        totals = pq.read_table("totals.parquet")
        bootstrap_flink_state(store, plan, "5_group-aggregate", "accState", totals)
        export_savepoint(store, "./savepoint")

    Args:
        store: the store.
        plan: the compiled plan.
        operator: the operator's uid in the plan.
        state: the state's name.
        rows: all rows of the state, with the columns that the plan's state has, as in
            ``StateStore.bootstrap``, but no Spark DataFrame. A dry run also takes their
            ``pyarrow.Schema``.
        max_parallelism: the number of key groups; by default the operator's, or 128.
        replace: whether the rows may replace a state that the store has.
        dry_run: whether the rows are only checked, as in ``StateStore.bootstrap``.
        table: the table's name in messages.

    Returns:
        The state, and the checkpoint.

    Raises:
        StateNotFoundError: if the plan has no such operator or state.
        UnsupportedTypeError: if the layout of the operator's state is not known.
        SchemaMismatchError: for a table with other columns than the state, which names each
            difference, and if the store has states for another plan.
        InvalidArgumentError: for a value that its column cannot hold, with its row, if the store
            has the state, unless ``replace`` is True, and if it was imported from a savepoint.
        IncompatibleStateError: if the file of the plan has changed since it was read.
        DuplicateKeyError: for two rows with the same identity, with examples.
        StateStoreError: as ``StateStore.bootstrap``.
    """
    layout = plan.find_state(operator, state)
    most = store.parts.parquet.stream_bytes
    known = rows if isinstance(rows, pa.Schema) else _arrow_rows(rows, layout, most)
    schema = known if isinstance(known, pa.Schema) else known.columns
    refuse_other_columns(schema, layout, table)
    newest = _newest_checkpoint(store)
    if newest is not None:
        _refuse_imported(newest, store.url)
        refuse_other_plan(read_plan_record(newest), plan, store.url)
    if layout.is_single and max_parallelism not in (None, 1):
        raise InvalidArgumentError(
            f"{layout} has one key group, because one subtask gets all rows; leave out the max "
            f"parallelism {max_parallelism}"
        )
    if not dry_run:
        _refuse_changed_file(plan)
    ttl = None
    if layout.ttl_ms:
        ttl = TimeToLive(timedelta(milliseconds=layout.ttl_ms), LAST_ACCESS)
    return store.bootstrap(
        operator,
        state,
        _convert(known, layout, table),
        key=layout.key_columns,
        namespace=layout.namespace,
        max_parallelism=1 if layout.is_single else max_parallelism,
        ttl=ttl,
        kind=layout.stored_kind,
        entry=layout.entry or None,
        hash_scheme="flink-sql",
        key_types=_key_types(layout),
        replace=replace,
        dry_run=dry_run,
        also=lambda checkpoint: _record(checkpoint, store, plan, layout),
    )


def _convert(rows: pa.Schema | ArrowRows, layout: PlanState, table: str) -> pa.Schema | ArrowRows:
    """Return the rows of the table as rows of the state; a stream is converted when it is read."""
    if isinstance(rows, pa.Schema):
        return stored_schema(rows, layout)
    rows_so_far = 0

    def convert(part: pa.Table) -> pa.Table:
        nonlocal rows_so_far
        converted = convert_rows(part, layout, table, rows_so_far)
        rows_so_far += len(part)
        return converted

    return rows.map(convert)


def _refuse_changed_file(plan: FlinkPlan) -> None:
    now = read_flink_plan(
        plan.place, uid_format=plan.uid_format, storage_options=plan.storage_options
    )
    if now.digest != plan.digest:
        raise IncompatibleStateError(
            f"{plan.place} was changed since it was read: its digest was {plan.digest:.12} and "
            f"is {now.digest:.12}. Look at the states of the new plan, and start again"
        )


def _record(
    checkpoint: CheckpointWriter, store: StateStore, plan: FlinkPlan, layout: PlanState
) -> None:
    """Record the plan and its other states, before the state is written.

    By then this writer has claimed the store, so nobody else can commit another plan.
    """
    newest = _newest_checkpoint(store)
    stored = None if newest is None else read_plan_record(newest)
    refuse_other_plan(stored, plan, store.url)
    if stored is None:
        write_plan_record(checkpoint, plan)
        present = set() if newest is None else _state_names(newest)
        present.add((layout.operator, layout.state))
        left_out = [r for r in _plan_records(plan) if (r.operator, r.state) not in present]
        checkpoint.collected.record(left_out=left_out)


def _state_names(restored: RestoredCheckpoint) -> set[tuple[str, str | None]]:
    return {(entry.state.uid, entry.state.name) for entry in restored.manifest.entries}


def _plan_records(plan: FlinkPlan) -> Iterator[LeftOutState]:
    """Yield all state of a plan as state that is left out."""
    for operator in plan.operators:
        reasons: list[tuple[str | None, str]] = [
            (state.state, "no table was given for it") for state in operator.states
        ]
        if operator.problem is not None:
            reasons = [(None, operator.problem)]
        for name, reason in reasons:
            yield LeftOutState(
                operator=operator.operator,
                state=name,
                reason=reason,
                command="bootstrap",
                id=operator.operator_id,
            )


def _newest_checkpoint(store: StateStore) -> RestoredCheckpoint | None:
    try:
        return store.restore()
    except (StoreNotFoundError, CheckpointNotFoundError):
        return None


def _refuse_imported(newest: RestoredCheckpoint, url: str) -> None:
    """Refuse a store that has the operators and types of a savepoint."""
    if any(entry.state.uid == RECORD for entry in newest.manifest.operator):
        raise InvalidArgumentError(
            f"{url} was imported from a savepoint and has the operators of its job: begin a new "
            "store for the plan"
        )


def _key_types(state: PlanState) -> tuple[str, ...]:
    """Return the types that the key is hashed as."""
    if not state.key.fields:
        return ("BOOLEAN" if state.is_single else "INT",)
    return tuple(field.type.text.removesuffix(" NOT NULL") for field in state.key.fields)


def _arrow_rows(given: Any, state: PlanState, most_bytes: int) -> ArrowRows:
    """Return rows of this process; InvalidArgumentError for a DataFrame of Spark."""
    rows = typed_rows(read_rows(given, str(state), most_bytes))
    if not isinstance(rows, ArrowRows):
        raise InvalidArgumentError(
            f"the rows of {state} cannot be a DataFrame of Spark: write them as Parquet, or pass "
            "toArrow()"
        )
    return rows
