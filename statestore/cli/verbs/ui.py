"""``statestore ui``: show a store in a browser, or write a report as one file.

The pages are a layer above the command, as the demo is, so they are loaded only on demand.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from dataclasses import dataclass
from importlib import import_module

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import size
from statestore.cli.options import Parsed, checkpoint_argument, complete_checkpoint, time_limit
from statestore.cli.output import Output, Page, progress_bar
from statestore.parsing import parse_integer
from statestore.store import StateStore

__all__ = ["WrittenReport", "serve_store"]

_HOST, _PORT = "127.0.0.1", 8765
_TIME_LIMIT, _MEMORY_BYTES = "30s", 2**30


def _address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``[HOST][:PORT]``; an IPv6 address may have brackets."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(text)
    port = _PORT if found["port"] is None else parse_integer(found["port"])
    if port > 65_535:
        raise ValueError(text)
    return found["ipv6"] or found["host"] or _HOST, port


_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")


@click.command(
    "ui",
    cls=Verb,
    section="Look",
    prints=(
        "The address of the pages, on stderr, until Ctrl-C. On another address than localhost, "
        "each request needs a token, which is part of the address: STATESTORE_UI_TOKEN, or a "
        "random one. The settings query_time_limit, query_memory_bytes and ui_queries limit SQL. "
        "With --to: the size of the report, one HTML file, and what it lacks."
    ),
    examples=(
        "statestore ui --store ./fraud",
        "statestore ui --address :0 --store s3://bucket/fraud",
        "STATESTORE_UI_TOKEN=secret statestore ui --address 0.0.0.0 --store ./fraud",
        "statestore ui --to report.html --store ./fraud",
        "statestore ui 2 --against 1 --to report.html --store ./fraud",
    ),
    modes={
        "": ("--address",),
        "--to": ("checkpoint", "--against"),
    },
)
@checkpoint_argument
@click.option(
    "--address",
    type=Parsed("address", _address, "{value!r:.80} must have the form [HOST][:PORT]"),
    default="127.0.0.1:8765",
    metavar="[HOST][:PORT]",
    help="The address to listen on; port 0 chooses a free one. [127.0.0.1:8765]",
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
    address: tuple[str, int],
    to: str | None,
    against: str | None,
) -> Output[WrittenReport] | int:
    """Serve the store in a browser, or write a report as one HTML file."""
    store = invocation.store()
    if to is not None:
        return _write_report(store, to, checkpoint, against)
    app = import_module("statestore.ui.app")
    settings, (host, port) = invocation.settings, address
    limits = app.QueryLimits(
        time_limit(settings.query_time_limit or _TIME_LIMIT),
        settings.query_memory_bytes or _MEMORY_BYTES,
        settings.ui_queries,
    )
    token = settings.ui_token
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
