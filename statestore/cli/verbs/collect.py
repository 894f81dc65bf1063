"""``statestore expire`` and ``gc``: expire checkpoints, and delete unneeded files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from statestore.catalog.holds import Held
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import counted, duration, size, size_and_files, span_text
from statestore.cli.options import SPAN, dry_run_option, minimum_age_option
from statestore.cli.output import Output, Page, progress_bar, write_first
from statestore.maintenance.gc import CollectedGarbage, FileAmount
from statestore.maintenance.retention import ExpiredCheckpoints

__all__ = ["collect", "expire_checkpoints"]


@click.command(
    "expire",
    cls=Verb,
    section="Keep and delete",
    prints=(
        "The checkpoints that expire and that stay, and the files that no kept checkpoint needs "
        "then. With both options, a checkpoint expires only if it is older and not among the "
        "newest N. The newest one and those that a savepoint or pin holds never expire. Files "
        "stay until 'statestore gc'."
    ),
    examples=(
        "statestore expire --retain 1 --dry-run --store ./fraud",
        "statestore expire --retain 10 --store ./fraud",
        "statestore expire --older-than 7d --retain 3 --store ./fraud",
    ),
)
@click.option("--retain", type=int, metavar="N", help="The number of newest checkpoints to keep.")
@click.option(
    "--older-than",
    type=SPAN,
    metavar="SPAN",
    help="Expire only older checkpoints, for example older than 12h or 7d.",
)
@dry_run_option
@pass_invocation
def expire_checkpoints(
    invocation: Invocation, retain: int | None, older_than: str | None, dry_run: bool
) -> Output[ExpiredCheckpoints]:
    """Expire all but the newest checkpoints."""
    if retain is None and older_than is None:
        raise click.UsageError("pass --retain N, --older-than SPAN, or both")
    store = invocation.store()
    expired = store.maintenance.expire(retain=retain, older_than=older_than, dry_run=dry_run)
    return Output(expired, write_expired)


def write_expired(page: Page, expired: ExpiredCheckpoints) -> None:
    """Write the expired and kept checkpoints as text."""
    verb = "would expire" if expired.dry_run else "expired"
    page.line(f"{verb} {counted(len(expired.expired), 'checkpoint')} of {expired.store}", "bold")
    page.line(f"  expired     {_numbers(page, expired.expired)}")
    page.line(f"  kept        {_numbers(page, expired.kept)}")
    unused = "unused then" if expired.dry_run else "unused now "
    page.line(f"  {unused} {size_and_files(expired.size_bytes, expired.files)}")
    _write_held(page, expired.held)
    if expired.damaged:
        damaged = _numbers(page, expired.damaged)
        page.line(f"  the manifests of these checkpoints cannot be read: {damaged}")


@click.command(
    "gc",
    cls=Verb,
    section="Keep and delete",
    prints=(
        "The removed files by checkpoint, the stray files among them, and the files that stay "
        "because a checkpoint, savepoint or pin needs them, or because they are too young. If "
        "the needed files cannot be determined, nothing is removed. Do not run it during a "
        "snapshot that takes longer than the minimum age."
    ),
    examples=(
        "statestore gc --dry-run --store ./fraud",
        "statestore gc --minimum-age 7d --store ./fraud",
    ),
)
@minimum_age_option(
    "24h", "Keep files that were written, or whose checkpoint expired, less than this time ago."
)
@dry_run_option
@pass_invocation
def collect(invocation: Invocation, minimum_age: str, dry_run: bool) -> Output[CollectedGarbage]:
    """Delete the files that no kept checkpoint needs."""
    store = invocation.store()
    with progress_bar("searching" if dry_run else "deleting") as progress:
        done = store.maintenance.gc(minimum_age=minimum_age, dry_run=dry_run, on_progress=progress)
    return Output(done, write_collected)


def write_collected(page: Page, collected: CollectedGarbage) -> None:
    """Write the removed and kept files as text."""
    verb = "would remove" if collected.dry_run else "removed"
    page.line(f"{verb} {_amount(collected.removed)} of {collected.store}", "bold")
    removed, stray = collected.removed, collected.stray
    if collected.expired:
        known = size_and_files(removed.size_bytes - stray.size_bytes, removed.files - stray.files)
        page.line(f"  expired          {known} of {_checkpoints(page, collected.expired)}")
    if collected.strays:
        page.line(f"  stray            {_amount(stray)} that no manifest references:")
        write_first(page, collected.strays, indent="    ")
    live, lists = collected.live, collected.live_lists
    data = size_and_files(live.size_bytes - lists.size_bytes, live.files - lists.files)
    more = f", and {size(lists.size_bytes)} in {counted(lists.files, 'list')} of files"
    kept = f"{data} of {_checkpoints(page, collected.kept)}{more if lists.files else ''}"
    page.line(f"  kept, in use     {kept}")
    page.line(f"  kept, too young  {_young(collected)}")
    if collected.pins:
        pins = " ".join(collected.pins)
        page.line(f"  {verb} {counted(len(collected.pins), 'pin')} whose lease is over: {pins}")
    if documents := _documents(page, collected):
        page.line(f"  {verb} documents that nothing needs: {'; '.join(documents)}")
    _write_held(page, collected.held)


def _young(collected: CollectedGarbage) -> str:
    young, stray = collected.young, collected.young_stray
    if not young.files:
        return _amount(young)
    age = f"unused, for less than {duration(collected.minimum_age_ms)}"
    of_these = f"; {counted(stray.files, 'stray file')} of these" if stray.files else ""
    return f"{_amount(young)} ({age}{of_these})"


def _documents(page: Page, collected: CollectedGarbage) -> list[str]:
    """Describe the removed documents of the store itself, which other commands do not list."""
    documents = [
        (collected.tombstones, "old tombstone"),
        (collected.claims, "claim"),
    ]
    found = [counted(len(numbers), noun) for numbers, noun in documents if numbers]
    if collected.manifests:
        found.insert(0, f"the manifests of {_checkpoints(page, collected.manifests)}")
    if collected.leftovers:
        found.append(counted(collected.leftovers, "unfinished write"))
    if collected.log_files.files:
        found.append(f"{_amount(collected.log_files)} of Delta logs")
    return found


def _write_held(page: Page, held: Iterable[Held]) -> None:
    for checkpoint in held:
        page.line(f"  checkpoint {checkpoint.checkpoint_id} is held by {checkpoint.by}")


def _amount(files: FileAmount) -> str:
    return size_and_files(files.size_bytes, files.files)


def _checkpoints(page: Page, numbers: Sequence[int]) -> str:
    """Return ``checkpoint 3``, ``checkpoints 1–7 9``, or ``no checkpoint``."""
    if not numbers:
        return "no checkpoint"
    return f"checkpoint{'' if len(numbers) == 1 else 's'} {_numbers(page, numbers)}"


def _numbers(page: Page, numbers: Iterable[int]) -> str:
    """Return ascending numbers, with more than two consecutive ones as ``1–7``, or ``none``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [
        span_text(run[0], run[-1], page.pen) if len(run) > 2 else " ".join(map(str, run))
        for run in runs
    ]
    return " ".join(texts) or "none"
