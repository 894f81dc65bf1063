"""What ``--output text`` prints: for people, free to change; programs read ``--output json``."""

from __future__ import annotations

import json
from functools import singledispatch
from typing import Any

from statestore.cli.documents import max_parallelism_of
from statestore.cli.figures import metrics_text
from statestore.cli.graphs import write_choices, write_graph, write_matching
from statestore.cli.keeping import (
    write_collected,
    write_expired,
    write_holds,
    write_pinned,
    write_repaired,
    write_saved,
    write_unpinned,
)
from statestore.cli.layers import held_text, layers_text, rows_text
from statestore.cli.output import DRAWING_WIDTH, Page
from statestore.cli.skews import write_skew
from statestore.cli.soundness import write_proof, write_report
from statestore.cli.subtasks import write_key_groups, write_placements, write_subtasks
from statestore.cli.tables import cell, table_of
from statestore.cli.units import count, counted, duration, size, when
from statestore.cli.values import (
    CheckpointList,
    CheckpointRow,
    Collected,
    Configuration,
    Decided,
    Expired,
    FoundRows,
    PlannedRestore,
    Repaired,
    Restored,
    Result,
    ShownCheckpoint,
    ShownGraph,
    Verified,
)
from statestore.format.digest import digest_text
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.schema import Schema
from statestore.restore.export import json_value

__all__ = ["write_text"]


@singledispatch
def write_text(result: Result, page: Page) -> None:
    """Write a verb's result to the page."""
    raise NotImplementedError(type(result).__name__)


@write_text.register
def _(result: CheckpointList, page: Page) -> None:
    if not result.rows:
        page.line(f"{result.store} has no checkpoint yet")
        write_holds(result, page)
        return
    left_out = set(_FOR_WIDE_ONES) if page.width < DRAWING_WIDTH else set()
    if not any(row.manifest is not None and row.manifest.origin for row in result.rows):
        left_out.add("made by")
    shown = [name for name in _COLUMNS if name not in left_out]
    table = table_of(*shown, right=set(shown) - {"taken", "age", "made by"})
    for row in result.rows:
        values = dict(zip(_COLUMNS, _checkpoint(row, result.now_ms), strict=False))
        table.add_row(*(cell(values.get(name, "")) for name in shown))
    page.table(table)
    write_holds(result, page)


_COLUMNS = (
    *("id", "taken", "age", "parallelism", "operators", "states", "rows", "bytes", "files"),
    "made by",
)
_FOR_WIDE_ONES = ("operators", "states", "files")
"""Columns that a narrow terminal has no room for."""


def _checkpoint(row: CheckpointRow, now_ms: int) -> list[str]:
    manifest = row.manifest
    if manifest is None:
        return [str(row.checkpoint_id), "damaged"]
    return [
        str(row.checkpoint_id),
        when(manifest.created_at_ms),
        duration(now_ms - manifest.created_at_ms),
        str(manifest.parallelism),
        count(len(manifest.uids)),
        count(len(manifest.entries)),
        rows_text(manifest),
        size(manifest.size_bytes),
        count(manifest.files),
        *(
            [f"{manifest.origin['command']} of {manifest.origin['checkpoint']}"]
            if manifest.origin
            else []
        ),
    ]


@write_text.register
def _(result: ShownCheckpoint, page: Page) -> None:
    manifest = result.manifest
    took = duration(manifest.created_at_ms - manifest.started_at_ms)
    age = duration(result.now_ms - manifest.created_at_ms)
    page.line(f"checkpoint {manifest.checkpoint_id} of {result.store}", "bold")
    _pairs(
        page,
        ("taken", f"{when(manifest.created_at_ms)}, {age} ago; it took {took}"),
        ("parallelism", str(manifest.parallelism)),
        ("written by", f"{manifest.writer.name}, statestore {manifest.writer.release}"),
        ("holds", held_text(manifest)),
        *metrics_text(manifest),
    )
    write_key_groups(page, result.plan)
    for operator in result.plan.operators:
        page.line()
        page.line(f"operator {operator.uid}", "bold")
        groups = max_parallelism_of(manifest, operator.uid)
        _pairs(
            page,
            ("operator id", manifest.operators.id_of(operator.uid)),
            ("max parallelism", "none: no keyed state" if groups is None else str(groups)),
        )
        _states(page, manifest, operator.uid)
        write_subtasks(page, operator)


def _states(page: Page, manifest: Manifest, uid: str) -> None:
    for entry in manifest.entries:
        if entry.state.uid == uid:
            page.line()
            page.line(f"  state {entry.state.name}", "bold")
            _pairs(page, *_state(entry), indent="    ")


