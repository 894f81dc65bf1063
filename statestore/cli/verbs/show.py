"""``statestore show``: show the content of one checkpoint, its job graph, or its skew.

The skew is the key groups and keys that have more than their share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import click

from statestore.cli.arguments import key_value
from statestore.cli.checkpoints import (
    ShownLayer,
    changed_rows,
    layers_text,
    shown_layers,
    write_key_groups,
    write_left_out,
    write_subtasks,
)
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import bar, count, counted, duration, size, size_and_files, when
from statestore.cli.graphs import ShownGraph, shown_graph, write_graph
from statestore.cli.options import checkpoint_argument, keys_option, state_option
from statestore.cli.output import Column, Output, Page, table_of, value_text
from statestore.cli.summaries import held_text, made_by, metrics_text, written_by
from statestore.errors import InvalidArgumentError
from statestore.format.digest import RowSet, digest_text
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import BatchRecord, Entry, KeyedEntry, Manifest, TableRef, Writer
from statestore.format.metrics import CheckpointMetrics
from statestore.format.schema import type_text
from statestore.format.state import Layout, StateKind, TimeDomain, TimeToLive
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.restore.key_group_weights import Weight
from statestore.restore.plan import RestorePlan
from statestore.restore.skew import FACTOR, KEYS, READ_GROUPS, HotKeys, SkewedOperator, SkewReport
from statestore.restore.target import select

__all__ = ["ShownCheckpoint", "show_checkpoint", "write_checkpoint"]

BAR = 20


@dataclass(frozen=True, kw_only=True)
class FoundSkew:
    """Skewed key groups and hot keys."""

    store: str
    report: SkewReport


def write_skews(page: Page, found_skew: FoundSkew) -> None:
    """Write the skewed key groups and hot keys as text."""
    report = found_skew.report
    page.line(f"checkpoint {report.checkpoint_id} of {found_skew.store}", "bold")
    write_left_out(page, report.left_out)
    if not report.operators:
        page.line("no keyed state")
    for operator in report.operators:
        page.line()
        page.line(f"operator {operator.operator} ({', '.join(operator.states)})", "bold")
        _write_groups(page, report, operator)
        for hot in operator.hot:
            _write_keys(page, hot)


def _write_groups(page: Page, report: SkewReport, operator: SkewedOperator) -> None:
    among = f"of {counted(operator.key_groups, 'key group')}"
    rule = f"more than {report.factor:g} times the even share of {report.by.value}"
    if not operator.skewed:
        page.line(f"no key group {among} has {rule}")
        return
    verb = "has" if len(operator.skewed) == 1 else "have"
    page.line(f"{count(len(operator.skewed))} {among} {verb} {rule}")
    columns = ("key group", "rows", "bytes", "share", "times even", "")
    table = table_of(*columns, right={*columns[:-1]})
    most = operator.skewed[0].share
    for one in operator.skewed:
        cells = (
            str(one.key_group),
            count(one.rows),
            size(one.size_bytes),
            f"{one.share:.2%}",
            f"{one.times:.2f}",
            bar(one.share, most, width=BAR, pen=page.pen),
        )
        table.add_row(*cells)
    page.table(table)


def _write_keys(page: Page, hot: HotKeys) -> None:
    page.line()
    read = counted(len(hot.read), "key group")
    if not hot.keys:
        page.line(f"state {hot.state}: no rows")
        return
    sure = (
        "no other key has more rows"
        if hot.is_exact
        else "keys of other key groups may have more rows"
    )
    page.line(f"state {hot.state}: the keys with the most rows in {read}; {sure}")
    table = table_of("key", "key group", "rows", "share", "", right={"key group", "rows", "share"})
    most = hot.keys[0].rows
    for key in hot.keys:
        text = value_text(key_value(tuple(key.key.values())))
        drawn = bar(key.rows, most, width=BAR, pen=page.pen)
        cells = (text, str(key.key_group), count(key.rows), f"{key.rows / hot.rows:.2%}", drawn)
        table.add_row(*cells)
    page.table(table)


@click.command(
    "show",
    cls=Verb,
    section="Look",
    prints=(
        "The checkpoint with its key groups, the states of each operator, and the content of "
        "each subtask. With --job-graph: the job graph, and the state of each operator. With "
        "--skew: the skewed key groups, and the keys with the most rows."
    ),
    examples=(
        "statestore show --store ./fraud",
        "statestore show --job-graph --store ./fraud",
        "statestore show 1 --state totals-by-user/totals --store ./fraud",
        "statestore show --skew bytes --state totals-by-user/totals --keys 3 --store ./fraud",
        "statestore show 1 --skew rows --times 4 --keys 0 --store ./fraud --output json",
    ),
    modes={"--job-graph": (), "--skew": ("--keys", "--times", "--read")},
)
@checkpoint_argument
@state_option()
@click.option("--job-graph", is_flag=True, help="Show the job graph instead.")
@click.option(
    "--skew",
    type=click.Choice([one.value for one in Weight]),
    help="Show key groups with more than their share of bytes or rows, and hot keys, instead.",
)
@keys_option(KEYS)
@click.option(
    "--times",
    type=click.FloatRange(min=1),
    default=FACTOR,
    metavar="F",
    help=f"A key group is skewed if it has more than this multiple of the even share. [{FACTOR:g}]",
)
@click.option(
    "--read",
    type=click.IntRange(min=0),
    default=READ_GROUPS,
    metavar="N",
    help=f"The most key groups to read for the keys of a state. [{READ_GROUPS}]",
)
@pass_invocation
def show_checkpoint(
    invocation: Invocation,
    checkpoint: str,
    operator: str | None,
    state: str | None,
    job_graph: bool,
    skew: str | None,
    keys: int,
    times: float,
    read: int,
) -> Output[ShownCheckpoint] | Output[ShownGraph] | Output[FoundSkew]:
    """Show what a checkpoint contains."""
    store = invocation.store()
    if skew is not None:
        report = store.inspect.skew(
            operator,
            state,
            keys=keys,
            checkpoint=checkpoint,
            by=skew,
            factor=times,
            read_groups=read,
        )
        return Output(FoundSkew(store=store.url, report=report), write_skews)
    found = store.checkpoint(checkpoint)
    if job_graph:
        return _show_graph(store.url, select(found.manifest, operator, state))
    plan = store.plan(checkpoint=found, operator=operator, state=state)
    manifest = select(found.manifest, operator, state)
    shown = ShownCheckpoint.of(store.url, manifest, time.time_ns() // 1_000_000)
    return Output(shown, lambda page, _: write_checkpoint(page, shown, manifest, plan))


def _show_graph(store: str, manifest: Manifest) -> Output[ShownGraph]:
    graph = manifest.graph
    if graph is None:
        raise InvalidArgumentError(
            f"checkpoint {manifest.checkpoint_id} has no job graph; pass one when a snapshot "
            "is taken, with store.snapshot(graph=…) or the setting graph of the snapshot job"
        )

    def write(page: Page, shown: ShownGraph) -> None:
        page.line(f"job graph of checkpoint {shown.checkpoint_id} of {store}", "bold")
        write_graph(page, manifest, graph)

    return Output(shown_graph(store, manifest, graph), write)


@dataclass(frozen=True, kw_only=True)
class ShownTtl:
    """The expiry of a state's rows."""

    duration_ms: int
    column: str
    update: str
    visibility: str


