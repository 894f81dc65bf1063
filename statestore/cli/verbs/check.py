"""``statestore check``: tell what a new version of a job does to the old state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import click

from statestore.cli.arguments import named_values
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.contracts import contract_of_job, contract_of_state
from statestore.cli.drawing import count, counted, size
from statestore.cli.options import output_mode_option, spark_settings_option
from statestore.cli.output import Output, Page, printable
from statestore.contract import compare
from statestore.contract.lock import lock_text, read_lock
from statestore.contract.model import Finding, JobContract, Verdict
from statestore.contract.spark_rules import with_renamed_columns
from statestore.errors import SchemaMismatchError

__all__ = ["check_job"]

_FITS = (Verdict.SAME, Verdict.CONVERTS, Verdict.EMPTY)
_ALLOWED = {"lost": Verdict.LOST, "unknown": Verdict.UNKNOWN}
_ORDER = (
    *(Verdict.UNFIT, Verdict.LOST, Verdict.UNKNOWN),
    *(Verdict.EMPTY, Verdict.CONVERTS, Verdict.SAME),
)


@dataclass(frozen=True, kw_only=True)
class CheckedState(Finding):
    """The verdict about a state, an operator (no state), a source, or the job (neither).

    ``verdict`` is ``same``, ``converts``, ``begins empty``, ``is lost``, ``does not fit`` or
    ``unknown``. ``reason`` is in the words of the engine. ``remedy`` is what mends it. ``rows`` and
    ``bytes`` are what the verdict concerns; None if they are not known. ``is_allowed`` is true if
    an option allows the verdict.
    """

    is_allowed: bool


@dataclass(frozen=True, kw_only=True)
class CheckedJob:
    """The verdicts about a new version of a job, the worst first; ``fits`` is true if all fit."""

    old: str
    new: str
    engine: str
    fits: bool
    states: tuple[CheckedState, ...]


@dataclass(frozen=True, kw_only=True)
class CheckedLock:
    """The lines in which a lock and the state in production differ, as a unified diff."""

    lock: str
    state: str
    is_same: bool
    differences: tuple[str, ...]


@click.command(
    "check",
    cls=Verb,
    section="Check and repair",
    prints=(
        "A line for each state, the worst first: same, converts, begins empty, is lost, does not "
        "fit or unknown, with the reason, the rows and bytes, and what mends it. OLD is a store, a "
        "Spark checkpoint location, or a Flink savepoint. NEW is job.py:build, which returns a "
        "streaming DataFrame or a StatefulQuery (with its events); a StatefulProcessor; a function "
        "of 'checkpoint' that calls declare_keyed; a compiled plan of Flink SQL; or a savepoint of "
        "the new version. The exit status is 0 only if nothing is lost and everything fits. Only "
        "of a Flink savepoint with up to 64 MiB are rows read, to count them."
    ),
    examples=(
        "statestore check ./checkpoints/orders job.py:build --output-mode update",
        "statestore check --lock state.lock job.py:build --output markdown",
        "statestore check --lock state.lock job.py:build --allow lost=totals-by-shop/totals",
        "statestore check --lock state.lock --locked ./fraud",
    ),
    modes={
        "": ("--lock", "--checkpoint", "--allow", "--renamed", "--output-mode", "--conf"),
        "--locked": ("--lock", "--checkpoint"),
    },
    has_store=False,
    outputs=("markdown",),
)
@click.argument("old", required=False, metavar="[OLD]")
@click.argument("new", required=False, metavar="NEW")
@click.option(
    "--lock",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The lock file of the old state, instead of OLD.",
)
@click.option(
    "--locked",
    metavar="STATE",
    help="Only say whether this state in production still is what --lock has.",
)
@click.option(
    "--checkpoint",
    default="latest",
    metavar="CHECKPOINT",
    help="A checkpoint of the store, or a micro-batch of the location. [latest]",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="lost=NAME",
    help="Allow that this state, operator or source is lost; or unknown=NAME.",
)
@click.option(
    "--renamed",
    multiple=True,
    metavar="OLD=NEW",
    help="A column that a Spark query renames; Spark compares no names.",
)
@output_mode_option
@spark_settings_option()
@pass_invocation
def check_job(
    invocation: Invocation,
    old: str | None,
    new: str | None,
    lock: Path | None,
    locked: str | None,
    checkpoint: str,
    allowed: tuple[str, ...],
    renamed: tuple[str, ...],
    output_mode: str,
    settings: tuple[str, ...],
) -> Output[CheckedJob] | Output[CheckedLock]:
    """Tell what a new version of a job does to the old state, before it is deployed."""
    if locked is not None:
        if lock is None or old is not None:
            raise click.UsageError("--locked compares a state with --lock FILE, and takes no job")
        return _check_lock(lock, contract_of_state(invocation, locked, checkpoint), locked)
    if lock is not None and new is None:
        new, old = old, None
    if new is None or (old is None) == (lock is None):
        both = "" if old is None or lock is None else ", not both"
        raise click.UsageError(f"name the OLD state or its --lock{both}, and the NEW job")
    if new.endswith(".py"):
        raise click.UsageError(f"name the function of the job, as {new}:build")
    accepted = _allowed_names(allowed)
    columns = named_values("--renamed", "OLD=NEW", renamed)

    def find_old(engine: str) -> JobContract:
        if lock is not None:
            return with_renamed_columns(read_lock(lock), columns)
        found = contract_of_state(invocation, str(old), checkpoint, engine=engine)
        return with_renamed_columns(found, columns)

    conf = named_values("--conf", "NAME=VALUE", settings)
    before, now = contract_of_job(invocation, new, find_old, output_mode, conf)
    if columns and before.engine != "spark":
        raise click.UsageError("--renamed is for queries of Spark: remove it")
    findings = sorted(compare(before, now), key=_severity)
    known = {name for each in findings for name in (each.name, each.operator) if name}
    for _, name in sorted(accepted):
        if name not in known:
            names = ", ".join(sorted(known))
            raise click.UsageError(f"--allow names {name!r}, which is none of {names}")
    states = tuple(
        CheckedState(
            **vars(each),
            is_allowed=bool(accepted & {(each.verdict, each.name), (each.verdict, each.operator)}),
        )
        for each in findings
    )
    problems = [state for state in states if state.verdict not in _FITS and not state.is_allowed]
    checked = CheckedJob(
        old=str(lock or old), new=new, engine=before.engine, fits=not problems, states=states
    )
    write = write_markdown if invocation.settings.output == "markdown" else write_checked
    return Output(checked, write, _problem(checked, problems))


def _severity(finding: Finding) -> tuple[int, str]:
    return _ORDER.index(finding.verdict), finding.name


def _allowed_names(texts: Sequence[str]) -> set[tuple[Verdict, str | None]]:
    """Return the verdicts that are allowed, with the names of states, operators or sources."""
    parts = [text.partition("=")[::2] for text in texts]
    for what, name in parts:
        if what not in _ALLOWED or not name:
            raise click.UsageError(
                f"--allow {what}={name} must be lost=NAME or unknown=NAME, as in "
                "lost=totals/by-shop"
            )
    return {(_ALLOWED[what], name) for what, name in parts}


def _problem(checked: CheckedJob, problems: Sequence[CheckedState]) -> SchemaMismatchError | None:
    if not problems:
        return None
    names = ", ".join(f"{state.name} {state.verdict}" for state in problems[:3])
    more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
    found = {state.verdict for state in problems}
    options = [f"pass --allow {word}=NAME" for word, each in _ALLOWED.items() if each in found]
    return SchemaMismatchError(
        f"{checked.new} cannot continue with {checked.old}: {names}{more}. "
        f"{' or '.join(['Change the job', 'mend the state', *options])}"
    )


def _cost(state: CheckedState) -> str:
    rows = "" if state.rows is None else counted(state.rows, "row")
    return ", ".join(filter(None, (rows, "" if state.bytes is None else size(state.bytes))))


def write_checked(page: Page, checked: CheckedJob) -> None:
    """Write the verdicts as text: a line for each state, and lines for what to know about it."""
    page.line(f"{checked.new} continues {checked.old} ({checked.engine})", "bold")
    width = max((len(state.verdict) for state in checked.states), default=0)
    for state in checked.states:
        verdict = f"{state.verdict:<{width}}"
        cost = f" ({cost})" if (cost := _cost(state)) else ""
        allowed = " [allowed]" if state.is_allowed else ""
        reason = f": {state.reason}" if state.reason else ""
        page.line(f"  {verdict}  {state.name}{cost}{allowed}{reason}")
        if state.remedy:
            page.line(f"  {'':<{width}}    mend: {state.remedy}")
    fitting = sum(state.verdict in _FITS or state.is_allowed for state in checked.states)
    page.line(f"{count(fitting)} of {count(len(checked.states))} fit")


def write_markdown(page: Page, checked: CheckedJob) -> None:
    """Write the verdicts as Markdown, for a comment on a pull request."""
    mark = "fits" if checked.fits else "**does not fit**"
    page.line(f"### State: `{checked.new}` {mark}")
    page.line()
    page.line("| state | verdict | reason | cost | mend |")
    page.line("| --- | --- | --- | --- | --- |")
    for state in checked.states:
        verdict = state.verdict if state.verdict in _FITS else f"**{state.verdict}**"
        allowed = " (allowed)" if state.is_allowed else ""
        remedy = f"`{state.remedy}`" if state.remedy else ""
        cells = (f"`{state.name}`", f"{verdict}{allowed}", state.reason, _cost(state), remedy)
        escaped = (printable(cell).replace("|", "\\|") for cell in cells)
        page.line(f"| {' | '.join(escaped)} |")


def _check_lock(lock: Path, state: JobContract, place: str) -> Output[CheckedLock]:
    locked = lock_text(read_lock(lock)).splitlines()
    actual = lock_text(state).splitlines()
    lines = [*unified_diff(locked, actual, str(lock), place, lineterm="", n=2)]
    checked = CheckedLock(lock=str(lock), state=place, is_same=not lines, differences=tuple(lines))
    return Output(checked, write_lock, status=1 if lines else 0)


def write_lock(page: Page, checked: CheckedLock) -> None:
    """Write the differences between a lock and the state as text."""
    verb = "is" if checked.is_same else "is not"
    page.line(f"{checked.state} {verb} what {checked.lock} has", "bold")
    for line in checked.differences:
        page.line(line)
    if not checked.is_same:
        page.line(f"write it again: statestore contract {checked.state} --to {checked.lock}")
