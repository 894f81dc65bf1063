"""``statestore ui``: show a store in a browser, or write a report as one file.

The pages are a layer above the command, as the demo is, so they are loaded only on demand.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from importlib import import_module

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import size
from statestore.cli.options import checkpoint_argument, complete_checkpoint, query_limit_options
from statestore.cli.output import Output, Page, progress_bar
from statestore.durations import milliseconds_of
from statestore.store import StateStore

__all__ = ["WrittenReport", "serve_store"]


@click.command(
    "ui",
    cls=Verb,
    section="Look",
    prints=(
        "The address of the pages, on stderr, until Ctrl-C. On another address than localhost, "
        "each request needs a token, which is part of the address. With --to: the size of the "
        "report, one HTML file, and what it does not contain."
    ),
    examples=(
        "statestore ui --store ./fraud",
        "statestore ui --port 0 --store s3://bucket/fraud",
        "statestore ui --host 0.0.0.0 --token secret --store ./fraud",
        "statestore ui --to report.html --store ./fraud",
        "statestore ui 2 --against 1 --to report.html --store ./fraud",
    ),
    modes={
        "": ("--host", "--port", "--token", "--time-limit", "--memory-limit", "--queries"),
        "--to": ("checkpoint", "--against"),
    },
)
@checkpoint_argument
@click.option("--host", default="127.0.0.1", help="The address to listen on. [127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8765,
    help="The port; 0 chooses a free one. [8765]",
)
@click.option(
    "--token",
    help="The token that each request must contain. [none for localhost, otherwise a random one]",
)
@query_limit_options(duration="30s", memory="1GiB")
@click.option(
    "--queries",
    type=click.IntRange(min=1),
    default=2,
    metavar="N",
    help="The maximum number of concurrent queries; further ones are refused. [2]",
)
@click.option("--to", metavar="FILE", help="Write a report on the checkpoint to this file instead.")
@click.option(
    "--against",
    metavar="CHECKPOINT",
    help="Also compare with this checkpoint or savepoint.",
    shell_complete=complete_checkpoint,
)
@pass_invocation
def serve_store(
    invocation: Invocation,
    checkpoint: str,
    host: str,
    port: int,
    token: str | None,
    time_limit: str,
    memory_limit: int,
    queries: int,
    to: str | None,
    against: str | None,
) -> Output[WrittenReport] | int:
    """Serve the store in a browser, or write a report as one HTML file."""
    store = invocation.store()
    if to is not None:
        return _write_report(store, to, checkpoint, against)
    app = import_module("statestore.ui.app")
    limited = time_limit if milliseconds_of(time_limit) else None
    limits = app.QueryLimits(limited, memory_limit, queries)
    if token is None and not app.is_local(host):
        token = secrets.token_urlsafe(24)
    app.serve(
        store,
        host,
        port,
        token=token,
        limits=limits,
        on_listening=lambda text: print(text, file=sys.stderr, flush=True),
    )
    # Python would wait for threads that still read for a page. They change nothing.
    sys.stderr.flush()
    os._exit(0)


def _write_report(
    store: StateStore, to: str, checkpoint: str, against: str | None
) -> Output[WrittenReport]:
    report = import_module("statestore.ui.report")
    with progress_bar("drawing") as progress:
        written = report.write_report(store, to, checkpoint, against=against, progress=progress)
    document = WrittenReport(
        store=store.url, file=to, size_bytes=written.size_bytes, left_out=written.left_out
    )
    return Output(document, write_report_size)


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """The written report; ``left_out`` names the parts of the store that it does not contain."""

    store: str
    file: str
    size_bytes: int
    left_out: tuple[str, ...]


def write_report_size(page: Page, report: WrittenReport) -> None:
    """Write the size of the written report as text."""
    page.line(f"{report.file}: {size(report.size_bytes)}")
    for one in report.left_out:
        page.line(f"left out: {one}")
