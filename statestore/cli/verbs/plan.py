"""``statestore plan``: what a restore would read, and which operator would find its state."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.planning import ComparedPlans
from statestore.cli.rates import kept_rate
from statestore.cli.targets import Parallelism, graph_of, target_options
from statestore.cli.values import PlannedRestore
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.restore.compare_plans import Prices
from statestore.restore.placement import LOCALITY, STRATEGIES, OperatorPlacement
from statestore.restore.skew import RangeSkew
from statestore.restore.target import bytes_of
from statestore.settings import read_text
from statestore.store import StateStore

__all__ = ["plan_restore"]


class _Hosts(click.ParamType[Any]):
    name = "hosts"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, int]:
        pairs = [one.strip().rpartition("=") for one in str(value).split(",")]
        hosts = {host: int(slots) for host, _, slots in pairs if host and slots.isdecimal()}
        if len(hosts) != len(pairs):
            self.fail(f"{value!r} is not HOST=SLOTS,HOST=SLOTS, each host once", param, ctx)
        return hosts


class _Numbers(click.ParamType[Any]):
    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        parts = [one.strip() for one in str(value).split(",")]
        if not all(one.isascii() and one.isdecimal() for one in parts):
            self.fail(f"{value!r} is not N,N,…, such as 4,8,16", param, ctx)
        return tuple(map(int, parts))


class _Rate(click.ParamType[Any]):
    name = "rate"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return bytes_of(str(value).strip().removesuffix("/s"))
        except InvalidArgumentError:
            self.fail(f"{value!r} is no rate; write 200MB/s", param, ctx)


@click.command(
    "plan",
    cls=Verb,
    prints=(
        "The key groups cut for the old and the new parallelism, and for every operator and "
        "subtask its key groups, rows, bytes, files, requests and elements of operator state. "
        "With auto: how the parallelism was chosen. With a local cache: how many bytes are on "
        "this host, and with --hosts where each subtask should run: those of one number share a "
        "slot, as in Flink, by the slot groups of the job graph. "
        "With --max-parallelism: how many rows are read for each that is kept. With --balance: "
        "the subtasks with Flink's even ranges beside those with balanced ones. "
        "With a job graph: which operators find state, which start empty, what "
        "would be dropped, and what uid would keep it. With --compare: for each parallelism the "
        "bytes that move (to another host with --hosts, else to another subtask), the largest "
        "subtask, files, requests, the seconds that it would take at --rate, or at the rate of "
        "your last restore of this store on this machine, and what it would cost by --prices; "
        "and which one it would take: the least seconds, or with prices the least money within "
        "1.5 times the least seconds."
    ),
    examples=(
        "statestore plan --parallelism 7 --store ./fraud",
        "statestore plan --parallelism auto --bytes-per-task 256MiB --store ./fraud",
        "statestore plan --parallelism 3 --hosts a=2,b=1 --placement evenly --store ./fraud",
        "statestore plan --parallelism 5 --balance bytes --store ./fraud",
        "statestore plan --parallelism 5 --max-parallelism 256 --store ./fraud",
        "statestore plan --to 7 --compare 2,4,8 --rate 200MB/s --store ./fraud",
        "statestore plan --graph new-job.toml 1 --store ./fraud --output json",
    ),
)
@target_options
@click.option("--to", type=Parallelism(), metavar="N|auto", help="Another name of --parallelism.")
@click.option(
    "--compare",
    "compared",
    type=_Numbers(),
    metavar="N,N,…",
    help="Compare these parallelisms, and --to, instead.",
)
@click.option("--rate", type=_Rate(), metavar="SIZE/s", help="Bytes a subtask reads, 200MB/s.")
@click.option("--prices", metavar="FILE", help="Prices in TOML, as conf/prices.toml.")
@click.option(
    "--hosts",
    type=_Hosts(),
    metavar="HOST=N,…",
    help="Hosts and the slots of each: say on which one every subtask finds its state.",
)
@click.option(
    "--placement",
    type=click.Choice(STRATEGIES),
    default=LOCALITY,
    help="How subtasks are placed on --hosts. [locality]",
)
@checkpoint_argument
@pass_invocation
def plan_restore(
    invocation: Invocation,
    /,
    parallelism: int | Literal["auto"] | None,
    to: int | Literal["auto"] | None,
    hosts: dict[str, int] | None,
    placement: str,
    checkpoint: str,
    compared: tuple[int, ...] | None,
    rate: int | None,
    prices: str | None,
    **given: Any,
) -> PlannedRestore | ComparedPlans:
    """Say what a restore for another parallelism or job would read and find."""
    if to is not None and parallelism is not None:
        raise click.UsageError("--to is another name of --parallelism; give one of them")
    target: dict[str, Any] = given | {
        "parallelism": parallelism if to is None else to,
        "checkpoint": checkpoint,
        "graph": graph_of(given["graph"]),
    }
    if hosts and (given["max_parallelism"] is not None or given["balance"] is not None):
        raise click.UsageError(
            "--hosts places the stored key groups, as the checkpoint or Flink ranges them; leave "
            "out --max-parallelism and --balance"
        )
    if compared is not None:
        return _compare(invocation.store(), target, compared, rate, prices, hosts, placement)
    if rate is not None or prices is not None:
        raise click.UsageError("--rate and --prices are for --compare; name parallelisms")
    store = invocation.store()
    placed: tuple[OperatorPlacement, ...] = ()
    if hosts:
        known = {name: target[name] for name in ("parallelism", "checkpoint", "bytes_per_task")}
        placed = store.place(hosts, strategy=placement, graph=target["graph"], **known)
    plan = store.plan(**target)
    skews: tuple[RangeSkew, ...] = ()
    if given["balance"] is not None:
        skews = store.skew(parallelism=plan.parallelism, by=given["balance"], checkpoint=checkpoint)
    return PlannedRestore(store=store.url, plan=plan, placements=placed, skews=skews)


def _compare(
    store: StateStore,
    target: dict[str, Any],
    compared: tuple[int, ...],
    rate: int | None,
    prices: str | None,
    hosts: dict[str, int] | None,
    placement: str,
) -> ComparedPlans:
    for name in ("graph", "max_parallelism", "bytes_per_task"):
        if target[name] is not None:
            raise click.UsageError(f"--compare does not go with --{name.replace('_', '-')}")
    own = target["parallelism"]
    if isinstance(own, str):
        raise click.UsageError("--compare takes numbers of subtasks, and no auto")
    per_second: float | None = rate
    known = (
        None
        if rate is not None
        else kept_rate(os.environ, store.manifest(target["checkpoint"]).store_id)
    )
    comparison = store.compare(
        {*compared, *([] if own is None else [own])},
        checkpoint=target["checkpoint"],
        balance=target["balance"],
        hosts=hosts,
        strategy=placement,
        rate=per_second if known is None else known.bytes_per_second,
        prices=_prices_of(prices),
    )
    return ComparedPlans(store=store.url, comparison=comparison, measured=known)


def _prices_of(path: str | None) -> Prices | None:
    if path is None:
        return None
    if not Path(path).exists():
        raise SettingsError(f"no prices {path}; check the path")
    try:
        return Prices.of(tomllib.loads(read_text(Path(path))))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    except InvalidArgumentError as error:
        error.add_note(f"in {path}")
        raise
