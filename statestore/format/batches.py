"""The batches of each job that a checkpoint contains, so that a retried batch is written only once.

A checkpoint id is not sufficient, because commands such as ``edit`` use ids too. So the manifest of
each checkpoint records, per job, the last batch that the checkpoint contains. Checkpoints that
build on it inherit the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statestore.errors import InvalidArgumentError

__all__ = ["Batch", "BatchRecord", "batch_of", "with_batch"]

_MOST = 2**63 - 1


@dataclass(frozen=True)
class Batch:
    """One batch of a job, for which a snapshot is taken.

    Attributes:
    job: the name of the job. If it is empty, the job numbers its checkpoints itself, and ``number``
    is the id of the checkpoint.
    number: the number of the batch, 0 or more; later batches have greater numbers.
    """

    job: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of job {self.job!r}"


@dataclass(frozen=True)
class BatchRecord:
    """The last batch of a job that a checkpoint contains.

    Attributes:
        number: the number of the batch.
    checkpoint_id: the checkpoint taken for it. In a checkpoint that was copied from another store,
    it is the copy.
    """

    number: int
    checkpoint_id: int


def batch_of(batch: Any, checkpoint_id: int | None) -> Batch | None:
    """Return the batch that a snapshot is taken for.

    Args:
    batch: the caller's ``(job, number)``, or None.
    checkpoint_id: the id that the caller requests, or None.

    Returns:
    The batch. If only an id is given, it is the batch with that number of the unnamed job. None if
    neither is given.

    Raises:
    InvalidArgumentError: if ``batch`` is not a name and a number.
    """
    if batch is None:
        return None if checkpoint_id is None else Batch("", checkpoint_id)
    match batch:
        case (str(job), int(number)) if job and job.isprintable() and not isinstance(number, bool):
            if 0 <= number <= _MOST:
                return Batch(job, number)
    raise InvalidArgumentError(
        "a batch must be a job name and a batch number, for example ('totals', 7), not "
        f"{batch!r:.200}"
    )


def with_batch(
    inherited: Mapping[str, BatchRecord], batch: Batch | None, checkpoint_id: int
) -> dict[str, BatchRecord]:
    """Return the inherited records of a checkpoint, with the record of its own batch added."""
    own = {} if batch is None else {batch.job: BatchRecord(batch.number, checkpoint_id)}
    return {**inherited, **own}
