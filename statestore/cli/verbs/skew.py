"""Key groups and keys with more than their share, for ``statestore show --skew``."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.cli.arguments import key_value
from statestore.cli.checkpoints import write_left_out
from statestore.cli.drawing import bar, count, counted, size
from statestore.cli.output import Page, cell, table_of, value_text
from statestore.restore.skew import HotKeys, SkewedOperator, SkewReport

__all__ = ["FoundSkew", "write_skews"]

BAR = 20


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
