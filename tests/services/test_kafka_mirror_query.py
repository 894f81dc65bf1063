"""A query of Spark moves to another cluster with its state, between which a MirrorMaker 2 ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import StateStore
from statestore.cli.main import main
from tests.services.kafka_mirror import LAST, Mirrored
from tests.services.spark_process import run_module
from tests.services.test_kafka_mirror import PLAIN, mirrored

__all__ = ["mirrored"]

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.long, pytest.mark.spark]


def test_a_query_of_spark_continues_at_the_new_cluster(
    mirrored: Mirrored,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its state is imported, its offsets are translated, and it reads the rest of the copies."""
    source, target, url = mirrored.source, mirrored.target, str(tmp_path / "store")
    old = {"bootstrap": source.bootstrap, "topic": PLAIN, "store": url}
    before = {"location": str(tmp_path / "before")}
    run_module("spark_checkpoint_on_kafka", {**old, "steps": [
        {"do": "run"} | before, {"do": "import"} | before]})  # fmt: skip
    store = StateStore.open(url)
    elements = store.restore(parallelism=1).operator_state("query", "offsets").subtask(0)
    assert elements == [{"topic": PLAIN, "partition": n, "offset": 151} for n in range(2)]
    with store.snapshot(parallelism=1) as checkpoint:  # as if it had not read the rest
        checkpoint.write_union("query", "offsets", [[{**each, "offset": 100} for each in elements]])
        checkpoint.carry_rest()
    clusters = ("--from-cluster", f"A={source.bootstrap}", "--to-cluster", f"B={target.bootstrap}")
    names = ("--state", "query/offsets", "--store", url)
    assert main(["kafka", "translate", *names, *clusters]) == 0, capfd.readouterr().err
    topic = f"A.{PLAIN}"
    translated = store.restore(parallelism=1).operator_state("query", "offsets").subtask(0)
    starts = {each["partition"]: each["offset"] for each in translated}
    assert {each["topic"] for each in translated} == {topic}
    after = {"location": str(tmp_path / "after")}
    new = {"bootstrap": target.bootstrap, "topic": topic, "store": url}
    found, _ = run_module("spark_checkpoint_on_kafka", {**new, "steps": [
        {"do": "export", "partitions": 3, "provider": "hdfs"} | after,
        {"do": "run"} | after]})  # fmt: skip
    read = {user: number for rows in found[1].values() for user, number, _ in rows}
    rest = {f"{PLAIN}-{part}-{at}" for part, start in starts.items() for at in range(start, 150)}
    assert read.keys() - {LAST.decode()} == rest
    assert starts == {0: 100, 1: 100}
    assert {read[each] for each in rest} == {2}, "each was counted by the old query, too"
