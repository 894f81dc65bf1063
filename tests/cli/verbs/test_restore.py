from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from statestore import StateStore
from statestore.format.documents import document_bytes

Run = Callable[..., Result]


@pytest.mark.slow
def test_restore_writes_the_rows_of_each_subtask(run: Run, fraud: Path, tmp_path: Path) -> None:
    done = run("restore", "--parallelism", "7", "--to", "out", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("checkpoint 2 restored at parallelism 7 to out\n")
    restored = StateStore.open(str(fraud)).restore(parallelism=7)
    for uid, name in (("totals-by-user", "totals"), ("totals-by-shop", "totals")):
        for subtask in range(7):
            file = tmp_path / "out" / uid / name / f"subtask={subtask:05}" / "part-0.parquet"
            rows = restored.keyed(uid, name).to_arrow(subtask)
            assert pq.ParquetFile(file).read() == rows
    for subtask in range(7):
        folder = tmp_path / "out" / "orders-source" / "files" / f"subtask={subtask:05}"
        elements = pq.ParquetFile(folder / "part-0.parquet").read().to_pylist()
        assert elements == restored.operator_state("orders-source", "files").subtask(subtask)
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.slow
def test_the_files_are_one_dataset_by_subtask(run: Run, fraud: Path) -> None:
    run("restore", "--parallelism", "3", "--to", "out", "--store", fraud)
    rows = ds.dataset("out/totals-by-user/totals", partitioning="hive").to_table()
    assert sorted(rows.column("total").to_pylist()) == list(range(200))
    assert set(rows.column("subtask").to_pylist()) == {0, 1, 2}


@pytest.mark.slow
def test_restore_as_json(run: Run, fraud: Path) -> None:
    done = run("restore", "--to", "out", "--store", fraud, "--output", "json")
    document = json.loads(done.stdout)["exported"]
    assert (document["checkpoint_id"], document["parallelism"], document["format"]) == (
        2,
        4,
        "parquet",
    )
    states = {(state["operator"], state["state"]): state for state in document["states"]}
    assert states["totals-by-user", "totals"]["rows"] == 200
    assert states["orders-source", "offsets"]["rows"] == 4 * 4
    assert states["orders-source", "files"]["rows"] == 2
    assert states["orders-source", "rules"]["rows"] == 4
    sizes = [path.stat().st_size for path in Path("out").rglob("*.parquet")]
    assert (document["files"], document["size_bytes"]) == (len(sizes), sum(sizes))


def test_restore_as_json_lines(run: Run, fraud: Path) -> None:
    done = run(
        *("restore", "1", "--parallelism", "2", "--to", "out", "--format", "jsonl"),
        *("--state", "totals-by-card/totals", "--store", fraud),
    )
    assert done.exit_code == 0
    assert [path.name for path in Path("out").iterdir()] == ["totals-by-card"]
    lines = [
        json.loads(line)
        for path in sorted(Path("out").rglob("part-0.jsonl"))
        for line in path.read_text().splitlines()
    ]
    found = {line["card"]: line["total"] for line in lines}
    assert found == {-5: 1.5, 0: "NaN", 7: 3.0}


def test_a_name_that_is_not_a_file_name_is_escaped(run: Run, store: StateStore) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("../up", "a/b", pa.table({"k": ["x"]}), key="k")
    assert run("restore", "--to", "out", "--store", store.url).exit_code == 0
    (file,) = Path("out").rglob("*.parquet")
    assert file.relative_to("out").parts[:2] == ("~2E.~2Fup", "a~2Fb")


@pytest.mark.parametrize("make", ["file", "folder with a file"])
def test_a_target_that_is_not_empty_is_refused(run: Run, fraud: Path, make: str) -> None:
    if make == "file":
        Path("out").write_text("mine")
    else:
        Path("out").mkdir()
        Path("out/mine").write_text("mine")
    done = run("restore", "--to", "out", "--store", fraud)
    assert done.exit_code == 2
    assert "out" in done.stderr
    assert [path.name for path in Path("out").rglob("*")] == (["mine"] if make != "file" else [])


@pytest.mark.slow
def test_an_empty_target_is_accepted(run: Run, fraud: Path) -> None:
    Path("out").mkdir()
    assert run("restore", "--to", "out", "--store", fraud).exit_code == 0


def test_a_damaged_file_leaves_the_target_empty(run: Run, damaged: Path) -> None:
    (file, *_) = sorted((damaged / "operators/totals-by-shop").rglob("0000000002*.parquet"))
    file.write_bytes(b"")
    done = run("restore", "--to", "out", "--store", damaged)
    assert done.exit_code == 13
    assert file.name in done.stderr
    assert "while restoring state 'totals' of operator 'totals-by-shop'" in done.stderr
    assert list(Path("out").iterdir()) == []


def test_rows_that_differ_from_the_manifest_are_refused(run: Run, damaged: Path) -> None:
    manifest = damaged / "checkpoints" / "0000000002.json"
    entry = (
        StateStore.open(str(damaged)).checkpoint(2).manifest.keyed_entry("totals-by-shop", "totals")
    )
    file = damaged / entry.table.path / entry.handles[0].path
    table = pq.ParquetFile(file).read()
    changed = table.set_column(2, "total", pa.array([99] * table.num_rows, pa.int64()))
    pq.write_table(changed, file)
    document = json.loads(manifest.read_text())
    (operator,) = (o for o in document["operators"] if o["uid"] == "totals-by-shop")
    (state,) = operator["keyed"]
    grown = file.stat().st_size - entry.handles[0].size_bytes
    state["size_bytes"] += grown
    state["files"]["size_bytes"][0] += grown
    for footer in ("footer_bytes", "footer_sha256"):  # as written by an older release
        del state["files"][footer]
    del document["sha256"]
    manifest.write_bytes(document_bytes(document))
    done = run("restore", "--to", "out", "--state", "totals-by-shop", "--store", damaged)
    assert done.exit_code == 13
    assert "(I7)" in done.stderr
    assert list(Path("out").iterdir()) == []


@pytest.mark.parametrize("name", ["files", "offsets", "rules"])
def test_the_plan_of_one_state_matches_the_restore(run: Run, fraud: Path, name: str) -> None:
    state = ("--state", f"orders-source/{name}")
    arguments = (*state, "--parallelism", "3", "--store", fraud, "--output", "json")
    planned = json.loads(run("plan", *arguments).stdout)
    written = json.loads(run("restore", "--to", "out", *arguments).stdout)
    (operator,) = planned["plan"]["operators"]
    assert (
        sum(subtask["elements"] for subtask in operator["subtasks"]) == written["exported"]["rows"]
    )


@pytest.mark.slow
def test_progress_is_reported_in_rows(filled: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    store = StateStore.open(str(filled))
    done = store.restore(parallelism=2).export(
        tmp_path / "out", progress=lambda rows, total: heard.append((rows, total))
    )
    total = sum(state.rows for state in done.states)
    assert heard[0] == (0, total)
    assert heard[-1] == (total, total)
    assert heard == sorted(heard)


def test_a_missing_target_is_a_usage_error(run: Run, fraud: Path) -> None:
    done = run("restore", "--store", fraud)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: missing option '--to'")
