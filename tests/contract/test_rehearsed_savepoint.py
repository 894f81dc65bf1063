"""The savepoints of two versions of a Flink job that began with one state are compared by key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import StateStore
from statestore.cli.main import cli
from statestore.contract.rehearsal import Comparison, Rehearsal, Request, discard, promote
from statestore.contract.rehearsed_savepoint import rehearse_savepoints
from statestore.errors import InvalidArgumentError
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.options import FlinkTarget
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import HEAP, NEWEST, ROCKSDB
from tests.servers.flink import Flink

pytestmark = pytest.mark.slow

WHOLE = Comparison()


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with the savepoint of a job."""
    source = Golden("2.3_heap_canonical").unpack(tmp_path / "from")
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(source), store)
    return store


def rehearse(
    store: StateStore,
    folder: Path,
    wait: Callable[[str], None],
    comparison: Comparison = WHOLE,
) -> Rehearsal:
    request = Request(
        folder=folder / "rehearsal",
        base="1",
        old=str(folder / "old"),
        new=str(folder / "new"),
        against=None,
        flink="2.3",
        comparison=comparison,
    )
    return rehearse_savepoints(store, request, wait)


def write_changed(store: StateStore, folder: Path) -> None:
    """Write the savepoint of a version that adds 1 to some values and has lost a key."""
    store.maintenance.copy("latest", str(folder / "copy"), linked=True, touch=False)
    copy = StateStore.open(str(folder / "copy"))
    sql = (
        "SELECT key, value + IF(key % 2 = 0, 1, 0) AS value FROM state "
        "WHERE key <> (SELECT min(key) FROM state)"
    )
    copy.maintenance.edit("by_long", "last", sql=sql)
    export_savepoint(copy, str(folder / "new"), target=FlinkTarget(version="2.3"))


def tree(folder: Path) -> Mapping[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_command_waits_for_both_savepoints(store: StateStore, tmp_path: Path) -> None:
    """A savepoint without ``_metadata``, which Flink writes last, is not complete."""
    before = tree(tmp_path / "store")
    shown: list[str] = []

    def wait(text: str) -> None:
        shown.append(text)
        name = "old" if "the old version" in text else "new"
        savepoint = tmp_path / "rehearsal" / "base" / "savepoint"
        assert savepoint.as_uri() in text
        assert (tmp_path / name).as_uri() in text
        place = tmp_path / name / "savepoint-1"
        shutil.copytree(savepoint, place, dirs_exist_ok=True)
        if len(shown) % 2:
            (place / "_metadata").unlink()

    rehearsal = rehearse(store, tmp_path, wait)
    assert len(shown) == 4
    assert not rehearsal.difference.differs
    assert {state.operator for state in rehearsal.difference.states} >= {"by_long", "kinds"}
    assert tree(tmp_path / "store") == before
    with pytest.raises(InvalidArgumentError, match="rehearses state of flink"):
        promote(store, tmp_path / "rehearsal")
    discard(tmp_path / "rehearsal")
    assert not (tmp_path / "rehearsal").exists()


def test_a_version_is_compared_with_the_job_itself(store: StateStore, tmp_path: Path) -> None:
    write_changed(store, tmp_path)
    words = ("rehearse", str(tmp_path / "new"), "1", "--flink", "2.3", "--state", "by_long/last")
    place = ("--to", str(tmp_path / "rehearsal"), "--store", store.url)
    done = CliRunner().invoke(cli, [*words, *place])
    assert done.exit_code == 2
    assert "checkpoint 1 of" in done.stderr
    assert "is not later than 1: name an earlier CHECKPOINT, or pass --old" in done.stderr
    graph = store.checkpoint().manifest.graph
    with store.snapshot(graph=graph) as checkpoint:
        checkpoint.carry_rest()
    done = CliRunner().invoke(cli, [*words, *place, "--output", "json"])
    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    (state,) = document["difference"]["states"]
    assert (state["added"], state["removed"]) == (0, 1)
    assert state["changed"] > 1
    assert {example["identity"]["key"] % 2 for example in state["examples"][1:]} == {0}
    done = CliRunner().invoke(cli, [*words, *place, "--tolerance", "value=1"])
    assert done.exit_code == 1
    assert "only some states are compared" not in done.output
    assert "Flink writes the output to the sinks of the job" in done.output


def test_state_without_types_begins_with_an_exported_savepoint(tmp_path: Path) -> None:
    """Only ``flink export`` has the options for its types. An error leaves nothing."""
    store = StateStore.open(str(tmp_path / "store"))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("totals", "by-user", [{"user": 1, "n": 2}], key="user")
        offsets = [{"topic": "t", "partition": 0, "offset": 3}]
        checkpoint.write_split("kafka", "offsets", [offsets])
    begun, old, new = (str(tmp_path / name) for name in ("begun", "old", "new"))
    place = ("--to", str(tmp_path / "rehearsal"), "--flink", "2.3", "--store", store.url)
    done = CliRunner().invoke(cli, ["rehearse", new, "--old", old, *place])
    assert done.exit_code != 0
    assert "pass --java-type kafka/offsets=KafkaSource" in done.stderr
    assert "pass the folder that it wrote as --savepoint" in done.stderr
    assert not (tmp_path / "rehearsal").exists()
    types = ("--java-type", "kafka/offsets=KafkaSource", "--store", store.url)
    assert CliRunner().invoke(cli, ["flink", "export", begun, *types]).exit_code == 0
    for version in (old, new):
        shutil.copytree(begun, version)
    words = ("rehearse", new, "--savepoint", begun, *place)
    done = CliRunner().invoke(cli, [*words, "--old", old, "--output", "json"])
    assert done.exit_code == 0, done.stderr
    rows = {
        each["state"]: each["rows_a"] for each in json.loads(done.stdout)["difference"]["states"]
    }
    assert rows["by-user"] == 1
    done = CliRunner().invoke(cli, [*words, "1", "--to", str(tmp_path / "job")])
    assert "was not imported from a Flink savepoint" in done.stderr


@pytest.mark.flink
@pytest.mark.long
def test_real_flink_runs_both_versions(store: StateStore, tmp_path: Path) -> None:
    """The new version has another backend and parallelism: its state is the same.

    A version that has read ten events more has other state.
    """
    flink = Flink(NEWEST)

    def run(name: str, events: int, parallelism: int, backend: dict[str, str]) -> None:
        step = {"do": "savepoint", "from": str(tmp_path / "rehearsal" / "base" / "savepoint")}
        step |= {"to": str(tmp_path / name), "events": str(events), "format": "CANONICAL"}
        flink.run([step | {"parallelism": str(parallelism), "max": "128"} | backend])

    def wait(text: str) -> None:
        run(*(("old", 350, 2, HEAP) if "the old version" in text else ("new", 350, 4, ROCKSDB)))

    keyed = Comparison(operator="by_long")
    assert not rehearse(store, tmp_path, wait, keyed).difference.differs
    shutil.rmtree(tmp_path / "rehearsal" / "new")
    run("new", 360, 4, ROCKSDB)
    states = rehearse(store, tmp_path, wait, keyed).difference.states
    assert {state.state for state in states if state.differs} >= {"last", "texts", "sums"}
