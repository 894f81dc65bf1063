"""``statestore show``: show the content of one checkpoint, or its job graph."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from statestore.cli.checkpoints import (
    LayerDocument,
    RowSetDocument,
    changed_rows,
    held_text,
    layers_document,
    layers_text,
    metrics_document,
    metrics_text,
    write_key_groups,
    write_subtasks,
)
from statestore.cli.command import (
    Invocation,
    Verb,
    checkpoint_argument,
    pass_invocation,
    state_options,
)
from statestore.cli.documents import (
    CheckpointMetricsDocument,
    Column,
    Document,
    LeftOutDocument,
)
from statestore.cli.drawing import amount, count, counted, duration, when
from statestore.cli.graphs import GraphDocument, graph_document, write_graph
from statestore.cli.output import Page, Result
from statestore.errors import InvalidArgumentError
from statestore.format.digest import digest_text
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.schema import type_text
from statestore.restore.plan import RestorePlan
from statestore.restore.selection import select

__all__ = ["ShownCheckpoint", "ShownGraph", "show_checkpoint"]


@click.command(
    "show",
    cls=Verb,
    prints=(
        "The checkpoint (the latest unless one is named), and its key groups divided among "
        "its subtasks. For each operator: id, max parallelism, each state with its columns, "
        "rows, bytes, files, digest and table, and the content of each subtask. State of its "
        "source that the checkpoint lacks is listed. With --graph: the stored job graph, its "
        "chained operators and the state of each operator."
    ),
    examples=(
        "statestore show --store ./fraud",
        "statestore show --graph --store ./fraud",
        "statestore show 1 --operator totals-by-user --state totals --store ./fraud",
    ),
)
@checkpoint_argument
@state_options
@click.option("--graph", is_flag=True, help="Show the job graph instead.")
@pass_invocation
def show_checkpoint(
    invocation: Invocation, checkpoint: str, uid: str | None, name: str | None, graph: bool
) -> ShownCheckpoint | ShownGraph:
    """Show what a checkpoint contains."""
    store = invocation.store()
    manifest = store.manifest(checkpoint)
    if graph:
        if manifest.graph is None:
            raise InvalidArgumentError(
                f"checkpoint {manifest.checkpoint_id} has no job graph; pass one when a snapshot "
                "is taken, with store.snapshot(graph=…) or the setting graph of the snapshot job"
            )
        return ShownGraph(store=store.url, manifest=select(manifest, uid, name))
    return ShownCheckpoint(
        store=store.url,
        now_ms=time.time_ns() // 1_000_000,
        manifest=select(manifest, uid, name),
        plan=store.plan(checkpoint=manifest.checkpoint_id, operator=uid, state=name),
    )


class WriterDocument(Document):
    """The writer of a checkpoint."""

    release: str
    name: str
    token: str
    generation: int


class BatchDocument(Document):
    """The last batch of a job, and the checkpoint that was taken for it."""

    number: int
    checkpoint_id: int


class TableDocument(Document):
    """The table of a state, below the store."""

    format: str
    path: str
    version: int | None


class TtlDocument(Document):
    """The expiry of a state's rows."""

    duration_ms: int
    column: str
    update: str
    visibility: str


class ShownStateDocument(Document):
    """A state.

    * Operator state has ``mode`` and ``elements_per_subtask``; keyed state has the other members.
    * ``ttl`` is absent if rows do not expire.
    * ``changes`` is absent for a state without changes. They are sorted, oldest first. ``rows``,
      ``size_bytes``, ``files`` and ``digest`` are then those of the base.
    * ``merged`` is the content of base and changes together, if it was recorded.
    """

    name: str
    sort: str
    columns: list[Column]
    rows: int
    size_bytes: int
    files: int
    digest: str
    table: TableDocument
    mode: str | None = None
    elements_per_subtask: list[int] | None = None
    kind: str | None = None
    key: list[str] | None = None
    key_types: list[str] | None = None
    namespace: list[str] | None = None
    entry: list[str] | None = None
    time_domain: str | UnsetType | None = UNSET
    hash_scheme: str | None = None
    layout: str | None = None
    ttl: TtlDocument | None = None
    merged: RowSetDocument | None = None
    changes: list[LayerDocument] | None = None


class ShownOperatorDocument(Document):
    """An operator. ``max_parallelism`` is null if it has no keyed state."""

    uid: str
    operator_id: str
    max_parallelism: int | None
    states: list[ShownStateDocument]


class CheckpointDocument(Document):
    """A checkpoint. ``batches`` is as in docs/FORMAT.md.

    ``changed_rows`` of its rows are changes, if any. ``metrics`` is absent if nothing was measured.
    """

    store: str
    id: int
    store_id: str
    parallelism: int
    started_at_ms: int
    created_at_ms: int
    age_ms: int
    writer: WriterDocument
    rows: int
    size_bytes: int
    files: int
    batches: dict[str, BatchDocument]
    operators: list[ShownOperatorDocument]
    left_out: list[LeftOutDocument]
    changed_rows: int = 0
    metrics: CheckpointMetricsDocument | None = None


