"""``statestore heavy``: key groups and keys that have more than their share."""

from __future__ import annotations

import click

from statestore.cli.heavies import FoundHeavy
from statestore.cli.help import Verb
from statestore.cli.invocation import (
    Invocation,
    checkpoint_argument,
    pass_invocation,
    state_options,
)
from statestore.restore.plan import Weight
from statestore.restore.skew import FACTOR, KEYS, READ_GROUPS

__all__ = ["find_heavy"]


@click.command(
    "heavy",
    cls=Verb,
    prints=(
        "Per operator the key groups with more than --times the even share of its bytes, with "
        "their rows, bytes and share, and per list, map, timer or namespaced state the keys with "
        "most rows. Key groups are known from the manifest. For the keys, the key columns of the "
        "key groups with most rows are read, until no other can have a hotter key, and at most "
        "--read of them; what the keys are sure to be is said. In key groups, changes count as "
        "rows until they are compacted."
    ),
    examples=(
        "statestore heavy --store ./fraud",
        "statestore heavy --operator totals-by-user --state per_country --keys 3 --store ./fraud",
        "statestore heavy 1 --times 4 --by rows --keys 0 --store ./fraud --output json",
    ),
)
@checkpoint_argument
@click.option(
    "--keys",
    type=click.IntRange(min=0),
    default=KEYS,
    metavar="N",
    help=f"So many keys of each state; 0 reads nothing. [{KEYS}]",
)
@click.option(
    "--times",
    type=click.FloatRange(min=1),
    default=FACTOR,
    metavar="F",
    help=f"How many times the even share is heavy. [{FACTOR:g}]",
)
@click.option(
    "--by",
    type=click.Choice([one.value for one in Weight]),
    default=Weight.BYTES.value,
    help="What is shared. [bytes]",
)
@click.option(
    "--read",
    type=click.IntRange(min=0),
    default=READ_GROUPS,
    metavar="N",
    help=f"Key groups of each state to read for its keys, at most. [{READ_GROUPS}]",
)
@state_options
@pass_invocation
def find_heavy(
    invocation: Invocation,
    checkpoint: str,
    keys: int,
    times: float,
    by: str,
    read: int,
    uid: str | None,
    name: str | None,
) -> FoundHeavy:
    """Say which key groups and keys have more than their share."""
    store = invocation.store()
    report = store.heavy(
        uid, name, keys=keys, checkpoint=checkpoint, by=by, factor=times, read_groups=read
    )
    return FoundHeavy(store=store.url, report=report)
