"""``statestore flink show`` and ``repack``: inspect and repack savepoints of Flink jobs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from statestore.cli.command import Invocation, LazyVerb, Root, Verb, common_options, pass_invocation
from statestore.cli.documents import Document
from statestore.cli.drawing import count, size
from statestore.cli.output import Page, Result, cell, progress_bar, table_of
from statestore.errors import DamagedFileError

if TYPE_CHECKING:
    from statestore.interop.flink_savepoints.read.show_savepoint import (
        ShownKeyedState,
        ShownOperator,
        ShownSavepoint,
    )
    from statestore.interop.flink_savepoints.write.repack import RepackResult

__all__ = [
    "RepackedSavepoint",
    "ShownState",
    "allowed_places",
    "dropping",
    "flink",
    "folder_pair",
    "moved_folders",
    "repack_state",
    "show_state",
]


_KAFKA_OFFSETS = {-1: "latest", -2: "earliest", -3: "as committed to Kafka"}
"""What a source of Kafka has of a partition that it has not read from yet."""


class FlinkVerbs(Root):
    """The verbs for savepoints of Flink jobs."""

    examples = (
        "statestore flink show ./savepoint",
        "statestore flink import ./savepoint --to ./orders",
        "statestore flink export ./orders ./edited --max-parallelism 720",
        "statestore flink repack ./savepoint ./larger --max-parallelism 720",
    )
    sections: ClassVar[Mapping[str, Mapping[str, LazyVerb]]] = {
        "Verbs": {
            "show": LazyVerb("flink:show_state", "Show what a savepoint or checkpoint contains"),
            "import": LazyVerb(
                "flink_import:import_state", "Import the state of a savepoint as a checkpoint"
            ),
            "export": LazyVerb(
                "flink_export:export_state",
                "Export a checkpoint as a savepoint that Flink can restore",
            ),
            "repack": LazyVerb(
                "flink:repack_state", "Rewrite a savepoint with another number of key groups"
            ),
        }
    }


@click.group("flink", cls=FlinkVerbs)
def flink() -> None:
    """Show, import, export and repack Flink savepoints, without Flink."""


flink.params.extend(common_options())


moved_folders = click.option(
    "--moved",
    multiple=True,
    metavar="OLD=NEW",
    help="The new path of a moved folder that the savepoint references by an absolute path.",
)


allowed_places = click.option(
    "--allow",
    multiple=True,
    metavar="URL",
    help="A folder or file elsewhere that the savepoint is allowed to reference. Repeatable.",
)
"""The option of what is read outside of a savepoint's folder."""


dropping = click.option(
    "--drop",
    multiple=True,
    metavar="WHAT",
    help=(
        "Omit content that is otherwise refused: in-flight, changelog, raw, async or "
        "transactions. Repeatable."
    ),
)
"""The option of what is lost on purpose."""


@click.command(
    "show",
    cls=Verb,
    prints=(
        "Each operator with its id, its parallelism, and its uid and name if the savepoint "
        "has them. Each keyed state has its types, and its entries and bytes by key group. "
        "Operator state is shown by subtask, with the next offsets of Kafka sources. "
        "Unreadable parts are listed with the reason, and so is state that may have been "
        "lost. The savepoint or checkpoint is only read."
    ),
    examples=(
        "statestore flink show ./savepoint",
        "statestore flink show ./chk-7 --moved /flink=./copy --output json",
    ),
)
@click.argument("savepoint")
@moved_folders
@allowed_places
@pass_invocation
def show_state(
    invocation: Invocation, savepoint: str, moved: tuple[str, ...], allow: tuple[str, ...]
) -> ShownState:
    """Show what a savepoint or checkpoint contains."""
    module: Any = importlib.import_module("statestore.interop.flink_savepoints.read.show_savepoint")
    with progress_bar("reading") as progress:
        shown = module.show_savepoint(
            savepoint,
            on_progress=progress,
            access=module.SavepointAccess(moved=dict(map(folder_pair, moved)), allow=allow),
        )
    return ShownState(shown=shown, problem=_find_damage(shown))


@click.command(
    "repack",
    cls=Verb,
    prints=(
        "Each operator with its entries by state, and the number of subtasks that share them. The "
        "new savepoint has the canonical format. Flink restores it at any parallelism up to the "
        "new maximum, with any state backend. Set pipeline.max-parallelism of the job to the new "
        "maximum. Values are copied unchanged, so the state can have any class. Keys must have "
        "types with a known hash, and each key must be in the key group of its hash. The "
        "savepoint or checkpoint is only read."
    ),
    examples=(
        "statestore flink repack ./savepoint ./larger --max-parallelism 720",
        "statestore flink repack ./chk-7 ./small --max-parallelism 96 --moved /flink=./copy",
    ),
)
@click.argument("savepoint")
@click.argument("target", metavar="TO")
@click.option(
    "--max-parallelism",
    type=int,
    required=True,
    metavar="N",
    help="The new number of key groups of all operators that have more than one.",
)
@click.option(
    "--parallelism",
    type=int,
    metavar="N",
    help="The number of subtasks that share keyed state. [as in the savepoint]",
)
@moved_folders
@allowed_places
@dropping
@pass_invocation
def repack_state(
    invocation: Invocation,
    savepoint: str,
    target: str,
    max_parallelism: int,
    parallelism: int | None,
    moved: tuple[str, ...],
    allow: tuple[str, ...],
    drop: tuple[str, ...],
) -> RepackedSavepoint:
    """Rewrite a savepoint with another number of key groups."""
    module: Any = importlib.import_module("statestore.interop.flink_savepoints.write.repack")
    with progress_bar("repacking") as progress:
        repacked = module.repack_savepoint(
            savepoint,
            target,
            max_parallelism=max_parallelism,
            parallelism=parallelism,
            drop=drop,
            on_progress=progress,
            access=module.SavepointAccess(moved=dict(map(folder_pair, moved)), allow=allow),
        )
    return RepackedSavepoint(repacked=repacked)


