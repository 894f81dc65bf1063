"""Verdicts about Spark queries, compared with what Spark does when the new version starts.

A verdict fits if and only if the new version starts and continues with the complete state: it then
emits the same rows as a restart of the old version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statestore.contract import compare
from statestore.contract.lock import lock_text, parse_lock
from statestore.contract.model import Finding, JobContract, Verdict
from statestore.contract.spark_side import contract_of_location, contract_of_query
from statestore.contract.streaming_side import contract_of_processor
from statestore.errors import InvalidArgumentError
from statestore.interop.spark.location import CheckpointLocation
from statestore.storage import open_storage
from tests.contract.spark_pairs import PAIRS, TTL, TWS, UNKNOWN, N, Pair
from tests.contract.spark_versions import HDFS, Inputs, Keeping, Version
from tests.interop.spark.queries import NO_DATA_BATCHES, copy_location, settings

Rows = list[tuple[object, ...]]
FITS = (Verdict.SAME, Verdict.CONVERTS, Verdict.EMPTY)


@dataclass(frozen=True)
class Ran:
    """An old version that has read the first file, and what its restart emits."""

    inputs: Inputs
    location: Path
    contract: JobContract
    restarted: Rows


class OldVersions:
    """Runs each old version once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.known: dict[int, Ran] = {}

    def ran(self, version: Version) -> Ran:
        """Return an old version that ran."""
        if id(version) not in self.known:
            root = self.folder / str(len(self.known))
            inputs, location = Inputs(self.spark, root), root / "location"
            inputs.write(0)
            run(inputs, version, location)
            contract = contract_of_location(CheckpointLocation(open_storage(str(location))))
            inputs.write(1)
            again = root / "restarted"
            copy_location(location, again)
            self.known[id(version)] = Ran(inputs, location, contract, run(inputs, version, again))
        return self.known[id(version)]


@pytest.fixture(scope="module")
def versions(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OldVersions:
    return OldVersions(spark, tmp_path_factory.mktemp("pairs"))


def run(inputs: Inputs, version: Version, location: Path) -> Rows:
    """Run a version over the files that it has not read, and return the rows that it emits."""
    emitted: Rows = []

    def keep(batch: DataFrame, number: int) -> None:
        emitted.extend(tuple(row) for row in batch.collect())

    with settings(inputs.spark, conf_of(version)):
        started = (
            version.build(inputs)
            .writeStream.outputMode(version.mode)
            .foreachBatch(keep)
            .option("checkpointLocation", str(location))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert started.awaitTermination(240)
        finally:
            started.stop()
    return sorted(emitted, key=repr)


def conf_of(version: Version) -> dict[str, str]:
    partitions = {"spark.sql.shuffle.partitions": str(version.partitions)}
    return {**HDFS, NO_DATA_BATCHES: "false", **partitions, **version.conf}


def starts_with_its_state(pair: Pair, old: Ran, location: Path) -> tuple[bool, str]:
    """Return whether the new version really continues, and what happened instead."""
    copy_location(old.location, location)
    try:
        rows = run(old.inputs, pair.new, location)
    except PySparkException as error:
        return False, str(error)[:300]
    expected = [row[: pair.columns] for row in old.restarted]
    emitted = [row[: pair.columns] for row in rows]
    if pair.columns == 0:  # both emit other rows, so that only the start counts
        return True, ""
    return emitted == expected, f"it emitted {emitted} instead of {expected}"


def judge(pair: Pair, old: Ran) -> Iterator[tuple[Finding, ...]]:
    """Yield the verdicts from the location, and from a lock of it."""
    with settings(old.inputs.spark, conf_of(pair.new)):
        query = pair.new.build(old.inputs)
        for contract in (old.contract, parse_lock(lock_text(old.contract), "state.lock")):
            try:
                yield compare(contract, contract_of_query(query, pair.new.mode, contract))
            except InvalidArgumentError as error:
                reason = str(error)
                yield (Finding(operator=None, state=None, verdict=Verdict.UNFIT, reason=reason),)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=pair.name, marks=() if pair.in_make_test else pytest.mark.long)
        for pair in PAIRS
    ],
)
def test_a_verdict_is_what_spark_does(pair: Pair, versions: OldVersions, tmp_path: Path) -> None:
    old = versions.ran(pair.old)
    fits, happened = starts_with_its_state(pair, old, tmp_path / "location")
    from_location, from_lock = judge(pair, old)
    told, locked = (
        sorted((finding.name, finding.verdict, finding.reason) for finding in findings)
        for findings in (from_location, from_lock)
    )
    assert told == locked
    verdicts = {
        finding.name: finding.verdict.value
        for finding in from_location
        if finding.verdict is not Verdict.SAME
    }
    assert verdicts == pair.verdicts, (told, happened)
    if UNKNOWN not in pair.verdicts.values():
        judged = all(finding.verdict in FITS for finding in from_location)
        is_lost = (
            all(finding.verdict in (*FITS, Verdict.LOST) for finding in from_location)
            and not judged
        )
        assert judged == fits or is_lost, (told, happened)


@pytest.mark.parametrize(
    ("old", "variables", "verdicts"),
    [
        (TWS, [N], {"n": Verdict.SAME}),
        (TWS, [("value", "m", "m long")], {"n": Verdict.LOST, "m": Verdict.EMPTY}),
        pytest.param(TTL, [(*N, 7_200_000)], {"n": Verdict.SAME}, marks=pytest.mark.long),
        pytest.param(TTL, [N], {"n": Verdict.UNFIT}, marks=pytest.mark.long),
    ],
)
def test_a_processor_is_compared_without_its_mode_and_key(
    old: Version, variables: list[Any], verdicts: dict[str, Verdict], versions: OldVersions
) -> None:
    contract = versions.ran(old).contract
    processor = Keeping(*((*variable, None)[:4] for variable in variables))
    findings = compare(contract, contract_of_processor(processor, contract))
    told = {finding.state: finding.verdict for finding in findings if finding.state != "timers"}
    assert told == verdicts


def test_few_pairs_are_unknown() -> None:
    unknown = [pair for pair in PAIRS if UNKNOWN in pair.verdicts.values()]
    assert len(PAIRS) >= 60
    assert len(unknown) <= 0.05 * len(PAIRS)
