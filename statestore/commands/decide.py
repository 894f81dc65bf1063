"""Decide: the parallelism that Flink's adaptive batch scheduler would give a job for its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from statestore.errors import InvalidArgumentError
from statestore.model.parallelism import BYTES_PER_TASK, DEFAULT_MAX_PARALLELISM, decide_parallelism
from statestore.model.parallelism_2022 import BYTES_PER_TASK_2022, Input2022, decide_2022
from statestore.table.inputs import input_bytes

__all__ = ["BatchInput", "DecidedParallelism", "decide"]


@dataclass(frozen=True)
class BatchInput:
    """One input: where it lies, the bytes of each of its files, and whether every task reads it."""

    url: str
    sizes: tuple[int, ...]
    broadcast: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(self.sizes)


@dataclass(frozen=True, kw_only=True)
class DecidedParallelism:
    """The parallelism, and what it follows from."""

    parallelism: int
    algorithm: str
    bytes_per_task: int
    min_parallelism: int
    max_parallelism: int
    inputs: tuple[BatchInput, ...]


def decide(
    urls: Sequence[str],
    *,
    broadcast: Sequence[str] = (),
    bytes_per_task: int | None = None,
    min_parallelism: int = 1,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    algorithm: Literal["2.3", "1.16"] = "2.3",
    storage_options: Mapping[str, Any] | None = None,
) -> DecidedParallelism:
    """Return the parallelism for Parquet or Delta inputs, from their bytes alone.

    ``algorithm`` is that of Flink 2.3 (16 MiB per task unless given, broadcast inputs play no
    part), or of 1.16 (1 GiB, powers of two, broadcast inputs take room from every task). Raises
    what :func:`~statestore.table.inputs.input_bytes` raises, and InvalidArgumentError for bounds.
    """
    if isinstance(urls, str) or not urls:
        raise InvalidArgumentError(f"decide takes a list of inputs, one at least, not {urls!r}")
    if algorithm not in ("2.3", "1.16"):
        raise InvalidArgumentError(f"no algorithm {algorithm!r}; there is 2.3 and 1.16")
    inputs = tuple(
        BatchInput(url, input_bytes(url, storage_options), is_broadcast)
        for group, is_broadcast in ((urls, False), (broadcast, True))
        for url in group
    )
    if algorithm == "2.3":
        per_task = BYTES_PER_TASK if bytes_per_task is None else bytes_per_task
        parallelism = decide_parallelism(
            *(one.sizes for one in inputs if not one.broadcast),
            bytes_per_task=per_task,
            min_parallelism=min_parallelism,
            max_parallelism=max_parallelism,
        )
    else:
        per_task = BYTES_PER_TASK_2022 if bytes_per_task is None else bytes_per_task
        parallelism = decide_2022(
            [Input2022(one.sizes, one.broadcast) for one in inputs],
            bytes_per_task=per_task,
            min_parallelism=min_parallelism,
            max_parallelism=max_parallelism,
        )
    return DecidedParallelism(
        parallelism=parallelism,
        algorithm=algorithm,
        bytes_per_task=per_task,
        min_parallelism=min_parallelism,
        max_parallelism=max_parallelism,
        inputs=inputs,
    )