def folder_pair(text: str) -> tuple[str, str]:
    """Parse the old and the new folder of a ``--moved`` option."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise click.UsageError(f"--moved {text!r} must have the form OLD=NEW")
    return old, new


class KeyGroupEntriesDocument(Document):
    """The number of entries of a key group."""

    key_group: int
    entries: int


class ShownKeyedStateDocument(Document):
    """A keyed state. ``key`` and ``value`` are types, in the words of Java.

    * ``namespace`` is null if the state has none.
    * ``no_columns`` is the reason why its entries have no columns, and null if they have.
    * ``entries``, ``size_bytes`` and ``key_groups`` are null if they were not read.
    """

    state: str
    kind: str
    key: str
    namespace: str | None
    value: str
    ttl: bool
    no_columns: str | None
    entries: int | None
    size_bytes: int | None
    key_groups: list[KeyGroupEntriesDocument] | None


class SubtaskElementsDocument(Document):
    """The number of elements of a subtask."""

    subtask: int
    elements: int


class KafkaSplitDocument(Document):
    """A partition of a Kafka topic, the next offset of the source, and its stopping offset."""

    topic: str
    partition: int
    offset: int
    stop: int


class ShownOperatorStateDocument(Document):
    """An operator state. ``kafka`` is null if it is not a Kafka source's."""

    state: str
    mode: str
    type: str
    size_bytes: int
    subtasks: list[SubtaskElementsDocument]
    kafka: list[KafkaSplitDocument] | None


class SavepointOperatorDocument(Document):
    """An operator. ``uid`` and ``name`` are null if the savepoint does not have them.

    ``problem`` is the reason why its state is unreadable. ``warnings`` name what an import may lose
    or refuse.
    """

    id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    finished: bool
    coordinator_bytes: int | None
    problem: str | None
    warnings: list[str]
    keyed: list[ShownKeyedStateDocument]
    operator: list[ShownOperatorStateDocument]


class SavepointDocument(Document):
    """The content of a savepoint. ``version`` is that of its file ``_metadata``."""

    savepoint: str
    version: int
    checkpoint: int
    operators: list[SavepointOperatorDocument]


def _find_damage(shown: ShownSavepoint) -> DamagedFileError | None:
    """Return the error that ends the command after the readable operators are shown."""
    damaged = [operator.uid or operator.id for operator in shown.operators if operator.is_damaged]
    if not damaged:
        return None
    return DamagedFileError(f"{shown.place} has damaged files of {', '.join(damaged)}")


