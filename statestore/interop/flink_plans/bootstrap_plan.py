"""Begin a state of a Flink SQL job with the rows of a table, as its compiled plan describes it.

The state's columns, key, kind, hash and TTL come from the plan. The plan is recorded in the store,
so that an export writes the state with the plan's types. States of the plan that have no table yet
are recorded as left out, so an export names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

from statestore.arguments import checked
from statestore.engines.given_rows import read_rows, typed_rows
from statestore.engines.rows import ArrowRows
from statestore.errors import (
    CheckpointNotFoundError,
    IncompatibleStateError,
    InvalidArgumentError,
    StoreNotFoundError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.ttl import TimeToLive
from statestore.interop.flink.importing.import_record import RECORD
from statestore.interop.flink_plans.layouts import LAST_ACCESS, PlanState
from statestore.interop.flink_plans.plan_file import (
    FlinkPlan,
    read_flink_plan,
    read_plan_record,
    refuse_other_plan,
    write_plan_record,
)
from statestore.interop.flink_plans.table_rows import (
    convert_rows,
    refuse_other_columns,
    stored_schema,
)
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.bootstrap import BootstrappedState
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore


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
        checkpoint.record_left_out(
            record
            for record in _plan_records(plan)
            if (record.operator, record.state) not in present
        )


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
