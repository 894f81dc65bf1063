"""Verdicts about a ``StatefulQuery``, compared with what its next micro-batch does."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.contract import compare
from statestore.contract.model import Verdict
from statestore.contract.store_side import contract_of_checkpoint
from statestore.contract.streaming_side import contract_of_stateful_query
from statestore.errors import StateStoreError
from statestore.format.state import TimeToLive
from statestore.streaming import MicroBatch, QueryState, StatefulQuery

N, TWO = "user string, n int", "user string, n int, m int"
WEEK = TimeToLive("7d", "seen")
TIMED = "user string, n int, seen long"
UNFIT, SAME, CONVERTS = Verdict.UNFIT, Verdict.SAME, Verdict.CONVERTS

PAIRS: dict[str, tuple[QueryState, QueryState, Verdict]] = {
    "same": (QueryState(N), QueryState(N), SAME),
    "column added": (QueryState(N), QueryState(TWO), CONVERTS),
    "column missing": (QueryState(TWO), QueryState(N), UNFIT),
    "column dropped": (QueryState(TWO), QueryState(N, dropped=["m"]), CONVERTS),
    "column renamed": (
        QueryState(N),
        QueryState("user string, m int", renamed={"n": "m"}),
        CONVERTS,
    ),
    "missing and new": (QueryState(N), QueryState("user string, m int"), UNFIT),
    "widened": (QueryState(N), QueryState("user string, n long"), CONVERTS),
    "narrowed": (QueryState("user string, n long"), QueryState(N), UNFIT),
    "TTL on": (QueryState(N), QueryState(TIMED, ttl=WEEK), CONVERTS),
    "TTL off": (QueryState(TIMED, ttl=WEEK), QueryState(N, ttl="off"), CONVERTS),
    "TTL longer": (
        QueryState(TIMED, ttl=WEEK),
        QueryState(TIMED, ttl=TimeToLive("9d", "seen")),
        SAME,
    ),
    "other key": (QueryState(TWO), QueryState(TWO, key=["user", "m"]), UNFIT),
}
IN_MAKE_TEST = ("same", "column missing", "TTL off")


def query(store: StateStore, state: QueryState) -> StatefulQuery:
    def update(events: DataFrame, states: Any, batch: Any) -> dict[str, DataFrame]:
        columns = [F.col("user"), *(F.lit(1).alias(name) for name in state.struct.names[1:])]
        frame = events.select(*columns)
        typed = (F.col(field.name).cast(field.dataType) for field in state.struct)
        return {"totals": frame.select(*typed)}

    return StatefulQuery(
        store=store,
        operator="count",
        key="user",
        states={"totals": state},
        update=update,
        parallelism=1,
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.long) for name in PAIRS],
)
def test_a_verdict_is_what_the_query_does(name: str, spark: SparkSession, tmp_path: Path) -> None:
    old, new, verdict = PAIRS[name]
    store = StateStore.open(str(tmp_path / "store"), spark=spark, table_format="parquet")
    events = spark.createDataFrame([("ann",)], "user string")
    manifest = query(store, old).process(events, MicroBatch("q", 0))
    assert manifest is not None
    declared = contract_of_stateful_query(query(store, new), "job.py:build")
    (finding,) = compare(contract_of_checkpoint(manifest), declared)
    assert finding.verdict is verdict, finding.reason
    expected = pytest.raises(StateStoreError) if verdict is UNFIT else nullcontext()
    with expected:
        query(store, new).process(events, MicroBatch("q", 1))
