"""Compute the parallelism that Flink's adaptive batch scheduler would choose for given inputs.

Applies the complete rule of :mod:`statestore.jobgraph.adaptive`, not only its first guess. A file
is never split between two tasks, and keys do not matter: a folder is a pointwise input with one
partition per file. Inputs that are known more exactly are given as :class:`ConsumedInput`, a table
of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from statestore.arguments import checked
from statestore.errors import InvalidArgumentError
from statestore.jobgraph import adaptive
from statestore.jobgraph.adaptive import (
    BYTES_PER_TASK,
    DEFAULT_MAX_PARALLELISM,
    BatchDecision,
    ConsumedInput,
    Options,
)
from statestore.jobgraph.input_slices import Group
from statestore.jobgraph.parallelism import (
    BYTES_PER_TASK_2022,
    check_bounds,
    check_positive,
    parallelism_of_flink_1_16,
)
from statestore.sources.table_files import input_files


@dataclass(frozen=True)
class BatchInput:
    """One input: its location, the bytes of each file, and whether every task reads it.

    For a :class:`ConsumedInput`, ``url`` is its position among the inputs. Its ``sizes`` are the
    bytes of its subpartitions, partition by partition. ``missing`` describes the part of a state
    that a store's Delta table lacks, taken from the table's description; None if the description
    mentions none.
    """

    url: str
    sizes: tuple[int, ...]
    broadcast: bool
    missing: str | None = None

    json_properties: ClassVar[tuple[str, ...]] = ("size_bytes", "files")

    @property
    def size_bytes(self) -> int:
        """The total bytes of its files."""
        return sum(self.sizes)

    @property
    def files(self) -> int:
        """The number of files."""
        return len(self.sizes)


@dataclass(frozen=True, kw_only=True)
class BatchParallelism:
    """The chosen parallelism, and the values that it was computed from.

    ``first_guess`` is the total of all bytes divided by the bytes per task, before files are
    assigned. ``task_bytes`` is the number of bytes that each task reads from the inputs that are
    not broadcast. Both are None for 1.16, which assigns no files.
    """

    parallelism: int
    algorithm: str
    bytes_per_task: int
    min_parallelism: int
    max_parallelism: int
    inputs: tuple[BatchInput, ...]
    first_guess: int | None = None
    task_bytes: tuple[int, ...] | None = None


@checked
def choose_batch_parallelism(
    inputs: Sequence[str | ConsumedInput],
    *,
    broadcast: Sequence[str] = (),
    bytes_per_task: int | None = None,
    min_parallelism: int = 1,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    skewed_factor: float = 4.0,
    skewed_threshold: int = 256 << 20,
    algorithm: Literal["2.3", "1.16"] = "2.3",
    storage_options: Mapping[str, Any] | None = None,
) -> BatchParallelism:
    """Return the parallelism for inputs, from their bytes alone.

    The default algorithm is Flink 2.3's. It assigns whole files in order: the i-th share of each
    input goes to one task. The number of shares is the parallelism. The algorithm of Flink 1.16
    chooses powers of two, and broadcast inputs reduce the capacity of every task.

    Args:
        inputs: Parquet or Delta tables by path or URL, or the bytes of each subpartition as
            :class:`ConsumedInput`; at least one.
        broadcast: tables that every task reads whole, by path or URL.
        bytes_per_task: target bytes per task; by default 16 MiB with 2.3, and 1 GiB with 1.16.
        min_parallelism: lower bound of the parallelism; by default 1.
        max_parallelism: upper bound of the parallelism; by default 128.
        skewed_factor: with 2.3, the factor above the median at which a subpartition may be split;
            by default 4.
        skewed_threshold: with 2.3, the bytes above which a subpartition may be split; by default
            256 MiB.
        algorithm: ``2.3`` or ``1.16``.
        storage_options: options for fsspec.

    Returns:
        The parallelism, and the values that it was computed from.

    Raises:
        InvalidArgumentError: for impossible bounds, or for an input with fewer files than
            ``min_parallelism``.
        StateStoreError: the errors of :func:`~statestore.sources.table_files.input_files`.
    """
    if not inputs:
        raise InvalidArgumentError(
            "choose_batch_parallelism requires a list with at least one input"
        )
    default = BYTES_PER_TASK if algorithm == "2.3" else BYTES_PER_TASK_2022
    per_task = default if bytes_per_task is None else bytes_per_task
    check_positive("bytes_per_task", per_task)
    check_bounds(min_parallelism, max_parallelism)
    known = [
        (_describe_consumed(number, batch), batch)
        if isinstance(batch, ConsumedInput)
        else _read_input(batch, number >= len(inputs), storage_options)
        for number, batch in enumerate((*inputs, *broadcast))
    ]
    batches, consumed = tuple(batch for batch, _ in known), [batch for _, batch in known]
    bounds = {
        "bytes_per_task": per_task,
        "min_parallelism": min_parallelism,
        "max_parallelism": max_parallelism,
    }
    decision: BatchDecision | None = None
    if algorithm == "1.16":
        parallelism = parallelism_of_flink_1_16(batches, **bounds)
    else:
        _check_files(known, min_parallelism)
        options = Options(skewed_factor=skewed_factor, skewed_threshold=skewed_threshold, **bounds)
        decision = adaptive.decide(consumed, options)
        parallelism = decision.parallelism
    return BatchParallelism(
        parallelism=parallelism,
        algorithm=algorithm,
        inputs=batches,
        first_guess=None if decision is None else decision.first_guess,
        task_bytes=None if decision is None else _task_bytes(consumed, decision),
        **bounds,
    )


def _describe_consumed(number: int, batch: ConsumedInput) -> BatchInput:
    return BatchInput(
        f"input {number}", tuple(s for row in batch.partitions for s in row), batch.broadcast
    )


def _read_input(
    url: str, is_broadcast: bool, storage_options: Mapping[str, Any] | None
) -> tuple[BatchInput, ConsumedInput]:
    files = input_files(url, storage_options)
    sizes = files.sizes
    # Every task reads a table without files as a whole, because there is nothing to assign.
    everyone = is_broadcast or not sizes
    consumed = ConsumedInput(
        [[size] for size in sizes] or [[0]],
        broadcast=everyone,
        pointwise=not everyone,
        inter_correlated=False,
        intra_correlated=False,
    )
    return BatchInput(url, sizes, is_broadcast, files.missing), consumed


def _check_files(inputs: Sequence[tuple[BatchInput, ConsumedInput]], least: int) -> None:
    for batch, consumed in inputs:
        if consumed.pointwise and len(batch.sizes) < least:
            raise InvalidArgumentError(
                f"{batch.url} has {len(batch.sizes)} file(s), too few for a minimum "
                f"parallelism of {least}: some tasks would read none of them; lower the "
                "minimum, or pass the input as broadcast if every task reads all of it"
            )


def _task_bytes(inputs: Sequence[ConsumedInput], decision: BatchDecision) -> tuple[int, ...]:
    dealt = [
        (batch, groups)
        for batch, groups in zip(inputs, decision.inputs, strict=True)
        if not batch.broadcast
    ]
    return tuple(
        sum(_group_bytes(batch, group) for batch, groups in dealt for group in groups[task])
        for task in range(decision.parallelism)
    )


def _group_bytes(batch: ConsumedInput, group: Group) -> int:
    rows, columns = (slice(span.first, span.last + 1) for span in group)
    return sum(sum(sizes[columns]) for sizes in batch.partitions[rows])
