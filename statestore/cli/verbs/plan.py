"""``statestore plan``: what a restore would read, and which operator would find its state."""

from __future__ import annotations

from typing import Any, Literal

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.targets import graph_of, target_options
from statestore.cli.values import PlannedRestore
from statestore.model.host_placement import LOCALITY, STRATEGIES

__all__ = ["plan_restore"]


class _Hosts(click.ParamType[Any]):
    name = "hosts"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, int]:
        pairs = [one.strip().rpartition("=") for one in str(value).split(",")]
        hosts = {host: int(slots) for host, _, slots in pairs if host and slots.isdecimal()}
        if len(hosts) != len(pairs):
            self.fail(f"{value!r} is not HOST=SLOTS,HOST=SLOTS, each host once", param, ctx)
        return hosts


@click.command(
    "plan",
    cls=Verb,
    prints=(
        "The key groups cut for the old and the new parallelism, and for every operator and "
        "subtask its key groups, rows, bytes, files, requests and elements of operator state. "
        "With auto: how the parallelism was chosen. With a local cache: how many bytes are on "
        "this host, and with --hosts where each subtask should run. "
        "With a job graph: which operators find state, which start empty, what "
        "would be dropped, and what uid would keep it."
    ),
    examples=(
        "statestore plan --parallelism 7 --store ./fraud",
        "statestore plan --parallelism auto --bytes-per-task 256MiB --store ./fraud",
        "statestore plan --parallelism 3 --hosts a=2,b=1 --placement evenly --store ./fraud",
        "statestore plan --graph new-job.toml 1 --store ./fraud --output json",
    ),
)
@target_options
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
    parallelism: int | Literal["auto"] | None,
    bytes_per_task: int | None,
    graph: str | None,
    hosts: dict[str, int] | None,
    placement: str,
    checkpoint: str,
) -> PlannedRestore:
    """Say what a restore for another parallelism or job would read and find."""
    store = invocation.store()
    target: dict[str, Any] = {
        "parallelism": parallelism,
        "checkpoint": checkpoint,
        "bytes_per_task": bytes_per_task,
        "graph": graph_of(graph),
    }
    placed = store.place(hosts, strategy=placement, **target) if hosts else ()
    return PlannedRestore(store=store.url, plan=store.plan(**target), placements=placed)
