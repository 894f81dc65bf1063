"""A batch job's parallelism from the bytes of real inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from statestore import decide
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError

ROWS = pa.table({"n": list(range(20_000)), "text": [f"{i:x}" for i in range(20_000)]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "plain"
    path.mkdir()
    for part in range(3):
        pq.write_table(ROWS, path / f"part-{part}.parquet")
    return path


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))


def test_as_many_tasks_as_the_bytes_fill(folder: Path) -> None:
    decided = decide([str(folder)], bytes_per_task=size(folder) // 5)
    assert decided.parallelism in (5, 6)
    assert [(one.size_bytes, len(one.sizes)) for one in decided.inputs] == [(size(folder), 3)]
    assert decide([str(folder)]).parallelism == 1
    assert decide([str(folder)], bytes_per_task=1).parallelism == 128
    assert decide([str(folder)], bytes_per_task=1, max_parallelism=7).parallelism == 7
    assert decide([str(folder)], min_parallelism=3).parallelism == 3


def test_of_a_delta_table_the_newest_version_counts(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "delta"
    write_deltalake(table, ROWS)
    write_deltalake(table, ROWS.slice(0, 10), mode="overwrite")
    (newest,) = decide([str(table)]).inputs
    assert newest.size_bytes < size(table)
    both = decide([str(folder), str(table)], bytes_per_task=size(folder) // 5)
    assert len(both.inputs) == 2


def test_the_older_rule_makes_powers_of_two_and_counts_what_is_broadcast(folder: Path) -> None:
    per_task = size(folder) // 5
    old = decide([str(folder)], bytes_per_task=per_task, algorithm="1.16")
    assert old.parallelism == 4
    beside = decide(
        [str(folder)], broadcast=[str(folder)], bytes_per_task=per_task, algorithm="1.16"
    )
    assert beside.parallelism == 8  # half of each task's room is taken
    new = decide([str(folder)], broadcast=[str(folder)], bytes_per_task=per_task)
    assert new.parallelism == decide([str(folder)], bytes_per_task=per_task).parallelism


def test_inputs_that_are_none(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NotFoundError):
        decide([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError):
        decide([str(tmp_path / "empty")])
    with pytest.raises(InvalidArgumentError, match="bytes"):
        decide([str(folder)], bytes_per_task=0)


@pytest.mark.parametrize("urls", ["/x/a.parquet", []])
def test_inputs_are_a_list(urls: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a list of inputs"):
        decide(urls)


def test_an_algorithm_that_there_is_not(folder: Path) -> None:
    wrong: Any = "9.9"
    with pytest.raises(InvalidArgumentError, match=r"no algorithm '9\.9'"):
        decide([str(folder)], algorithm=wrong)


@pytest.mark.parametrize(
    "line",
    ['{"add": {"path": "a"}}', "5", '{"add": 5}', '{"add": {"path": "a", "size": -5}}', "[1]"],
)
def test_a_malformed_delta_log_is_named(tmp_path: Path, line: str) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text(line)
    with pytest.raises(CorruptionError, match=r"00000000000000000000\.json is no Delta log"):
        decide([str(tmp_path)])