@dataclass(frozen=True, kw_only=True)
class ShownState(Result):
    """The content of a savepoint or checkpoint."""

    shown: ShownSavepoint

    def document(self) -> SavepointDocument:
        """Return it for ``--output json``."""
        return SavepointDocument(
            savepoint=self.shown.place,
            version=self.shown.version,
            checkpoint=self.shown.checkpoint_id,
            operators=[_operator(operator) for operator in self.shown.operators],
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        shown = self.shown
        page.line(f"checkpoint {shown.checkpoint_id} in {shown.place}", "bold")
        page.line(f"  metadata     version {shown.version}")
        for operator in shown.operators:
            _write_operator(page, operator)


def _operator(operator: ShownOperator) -> SavepointOperatorDocument:
    return SavepointOperatorDocument(
        id=operator.id,
        uid=operator.uid,
        name=operator.name,
        parallelism=operator.parallelism,
        max_parallelism=operator.max_parallelism,
        finished=operator.is_finished,
        coordinator_bytes=operator.coordinator_bytes,
        problem=operator.problem,
        warnings=list(operator.warnings),
        keyed=[_keyed(state) for state in operator.keyed],
        operator=[
            ShownOperatorStateDocument(
                state=state.name,
                mode=state.mode,
                type=state.type,
                size_bytes=state.size_bytes,
                subtasks=[
                    SubtaskElementsDocument(subtask=subtask, elements=elements)
                    for subtask, elements in state.elements.items()
                ],
                kafka=None if state.splits is None else KafkaSplitDocument.each(state.splits),
            )
            for state in operator.operator
        ],
    )


def _keyed(state: ShownKeyedState) -> ShownKeyedStateDocument:
    entries = state.entries
    return ShownKeyedStateDocument(
        state=state.name,
        kind=state.kind,
        key=state.key,
        namespace=state.namespace,
        value=state.value,
        ttl=state.has_ttl,
        no_columns=state.note,
        entries=None if entries is None else sum(entries.values()),
        size_bytes=state.size_bytes,
        key_groups=None
        if entries is None
        else [
            KeyGroupEntriesDocument(key_group=key_group, entries=number)
            for key_group, number in entries.items()
        ],
    )


def _write_operator(page: Page, operator: ShownOperator) -> None:
    title = operator.uid or operator.name or operator.id
    page.line()
    page.line(f"operator {title}", "bold")
    page.line(f"  id           {operator.id}")
    if operator.name not in (None, title):
        page.line(f"  name         {operator.name}")
    page.line(f"  parallelism  {operator.parallelism} (max parallelism {operator.max_parallelism})")
    if operator.is_finished:
        page.line("  finished     the operator has finished; it has no state and cannot get any")
    if operator.coordinator_bytes is not None:
        page.line(f"  coordinator  {size(operator.coordinator_bytes)}")
    if operator.problem is not None:
        page.line(f"  not read     {operator.problem}")
    for warning in operator.warnings:
        page.line(f"  warning      {warning}")
    if operator.keyed:
        numbers = ("entries", "key groups", "fullest", "bytes")
        table = table_of("keyed state", *numbers, "kind", "key", "value", right=set(numbers))
        for state in operator.keyed:
            table.add_row(*map(cell, _keyed_row(state)))
        page.table(table)
    for state in operator.keyed:
        if state.note is not None:
            page.line(f"  {state.name} has no columns: {state.note}")
    if operator.operator:
        table = table_of("operator state", "mode", "type", "elements by subtask", "bytes")
        for elements in operator.operator:
            by_subtask = ", ".join(map(count, elements.elements.values()))
            row = (
                elements.name,
                elements.mode,
                elements.type,
                by_subtask,
                size(elements.size_bytes),
            )
            table.add_row(*map(cell, row))
        page.table(table)
    for elements in operator.operator:
        for split in elements.splits or ():
            offset = _KAFKA_OFFSETS.get(split.offset, str(split.offset))
            page.line(f"  {split.topic}, partition {split.partition}: next offset: {offset}")


def _keyed_row(state: ShownKeyedState) -> tuple[str, ...]:
    kind_text = f"{state.kind} with TTL" if state.has_ttl else state.kind
    key = state.key if state.namespace is None else f"{state.key} in {state.namespace}"
    if state.entries is None or state.size_bytes is None:
        return (state.name, "?", "?", "?", "?", kind_text, key, state.value)
    fullest = max(state.entries.items(), key=lambda group: group[1], default=None)
    return (
        state.name,
        count(sum(state.entries.values())),
        count(len(state.entries)),
        "" if fullest is None else f"{fullest[0]}: {count(fullest[1])}",
        size(state.size_bytes),
        kind_text,
        key,
        state.value,
    )


class NotRepackedDocument(Document):
    """State that the new savepoint lacks, and why."""

    operator: str
    id: str
    state: str
    why: str


class RepackedOperatorDocument(Document):
    """An operator. ``entries`` has the number of entries of each keyed state."""

    id: str
    operator: str
    parallelism: int
    max_parallelism_before: int
    entries: dict[str, int]


class RepackedDocument(Document):
    """A savepoint with other key groups."""

    source: str
    savepoint: str
    max_parallelism: int
    complete: bool
    left_out: list[NotRepackedDocument]
    operators: list[RepackedOperatorDocument]


@dataclass(frozen=True, kw_only=True)
class RepackedSavepoint(Result):
    """A savepoint that was made from another one."""

    repacked: RepackResult

    def document(self) -> RepackedDocument:
        """Return it for ``--output json``."""
        done = self.repacked
        return RepackedDocument(
            source=done.source,
            savepoint=done.target,
            max_parallelism=done.max_parallelism,
            complete=not any(operator.left_out for operator in done.operators),
            left_out=[
                NotRepackedDocument(
                    operator=operator.title, id=operator.id, state=state, why=reason
                )
                for operator in done.operators
                for state, reason in operator.left_out.items()
            ],
            operators=[
                RepackedOperatorDocument(
                    id=operator.id,
                    operator=operator.title,
                    parallelism=operator.parallelism,
                    max_parallelism_before=operator.max_parallelism_before,
                    entries=dict(operator.entries),
                )
                for operator in done.operators
            ],
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.repacked
        page.line(f"repacked {done.source} to {done.target}", "bold")
        page.line(f"  key groups   {done.max_parallelism}")
        for operator in done.operators:
            for part, reason in operator.left_out.items():
                page.line(f"  left out     {operator.title}/{part} ({reason})")
        page.line()
        numbers = ("states", "entries", "subtasks", "key groups before")
        table = table_of("operator", *numbers, right=set(numbers))
        for operator in done.operators:
            sums = (
                len(operator.entries),
                sum(operator.entries.values()),
                operator.parallelism,
                operator.max_parallelism_before,
            )
            table.add_row(*map(cell, (operator.title, *map(count, sums))))
        page.table(table)
