"""``statestore diff``: what tells two checkpoints apart."""

from __future__ import annotations

import click

from statestore.cli.comparing import Differed
from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation, state_options
from statestore.cli.output import progress_bar
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.store import StateStore

__all__ = ["compare_checkpoints"]


@click.command(
    "diff",
    cls=Verb,
    prints=(
        "What checkpoint B has that A has not (added), what A has alone (removed), and what both "
        "have with other values (changed): rows per state, and in JSON per key group, elements of "
        "operator state such as offsets, schemas, the job graph, parallelism. A row is known by "
        "its key, namespace and entry columns. Only key groups whose digests differ are read; the "
        "first line says how many bytes of each side. A and B are numbers, names of savepoints, or "
        "latest. With --other-store, B lies in that store; both are reached with the same "
        "credentials. With --exit-code the exit status is 1 when anything differs."
    ),
    examples=(
        "statestore diff 1 2 --store ./fraud",
        "statestore diff 1 latest --operator totals-by-user --keys 3 --store ./fraud",
        "statestore diff 2 2 --other-store ./fraud --exit-code --output json --store ./fraud",
    ),
)
@click.argument("a", metavar="A")
@click.argument("b", default="latest", metavar="[B]")
@click.option("--other-store", "other", metavar="URL", help="Path or s3:// URL that B lies in.")
@state_options
@click.option(
    "--keys",
    type=int,
    default=DEFAULT_EXAMPLES,
    show_default=True,
    metavar="N",
    help="How many rows that differ to show per state.",
)
@click.option("--exit-code", is_flag=True, help="End with status 1 when anything differs.")
@pass_invocation
def compare_checkpoints(
    invocation: Invocation,
    a: str,
    b: str,
    other: str | None,
    uid: str | None,
    name: str | None,
    keys: int,
    exit_code: bool,
) -> Differed:
    """Compare two checkpoints, of one store or of two."""
    store = invocation.store()
    second = None
    if other is not None:
        streams = invocation.settings.parallel_streams
        second = StateStore.open(other, parallel_streams=streams)
    with progress_bar("comparing") as progress:
        found = store.diff(a, b, other=second, uid=uid, name=name, keys=keys, on_progress=progress)
    return Differed(difference=found, status=1 if exit_code and found.differs else 0)