@dataclass(frozen=True, kw_only=True)
class ShownCheckpoint(Result):
    """One checkpoint, or some of its states; ``plan`` is for its own parallelism."""

    store: str
    now_ms: int
    manifest: Manifest
    plan: RestorePlan

    def document(self) -> CheckpointDocument:
        """Return it for ``--output json``."""
        manifest = self.manifest
        return CheckpointDocument(
            store=self.store,
            id=manifest.checkpoint_id,
            store_id=manifest.store_id,
            parallelism=manifest.parallelism,
            started_at_ms=manifest.started_at_ms,
            created_at_ms=manifest.created_at_ms,
            age_ms=self.now_ms - manifest.created_at_ms,
            writer=WriterDocument.of(manifest.writer),
            rows=manifest.rows,
            size_bytes=manifest.size_bytes,
            files=manifest.files,
            batches={
                job: BatchDocument.of(record)
                for job, record in sorted((manifest.batches or {}).items())
            },
            operators=[
                ShownOperatorDocument(
                    uid=uid,
                    operator_id=manifest.operators.id_of(uid),
                    max_parallelism=_max_parallelism(manifest, uid),
                    states=[
                        _state_document(entry)
                        for entry in manifest.entries
                        if entry.state.uid == uid
                    ],
                )
                for uid in manifest.uids
            ],
            left_out=LeftOutDocument.each(manifest.left_out),
            changed_rows=changed_rows(manifest),
            metrics=metrics_document(manifest),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        manifest = self.manifest
        took = duration(manifest.took_ms)
        age = duration(self.now_ms - manifest.created_at_ms)
        page.line(f"checkpoint {manifest.checkpoint_id} of {self.store}", "bold")
        _write_pairs(
            page,
            ("taken", f"{when(manifest.created_at_ms)}, {age} ago; it took {took}"),
            ("parallelism", str(manifest.parallelism)),
            ("written by", f"{manifest.writer.name}, statestore {manifest.writer.release}"),
            ("holds", held_text(manifest)),
            *(
                ("last batch", f"{record.number} of job {job!r}, checkpoint {record.checkpoint_id}")
                for job, record in sorted((manifest.batches or {}).items())
                if job
            ),
            *(("left out", str(one)) for one in manifest.left_out),
            *metrics_text(manifest),
        )
        write_key_groups(page, self.plan)
        for operator in self.plan.operators:
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


@dataclass(frozen=True, kw_only=True)
class ShownGraph(Result):
    """The job graph of a checkpoint that has one."""

    store: str
    manifest: Manifest

    def document(self) -> GraphDocument:
        """Return it for ``--output json``."""
        assert self.manifest.graph is not None
        return graph_document(self.store, self.manifest, self.manifest.graph)

    def write(self, page: Page) -> None:
        """Write it as text."""
        manifest = self.manifest
        assert manifest.graph is not None
        page.line(f"job graph of checkpoint {manifest.checkpoint_id} of {self.store}", "bold")
        write_graph(page, manifest, manifest.graph)


def _max_parallelism(manifest: Manifest, uid: str) -> int | None:
    """Return the max parallelism of an operator; None if it has no keyed state."""
    found = (e.state.max_parallelism for e in manifest.keyed if e.state.uid == uid)
    return next(found, None)


def _state_document(entry: Entry) -> ShownStateDocument:
    state, base = entry.state, entry.parts[0]
    document = ShownStateDocument(
        name=state.name,
        sort="keyed" if isinstance(entry, KeyedEntry) else "operator",
        columns=[Column(name=f.name, type=type_text(f.type)) for f in state.schema.fields],
        rows=base.rows,
        size_bytes=base.size_bytes,
        files=base.files,
        digest=digest_text(base.digest),
        table=TableDocument.of(entry.table),
    )
    if not isinstance(entry, KeyedEntry):
        return replace(
            document, mode=entry.state.mode.value, elements_per_subtask=list(entry.counts)
        )
    keyed = entry.state
    merged = entry.contents if entry.layers else None
    return replace(
        document,
        kind=keyed.kind.value,
        key=list(keyed.key),
        key_types=list(keyed.key_types),
        namespace=list(keyed.namespace),
        entry=list(keyed.entry),
        time_domain=keyed.time_domain and keyed.time_domain.value,
        hash_scheme=keyed.hash_scheme,
        layout=keyed.layout.value,
        ttl=keyed.ttl and TtlDocument.of(keyed.ttl),
        merged=None if merged is None else RowSetDocument.of_rows(merged),
        changes=layers_document(entry),
    )


def _write_states(page: Page, manifest: Manifest, uid: str) -> None:
    for entry in manifest.entries:
        if entry.state.uid == uid:
            page.line()
            page.line(f"  state {entry.state.name}", "bold")
            _write_pairs(page, *_state_pairs(entry), indent="    ")


def _state_pairs(entry: Entry) -> list[tuple[str, str]]:
    base = entry.parts[0]
    held = f"{counted(base.rows, 'row')}, {amount(base.size_bytes, base.files)}"
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
