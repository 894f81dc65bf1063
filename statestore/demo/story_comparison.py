"""Compare the states of the interrupted job with a run that was never interrupted.

Every state is compared twice: row by row, and by the digests in the two manifests. The rows are
the proof. The digests show that the manifests alone are sufficient for a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statestore.demo.job import AIRCRAFT, SOURCE, Job, elements
from statestore.store import StateStore

__all__ = [
    "NEW_PARALLELISM",
    "OLD_PARALLELISM",
    "OTHER_STEPS",
    "TABLE_FORMAT",
    "StoryComparison",
    "compare",
    "differing_rows",
]


Elements = Sequence[Sequence[Mapping[str, object]]]


@dataclass(frozen=True)
class StoryComparison:
    """The comparison of one state: its rows, the rows of one side only, and both hex digests."""

    state: str
    rows: int
    differing_rows: int
    digest: str
    uninterrupted_digest: str

    @property
    def equal(self) -> bool:
        """Whether the rows and the digests are equal."""
        return self.differing_rows == 0 and self.digest == self.uninterrupted_digest


def compare(
    store: StateStore, checkpoint: int, reference: StateStore, uninterrupted: Job
) -> list[StoryComparison]:
    """Return one comparison per state of the checkpoint.

    The rows of the checkpoint in ``store`` are compared with the rows that ``uninterrupted``
    computed. ``reference`` has the snapshot of this job; only its digests are used.
    """
    assert uninterrupted.states is not None
    restored = store.restore(checkpoint=checkpoint, parallelism=uninterrupted.parallelism)
    differing = {}
    for name, expected in uninterrupted.states.by_name().items():
        rows = restored.keyed(AIRCRAFT, name).to_spark().drop("key_group")
        differing[AIRCRAFT, name] = differing_rows(rows, expected)
    for name, per_subtask in elements(uninterrupted).items():
        stored = restored.operator_state(SOURCE, name).per_old_subtask()
        differing[SOURCE, name] = _differing_elements(stored, per_subtask)
    other = reference.checkpoint().manifest
    return [
        StoryComparison(
            state=entry.state.name,
            rows=entry.rows,
            differing_rows=differing[entry.state.uid, entry.state.name],
            digest=f"{entry.digest:016x}",
            uninterrupted_digest=f"{other.find(entry.state.uid, entry.state.name).digest:016x}",
        )
        for entry in restored.manifest.entries
    ]


def differing_rows(left: DataFrame, right: DataFrame) -> int:
    """Return how many rows only one of two DataFrames has, counting duplicates."""
    side = "side"
    both = left.withColumn(side, F.lit(1)).unionByName(right.withColumn(side, F.lit(-1)))
    surplus = both.groupBy(*left.columns).agg(F.sum(side).alias(side)).where(F.col(side) != 0)
    total: int | None = surplus.agg(F.sum(F.abs(side))).collect()[0][0]
    return total or 0


def _differing_elements(left: Elements, right: Elements) -> int:
    """Return at how many places (subtask and position) two operator states differ."""
    elements = {
        (subtask, position): e
        for subtask, mine in enumerate(left)
        for position, e in enumerate(mine)
    }
    wanted = {
        (subtask, position): e
        for subtask, mine in enumerate(right)
        for position, e in enumerate(mine)
    }
    return sum(
        elements.get(place) != wanted.get(place) for place in elements.keys() | wanted.keys()
    )


OLD_PARALLELISM = 4
NEW_PARALLELISM = 7
TABLE_FORMAT = "delta"
# Besides micro-batches: flights, Spark, writing, 3 snapshots, plan, restore, reference, proof.
OTHER_STEPS = 10
