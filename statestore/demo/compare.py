"""The proof: the states of the interrupted job against those of a run that was never interrupted.

Every state is compared twice: row by row, and by the digests in the two manifests. The rows are the
proof; the digests show that a manifest alone says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statestore.demo.job import AIRCRAFT, SOURCE, Job, elements
from statestore.store import StateStore

__all__ = ["Comparison", "compare", "differing_rows"]

Elements = Sequence[Sequence[Mapping[str, object]]]


@dataclass(frozen=True)
class Comparison:
    """One state: rows in the checkpoint, rows that only one side has, and both digests in hex."""

    state: str
    rows: int
    differing_rows: int
    digest: str
    uninterrupted_digest: str

    @property
    def equal(self) -> bool:
        """Whether rows and digests are the same."""
        return self.differing_rows == 0 and self.digest == self.uninterrupted_digest


def compare(
    store: StateStore, checkpoint: int, reference: StateStore, uninterrupted: Job
) -> list[Comparison]:
    """Return one comparison per state of the checkpoint.

    The rows are read from the checkpoint in ``store`` and compared with those that
    ``uninterrupted`` computed; ``reference`` holds the snapshot of it, for the digests alone.
    """
    assert uninterrupted.states is not None
    restored = store.restore(checkpoint=checkpoint, parallelism=uninterrupted.parallelism)
    differing = {}
    for name, expected in uninterrupted.states.by_name().items():
        found = restored.keyed(AIRCRAFT, name).dataframe().drop("key_group")
        differing[AIRCRAFT, name] = differing_rows(found, expected)
    for name, per_subtask in elements(uninterrupted).items():
        stored = restored.operator(SOURCE, name).per_old_subtask()
        differing[SOURCE, name] = _differing_elements(stored, per_subtask)
    other = reference.manifest()
    return [
        Comparison(
            state=entry.state.name,
            rows=entry.rows,
            differing_rows=differing[entry.state.uid, entry.state.name],
            digest=f"{entry.digest:016x}",
            uninterrupted_digest=f"{other.find(entry.state.uid, entry.state.name).digest:016x}",
        )
        for entry in restored.manifest.entries
    ]


def differing_rows(left: DataFrame, right: DataFrame) -> int:
    """Return how many rows only one of two DataFrames has; a row that occurs twice counts twice."""
    side = "side"
    both = left.withColumn(side, F.lit(1)).unionByName(right.withColumn(side, F.lit(-1)))
    surplus = both.groupBy(*left.columns).agg(F.sum(side).alias(side)).where(F.col(side) != 0)
    total: int | None = surplus.agg(F.sum(F.abs(side))).collect()[0][0]
    return total or 0


def _differing_elements(left: Elements, right: Elements) -> int:
    """Return at how many places, subtask and position, two operator states differ."""
    found = {(subtask, at): e for subtask, mine in enumerate(left) for at, e in enumerate(mine)}
    wanted = {(subtask, at): e for subtask, mine in enumerate(right) for at, e in enumerate(mine)}
    return sum(found.get(place) != wanted.get(place) for place in found.keys() | wanted.keys())