@dataclass(frozen=True, kw_only=True)
class ShownState:
    """A state.

    * Operator state has ``mode`` and ``elements_per_subtask``; keyed state has the members from
      ``kind`` on.
    * ``ttl`` is None if rows do not expire.
    * ``changes`` are sorted, oldest first. With changes, ``rows``, ``size_bytes``, ``files`` and
      ``digest`` are those of the base.
    * ``merged`` is the content of base and changes together, if it was recorded.
    """

    state: str
    sort: Literal["keyed", "operator"]
    columns: tuple[Column, ...]
    rows: int
    size_bytes: int
    files: int
    digest: int
    table: TableRef
    mode: RedistributionMode | None = None
    elements_per_subtask: tuple[int, ...] | None = None
    kind: StateKind | None = None
    key: tuple[str, ...] | None = None
    key_types: tuple[str, ...] | None = None
    namespace: tuple[str, ...] | None = None
    entry: tuple[str, ...] | None = None
    time_domain: TimeDomain | None = None
    hash_scheme: str | None = None
    layout: Layout | None = None
    ttl: ShownTtl | None = None
    merged: RowSet | None = None
    changes: tuple[ShownLayer, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointOperator:
    """An operator. ``max_parallelism`` is None if it has no keyed state."""

    operator: str
    operator_id: str
    max_parallelism: int | None
    states: tuple[ShownState, ...]


@dataclass(frozen=True, kw_only=True)
class ShownCheckpoint:
    """A checkpoint, or some of its states.

    ``batches``, ``follows`` and ``origin`` are as in docs/FORMAT.md. ``changed_rows`` is the number
    of its rows that are changes. ``metrics`` is None if nothing was measured.
    """

    store: str
    checkpoint_id: int
    store_id: str
    parallelism: int
    started_at_ms: int
    created_at_ms: int
    age_ms: int
    writer: Writer
    origin: Mapping[str, Any] | None
    follows: int | None
    rows: int
    changed_rows: int
    size_bytes: int
    files: int
    batches: Mapping[str, BatchRecord]
    operators: tuple[CheckpointOperator, ...]
    left_out: tuple[LeftOutState, ...]
    metrics: CheckpointMetrics | None

    @classmethod
    def of(cls, store: str, manifest: Manifest, now_ms: int) -> ShownCheckpoint:
        """Return the content of a manifest."""
        return cls(
            store=store,
            checkpoint_id=manifest.checkpoint_id,
            store_id=manifest.store_id,
            parallelism=manifest.parallelism,
            started_at_ms=manifest.started_at_ms,
            created_at_ms=manifest.created_at_ms,
            age_ms=now_ms - manifest.created_at_ms,
            writer=manifest.writer,
            origin=manifest.origin,
            follows=manifest.follows,
            rows=manifest.rows,
            changed_rows=changed_rows(manifest),
            size_bytes=manifest.size_bytes,
            files=manifest.files,
            batches=dict(sorted((manifest.batches or {}).items())),
            operators=tuple(
                CheckpointOperator(
                    operator=uid,
                    operator_id=manifest.operators.id_of(uid),
                    max_parallelism=_max_parallelism(manifest, uid),
                    states=tuple(
                        _shown_state(entry) for entry in manifest.entries if entry.state.uid == uid
                    ),
                )
                for uid in manifest.uids
            ),
            left_out=manifest.left_out,
            metrics=manifest.metrics,
        )


def write_checkpoint(
    page: Page, shown: ShownCheckpoint, manifest: Manifest, plan: RestorePlan
) -> None:
    """Write the content of a checkpoint as text; ``plan`` is a restore at its own parallelism."""
    page.line(f"checkpoint {shown.checkpoint_id} of {shown.store}", "bold")
    taken = f"{when(shown.created_at_ms)}, {duration(shown.age_ms)} ago"
    _write_pairs(
        page,
        ("taken", f"{taken}; it took {duration(manifest.took_ms)}"),
        ("parallelism", str(shown.parallelism)),
        ("made by", made_by(manifest)),
        ("written by", written_by(shown.writer)),
        (
            "holds",
            held_text(shown.rows, shown.changed_rows, shown.size_bytes, shown.files),
        ),
        *(
            ("last batch", f"{record.number} of job {job!r}, checkpoint {record.checkpoint_id}")
            for job, record in shown.batches.items()
            if job
        ),
        *(("left out", str(record)) for record in shown.left_out),
        *metrics_text(shown.metrics),
    )
    write_key_groups(page, plan)
    for operator in plan.operators:
        page.line()
        page.line(f"operator {operator.operator}", "bold")
        groups = _max_parallelism(manifest, operator.operator)
        _write_pairs(
            page,
            ("operator id", manifest.operators.id_of(operator.operator)),
            ("max parallelism", "none: no keyed state" if groups is None else str(groups)),
        )
        _write_states(page, manifest, operator.operator)
        write_subtasks(page, operator)


def _max_parallelism(manifest: Manifest, uid: str) -> int | None:
    """Return the max parallelism of an operator; None if it has no keyed state."""
    found = (e.state.max_parallelism for e in manifest.keyed if e.state.uid == uid)
    return next(found, None)


def _shown_state(entry: Entry) -> ShownState:
    state, base = entry.state, entry.parts[0]
    shown = ShownState(
        state=state.name,
        sort="keyed" if isinstance(entry, KeyedEntry) else "operator",
        columns=tuple(Column(field.name, type_text(field.type)) for field in state.schema.fields),
        rows=base.rows,
        size_bytes=base.size_bytes,
        files=base.files,
        digest=base.digest,
        table=entry.table,
    )
    if not isinstance(entry, KeyedEntry):
        return replace(shown, mode=entry.state.mode, elements_per_subtask=tuple(entry.counts))
    keyed = entry.state
    return replace(
        shown,
        kind=keyed.kind,
        key=keyed.key,
        key_types=keyed.key_types,
        namespace=keyed.namespace,
        entry=keyed.entry,
        time_domain=keyed.time_domain,
        hash_scheme=keyed.hash_scheme,
        layout=keyed.layout,
        ttl=None if keyed.ttl is None else _shown_ttl(keyed.ttl),
        merged=entry.contents if entry.layers else None,
        changes=shown_layers(entry),
    )


def _shown_ttl(ttl: TimeToLive) -> ShownTtl:
    return ShownTtl(
        duration_ms=ttl.duration_ms,
        column=ttl.column,
        update=ttl.update,
        visibility=ttl.visibility,
    )


def _write_states(page: Page, manifest: Manifest, uid: str) -> None:
    for entry in manifest.entries:
        if entry.state.uid == uid:
            page.line()
            page.line(f"  state {entry.state.name}", "bold")
            _write_pairs(page, *_state_pairs(entry), indent="    ")


def _state_pairs(entry: Entry) -> list[tuple[str, str]]:
    base = entry.parts[0]
    held = f"{counted(base.rows, 'row')}, {size_and_files(base.size_bytes, base.files)}"
    version = "" if entry.table.version is None else f", Delta table version {entry.table.version}"
    table = f"{entry.table.format}{version}, {entry.table.path}"
    last = [("holds", held), ("digest", digest_text(base.digest)), ("table", table)]
    if not isinstance(entry, KeyedEntry):
        mode = f"operator state, {entry.state.mode.value}"
        columns = ("columns", str(entry.state.schema))
        elements = " ".join(count(number) for number in entry.counts)
        return [("mode", mode), columns, ("elements per subtask", elements), *last]
    if entry.layers:
        last[:2] = layers_text(entry, held)
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
        *((role, str(state.schema.select(names))) for role, names in roles if names),
        ("hash scheme", hashed),
        *([("TTL", str(state.ttl))] if state.ttl else []),
        *last,
    ]


def _write_pairs(page: Page, *pairs: tuple[str, str], indent: str = "  ") -> None:
    longest = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        page.line(f"{indent}{name:<{longest}}  {value}")
