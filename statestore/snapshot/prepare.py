"""Prepare a keyed state to be written: its rows, their engine, and the checked state.

The prior checkpoints are searched once for the state, and the engine of its rows is chosen once.
:class:`Prepared` passes both on to the writers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from statestore.engines.choice import Engine, engine_of, reread_untyped
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import type_text
from statestore.format.state import KeyedState
from statestore.format.ttl import TIME_TYPES, TimeToLive, check_instant
from statestore.rows.change_rows import typed_rows
from statestore.rows.column_types import arrow_schema
from statestore.rows.input_rows import is_dicts
from statestore.rows.pandas_rows import is_pandas
from statestore.rows.rows_like_stored import frame_like, table_like
from statestore.rows.uuids import with_uuids
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.prior_checkpoints import StoredFacts
from statestore.snapshot.state_request import keyed_state, refuse_other_form, uuid_columns_of
from statestore.snapshot.state_spec import StateSpec
from statestore.snapshot.state_ttl import OFF, changed_ttl, kept_ttl

__all__ = ["Prepared", "add_time_column", "prepare", "prepare_changes", "prepare_declared"]


@dataclass(frozen=True)
class Prepared:
    """Rows in the form that their engine takes, and the state that they are written as."""

    engine: Engine
    rows: Any
    state: KeyedState


def prepare(
    pending: PendingCheckpoint,
    spec: StateSpec,
    rows: Any,
    stored: StoredFacts,
    *,
    fills_times: bool = False,
) -> Prepared:
    """Prepare all rows of a state.

    If its TTL is turned on, rows without times get the checkpoint's clock. With ``fills_times``
    they also get it for a state that already has a TTL.

    Raises the errors of :func:`statestore.snapshot.state_request.keyed_state`, and
    InvalidArgumentError for rows without times.
    """
    old, subject = stored.state, str(spec)
    rows = _as_stored(reread_untyped(rows, subject, pending.parquet.stream_bytes), spec, old)
    engine, rows = engine_of(rows, subject)
    ttl = kept_ttl(spec.ttl, old.ttl if old else None, spec.renamed)
    if not fills_times:
        _refuse_new_times(engine, rows, ttl, old)
    rows = add_time_column(engine, rows, ttl, old, pending.now_ms)
    if spec.regroup:
        rows = engine.ungrouped(rows)  # they still have their old key groups
    count = engine.rows_known(rows)
    return _prepared(pending, spec, engine, rows, ttl=ttl, row_count=count, stored=stored)


def prepare_declared(
    pending: PendingCheckpoint, spec: StateSpec, schema: Any, stored: StoredFacts
) -> Prepared:
    """Prepare a state whose rows, which have an Arrow schema, are written by its subtasks.

    Raises the errors of :func:`prepare`.
    """
    engine, rows = engine_of(schema, str(spec))
    old = stored.state
    ttl = kept_ttl(spec.ttl, old.ttl if old else None, spec.renamed)
    return _prepared(pending, spec, engine, rows, ttl=ttl, row_count=None, stored=stored)


def prepare_changes(
    pending: PendingCheckpoint,
    spec: StateSpec,
    rows: Any,
    base: KeyedEntry,
    stored: StoredFacts,
    *,
    fills_times: bool,
) -> Prepared:
    """Prepare upserts, or all rows, of a state whose changes are based on ``base``.

    None stands for no rows. With ``fills_times`` rows without times get the checkpoint's clock;
    otherwise they are refused.

    Raises the errors of :func:`prepare`, and SchemaMismatchError if the columns, the hash scheme or
    the max parallelism differ from the base.
    """
    old = base.state
    ttl = changed_ttl(spec.ttl, old)
    if rows is None:
        engine, rows = engine_of(arrow_schema(old.schema))
    else:
        rows = typed_rows(rows, old)
        if is_pandas(rows):
            rows = frame_like(rows, old.schema, old.schema.names, subject=str(spec))
        engine, rows = engine_of(rows, str(spec))
        if fills_times:
            rows = add_time_column(engine, rows, ttl, old, pending.now_ms)
        else:
            _refuse_new_times(engine, rows, ttl, old)
    refuse_other_form(
        spec,
        engine,
        rows,
        old,
        parallelism=pending.operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=pending.keyed,
    )
    return Prepared(engine, rows, replace(old, uid=spec.operator, ttl=ttl))


def _prepared(
    pending: PendingCheckpoint,
    spec: StateSpec,
    engine: Engine,
    rows: Any,
    *,
    ttl: TimeToLive | None,
    row_count: int | None,
    stored: StoredFacts,
) -> Prepared:
    """Return the rows with the requested state, checked against the stored state."""
    state = keyed_state(
        spec,
        engine,
        rows,
        ttl=ttl,
        row_count=row_count,
        parallelism=pending.operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=pending.keyed,
    )
    return Prepared(engine, rows, state)


def _as_stored(rows: Any, spec: StateSpec, stored: KeyedState | None) -> Any:
    """Convert dictionaries or a pandas frame to a table with the stored types, where they fit.

    Other rows are returned unchanged.
    """
    are_dicts = is_dicts(rows)
    if are_dicts:
        rows = with_uuids(rows, uuid_columns_of(spec, stored))
    if stored is None or not (are_dicts or is_pandas(rows)):
        return rows
    convert = table_like if are_dicts else frame_like
    schema = stored.schema.renamed(spec.renamed)
    return convert(rows, schema, stored.identity, subject=str(spec))


def _refuse_new_times(
    engine: Engine, rows: Any, ttl: TimeToLive | None, stored: KeyedState | None
) -> None:
    """Refuse rows without timestamps for a state that already has a TTL."""
    if ttl is None or stored is None or stored.ttl is None:
        return
    if ttl.column in engine.schema_of(rows).names:
        return
    raise InvalidArgumentError(
        f"{stored} has a TTL, but its rows lack the column {ttl.column!r}, so the lifetime of "
        "all rows would restart. Add the timestamps, write only changes with "
        f"checkpoint.write_changes(…), which can omit the column, or end the TTL with ttl={OFF!r}"
    )


def add_time_column(
    engine: Engine, rows: Any, ttl: TimeToLive | None, stored: KeyedState | None, now_ms: int
) -> Any:
    """Add the clock as time column to rows that lack it; return other rows unchanged.

    The column has its stored type, or long if it is new.
    """
    if ttl is None or ttl.column in engine.schema_of(rows).names:
        return rows
    time_type = "long"
    if stored is not None and ttl.column in stored.schema.names:
        time_type = type_text(stored.schema.type_of(ttl.column))
    if time_type not in TIME_TYPES:
        return rows  # the check of the state refuses the column, with its type
    if time_type != "long":
        check_instant(now_ms)
    return engine.with_time(rows, ttl.column, time_type, now_ms)