def _state(entry: Entry) -> list[tuple[str, str]]:
    base = entry.parts[0]
    amount = _amount(base.rows, base.size_bytes, base.files)
    version = "" if entry.table.version is None else f", Delta table version {entry.table.version}"
    table = f"{entry.table.format}{version}, {entry.table.path}"
    last = [("holds", amount), ("digest", digest_text(base.digest)), ("table", table)]
    if not isinstance(entry, KeyedEntry):
        mode = f"operator state, {entry.state.mode.value}"
        columns = ("columns", str(entry.state.schema))
        elements = " ".join(count(number) for number in entry.counts)
        return [("mode", mode), columns, ("elements per subtask", elements), *last]
    if entry.layers:
        last[:2] = layers_text(entry, amount)
    state = entry.state
    domain = f" in {state.time_domain.value} time" if state.time_domain else ""
    hashed = f"{state.hash_scheme} ({', '.join(state.key_types)})"
    roles = (
        ("key", state.key),
        ("namespace", state.namespace),
        ("entry", state.entry),
        ("values", state.values),
    )
    return [
        ("kind", f"{state.kind.value} state{domain}"),
        *((role, _columns(state.schema, names)) for role, names in roles if names),
        ("hash scheme", hashed),
        *([("time to live", str(state.ttl))] if state.ttl else []),
        *last,
    ]


def _columns(schema: Schema, names: tuple[str, ...]) -> str:
    return str(schema.select(names))


def _amount(rows: int, size_bytes: int, files: int) -> str:
    return f"{counted(rows, 'row')}, {size(size_bytes)} in {counted(files, 'file')}"


@write_text.register
def _(result: PlannedRestore, page: Page) -> None:
    plan = result.plan
    change = f"parallelism {plan.old_parallelism} to {plan.parallelism}"
    page.line(f"restore of checkpoint {plan.checkpoint_id} of {result.store}: {change}", "bold")
    page.line(f"reads {size(plan.size_bytes)} in {counted(plan.files, 'file')}; rewrites nothing")
    if plan.local_bytes:
        page.line(f"{size(plan.local_bytes)} of them are in the local cache of this host")
    if plan.choices:
        write_choices(page, plan.choices, plan.parallelism)
    if plan.matching is not None:
        write_matching(page, plan.matching)
    write_key_groups(page, plan)
    for operator in plan.operators:
        page.line()
        page.line(f"operator {operator.uid} ({', '.join(operator.states)})", "bold")
        write_subtasks(page, operator)
    for skew in result.skews:
        write_skew(page, skew)
    write_placements(page, result.placements, plan)


@write_text.register
def _(result: ShownGraph, page: Page) -> None:
    manifest = result.manifest
    assert manifest.graph is not None
    page.line(f"job graph of checkpoint {manifest.checkpoint_id} of {result.store}", "bold")
    write_graph(page, manifest, manifest.graph)


@write_text.register
def _(result: Restored, page: Page) -> None:
    done = result.exported
    page.line(
        f"checkpoint {done.checkpoint_id} restored at parallelism {done.parallelism} "
        f"to {done.directory}",
        "bold",
    )
    table = table_of(
        "operator", "state", "rows", "bytes", "files", right={"rows", "bytes", "files"}
    )
    for state in done.states:
        numbers = (count(state.rows), size(state.size_bytes), count(state.files))
        table.add_row(*(cell(text) for text in (state.uid, state.name, *numbers)))
    page.table(table)
    for state in done.states:
        write_proof(page, state)


@write_text.register
def _(result: FoundRows, page: Page) -> None:
    state = result.entry.state
    if not result.rows:
        key = json.dumps(json_value(result.key), ensure_ascii=False)
        page.line(f"no rows of key {key} in {state}, checkpoint {result.checkpoint_id}")
        return
    table = table_of(*state.schema.names)
    for row in result.rows:
        table.add_row(*(cell(_value(row[name])) for name in state.schema.names))
    page.table(table)


def _value(value: Any) -> str:
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


@write_text.register
def _(result: Repaired, page: Page) -> None:
    write_repaired(result.repaired, page)


@write_text.register
def _(result: Expired, page: Page) -> None:
    write_expired(result.expired, page)


@write_text.register
def _(result: Collected, page: Page) -> None:
    write_collected(result.collected, page)


write_text.register(write_saved)
write_text.register(write_pinned)
write_text.register(write_unpinned)


@write_text.register
def _(result: Decided, page: Page) -> None:
    done = result.decided
    page.line(f"parallelism {done.parallelism}", "bold")
    page.line(
        f"  {size(done.bytes_per_task)} per task, between {done.min_parallelism} and "
        f"{done.max_parallelism}, as Flink {done.algorithm} decides"
    )
    if done.task_bytes is not None:
        page.line(
            f"  {done.first_guess} by bytes alone; whole files are dealt, in order, so that the "
            f"largest task reads {size(max(done.task_bytes))}"
        )
    for one in done.inputs:
        read = "read whole by every task" if one.broadcast else "divided"
        page.line(
            f"  {one.url}: {size(one.size_bytes)} in {counted(len(one.sizes), 'file')}, {read}"
        )


@write_text.register
def _(result: Configuration, page: Page) -> None:
    table = table_of("setting", "value", "unit", "default", "source")
    for setting in result.settings:
        value = "none" if setting.value is None else str(setting.value)
        default = "none" if setting.default is None else str(setting.default)
        row = (setting.name, value, setting.unit, default, setting.source)
        table.add_row(*(cell(text) for text in row))
    page.table(table)


@write_text.register
def _(result: Verified, page: Page) -> None:
    write_report(page, result.report)


def _pairs(page: Page, *pairs: tuple[str, str], indent: str = "  ") -> None:
    longest = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        page.line(f"{indent}{name:<{longest}}  {value}")
