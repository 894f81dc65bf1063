"""``statestore batch-parallelism``: compute the number of tasks of a batch job from its inputs."""

from __future__ import annotations

from typing import Literal

import click

from statestore.cli.arguments import Bytes
from statestore.cli.command import Verb
from statestore.cli.drawing import counted, size
from statestore.cli.output import Output, Page
from statestore.maintenance.batch_parallelism import (
    BatchParallelism,
    choose_batch_parallelism,
)

__all__ = ["choose_parallelism"]


@click.command(
    "batch-parallelism",
    cls=Verb,
    prints=(
        "The parallelism that Flink's adaptive batch scheduler would choose for a batch job "
        "that reads these inputs, the bytes and files of each input, and the bytes of the "
        "largest task. Whole files are assigned: each task gets one contiguous part of the "
        "files of each input, so there are never more tasks than an input has files. Inputs "
        "are Parquet files, folders of Parquet files, or Delta tables, which are read at the "
        "newest version. If the description of a Delta table says that part of the state is "
        "missing, that part is named. The command needs no store."
    ),
    examples=(
        "statestore batch-parallelism ./fraud/operators/totals-by-user/keyed/totals",
        "statestore batch-parallelism ./fraud/operators --bytes-per-task 1MiB --output json",
    ),
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--broadcast",
    multiple=True,
    metavar="INPUT",
    help="An input that every task reads completely (broadcast).",
)
@click.option(
    "--bytes-per-task",
    type=Bytes(),
    metavar="SIZE",
    help="The bytes that one task should read. [16MiB; 1GiB for 1.16]",
)
@click.option("--min", "least", type=int, default=1, help="The minimum parallelism. [1]")
@click.option("--max", "most", type=int, default=128, help="The maximum parallelism. [128]")
@click.option(
    "--algorithm",
    type=click.Choice(["2.3", "1.16"]),
    default="2.3",
    help="Use the algorithm of this Flink release. [2.3]",
)
def choose_parallelism(
    inputs: tuple[str, ...],
    broadcast: tuple[str, ...],
    bytes_per_task: int | None,
    least: int,
    most: int,
    algorithm: Literal["2.3", "1.16"],
) -> Output[BatchParallelism]:
    """Choose a batch job's parallelism from the bytes of its inputs."""
    chosen = choose_batch_parallelism(
        inputs,
        broadcast=broadcast,
        bytes_per_task=bytes_per_task,
        min_parallelism=least,
        max_parallelism=most,
        algorithm=algorithm,
    )
    return Output(chosen, write_chosen)


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
