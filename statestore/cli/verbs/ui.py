"""``statestore ui`` and ``statestore report``: show a store in a browser, or write it as one file.

The pages are a layer above the command, as the demo is, so they are loaded only on demand.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from statestore.cli.arguments import query_limit_options
from statestore.cli.command import Invocation, Verb, checkpoint_argument, pass_invocation
from statestore.cli.completion import complete_checkpoint
from statestore.cli.drawing import size
from statestore.cli.output import Page, Result, progress_bar

__all__ = ["Reported", "serve_store", "write_store_report"]


@click.command(
    "ui",
    cls=Verb,
    prints=(
        "The address of the pages, on stderr, and serves them until Ctrl-C: the checkpoints over "
        "time, one of them with its job graph, states, key groups and hot keys, a restore at "
        "another parallelism, the states and history of a key, two checkpoints side by side, and "
        "SQL. Nothing there changes a store. On another address than this machine's own each "
        "request needs a token, which is part of the address that is printed."
    ),
    examples=(
        "statestore ui --store ./fraud",
        "statestore ui --port 0 --store s3://bucket/fraud",
        "statestore ui --host 0.0.0.0 --token secret --store ./fraud",
    ),
)
@click.option("--host", default="127.0.0.1", help="The address to listen on. [127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8765,
    help="The port; 0 is any that is free. [8765]",
)
@click.option("--token", help="What each request has to bring. [none here, else a random one]")
@query_limit_options(seconds=30, memory="1GiB")
@click.option(
    "--queries",
    type=click.IntRange(min=1),
    default=2,
    metavar="N",
    help="The most queries that run at once; another one is refused. [2]",
)
@pass_invocation
def serve_store(
    invocation: Invocation,
    host: str,
    port: int,
    token: str | None,
    time_limit: float,
    memory_limit: int,
    queries: int,
) -> int:
    """Serve the store to a browser."""
    app = import_module("statestore.ui.app")
    store = invocation.store()
    limits = app.QueryLimits(time_limit or None, memory_limit, queries)
    if token is None and not app.is_local(host):
        token = secrets.token_urlsafe(24)
    app.serve(
        store,
        host,
        port,
        token=token,
        limits=limits,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    # Python would wait for threads that still read for a page. They change nothing.
    sys.stderr.flush()
    os._exit(0)


@click.command(
    "report",
    cls=Verb,
    prints=(
        "Where the report is, and its bytes: one HTML file that needs no network, with the newest "
        "checkpoints, the one that is named (latest) with its largest states, and restores of it "
        "at other parallelisms. With --against: what tells the two checkpoints apart, whose rows "
        "are read for that."
    ),
    examples=(
        "statestore report --to report.html --store ./fraud",
        "statestore report 2 --against 1 --to report.html --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--to", required=True, metavar="FILE", help="The file to write.")
@click.option(
    "--against",
    metavar="ID",
    help="Compare with this checkpoint or savepoint too.",
    shell_complete=complete_checkpoint,
)
@pass_invocation
def write_store_report(
    invocation: Invocation, checkpoint: str, to: str, against: str | None
) -> Reported:
    """Write what the pages show as one HTML file."""
    report = import_module("statestore.ui.report")
    store = invocation.store()
    with progress_bar("drawing") as progress:
        written = report.write_report(store, to, checkpoint, against=against, progress=progress)
    return Reported(store=store.url, file=to, size_bytes=written)


@dataclass(frozen=True, kw_only=True)
class Reported(Result):
    """A report that was written."""

    store: str
    file: str
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"store": self.store, "file": self.file, "size_bytes": self.size_bytes}

    def write(self, page: Page) -> None:
        """Write it as text."""
        page.line(f"{self.file}: {size(self.size_bytes)}")
