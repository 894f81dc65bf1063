"""What ``heavy`` returns, as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.drawing import bar
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, counted, size
from statestore.cli.values import Result
from statestore.restore.export import json_value
from statestore.restore.skew import HeavyOperator, HeavyReport, HotKeys

__all__ = ["FoundHeavy"]

BAR = 20


@dataclass(frozen=True, kw_only=True)
class FoundHeavy(Result):
    """Heavy key groups and hot keys."""

    store: str
    report: HeavyReport


@document_of.register
def _(result: FoundHeavy) -> dict[str, Any]:
    report = result.report
    return {
        "store": result.store,
        "id": report.checkpoint_id,
        "by": report.by.value,
        "factor": report.factor,
        "operators": [_operator(operator) for operator in report.operators],
    }


def _operator(found: HeavyOperator) -> dict[str, Any]:
    return {
        "uid": found.uid,
        "states": list(found.states),
        "key_groups": found.key_groups,
        "rows": found.rows,
        "size_bytes": found.size_bytes,
        "heavy": [asdict(group) for group in found.heavy],
        "hot": [_hot(hot) for hot in found.hot],
    }


def _hot(hot: HotKeys) -> dict[str, Any]:
    return {
        "state": hot.state,
        "rows": hot.rows,
        "keys": [
            {
                "key": json_value(one.key),
                "key_group": one.key_group,
                "rows": one.rows,
                "share": one.rows / hot.rows,
            }
            for one in hot.keys
        ],
        "read": list(hot.read),
        "exact": hot.is_exact,
    }


@write_text.register
def _(result: FoundHeavy, page: Page) -> None:
    report = result.report
    page.line(f"checkpoint {report.checkpoint_id} of {result.store}", "bold")
    if not report.operators:
        page.line("no keyed state")
    for operator in report.operators:
        page.line()
        page.line(f"operator {operator.uid} ({', '.join(operator.states)})", "bold")
        _write_groups(page, report, operator)
        for hot in operator.hot:
            _write_keys(page, hot)


def _write_groups(page: Page, report: HeavyReport, operator: HeavyOperator) -> None:
    among = f"of {counted(operator.key_groups, 'key group')}"
    rule = f"more than {report.factor:g} times the even share of {report.by.value}"
    if not operator.heavy:
        page.line(f"no key group {among} has {rule}")
        return
    verb = "has" if len(operator.heavy) == 1 else "have"
    page.line(f"{count(len(operator.heavy))} {among} {verb} {rule}")
    columns = ("key group", "rows", "bytes", "share", "times even", "")
    table = table_of(*columns, right={*columns[:-1]})
    most = operator.heavy[0].share
    for one in operator.heavy:
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
    sure = "no other key has more" if hot.is_exact else "keys of other key groups may have more"
    page.line(f"state {hot.state}: the keys with most rows, of {read}; {sure}")
    table = table_of("key", "key group", "rows", "share", "", right={"key group", "rows", "share"})
    most = hot.keys[0].rows
    for one in hot.keys:
        values = [json_value(value) for value in one.key.values()]
        named = values[0] if len(values) == 1 else values
        text = named if isinstance(named, str) else json.dumps(named, ensure_ascii=False)
        drawn = bar(one.rows, most, width=BAR, pen=page.pen)
        cells = (text, str(one.key_group), count(one.rows), f"{one.rows / hot.rows:.2%}", drawn)
        table.add_row(*map(cell, cells))
    page.table(table)
