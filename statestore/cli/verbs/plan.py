"""``statestore plan``: show what a restore would read, and which state each operator would find.

The speed of a store's last large restore on this machine is kept, to estimate the time of the
next one. It is stored by store id in one small JSON file in the user's cache folder. This is only a
convenience, so failures to read or write the file are ignored. The time of a small restore is
mostly the same for any number of bytes, so its rate would say nothing about a larger one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from statestore.cli.arguments import BytesPerSecond, graph_of, target_options
from statestore.cli.checkpoints import (
    write_choices,
    write_key_groups,
    write_left_out,
    write_placements,
    write_skew,
    write_subtasks,
)
from statestore.cli.command import Invocation, Verb, checkpoint_argument, pass_invocation
from statestore.cli.drawing import amount, count, duration, size, when
from statestore.cli.graphs import write_matching
from statestore.cli.output import Output, Page, cell, table_of
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.parsing import parse_integer
from statestore.restore.compare_plans import Compared, Comparison, Prices
from statestore.restore.placement import LOCALITY, STRATEGIES, OperatorPlacement
from statestore.restore.plan import RestorePlan
from statestore.restore.range_skew import RangeSkew
from statestore.settings import read_toml
from statestore.store import StateStore

__all__ = [
    "LEAST_BYTES",
    "MOST_STORES",
    "ComparedPlans",
    "PlannedRestore",
    "Rate",
    "keep_rate",
    "kept_rate",
    "plan_restore",
    "rates_file",
    "unknown_rate",
]

MOST_STORES = 100
LEAST_BYTES = 64_000_000
"""A restore of fewer bytes supplies no rate."""


class _Hosts(click.ParamType[Any]):
    name = "hosts"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, int]:
        pairs = [one.strip().rpartition("=") for one in str(value).split(",")]
        try:
            hosts = {host: parse_integer(slots) for host, _, slots in pairs if host}
        except ValueError:
            hosts = {}
        if len(hosts) != len(pairs):
            self.fail(
                f"{value!r:.80} must have the form HOST=SLOTS,HOST=SLOTS and name each host once",
                param,
                ctx,
            )
        return hosts


class _Numbers(click.ParamType[Any]):
    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        parts = [one.strip() for one in str(value).split(",")]
        try:
            return tuple(map(parse_integer, parts))
        except ValueError:
            self.fail(f"{value!r:.80} must have the form N,N,…, for example 4,8,16", param, ctx)


@click.command(
    "plan",
    cls=Verb,
    prints=(
        "The key groups divided for the old and the new parallelism. For every operator and "
        "subtask: its key groups, rows, bytes, files, requests and elements of operator state. "
        "With auto: how the parallelism was chosen. With a local cache: the bytes that are on "
        "this host. With --hosts: where each subtask should run; subtasks with the same number "
        "share a slot, as in Flink, according to the slot groups of the job graph. With "
        "--max-parallelism: the rows read for each row that is kept. With --balance: Flink's even "
        "ranges next to balanced ones. With a job graph: the operators that find state or start "
        "empty, the state that would be dropped, and the uid that would keep it. With --compare, "
        "for each parallelism: the bytes that move (to another host with --hosts, otherwise to "
        "another subtask), the largest subtask, files and requests, the time, and with "
        "--prices the cost. Seconds are based on --rate, or on the rate of your last restore of at "
        "least 64 MB of this store on this machine. The recommended parallelism takes "
        "the least time. With prices it has the lowest cost among those that take at most 1.5 "
        "times the least time."
    ),
    examples=(
        "statestore plan --parallelism 7 --store ./fraud",
        "statestore plan --parallelism auto --bytes-per-task 256MiB --store ./fraud",
        "statestore plan --parallelism 3 --hosts a=2,b=1 --placement evenly --store ./fraud",
        "statestore plan --parallelism 5 --balance bytes --store ./fraud",
        "statestore plan --parallelism 5 --max-parallelism 256 --store ./fraud",
        "statestore plan --parallelism 7 --compare 2,4,8 --rate 200MB/s --store ./fraud",
        "statestore plan --graph new-job.toml 1 --store ./fraud --output json",
    ),
)
@target_options
@click.option(
    "--compare",
    "compared",
    type=_Numbers(),
    metavar="N,N,…",
    help="Compare these parallelisms and --parallelism instead.",
)
@click.option(
    "--rate",
    type=BytesPerSecond(),
    metavar="SIZE/s",
    help="Bytes per second that a subtask reads, for example 200MB/s.",
)
@click.option("--prices", metavar="FILE", help="Prices in TOML; see conf/prices.toml.")
@click.option(
    "--hosts",
    type=_Hosts(),
    metavar="HOST=N,…",
    help="Hosts with their slots: recommend a host for every subtask, close to its state.",
)
@click.option(
    "--placement",
    type=click.Choice(STRATEGIES),
    default=LOCALITY,
    help="The strategy that places subtasks on --hosts. [locality]",
)
@checkpoint_argument
@pass_invocation
def plan_restore(
    invocation: Invocation,
    /,
    parallelism: int | Literal["auto"] | None,
    hosts: dict[str, int] | None,
    placement: str,
    checkpoint: str,
    compared: tuple[int, ...] | None,
    rate: int | None,
    prices: str | None,
    **given: Any,
) -> Output[PlannedRestore] | Output[ComparedPlans]:
    """Show what a restore for another parallelism or job would read."""
    target: dict[str, Any] = given | {
        "parallelism": parallelism,
        "checkpoint": checkpoint,
        "graph": graph_of(given["graph"]),
    }
    if hosts and (given["max_parallelism"] is not None or given["balance"] is not None):
        raise click.UsageError(
            "--hosts requires the stored key groups in the ranges of the checkpoint or "
            "Flink; remove --max-parallelism and --balance"
        )
    if compared is not None:
        return _compare(invocation.store(), target, compared, rate, prices, hosts, placement)
    if rate is not None or prices is not None:
        raise click.UsageError(
            "--rate and --prices require --compare; pass the parallelisms to compare"
        )
    store = invocation.store()
    placed: tuple[OperatorPlacement, ...] = ()
    if hosts:
        known = {name: target[name] for name in ("parallelism", "checkpoint", "bytes_per_task")}
        placed = store.inspect.placement(hosts, strategy=placement, graph=target["graph"], **known)
    plan = store.plan(**target)
    skews: tuple[RangeSkew, ...] = ()
    if given["balance"] is not None:
        skews = store.inspect.balance(
            parallelism=plan.parallelism, by=given["balance"], checkpoint=checkpoint
        )
    return Output(
        PlannedRestore(store=store.url, plan=plan, placements=placed, skews=skews), write_plan
    )


def _compare(
    store: StateStore,
    target: dict[str, Any],
    compared: tuple[int, ...],
    rate: int | None,
    prices: str | None,
    hosts: dict[str, int] | None,
    placement: str,
) -> Output[ComparedPlans]:
    for name in ("graph", "max_parallelism", "bytes_per_task"):
        if target[name] is not None:
            raise click.UsageError(f"--compare cannot be combined with --{name.replace('_', '-')}")
    own = target["parallelism"]
    if isinstance(own, str):
        raise click.UsageError("--compare requires numbers of subtasks instead of auto")
    per_second: float | None = rate
    known = (
        None
        if rate is not None
        else kept_rate(os.environ, store.manifest(target["checkpoint"]).store_id)
    )
    comparison = store.inspect.compare(
        {*compared, *([] if own is None else [own])},
        checkpoint=target["checkpoint"],
        balance=target["balance"],
        hosts=hosts,
        strategy=placement,
        rate=per_second if known is None else known.bytes_per_second,
        prices=_prices_of(prices),
    )
    return Output(
        ComparedPlans(store=store.url, comparison=comparison, measured=known), write_comparison
    )


def _prices_of(path: str | None) -> Prices | None:
    if path is None:
        return None
    if not Path(path).exists():
        raise SettingsError(f"the price file {path} does not exist; check the path")
    table = read_toml(path)
    try:
        return Prices.of(table)
    except InvalidArgumentError as error:
        error.add_note(f"in {path}")
        raise


@dataclass(frozen=True, kw_only=True)
class PlannedRestore:
    """The reads of each subtask, and with hosts their placement.

    With balanced ranges, it also has the skew of both kinds of ranges.
    """

    store: str
    plan: RestorePlan
    placements: tuple[OperatorPlacement, ...] = ()
    skews: tuple[RangeSkew, ...] = ()


def write_plan(page: Page, planned: PlannedRestore) -> None:
    """Write the reads of a restore as text."""
    plan = planned.plan
    change = f"parallelism {plan.old_parallelism} to {plan.parallelism}"
    page.line(f"restore of checkpoint {plan.checkpoint_id} of {planned.store}: {change}", "bold")
    page.line(f"reads {amount(plan.size_bytes, plan.files)}; rewrites nothing")
    if plan.local_bytes:
        page.line(f"{size(plan.local_bytes)} of that is in the local cache of this host")
    write_left_out(page, plan.left_out, indent="")
    if plan.choices:
        write_choices(page, plan.choices, plan.parallelism)
    if plan.matching is not None:
        write_matching(page, plan.matching)
    write_key_groups(page, plan)
    for operator in plan.operators:
        page.line()
        page.line(f"operator {operator.operator} ({', '.join(operator.states)})", "bold")
        write_subtasks(page, operator)
    for skew in planned.skews:
        write_skew(page, skew)
    write_placements(page, planned.placements, plan)


@dataclass(frozen=True, kw_only=True)
class ComparedPlans:
    """A comparison of parallelisms; ``measured`` is the restore that supplied the rate, if any."""

    store: str
    comparison: Comparison
    measured: Rate | None = None


def write_comparison(page: Page, compared: ComparedPlans) -> None:
    """Write the comparison of parallelisms as text."""
    found = compared.comparison
    page.line(
        f"restores of checkpoint {found.checkpoint_id} of {compared.store}, taken at parallelism "
        f"{found.old_parallelism}",
        "bold",
    )
    page.table(_table(found))
    page.line(f"moved: {_moved(found)}")
    page.line(f"time: {_time(compared)}")
    if found.prices is not None:
        page.line(f"cost: {_money(found)}")
    page.line(f"recommended parallelism {found.chosen}: {found.why}", "bold")


def _table(found: Comparison) -> Any:
    prices = found.prices
    columns = ["", "parallelism", "moved", "largest subtask", "read", "files", "requests"]
    columns += ["time"] if found.rate is not None else []
    columns += [f"cost {prices.currency}".strip()] if prices is not None else []
    table = table_of(*columns, right={*columns[1:]})
    for option in found.options:
        mark = "->" if option.parallelism == found.chosen else ""
        table.add_row(*(cell(text) for text in [mark, *_row(option)]))
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
    row += [] if one.seconds is None else [duration(1000 * one.seconds)]
    return row if one.money is None else [*row, f"{one.money:.4g}"]


def _moved(found: Comparison) -> str:
    if found.hosts:
        return (
            "bytes without a copy on the host of their subtask; the hosts are "
            f"{', '.join(found.hosts)}"
        )
    return "bytes that another subtask owned in the checkpoint"


def _time(result: ComparedPlans) -> str:
    rate, measured = result.comparison.rate, result.measured
    if rate is None:
        return unknown_rate()
    if measured is None:
        return f"the time of the largest subtask at {size(round(rate))}/s, as passed"
    return (
        f"the time of the largest subtask at {size(round(rate))}/s, the rate of the restore "
        f"on this machine at {when(measured.at_ms)}"
    )


def unknown_rate() -> str:
    """Return why the rate of a restore is unknown, and what to do."""
    return (
        f"unknown, because no restore of at least {size(LEAST_BYTES)} was recorded on this "
        "machine; pass --rate, for example 200MB/s"
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
    text = ", ".join(parts) or "all prices are 0"
    if prices.per_subtask_hour and found.rate is None:
        text += "; subtask hours are not included because the time is unknown"
    return text


@dataclass(frozen=True)
class Rate:
    """The bytes and seconds of a restore whose subtasks ran one after another, and its end."""

    size_bytes: int
    seconds: float
    at_ms: int

    @property
    def bytes_per_second(self) -> float:
        """The restore's bytes per second, above 0."""
        return self.size_bytes / self.seconds


