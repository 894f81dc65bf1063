"""What ``plan --compare`` and ``plan --balance`` show beside a plan, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.rates import Rate
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, size, when
from statestore.cli.values import Result
from statestore.restore.compare_plans import Compared, Comparison

__all__ = ["ComparedPlans"]


@dataclass(frozen=True, kw_only=True)
class ComparedPlans(Result):
    """Parallelisms side by side; ``measured`` is the restore whose rate was taken, if one was."""

    store: str
    comparison: Comparison
    measured: Rate | None = None


@document_of.register
def _(result: ComparedPlans) -> dict[str, Any]:
    found = result.comparison
    return {
        "store": result.store,
        "id": found.checkpoint_id,
        "old_parallelism": found.old_parallelism,
        "hosts": list(found.hosts),
        "bytes_per_second": found.rate,
        "measured_at_ms": result.measured and result.measured.at_ms,
        "prices": found.prices and asdict(found.prices),
        "options": [asdict(one) for one in found.options],
        "chosen": found.chosen,
        "why": found.why,
    }


@write_text.register
def _(result: ComparedPlans, page: Page) -> None:
    found = result.comparison
    page.line(
        f"restores of checkpoint {found.checkpoint_id} of {result.store}, taken at parallelism "
        f"{found.old_parallelism}",
        "bold",
    )
    page.table(_table(found))
    page.line(f"moved: {_moved(found)}")
    page.line(f"seconds: {_seconds(result)}")
    if found.prices is not None:
        page.line(f"money: {_money(found)}")
    page.line(f"would take parallelism {found.chosen}: {found.why}", "bold")


def _table(found: Comparison) -> Any:
    prices = found.prices
    columns = ["", "parallelism", "moved", "largest subtask", "read", "files", "requests"]
    columns += ["seconds"] if found.rate is not None else []
    columns += [f"money {prices.currency}".strip()] if prices is not None else []
    table = table_of(*columns, right={*columns[1:]})
    for one in found.options:
        mark = "->" if one.parallelism == found.chosen else ""
        table.add_row(*(cell(text) for text in [mark, *_row(one)]))
    return table


def _row(one: Compared) -> Sequence[str]:
    row = [
        str(one.parallelism),
        size(one.moved_bytes),
        size(one.largest_bytes),
        size(one.size_bytes),
        count(one.files),
        count(one.requests),
    ]
    row += [] if one.seconds is None else ["<0.01" if one.seconds < 0.01 else f"{one.seconds:.3g}"]
    return row if one.money is None else [*row, f"{one.money:.4g}"]


def _moved(found: Comparison) -> str:
    if found.hosts:
        return f"no copy on the host of their subtask, of {', '.join(found.hosts)}"
    return "owned by another subtask than in the checkpoint"


def _seconds(result: ComparedPlans) -> str:
    rate, measured = result.comparison.rate, result.measured
    if rate is None:
        return "not known; give --rate 200MB/s, or restore once with statestore restore"
    if measured is None:
        return f"the largest subtask at {size(round(rate))}/s, as given"
    return (
        f"the largest subtask at {size(round(rate))}/s, as the restore of {when(measured.at_ms)} "
        "on this machine"
    )


def _money(found: Comparison) -> str:
    prices = found.prices
    assert prices is not None
    unit = f" {prices.currency}" if prices.currency else ""
    named = {
        "1,000 requests": prices.per_1000_requests,
        "GB read": prices.per_gb_read,
        "GB moved": prices.per_gb_moved,
        "subtask hour": prices.per_subtask_hour,
    }
    parts = [f"{value:g}{unit} per {what}" for what, value in named.items() if value]
    text = ", ".join(parts) or "nothing has a price"
    if prices.per_subtask_hour and found.rate is None:
        text += "; without seconds no subtask hours are counted"
    return text
