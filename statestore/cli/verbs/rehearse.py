"""``statestore rehearse``: run the new version of a job on a copy of its state, and compare."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from statestore.catalog.catalog import refuse_inside_store
from statestore.cli.arguments import named_values
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size
from statestore.cli.job_function import call_job, job_function, job_version
from statestore.cli.options import (
    any_state_option,
    examples_option,
    output_mode_option,
    spark_settings_option,
)
from statestore.cli.output import Output, Page, pause
from statestore.cli.verbs.diff import write_difference
from statestore.cli.verbs.spark import open_session
from statestore.contract.rehearsal import (
    Comparison,
    DiscardedRehearsal,
    PromotedRehearsal,
    Rehearsal,
    Request,
    discard,
    promote,
)
from statestore.errors import InvalidArgumentError
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.maintenance.diff_rule import DiffRule
from statestore.restore.row_files import check_output_file
from statestore.storage import open_storage

__all__ = ["rehearse_job"]

_POLL_SECONDS = 2.0


_COMPARING = (
    *("new", "base", "--old", "--against", "--ignore", "--tolerance", "--where", "--state"),
    *("--examples", "--page"),
)


@click.command(
    "rehearse",
    cls=Verb,
    section="Check and repair",
    prints=(
        "The rows of each state and of the output that only the new version has (added) or only "
        "the old one (removed), and those with other values (changed), with examples. The exit "
        "status is 1 if anything differs. NEW is a function, as job.py:build, that takes a "
        "SparkSession. It returns the streaming DataFrame of a query, or a StatefulQuery and its "
        "events. With --flink, NEW and --old are the folders of the versions' savepoints, for "
        "which the command waits. All files are in the folder --to. A rehearsal that was killed "
        "continues when it is run again. With --promote: the new checkpoint. With --discard: what "
        "was removed."
    ),
    examples=(
        (
            "statestore rehearse new/job.py:build --old job.py:build --location ./progress "
            "--to ./rehearsal --store ./fraud"
        ),
        "statestore rehearse job.py:build 7 --location ./progress --to ./r --store ./fraud",
        "statestore rehearse ./new --old ./old --flink 2.3 --to ./r --store ./orders",
        "statestore rehearse --promote --to ./rehearsal --store ./fraud",
        "statestore rehearse --discard --to ./rehearsal",
    ),
    modes={
        "": (
            *_COMPARING,
            *("--location", "--batches", "--until", "--output-mode", "--conf", "--output-key"),
        ),
        "--flink": (*_COMPARING, "--savepoint"),
        "--promote": (),
        "--discard": (),
    },
)
@click.argument("new", required=False)
@click.argument("base", required=False, metavar="[CHECKPOINT]")
@click.option("--to", metavar="DIR", required=True, help="The folder of the rehearsal.")
@click.option(
    "--old", metavar="JOB", help="Also run the old version. [compare with the job itself]"
)
@click.option("--location", metavar="URL", help="The checkpoint location of the job.")
@click.option(
    "--against",
    metavar="CHECKPOINT",
    help="Run the micro-batches of the job up to this checkpoint. [latest; with --old new events]",
)
@click.option(
    "--flink",
    "version",
    metavar="VERSION",
    help="The versions are run with this Flink, such as 2.3.",
)
@click.option(
    "--savepoint",
    type=click.Path(exists=True, path_type=Path),
    metavar="DIR",
    help="Begin with this one, which 'flink export' wrote with options of its own.",
)
@click.option(
    "--until",
    "ends",
    multiple=True,
    metavar="SOURCE=OFFSET",
    help="Run one micro-batch, in which this source ends at this offset of Spark, as JSON.",
)
@click.option("--batches", type=click.IntRange(min=1), metavar="N", help="Run N micro-batches.")
@output_mode_option
@spark_settings_option()
@click.option(
    "--output-key",
    multiple=True,
    metavar="COLUMN",
    help="A column of the output's key. [the key of a StatefulQuery]",
)
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Do not compare it.")
@click.option(
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="COLUMN=NUMBER",
    help="The largest difference of numbers that does not count.",
)
@click.option("--where", metavar="SQL", help="Only rows for which this condition holds.")
@any_state_option
@examples_option(DEFAULT_EXAMPLES)
@click.option("--page", "page_file", metavar="FILE", help="Also write a report as one HTML file.")
@click.option("--promote", "promotes", is_flag=True, help="Make the new state the job's.")
@click.option("--discard", "discards", is_flag=True, help="Remove all that the rehearsal wrote.")
@pass_invocation
def rehearse_job(
    invocation: Invocation,
    /,
    new: str | None,
    base: str | None,
    to: str,
    old: str | None,
    location: str | None,
    against: str | None,
    version: str | None,
    page_file: str | None,
    promotes: bool,
    discards: bool,
    **options: Any,
) -> Output[Rehearsal] | Output[PromotedRehearsal] | Output[DiscardedRehearsal]:
    """Run the new version of a job on a copy of its state, and compare."""
    folder = Path(to)
    if discards:
        return Output(discard(folder), write_discarded)
    if promotes:
        return Output(promote(invocation.store(), folder), write_promoted)
    place = location if version is None else new
    if new is None or place is None:
        raise click.UsageError("name the NEW version, and the checkpoint --location of the job")
    request = Request(
        folder=folder,
        base=base,
        old=old,
        new=new,
        against=against,
        location=location or "",
        flink=version or "",
        batches=options["batches"],
        until=named_values("--until", "SOURCE=OFFSET", options["ends"]),
        savepoint=options["savepoint"],
        comparison=Comparison(
            rule=DiffRule(
                ignore=options["ignore"],
                tolerance=_numbers(options["tolerances"]),
                where=options["where"],
            ),
            **{name: options[name] for name in ("operator", "state", "output_key", "examples")},
        ),
    )
    _refuse_contradictions(request)
    _refuse_place(to, place)
    report = None if page_file is None else _report_module(page_file)
    rehearsal: Rehearsal = _rehearse(
        invocation, request, options["output_mode"], options["settings"]
    )
    if report is not None:
        facts, found = dict(_facts(rehearsal)), rehearsal.difference
        report.write_comparison(
            page_file, rehearsal.plan.source, "Rehearsal of a new version", facts, found
        )
    return Output(rehearsal, write_rehearsal, status=int(rehearsal.difference.differs))


def _refuse_contradictions(request: Request) -> None:
    if request.old is None and request.base is None:
        raise click.UsageError(
            "pass --old to run the old version, too; or name the CHECKPOINT to begin with, which "
            "the job has continued"
        )
    for name, value in (("--batches", request.batches), ("--until", request.until)):
        if value and (request.old is None or request.against is not None):
            raise click.UsageError(f"remove {name}: the versions run as far as the job has run")
    if request.until and request.batches:
        raise click.UsageError("remove --batches: --until is one micro-batch")
    if request.flink and request.old is not None and request.against is not None:
        raise click.UsageError("remove --against: the savepoint in --old is compared")


def _report_module(page_file: str) -> Any:
    """Return the module that writes a report, if it can write this file."""
    module: Any = importlib.import_module("statestore.ui.report")
    check_output_file(Path(page_file), replace=module.PAGE)
    return module


def _rehearse(
    invocation: Invocation, request: Request, output_mode: str, settings: Sequence[str]
) -> Any:
    if request.flink:
        module: Any = importlib.import_module("statestore.contract.rehearsed_savepoint")
        wait = _Waiting().wait
        return module.rehearse_savepoints(invocation.store(), request, wait)
    module = importlib.import_module("statestore.contract.rehearsed_query")
    session = open_session(request.location, named_values("--conf", "NAME=VALUE", settings))
    return module.QueryRehearsal(
        session,
        partial(_open_version, module, session, output_mode),
        partial(invocation.store, spark=session),
        job_version,
    ).run(request)


class _Waiting:
    """Shows once what the user has to do, and pauses."""

    def __init__(self) -> None:
        self._shown = ""

    def wait(self, text: str) -> None:
        """Show a text that is new, and pause."""
        if text != self._shown:
            click.echo(text, err=True)
        self._shown = text
        pause(_POLL_SECONDS)


@contextmanager
def _open_version(module: Any, session: Any, output_mode: str, job: str) -> Iterator[Any]:
    with job_function(job) as build:
        built = call_job(build, session, job)
        if hasattr(built, "isStreaming"):
            yield module.SparkVersion(built, output_mode)
        elif isinstance(built, tuple) and len(built) == 2 and hasattr(built[1], "isStreaming"):
            yield module.StoreVersion(*built)
        else:
            raise InvalidArgumentError(
                f"{job} must return a streaming DataFrame, or a StatefulQuery and its events, not "
                f"{type(built).__name__}"
            )


def _refuse_place(to: str, location: str) -> None:
    """Refuse a folder that is not on this machine, or that belongs to the job."""
    storage, job = open_storage(to), open_storage(location).native_path("")
    own = storage.native_path("")
    if own is None:
        raise InvalidArgumentError(f"{to} is not a folder of this machine: name one with --to")
    if job is not None and Path(own).resolve().is_relative_to(Path(job).resolve()):
        raise InvalidArgumentError(f"{to} is inside the location {location}: name another folder")
    refuse_inside_store(storage, "the rehearsal")


def _numbers(tolerances: tuple[str, ...]) -> dict[str, float]:
    numbers = {}
    texts = named_values("--tolerance", "COLUMN=NUMBER", tolerances, at_last=True)
    for name, text in texts.items():
        try:
            numbers[name] = float(text)
        except ValueError:
            raise click.UsageError(f"--tolerance {name}={text}: not a number") from None
    return numbers


def write_rehearsal(page: Page, rehearsal: Rehearsal) -> None:
    """Write the differences between both versions as text."""
    page.line(f"rehearsed {rehearsal.plan.source} in {rehearsal.folder}", "bold")
    for name, text in _facts(rehearsal):
        page.line(f"  {name:<12} {text}")
    write_difference(page, rehearsal.difference)


def _facts(rehearsal: Rehearsal) -> Iterator[tuple[str, str]]:
    plan = rehearsal.plan
    yield "begins with", f"{'micro-batch' if plan.engine == 'spark' else 'checkpoint'} {plan.base}"
    if rehearsal.batches is not None:
        yield "ran", "micro-batches {} to {}".format(*rehearsal.batches)
    yield "a is old", plan.old
    yield "b is new", plan.new
    if rehearsal.output_unknown is not None:
        yield "output", f"not compared: {rehearsal.output_unknown}"


def write_promoted(page: Page, promoted: PromotedRehearsal) -> None:
    """Write the new checkpoint, and how the new version continues."""
    verb = "was promoted" if promoted.found else "promoted"
    page.line(f"{verb} to checkpoint {promoted.new_checkpoint_id} of {promoted.store}", "bold")
    page.line(f"  next         start the new version with a copy of {promoted.location}")
    if promoted.output_files:
        page.line(
            f"  output       of {count(promoted.output_files)} micro-batches is only in "
            f"{promoted.output}: write its rows to the job's sink"
        )


def write_discarded(page: Page, discarded: DiscardedRehearsal) -> None:
    """Write what was removed as text."""
    files = counted(discarded.files, "file")
    page.line(f"removed {files} of {discarded.folder}, {size(discarded.size_bytes)}", "bold")