def rates_file(environment: Mapping[str, str]) -> Path:
    """Return the file with the rates: below ``XDG_CACHE_HOME``, by default ``~/.cache``.

    Raises:
        FileNotFoundError: ``XDG_CACHE_HOME`` is not set, and the user has no home.
    """
    try:
        folder = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home") from error
    return Path(folder, "statestore", "restore-rates.json")


def kept_rate(environment: Mapping[str, str], store_id: str) -> Rate | None:
    """Return the rate of a store's last restore of at least ``LEAST_BYTES``, or None."""
    known: Any = _known(environment).get(store_id)
    try:
        rate = Rate(int(known["size_bytes"]), float(known["seconds"]), int(known["at_ms"]))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    is_usable = rate.size_bytes >= LEAST_BYTES and 0 < rate.seconds < float("inf")
    return rate if is_usable else None


def keep_rate(environment: Mapping[str, str], store_id: str, rate: Rate) -> None:
    """Store the rate of a restore, and keep the latest rates of other stores.

    A restore of fewer than ``LEAST_BYTES`` is ignored.
    """
    if rate.size_bytes < LEAST_BYTES or rate.seconds <= 0:
        return
    others = [one for one in _known(environment).items() if one[0] != store_id]
    known = dict([*others[1 - MOST_STORES :], (store_id, asdict(rate))])
    with suppress(OSError):  # a restore must not fail because of the cache
        path = rates_file(environment)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(known, indent=1) + "\n")
        aside.replace(path)


def _known(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        known = json.loads(rates_file(environment).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
