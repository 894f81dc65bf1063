"""``statestore purge``: remove a key from kept checkpoints, and verify that it is gone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import click

from statestore.cli.arguments import key_of
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    Invocation,
    Verb,
    operator_option,
    pass_invocation,
    state_option,
)
from statestore.cli.completion import complete_checkpoint
from statestore.cli.drawing import count, counted, size
from statestore.cli.output import Page, Result, cell, progress_bar, table_of
from statestore.format.manifest_json import left_out_to_json
from statestore.maintenance.purge import PurgedKey, ReplacedCheckpoint
from statestore.maintenance.search import (
    DATA_FILES,
    DOCUMENTS,
    LOG_FILES,
    NO_VALUES,
    OTHER_STATES,
    KeySearch,
)

__all__ = [
    "Purged",
    "Searched",
    "purge_key",
    "purged_to_json",
    "search_to_json",
    "write_purged",
    "write_search",
]


@click.command(
    "purge",
    cls=Verb,
    prints=(
        "Each checkpoint that is replaced, the one that takes its place, and per state how many "
        "rows of which key group are gone. Replaced are all checkpoints from the first that holds "
        "the key on, so that their order stays; the old ones expire, and their savepoints move to "
        "the new ones. A job that runs meanwhile commits no more, and still has the key. The old "
        "files stay until 'statestore gc'. Then --check decodes every file of the store: it names "
        "those that still have the key, and those that it could not search, with exit status 1, or "
        "says that the key is gone. KEY is as for 'statestore get'. If the state once had other "
        "key columns, rows are removed by these too, and the columns are named: look at them with "
        "--dry-run. 'statestore forget' takes a column's name. "
        "With --dry-run: what would be replaced, and nothing is changed."
    ),
    examples=(
        "statestore purge --operator totals-by-user --key u17 --all --dry-run --store ./fraud",
        (
            "statestore purge --operator totals-by-user --state totals --key u17 --checkpoint 2 "
            "--store ./fraud"
        ),
        "statestore purge --operator totals-by-user --key nobody --check --store ./fraud",
    ),
)
@operator_option("Its operator.", required=True)
@state_option("Only this state of the operator.")
@click.option("--key", required=True, metavar="KEY", help="The key to remove.")
@click.option(
    "--checkpoint",
    metavar="N",
    help="From this checkpoint alone.",
    shell_complete=complete_checkpoint,
)
@click.option("--all", "every", is_flag=True, help="From all checkpoints that are kept.")
@click.option("--check", is_flag=True, help="Only search the whole store for the key.")
@click.option("--ignore-pins", is_flag=True, help="Also replace checkpoints that are pinned.")
@click.option("--dry-run", is_flag=True, help="Say what would be replaced and stop.")
@pass_invocation
def purge_key(
    invocation: Invocation,
    uid: str,
    name: str | None,
    key: str,
    checkpoint: str | None,
    every: bool,
    check: bool,
    ignore_pins: bool,
    dry_run: bool,
) -> Purged | Searched:
    """Remove a key from the checkpoints that are kept."""
    if sum((checkpoint is not None, every, check)) != 1:
        raise click.UsageError("give one of --checkpoint N, --all and --check")
    store = invocation.store()
    if check:
        with progress_bar("searching") as progress:
            search = store.maintenance.find_key(uid, key_of(key), name, on_progress=progress)
        return Searched(search=search, problem=search.problem)
    purged = store.maintenance.purge(
        uid, key_of(key), name, checkpoint=checkpoint, ignore_pins=ignore_pins, dry_run=dry_run
    )
    return Purged(purged=purged)


@dataclass(frozen=True, kw_only=True)
class Purged(Result):
    """The replaced checkpoints."""

    purged: PurgedKey

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return purged_to_json(self.purged) | {"operator": self.purged.uid}

    def write(self, page: Page) -> None:
        """Write it as text."""
        what = f"the key of operator {self.purged.uid}"
        write_purged(page, self.purged, what)
        if self.purged.replaced and not self.purged.dry_run:
            page.line("  the old files stay until 'statestore gc'; then look with --check")


def purged_to_json(done: PurgedKey) -> dict[str, Any]:
    """Return the removed rows as JSON, without the operator."""
    return {
        "store": done.store,
        "dry_run": done.dry_run,
        "replaced": [_replaced(one) for one in done.replaced],
        "finished": [_replaced(one) for one in done.finished],
        "logs": list(done.logs),
        "cut_logs": list(done.cut_logs),
        "pins": list(done.pins),
    }


def write_purged(page: Page, done: PurgedKey, what: str) -> None:
    """Write the removed rows; ``what`` names the subject."""
    held = [one for one in done.replaced if one.states]
    verb = "would remove" if done.dry_run else "removed"
    if held:
        from_where = f"from {counted(len(held), 'checkpoint')} of {done.store}"
        page.line(f"{verb} {what} {from_where}", "bold")
        _write_replaced(page, done.replaced)
    else:
        page.line(f"no kept checkpoint of {done.store} holds {what}")
    for one in done.finished:
        page.line(f"  checkpoint {one.old_id} had its replacement, {one.new_id}, already")
    for table in done.logs:
        page.line(f"  deleted the Delta log of {table}: a new one has none of its old entries")
    for table in done.cut_logs:
        cut = "would delete" if done.dry_run else "deleted"
        page.line(f"  {cut} old entries of the Delta log of {table}")
    for pin in done.pins:
        page.line(f"  pinned all the same: {pin}")


def _replaced(one: ReplacedCheckpoint) -> dict[str, Any]:
    return asdict(one) | {"left_out": left_out_to_json(one.left_out)}


def _write_replaced(page: Page, replaced: tuple[ReplacedCheckpoint, ...]) -> None:
    right = {"checkpoint", "replaced by", "key group", "rows"}
    columns = (
        "checkpoint",
        "replaced by",
        "savepoints",
        "operator",
        "state",
        "key group",
        "rows",
        "rewritten",
    )
    table = table_of(*columns, right=right)
    for one in replaced:
        new = "" if one.new_id is None else str(one.new_id)
        first = (str(one.old_id), new, ", ".join(one.savepoints))
        states = [
            (
                state.operator,
                state.name,
                "" if state.key_group is None else str(state.key_group),
                count(state.rows),
                size(state.size_bytes),
            )
            for state in one.states
        ] or [("without it", "", "", "", "")]
        for number, state in enumerate(states):
            table.add_row(*map(cell, (*(first if number == 0 else ("", "", "")), *state)))
    page.table(table)
    several = (state for one in replaced for state in one.states if len(state.keys) > 1)
    for operator, name, keys in dict.fromkeys((s.operator, s.name, s.keys) for s in several):
        compared = " or ".join(", ".join(columns) for columns in keys)
        page.line(
            f"  {operator}/{name} once had other key columns: the key is compared with {compared}; "
            "'statestore forget' compares it with a column that you name"
        )
    write_left_out(page, dict.fromkeys(chain.from_iterable(one.left_out for one in replaced)))


@dataclass(frozen=True, kw_only=True)
class Searched(Result):
    """The findings of a search for a key; ``problem`` is set unless it is gone."""

    search: KeySearch

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return search_to_json(self.search) | {"operator": self.search.uid}

    def write(self, page: Page) -> None:
        """Write it as text."""
        write_search(page, self.search)


def search_to_json(search: KeySearch) -> dict[str, Any]:
    """Return the searched files and the findings as JSON, without the operator."""
    return {
        "store": search.store,
        "gone": search.is_gone,
        "files": search.files,
        "size_bytes": search.size_bytes,
        "searched": dict(search.searched),
        "found": [asdict(one) for one in search.found],
        "unsearched": [asdict(one) for one in search.unsearched],
    }


_SORTS = {
    DATA_FILES: "data file",
    LOG_FILES: "Delta log file",
    DOCUMENTS: "document",
    NO_VALUES: "checksum or empty file",
    OTHER_STATES: "unrelated data file",
}


def write_search(page: Page, search: KeySearch) -> None:
    """Write the searched files and the findings."""
    looked = f"{counted(search.files, 'file')}, {size(search.size_bytes)}"
    if search.found:
        page.line(f"the key is still in {counted(len(search.found), 'file')} of {search.store}")
    elif search.unsearched:
        page.line(f"the key was not found in {search.store}, but not everything was searched")
    else:
        page.line(f"the key is gone from {search.store}: searched {looked}", "bold")
    for sort, number in search.searched.items():
        page.line(f"  {counted(number, _SORTS[sort])}")
    for one in search.found:
        rows = "" if one.rows is None else f"{counted(one.rows, 'row')}: "
        page.line(f"  {one.file}  {rows}{one.what}")
    for file in search.unsearched:
        page.line(f"  not searched: {file.file}: {file.reason}")
