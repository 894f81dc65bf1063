"""``statestore watch``: a live store followed in the terminal."""

from __future__ import annotations

import sys

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.output import page, printable
from statestore.cli.spans import SPAN
from statestore.cli.watching import JsonLines, LiveScreen, TextLines, followed

__all__ = ["watch_checkpoints"]


@click.command(
    "watch",
    cls=Verb,
    prints=(
        "The newest checkpoint, then each new one as it is taken: its age, how long it took, by "
        "phase, the rows, bytes and files that were written for it, the changed share (rows "
        "written for each row of the bases; 100% for a state written in full), the layers of "
        "changes, and what it holds. On a terminal a screen that is drawn anew; elsewhere a short "
        "line for each, without phases; with --output json an object for each, on one line. A "
        "store that is not there yet is waited for. Only the list of checkpoints is asked for, and "
        "the manifest of each "
        "new one. Ends with Ctrl-C, status 0, or after --count."
    ),
    examples=(
        "statestore watch --store ./fraud",
        "statestore watch --interval 500ms --store ./fraud",
        "statestore watch --count 1 --output json --store ./fraud",
    ),
)
@click.option(
    "--interval", type=SPAN, default=2, metavar="SPAN", help="How often to look: 500ms, 1min. [2s]"
)
@click.option(
    "--count", "stop_after", type=click.IntRange(1), metavar="N", help="End after N new ones."
)
@pass_invocation
def watch_checkpoints(invocation: Invocation, interval: float, stop_after: int | None) -> int:
    """Follow a store: show each checkpoint as it is taken."""
    paper = page()
    screen: JsonLines = JsonLines()
    try:
        store = invocation.store()
        if invocation.settings.output != "json":
            screen = LiveScreen(paper, store.url) if paper.terminal else TextLines()
        with screen.opened():
            for watched in followed(store, interval_s=interval, stop_after=stop_after, say=_say):
                screen.show(watched)
    except KeyboardInterrupt:
        return 0
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()
