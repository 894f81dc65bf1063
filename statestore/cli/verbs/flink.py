"""``statestore flink repack``: a savepoint of a Flink job gets another number of key groups."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from statestore.cli.command import Invocation, LazyVerb, Root, Verb, common_options, pass_invocation
from statestore.cli.drawing import count
from statestore.cli.output import Page, Result, cell, progress_bar, table_of

if TYPE_CHECKING:
    from statestore.interop.flink.repack import Repacked

__all__ = ["RepackedSavepoint", "flink", "repack_state"]


class FlinkVerbs(Root):
    """The verbs on savepoints of Flink's jobs."""

    examples = ("statestore flink repack ./savepoint ./larger --max-parallelism 720",)
    sections: ClassVar[Mapping[str, Mapping[str, LazyVerb]]] = {
        "Verbs": {
            "repack": LazyVerb(
                "flink:repack_state", "Give a savepoint another number of key groups"
            ),
        }
    }


@click.group("flink", cls=FlinkVerbs)
def flink() -> None:
    """Work on savepoints of Flink's jobs, without Flink."""


flink.params.extend(common_options())


@click.command(
    "repack",
    cls=Verb,
    prints=(
        "Each operator with its entries by state, and among how many subtasks they are shared. The "
        "new savepoint is a canonical one, from which Flink restores at any parallelism up to the "
        "new maximum, with any state backend: set pipeline.max-parallelism of the job to it. "
        "Values are not looked into, so state of any class goes through; keys have to be of types "
        "whose hash is known, and each has to lie in the key group that follows from it. The "
        "savepoint, or checkpoint, is only read."
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
    help="The new number of key groups, of all operators that have more than one.",
)
@click.option(
    "--parallelism",
    type=int,
    metavar="N",
    help="Subtasks that share keyed state; by default as it was.",
)
@click.option(
    "--moved",
    multiple=True,
    metavar="OLD=NEW",
    help="Where a folder lies now that the savepoint knows by an absolute path.",
)
@pass_invocation
def repack_state(
    invocation: Invocation,
    savepoint: str,
    target: str,
    max_parallelism: int,
    parallelism: int | None,
    moved: tuple[str, ...],
) -> RepackedSavepoint:
    """Give a savepoint another number of key groups."""
    module: Any = importlib.import_module("statestore.interop.flink.repack")
    with progress_bar("repacking") as progress:
        repacked = module.repack_savepoint(
            savepoint,
            target,
            max_parallelism=max_parallelism,
            parallelism=parallelism,
            moved=dict(map(_folders, moved)),
            on_progress=progress,
        )
    return RepackedSavepoint(repacked=repacked)


def _folders(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise click.UsageError(f"--moved {text!r} is not OLD=NEW")
    return old, new


@dataclass(frozen=True, kw_only=True)
class RepackedSavepoint(Result):
    """A savepoint that was made of another."""

    repacked: Repacked

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        done = self.repacked
        return {
            "source": done.source,
            "savepoint": done.target,
            "max_parallelism": done.max_parallelism,
            "operators": [
                {
                    "id": one.id,
                    "operator": one.title,
                    "parallelism": one.parallelism,
                    "max_parallelism_before": one.was,
                    "entries": dict(one.entries),
                }
                for one in done.operators
            ],
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.repacked
        page.line(f"repacked {done.source} to {done.target}", "bold")
        page.line(f"  key groups   {done.max_parallelism}")
        page.line()
        numbers = ("states", "entries", "subtasks", "key groups before")
        table = table_of("operator", *numbers, right=set(numbers))
        for one in done.operators:
            sums = (len(one.entries), sum(one.entries.values()), one.parallelism, one.was)
            table.add_row(*map(cell, (one.title, *map(count, sums))))
        page.table(table)
