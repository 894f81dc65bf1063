"""``statestore decide``: how many tasks a batch job should have for its inputs."""

from __future__ import annotations

from typing import Literal

import click

from statestore.cli.help import Verb
from statestore.cli.targets import Bytes
from statestore.cli.values import Decided
from statestore.maintenance.decide import decide

__all__ = ["decide_parallelism"]


@click.command(
    "decide",
    cls=Verb,
    prints=(
        "The parallelism that Flink's adaptive batch scheduler would give a batch job that reads "
        "these inputs, the bytes and files of each, and what the largest task reads. Whole files "
        "are dealt, the i-th share of each input to one task, so there are no more tasks than an "
        "input has files. Inputs are Parquet files, folders of them, "
        "or Delta tables, of which the newest version counts. Needs no store."
    ),
    examples=(
        "statestore decide ./fraud/operators/totals-by-user/keyed/totals",
        "statestore decide ./fraud/operators --bytes-per-task 1MiB --max 64 --output json",
    ),
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--broadcast", multiple=True, metavar="INPUT", help="An input that every task reads whole."
)
@click.option(
    "--bytes-per-task",
    type=Bytes(),
    metavar="SIZE",
    help="What one task should read. [16MiB; 1GiB for 1.16]",
)
@click.option("--min", "least", type=int, default=1, help="The smallest parallelism. [1]")
@click.option("--max", "most", type=int, default=128, help="The largest parallelism. [128]")
@click.option(
    "--algorithm",
    type=click.Choice(["2.3", "1.16"]),
    default="2.3",
    help="As this release of Flink decides. [2.3]",
)
def decide_parallelism(
    inputs: tuple[str, ...],
    broadcast: tuple[str, ...],
    bytes_per_task: int | None,
    least: int,
    most: int,
    algorithm: Literal["2.3", "1.16"],
) -> Decided:
    """Choose a batch job's parallelism from the bytes of its inputs."""
    decided = decide(
        inputs,
        broadcast=broadcast,
        bytes_per_task=bytes_per_task,
        min_parallelism=least,
        max_parallelism=most,
        algorithm=algorithm,
    )
    return Decided(decided=decided)
