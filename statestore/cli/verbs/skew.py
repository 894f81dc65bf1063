"""``statestore skew``: find key groups and keys with more than their share."""

from __future__ import annotations

from dataclasses import dataclass

import click

from statestore.cli.arguments import key_value
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    Invocation,
    Verb,
    checkpoint_argument,
    pass_invocation,
    state_options,
)
from statestore.cli.drawing import bar, count, counted, size
from statestore.cli.output import Output, Page, cell, table_of, value_text
from statestore.restore.hot_keys import KEYS, READ_GROUPS
from statestore.restore.key_group_weights import Weight
from statestore.restore.skew import FACTOR, HotKeys, SkewedOperator, SkewReport

__all__ = ["FoundSkew", "find_skew"]

BAR = 20


@click.command(
    "skew",
    cls=Verb,
    prints=(
        "For each operator, the key groups with more than --times the even share of its bytes, "
        "with their rows, bytes and share. For each list, map, timer or namespaced state, the "
        "keys with the most rows. The key groups are known from the manifest. To find the keys, "
        "the key columns of the largest key groups are read, at most --read of them, until no "
        "other key group can have a hotter key. The output says whether these keys are exact. "
        "Changes count as rows of their key group until they are compacted."
    ),
    examples=(
        "statestore skew --store ./fraud",
        "statestore skew --operator totals-by-user --state per_country --keys 3 --store ./fraud",
        "statestore skew 1 --times 4 --by rows --keys 0 --store ./fraud --output json",
    ),
)
@checkpoint_argument
@click.option(
    "--keys",
    type=click.IntRange(min=0),
    default=KEYS,
    metavar="N",
    help=f"The number of keys to show for each state; 0 reads nothing. [{KEYS}]",
)
@click.option(
    "--times",
    type=click.FloatRange(min=1),
    default=FACTOR,
    metavar="F",
    help=f"A key group is skewed if it has more than this multiple of the even share. [{FACTOR:g}]",
)
@click.option(
    "--by",
    type=click.Choice([one.value for one in Weight]),
    default=Weight.BYTES.value,
    help="Compare key groups by bytes or rows. [bytes]",
)
@click.option(
    "--read",
    type=click.IntRange(min=0),
    default=READ_GROUPS,
    metavar="N",
    help=f"The most key groups to read for the keys of a state. [{READ_GROUPS}]",
)
@state_options
@pass_invocation
def find_skew(
    invocation: Invocation,
    checkpoint: str,
    keys: int,
    times: float,
    by: str,
    read: int,
    uid: str | None,
    name: str | None,
) -> Output[FoundSkew]:
    """Show skewed key groups and hot keys."""
    store = invocation.store()
    report = store.inspect.skew(
        uid, name, keys=keys, checkpoint=checkpoint, by=by, factor=times, read_groups=read
    )
    return Output(FoundSkew(store=store.url, report=report), write_skews)


@dataclass(frozen=True, kw_only=True)
class FoundSkew:
    """Skewed key groups and hot keys."""

    store: str
    report: SkewReport


def write_skews(page: Page, found_skew: FoundSkew) -> None:
    """Write the skewed key groups and hot keys as text."""
    report = found_skew.report
    page.line(f"checkpoint {report.checkpoint_id} of {found_skew.store}", "bold")
    write_left_out(page, report.left_out)
    if not report.operators:
        page.line("no keyed state")
    for operator in report.operators:
        page.line()
        page.line(f"operator {operator.operator} ({', '.join(operator.states)})", "bold")
        _write_groups(page, report, operator)
        for hot in operator.hot:
            _write_keys(page, hot)


def _write_groups(page: Page, report: SkewReport, operator: SkewedOperator) -> None:
    among = f"of {counted(operator.key_groups, 'key group')}"
    rule = f"more than {report.factor:g} times the even share of {report.by.value}"
    if not operator.skewed:
        page.line(f"no key group {among} has {rule}")
        return
    verb = "has" if len(operator.skewed) == 1 else "have"
    page.line(f"{count(len(operator.skewed))} {among} {verb} {rule}")
    columns = ("key group", "rows", "bytes", "share", "times even", "")
    table = table_of(*columns, right={*columns[:-1]})
    most = operator.skewed[0].share
    for one in operator.skewed:
        cells = (
            str(one.key_group),
            count(one.rows),
            size(one.size_bytes),
            f"{one.share:.2%}",
            f"{one.times:.2f}",
            bar(one.share, most, width=BAR, pen=page.pen),
        )
        table.add_row(*map(cell, cells))
    page.table(table)


def _write_keys(page: Page, hot: HotKeys) -> None:
    page.line()
    read = counted(len(hot.read), "key group")
    if not hot.keys:
        page.line(f"state {hot.state}: no rows")
        return
    sure = (
        "no other key has more rows"
        if hot.is_exact
        else "keys of other key groups may have more rows"
    )
    page.line(f"state {hot.state}: the keys with the most rows in {read}; {sure}")
    table = table_of("key", "key group", "rows", "share", "", right={"key group", "rows", "share"})
    most = hot.keys[0].rows
    for key in hot.keys:
        text = value_text(key_value(tuple(key.key.values())))
        drawn = bar(key.rows, most, width=BAR, pen=page.pen)
        cells = (text, str(key.key_group), count(key.rows), f"{key.rows / hot.rows:.2%}", drawn)
        table.add_row(*map(cell, cells))
    page.table(table)
