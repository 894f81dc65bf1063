"""``statestore plan``: show what a restore would read, and which state each operator would find.

The measured restores of a store on this machine predict the time of the next one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from statestore.cli.arguments import graph_of
from statestore.cli.checkpoints import (
    write_choices,
    write_key_groups,
    write_left_out,
    write_placements,
    write_skew,
    write_subtasks,
)
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, duration, size, size_and_files
from statestore.cli.graphs import write_matching
from statestore.cli.options import (
    Parsed,
    checkpoint_argument,
    parallelism_option,
    restore_options,
    state_option,
)
from statestore.cli.output import Output, Page, table_of
from statestore.cli.restore_records import kept_restores, speed_source, speed_text, unknown_rate
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.maintenance.batch_parallelism import (
    BatchParallelism,
    choose_batch_parallelism,
)
from statestore.parsing import parse_integer
from statestore.restore.byte_sizes import AUTO, rate_of
from statestore.restore.compare_plans import Compared, Comparison, Prices, candidates
from statestore.restore.placement import LOCALITY, STRATEGIES, OperatorPlacement
from statestore.restore.plan import RestorePlan
from statestore.restore.restart_time import (
    Certainty,
    MeasuredRestore,
    RestartTime,
    RestoreSpeed,
    fitted_speed,
    predict,
)
from statestore.restore.skew import RangeSkew
from statestore.settings import Settings, read_toml
from statestore.store import StateStore

__all__ = ["ComparedPlans", "PlannedRestarts", "PlannedRestore", "plan_restore"]


def _hosts(text: str) -> dict[str, int]:
    pairs = [one.strip().rpartition("=") for one in text.split(",")]
    hosts = {host: parse_integer(slots) for host, _, slots in pairs if host}
    if len(hosts) != len(pairs):
        raise ValueError(text)
    return hosts


def _bounds(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    return parse_integer(least), parse_integer(most)


_OF_ONE_PLAN = {
    "graph": "--graph",
    "max_parallelism": "--max-parallelism",
    "operator": "--state",
    "state": "--state",
}


@click.command(
    "plan",
    cls=Verb,
    section="Plan and restore",
    prints=(
        "The key groups divided for the old and the new parallelism, and what each subtask "
        "reads. With --graph: the operators that find state, and the state that would be "
        "dropped. With --hosts: where each subtask should run. With several numbers: the bytes "
        "that move, the time and the cost (prices) of each. With --restart: how long a restart "
        "takes at some numbers, by the restores measured here or restore_rate, with bounds and "
        "how sure that is. "
        "With --input, without a store: the parallelism of a batch job by Flink's adaptive batch "
        "scheduler."
    ),
    examples=(
        "statestore plan --parallelism 7 --store ./fraud",
        "statestore plan --parallelism 256MiB --store ./fraud",
        "statestore plan --parallelism 3 --hosts a=2,b=1 --placement evenly --store ./fraud",
        "statestore plan --parallelism 5 --balance bytes --store ./fraud",
        "statestore plan --parallelism 5 --max-parallelism 256 --store ./fraud",
        "STATESTORE_RESTORE_RATE=9MB/s statestore plan --parallelism 2,4,8 --store ./fraud",
        "statestore plan --restart --parallelism 2,4,8 --store ./fraud --output json",
        "statestore plan --graph new-job.toml 1 --store ./fraud --output json",
        "statestore plan --input ./fraud/operators/totals-by-user/keyed/totals",
        "statestore plan --input ./fraud/operators --parallelism 1MiB --output json",
    ),
    modes={
        "": ("checkpoint", "--balance", "--hosts", "--placement", *_OF_ONE_PLAN.values()),
        "--restart": ("checkpoint", "--balance", "--hosts", "--placement"),
        "--input": ("--broadcast", "--bounds", "--algorithm"),
    },
)
@checkpoint_argument
@parallelism_option(
    "N|auto|SIZE|N,N,…", " Several numbers are compared: moved bytes, time and cost of each."
)
@restore_options
@click.option(
    "--hosts",
    type=Parsed(
        "hosts",
        _hosts,
        "{value!r:.80} must have the form HOST=SLOTS,HOST=SLOTS and name each host once",
    ),
    metavar="HOST=N,…",
    help="Hosts with their slots: recommend a host for every subtask, close to its state.",
)
@click.option(
    "--placement",
    type=click.Choice(STRATEGIES),
    help="The strategy that places subtasks on --hosts. [locality]",
)
@state_option()
@click.option(
    "--restart",
    is_flag=True,
    help="Predict the time and the cost of a restart at these numbers, by default some around the "
    "present one.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="PLACE",
    help="Plan a batch job that reads this Parquet file, folder or Delta table.",
)
@click.option(
    "--broadcast",
    multiple=True,
    metavar="PLACE",
    help="An input that every task of the batch job reads completely.",
)
@click.option(
    "--bounds",
    type=Parsed("bounds", _bounds, "{value!r:.80} must have the form MIN-MAX, for example 1-128"),
    default="1-128",
    metavar="MIN-MAX",
    help="The minimum and maximum parallelism of the batch job. [1-128]",
)
@click.option(
    "--algorithm",
    type=click.Choice(["2.3", "1.16"]),
    default="2.3",
    help="Use the algorithm of this Flink release; for 1.16 a task reads 1GiB. [2.3]",
)
@pass_invocation
def plan_restore(
    invocation: Invocation,
    /,
    graph: str | None,
    compared: tuple[int, ...] | None,
    hosts: dict[str, int] | None,
    placement: str | None,
    restart: bool,
    inputs: tuple[str, ...],
    broadcast: tuple[str, ...],
    bounds: tuple[int, int],
    algorithm: Literal["2.3", "1.16"],
    **target: Any,
) -> (
    Output[PlannedRestore]
    | Output[ComparedPlans]
    | Output[PlannedRestarts]
    | Output[BatchParallelism]
):
    """Show what a restore for another parallelism or job would read."""
    if inputs:
        if compared is not None or target["parallelism"] not in (None, AUTO):
            raise click.UsageError("--parallelism of a batch job is the SIZE that a task reads")
        least, most = bounds
        chosen = choose_batch_parallelism(
            inputs,
            broadcast=broadcast,
            bytes_per_task=target["bytes_per_task"],
            min_parallelism=least,
            max_parallelism=most,
            algorithm=algorithm,
        )
        return Output(chosen, write_chosen)
    if placement is not None and hosts is None:
        raise click.UsageError("--placement places subtasks on hosts: pass --hosts HOST=N,…")
    placement = placement or LOCALITY
    store = invocation.store()
    target["checkpoint"] = store.checkpoint(target["checkpoint"])
    if restart and compared is None:
        compared = _numbers(target)
    if compared is not None:
        plans = _compare(
            store, target | {"graph": graph}, compared, invocation.settings, hosts, placement
        )
        if restart:
            return Output(_restarts(store, target, plans), write_restarts)
        return Output(plans, write_comparison)
    return _plan(store, target | {"graph": graph_of(graph)}, hosts, placement)


def _plan(
    store: StateStore, target: dict[str, Any], hosts: dict[str, int] | None, placement: str
) -> Output[PlannedRestore]:
    """Return the plan, with the placement on hosts and the skew of balanced ranges, if asked."""
    placed: tuple[OperatorPlacement, ...] = ()
    if hosts:
        refused = ("max_parallelism", "balance", "operator", "state")
        if any(target[name] is not None for name in refused):
            raise click.UsageError(
                "--hosts requires all stored key groups in the ranges of the checkpoint or "
                "Flink; remove --max-parallelism, --balance and --state"
            )
    plan = store.plan(**target)
    if hosts:
        placed = store.inspect.placement(plan, hosts, strategy=placement, graph=target["graph"])
    skews: tuple[RangeSkew, ...] = ()
    if target["balance"] is not None:
        skews = store.inspect.balance(plan, by=target["balance"])
    return Output(
        PlannedRestore(store=store.url, plan=plan, placements=placed, skews=skews), write_plan
    )


def _compare(
    store: StateStore,
    target: dict[str, Any],
    compared: tuple[int, ...],
    settings: Settings,
    hosts: dict[str, int] | None,
    placement: str,
) -> ComparedPlans:
    for name, option in _OF_ONE_PLAN.items():
        if target[name] is not None:
            raise click.UsageError(f"remove {option}: a comparison of parallelisms takes none")
    restores: tuple[MeasuredRestore, ...] = ()
    if settings.restore_rate is not None:
        speed: RestoreSpeed | None = RestoreSpeed.of(rate_of(settings.restore_rate))
    else:
        restores = kept_restores(os.environ, target["checkpoint"].manifest.store_id)
        speed = fitted_speed(restores)
    comparison = store.inspect.compare(
        {*compared},
        checkpoint=target["checkpoint"],
        balance=target["balance"],
        hosts=hosts,
        strategy=placement,
        rate=speed,
        prices=_prices_of(settings.prices),
    )
    return ComparedPlans(
        store=store.url,
        comparison=comparison,
        measured=restores[-1] if restores else None,
        restores=restores,
    )


def _numbers(target: dict[str, Any]) -> tuple[int, ...]:
    """Return the parallelisms of ``--restart``: the one that was passed, or some around it."""
    number = target["parallelism"]
    if number == AUTO:
        raise click.UsageError("--restart needs numbers, for example --parallelism 2,4,8")
    return tuple(candidates(target["checkpoint"].manifest)) if number is None else (number,)


def _restarts(store: StateStore, target: dict[str, Any], plans: ComparedPlans) -> PlannedRestarts:
    """Return the predicted time of each option, and its cost unless that needs an unknown time."""
    found = plans.comparison
    by_time = found.prices is not None and found.prices.per_subtask_hour > 0
    options = []
    for one in found.options:
        plan = store.plan(
            checkpoint=target["checkpoint"],
            parallelism=one.parallelism,
            balance=target["balance"],
        )
        if found.speed is None or plans.restores:
            time = predict(one.parallelism, [*plan.subtasks], plans.restores)
        else:
            reason = "the rate is the setting restore_rate"
            time = RestartTime(seconds=one.seconds, certainty=Certainty.GUESSED, reason=reason)
        money = None if by_time and time.seconds is None else one.money
        options.append(RestartOption(**vars(one) | vars(time) | {"money": money}))
    return PlannedRestarts(
        store=store.url,
        checkpoint_id=found.checkpoint_id,
        old_parallelism=found.old_parallelism,
        options=tuple(options),
        prices=found.prices,
        restores=plans.restores,
    )


@dataclass(frozen=True, kw_only=True)
class RestartOption(Compared):
    """A restart at one parallelism: its reads, its predicted time, and how sure that time is.

    * ``certainty`` is ``measured``, ``derived``, ``guessed`` or ``unknown``, and ``reason`` says
      why.
    * ``seconds`` is None if the time is unknown. Nine of ten measured restores took between
      ``low_seconds`` and ``high_seconds``; None if too few were measured.
    * ``money`` is None without prices, and if it depends on an unknown time.
    """

    low_seconds: float | None
    high_seconds: float | None
    certainty: Certainty
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlannedRestarts:
    """Restarts at several parallelisms, and the measured restores that predict their times."""

    store: str
    checkpoint_id: int
    old_parallelism: int
    options: tuple[RestartOption, ...]
    prices: Prices | None
    restores: tuple[MeasuredRestore, ...]


def write_restarts(page: Page, found: PlannedRestarts) -> None:
    """Write the predicted restarts as text."""
    page.line(
        f"restarts from checkpoint {found.checkpoint_id} of {found.store}, taken at parallelism "
        f"{found.old_parallelism}",
        "bold",
    )
    columns = ["parallelism", "largest subtask", "read", "requests", "time", "between"]
    columns += [f"cost {found.prices.currency}".strip()] if found.prices is not None else []
    table = table_of(*columns, "", right={*columns})
    for one in found.options:
        bounds = [
            duration(1000 * each)
            for each in (one.low_seconds, one.high_seconds)
            if each is not None
        ]
        row = [
            str(one.parallelism),
            size(one.largest_bytes),
            size(one.size_bytes),
            count(one.requests),
            "unknown" if one.seconds is None else duration(1000 * one.seconds),
            " and ".join(bounds),
        ]
        if found.prices is not None:
            row.append("unknown" if one.money is None else f"{one.money:.4g}")
        table.add_row(*row, one.certainty.value)
    page.table(table)
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in found.options:
        reasons.setdefault((one.certainty.value, one.reason), []).append(str(one.parallelism))
    for (certainty, reason), numbers in reasons.items():
        page.line(f"{certainty} at {', '.join(numbers)}: {reason}")
    page.line("the start of the job is not included")


def _prices_of(path: str | None) -> Prices | None:
    if path is None:
        return None
    if not Path(path).exists():
        raise SettingsError(f"the price file {path} does not exist; check the setting prices")
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
    page.line(f"reads {size_and_files(plan.size_bytes, plan.files)}; rewrites nothing")
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
    """A comparison of parallelisms.

    ``measured`` is the last of the restores on this machine that supplied the speed, if any.
    """

    store: str
    comparison: Comparison
    measured: MeasuredRestore | None = None
    restores: tuple[MeasuredRestore, ...] = field(default=(), repr=False)


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
    columns += ["time"] if found.speed is not None else []
    columns += [f"cost {prices.currency}".strip()] if prices is not None else []
    table = table_of(*columns, right={*columns[1:]})
    for option in found.options:
        mark = "->" if option.parallelism == found.chosen else ""
        table.add_row(mark, *_row(option))
    return table


def _row(compared: Compared) -> Sequence[str]:
    row = [
        str(compared.parallelism),
        size(compared.moved_bytes),
        size(compared.largest_bytes),
        size(compared.size_bytes),
        count(compared.files),
        count(compared.requests),
    ]
    row += [] if compared.seconds is None else [duration(1000 * compared.seconds)]
    return row if compared.money is None else [*row, f"{compared.money:.4g}"]


def _moved(found: Comparison) -> str:
    if found.hosts:
        return (
            "bytes without a copy on the host of their subtask; the hosts are "
            f"{', '.join(found.hosts)}"
        )
    return "bytes that another subtask owned in the checkpoint"


def _time(result: ComparedPlans) -> str:
    speed = result.comparison.speed
    if speed is None:
        return unknown_rate()
    return (
        f"the time of the slowest subtask at {speed_text(speed)}, {speed_source(result.restores)}"
    )


def write_chosen(page: Page, chosen: BatchParallelism) -> None:
    """Write the chosen parallelism as text."""
    page.line(f"parallelism {chosen.parallelism}", "bold")
    page.line(
        f"  {size(chosen.bytes_per_task)} per task, between {chosen.min_parallelism} and "
        f"{chosen.max_parallelism}, with the algorithm of Flink {chosen.algorithm}"
    )
    if chosen.task_bytes is not None:
        page.line(
            f"  {chosen.first_guess} from the bytes alone; files are assigned whole and in "
            f"order, so the largest task reads {size(max(chosen.task_bytes))}"
        )
    for batch in chosen.inputs:
        read = "read completely by every task" if batch.broadcast else "divided"
        files = counted(len(batch.sizes), "file")
        page.line(f"  {batch.url}: {size(batch.size_bytes)} in {files}, {read}")
        if batch.missing is not None:
            page.line(f"    left out  {batch.missing}")


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
    if prices.per_subtask_hour and found.speed is None:
        text += "; subtask hours are not included because the time is unknown"
    return text
