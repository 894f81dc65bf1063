"""``statestore bisect``: find the first kept checkpoint in which a predicate holds for a row."""

from __future__ import annotations

import threading

import click

from statestore.cli.checkpoints import write_left_out, write_row_changes
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, span_text, when
from statestore.cli.options import (
    checkpoint_argument,
    examples_option,
    one_state_option,
    time_limit,
)
from statestore.cli.output import MOST_NAMES, Output, Page, progress_bar, table_of
from statestore.cli.summaries import maker
from statestore.maintenance.bisect import Bisection, FoundCheckpoint, ReplayRange
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.restore.duck import run_interruptibly

__all__ = ["find_first", "write_bisection"]

_HALVING = (
    "halving is right only if the predicate stays true once it is true; --all looks at each "
    "checkpoint"
)


@click.command(
    "bisect",
    cls=Verb,
    section="Look",
    prints=(
        "The first kept checkpoint in which a row satisfies the predicate, who wrote it, the "
        "rows that changed since the checkpoint before it, those that satisfy the predicate "
        "first, and the source's records between the two. Halving looks at about log2 "
        "of the checkpoints and assumes that the predicate stays true. With --all: each change "
        "of the answer. The settings query_time_limit and query_memory_bytes limit each look."
    ),
    examples=(
        "statestore bisect --state totals-by-user/totals --where 'total < 0' --store ./fraud",
        (
            "statestore bisect --state totals-by-user/totals --where \"user_id = 'ann' AND total > "
            '900" --all --store ./fraud'
        ),
        (
            "statestore bisect 2 --state totals-by-shop/totals --where 'total IS NULL' "
            "--output json --store ./fraud"
        ),
    ),
)
@checkpoint_argument
@one_state_option
@click.option(
    "--where",
    required=True,
    metavar="SQL",
    help="The predicate: an SQL expression of DuckDB over the columns of the state.",
)
@click.option("--all", "every", is_flag=True, help="Look at each checkpoint instead of halving.")
@examples_option(DEFAULT_EXAMPLES, "changed rows to show")
@pass_invocation
def find_first(
    invocation: Invocation,
    checkpoint: str,
    operator: str,
    state: str,
    where: str,
    every: bool,
    examples: int,
) -> Output[Bisection]:
    """Find the first kept checkpoint in which a predicate holds for a row of a state."""
    store, settings = invocation.store(), invocation.settings
    cancelled = threading.Event()
    with progress_bar("looking at checkpoints") as progress:
        found = run_interruptibly(
            lambda: store.inspect.bisect(
                where,
                operator,
                state,
                checkpoint,
                every=every,
                keys=examples,
                time_limit=time_limit(settings.query_time_limit),
                memory_limit=settings.query_memory_bytes,
                cancelled=cancelled,
                on_progress=progress,
            ),
            cancelled.set,
        )
    return Output(found, write_bisection)


def write_bisection(page: Page, found: Bisection) -> None:
    """Write the checkpoint that was found, and what changed there, as text."""
    state = f"state {found.state} of operator {found.operator} of {found.store}"
    if found.first is None:
        page.line(_nothing_found(found, state), "bold")
    else:
        page.line(f"checkpoint {found.first.checkpoint_id} is the first one in which", "bold")
        page.line(f"a row of {state} satisfies the predicate", "bold")
    page.line(f"  predicate  {found.where}")
    of_all = f"{count(len(found.probes))} of {counted(found.checkpoints, 'kept checkpoint')}"
    page.line(f"  looked at  {of_all}" + ("" if found.is_exhaustive else f"; {_HALVING}"))
    for probe in [probe for probe in found.probes if probe.reason is not None][:MOST_NAMES]:
        page.line(f"  checkpoint {probe.checkpoint_id}: {probe.reason}")
    if found.first is not None:
        _write_checkpoint(page, "first", found.first)
        _write_before(page, found)
    if found.is_exhaustive:
        _write_transitions(page, found)
    _write_changes(page, found)
    if found.no_replay is not None:
        page.line()
        page.line(f"the records between the two are unknown: {found.no_replay}")
    elif found.before is not None:
        _write_replay(page, found.replay)


def _nothing_found(found: Bisection, state: str) -> str:
    known = [probe for probe in found.probes if probe.holds is False and probe.reason is None]
    if not known:
        return f"it is unknown whether a row of {state} satisfies the predicate"
    newest = f"checkpoint {known[-1].checkpoint_id}"
    place = "any checkpoint with a known answer" if found.is_exhaustive else newest
    return f"no row of {state} satisfies the predicate in {place}"


def _write_checkpoint(page: Page, label: str, found: FoundCheckpoint) -> None:
    made = maker(found.origin, found.writer.command)
    page.line(
        f"  {label:<9}  checkpoint {found.checkpoint_id}, taken {when(found.created_at_ms)} by "
        f"{made}, {found.writer}"
    )
    write_left_out(page, found.left_out, indent="    ")


def _write_before(page: Page, found: Bisection) -> None:
    if found.before is None:
        page.line("  before     no older checkpoint with a known answer is kept")
        return
    _write_checkpoint(page, "before", found.before)
    if found.between:
        ids = span_text(found.between[0], found.between[-1], page.pen)
        page.line(f"  between    {ids}: unknown, so the change can be in one of them")
    if found.gaps:
        page.line(
            f"  between    {counted(found.gaps, 'checkpoint')} that are not kept; the change can "
            "be in one of them"
        )


def _write_transitions(page: Page, found: Bisection) -> None:
    page.line()
    page.line("changes of the answer:", "bold")
    for probe in found.transitions:
        answer = "satisfied" if probe.holds else "not satisfied"
        page.line(f"  from checkpoint {probe.checkpoint_id} on: {answer}")


def _write_changes(page: Page, found: Bisection) -> None:
    changes = found.changes
    if changes is None:
        return
    page.line()
    if changes.not_compared is not None:
        page.line(f"rows are not compared: {changes.not_compared}")
        return
    numbers = ("changed", changes.changed), ("added", changes.added), ("removed", changes.removed)
    page.line(
        f"rows of the first against the one before: "
        f"{', '.join(f'{count(rows)} {change}' for change, rows in numbers)}",
        "bold",
    )
    write_row_changes(page, changes.examples, total=sum(rows for _, rows in numbers))


def _write_replay(page: Page, replay: tuple[ReplayRange, ...]) -> None:
    page.line()
    if not replay:
        page.line("no offset of a source differs between the two")
        return
    page.line("records of the source between the two, without the last offset:", "bold")
    numbers = ("partition", "from", "to", "records")
    table = table_of("topic", *numbers, right={*numbers})
    for part in replay:
        known = part.start is not None and part.start <= part.stop
        table.add_row(
            part.topic,
            str(part.partition),
            "new" if part.start is None else str(part.start),
            str(part.stop),
            count(part.stop - (part.start or 0)) if known else "unknown",
        )
    page.table(table)
