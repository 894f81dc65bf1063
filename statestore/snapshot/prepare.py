"""Prepare a keyed state to be written: its rows in their types, and the checked state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statestore.engines.given_rows import read_rows
from statestore.engines.rows import ArrowRows, Rows
from statestore.errors import InvalidArgumentError
from statestore.format.schema import type_text
from statestore.format.state import KeyedState
from statestore.format.ttl import TIME_TYPES, TimeToLive, check_instant
from statestore.rows.column_types import arrow_schema
from statestore.rows.python_values import refuse_repeated_names
from statestore.rows.untyped_rows import UntypedRows
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.prior_checkpoints import StoredFacts
from statestore.snapshot.state_request import keyed_state, refuse_other_form, uuid_columns_of
from statestore.snapshot.state_spec import OFF, StateSpec

__all__ = ["add_time_column", "prepare", "prepare_changes", "prepare_declared", "with_types"]


def prepare(
    pending: PendingCheckpoint,
    spec: StateSpec,
    given: Any,
    stored: StoredFacts,
    *,
    fills_times: bool = False,
) -> tuple[Rows, KeyedState]:
    """Return all rows of a state, and the state.

    If its TTL is turned on, rows without times get the checkpoint's clock. With ``fills_times``
    they also get it for a state that already has a TTL.

    Raises the errors of :func:`statestore.snapshot.state_request.keyed_state`, and
    InvalidArgumentError for rows without times.
    """
    old = stored.state
    rows = with_types(read_rows(given, str(spec), pending.parquet.stream_bytes), spec, old)
    ttl = spec.kept_ttl(old)
    if not fills_times:
        _refuse_new_times(rows, ttl, old)
    rows = add_time_column(rows, ttl, old, pending.now_ms)
    if spec.regroup:
        rows = rows.ungrouped()  # they still have their old key groups
    return rows, _checked_state(pending, spec, rows, ttl, stored)


def prepare_declared(
    pending: PendingCheckpoint, spec: StateSpec, schema: Any, stored: StoredFacts
) -> KeyedState:
    """Return a state whose rows, which have an Arrow schema, are written by its subtasks.

    Raises the errors of :func:`prepare`.
    """
    refuse_repeated_names(schema.names, str(spec))
    ttl = spec.kept_ttl(stored.state)
    return _checked_state(pending, spec, ArrowRows(schema, iter(())), ttl, stored)


def prepare_changes(
    pending: PendingCheckpoint,
    spec: StateSpec,
    given: Any,
    base: KeyedState,
    stored: StoredFacts,
    *,
    fills_times: bool,
) -> tuple[Rows, KeyedState]:
    """Return upserts, or all rows, of a state whose changes are based on ``base``, and the state.

    None stands for no rows. With ``fills_times`` rows without times get the checkpoint's clock;
    otherwise they are refused.

    Raises the errors of :func:`prepare`, and SchemaMismatchError if the columns, the hash scheme or
    the max parallelism differ from the base.
    """
    ttl = spec.changed_ttl(base)
    if given is None:
        rows: Rows = ArrowRows.of(arrow_schema(base.schema).empty_table())
    else:
        known = read_rows(given, str(spec), pending.parquet.stream_bytes)
        rows = ArrowRows.of(known.changes(base)) if isinstance(known, UntypedRows) else known
        if fills_times:
            rows = add_time_column(rows, ttl, base, pending.now_ms)
        else:
            _refuse_new_times(rows, ttl, base)
    refuse_other_form(
        spec,
        rows,
        base,
        parallelism=pending.operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=pending.keyed,
    )
    return rows, replace(base, uid=spec.operator, ttl=ttl)


def _checked_state(
    pending: PendingCheckpoint,
    spec: StateSpec,
    rows: Rows,
    ttl: TimeToLive | None,
    stored: StoredFacts,
) -> KeyedState:
    return keyed_state(
        spec,
        rows,
        ttl=ttl,
        parallelism=pending.operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=pending.keyed,
    )


def with_types(rows: Rows | UntypedRows, spec: StateSpec, stored: KeyedState | None) -> Rows:
    """Return rows, which get the stored types, where they fit, if they have none of their own."""
    if not isinstance(rows, UntypedRows):
        return rows
    rows = rows.with_uuids(uuid_columns_of(spec, stored))
    if stored is None:
        return ArrowRows.of(rows.guessed())
    return ArrowRows.of(rows.widening(stored.schema.renamed(spec.renamed), stored.identity))


def _refuse_new_times(rows: Rows, ttl: TimeToLive | None, stored: KeyedState | None) -> None:
    """Refuse rows without timestamps for a state that already has a TTL."""
    if ttl is None or stored is None or stored.ttl is None:
        return
    if ttl.column in rows.schema.names:
        return
    raise InvalidArgumentError(
        f"{stored} has a TTL, but its rows lack the column {ttl.column!r}, so the lifetime of "
        "all rows would restart. Add the timestamps, write only changes with "
        f"checkpoint.write_changes(…), which can omit the column, or end the TTL with ttl={OFF!r}"
    )


def add_time_column(
    rows: Rows, ttl: TimeToLive | None, stored: KeyedState | None, now_ms: int
) -> Rows:
    """Add the clock as time column to rows that lack it; return other rows unchanged.

    The column has its stored type, or long if it is new.
    """
    if ttl is None or ttl.column in rows.schema.names:
        return rows
    time_type = "long"
    if stored is not None and ttl.column in stored.schema.names:
        time_type = type_text(stored.schema.type_of(ttl.column))
    if time_type not in TIME_TYPES:
        return rows  # the check of the state refuses the column, with its type
    if time_type != "long":
        check_instant(now_ms)
    return rows.with_time(ttl.column, time_type, now_ms)
