"""A batch job's parallelism, computed from the bytes of real inputs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from statestore import choose_batch_parallelism
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.jobgraph import ConsumedInput
from statestore.maintenance.batch_parallelism import BatchParallelism
from statestore.sources.table_files import InputFiles
from tests.support.vectors import cases

pytestmark = pytest.mark.slow

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


def test_there_are_as_many_tasks_as_the_bytes_fill(folder: Path) -> None:
    decided = choose_batch_parallelism([str(folder)], bytes_per_task=size(folder) // 2 + 1)
    assert (decided.parallelism, decided.first_guess) == (3, 2)  # two files exceed half a task
    assert [(one.size_bytes, len(one.sizes)) for one in decided.inputs] == [(size(folder), 3)]
    assert decided.task_bytes == decided.inputs[0].sizes
    assert choose_batch_parallelism([str(folder)]).parallelism == 1
    assert (
        choose_batch_parallelism([str(folder)], bytes_per_task=1, max_parallelism=2).parallelism
        == 2
    )
    assert choose_batch_parallelism([str(folder)], min_parallelism=3).parallelism == 3


def test_there_are_no_more_tasks_than_files(folder: Path) -> None:
    decided = choose_batch_parallelism([str(folder)], bytes_per_task=1)
    assert (decided.parallelism, decided.first_guess) == (3, 128)
    with pytest.raises(InvalidArgumentError, match=r"plain has 3 file\(s\), too few for .* of 4"):
        choose_batch_parallelism([str(folder)], min_parallelism=4)
    assert (
        choose_batch_parallelism([str(folder)], min_parallelism=4, algorithm="1.16").task_bytes
        is None
    )


@given(
    st.lists(
        st.lists(st.sampled_from([0, 1, 7]) | st.integers(0, 99), max_size=9),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.lists(st.integers(0, 99), max_size=3), max_size=1),
    st.integers(1, 120),
    st.tuples(st.integers(1, 5), st.integers(0, 8)),
)
def test_whole_files_are_distributed_as_flink_distributes_partitions(
    divided: list[list[int]], whole: list[list[int]], per_task: int, bounds: tuple[int, int]
) -> None:
    """The result equals a search over all limits, and depends only on the sizes."""
    least, most = bounds[0], sum(bounds)
    known = {f"in{i}": tuple(sizes) for i, sizes in enumerate(divided)}
    known |= {f"all{i}": tuple(sizes) for i, sizes in enumerate(whole)}
    names = [name for name in known if name.startswith("in")]
    dealt = [known[name] for name in names if known[name]]

    def run() -> BatchParallelism:
        with patch(
            "statestore.maintenance.batch_parallelism.input_files",
            lambda url, _: InputFiles(known[url]),
        ):
            return choose_batch_parallelism(
                names,
                broadcast=[name for name in known if name.startswith("all")],
                bytes_per_task=per_task,
                min_parallelism=least,
                max_parallelism=most,
            )

    fewest = min(map(len, dealt), default=most)
    if fewest < least:
        with pytest.raises(InvalidArgumentError, match="too few for a minimum parallelism"):
            run()
        return
    got = run()
    assert got.task_bytes is not None
    assert got.parallelism == len(got.task_bytes)
    assert sum(got.task_bytes) == sum(map(sum, dealt))
    assert least <= got.parallelism <= min(most, fewest)
    total = sum(sum(sizes) for sizes in known.values())
    if len(dealt) == 1 and total:
        (sizes,) = dealt
        if len(sizes) <= 32 * most:
            limit = int(sum(sizes) / total * per_task)
            assert list(got.task_bytes) == slowly(sizes, limit, least, most)


def slowly(sizes: tuple[int, ...], limit: int, least: int, most: int) -> list[int]:
    """Return the bytes of each task, from a linear search over limits instead of a bisection."""

    def cut(limit: int) -> list[int]:
        tasks = [sizes[0]]
        for size in sizes[1:]:
            if tasks[-1] + size <= limit:
                tasks[-1] += size
            else:
                tasks.append(size)
        return tasks

    found = cut(limit)
    if len(found) > most:
        found = next(cut(x) for x in range(limit, sum(sizes) + 1) if len(cut(x)) <= most)
    elif len(found) < least:
        lower = range(min(limit, *sizes, limit), limit + 1)
        enough = [x for x in lower if len(cut(x)) >= least]
        wanted = len(cut(max(enough, default=-1)))
        found = next((cut(x) for x in lower if len(cut(x)) == wanted), cut(-1))
    if least <= len(found) <= most:
        return found
    parallelism = min(len(sizes), most)
    ends = [turn * len(sizes) // parallelism for turn in range(parallelism + 1)]
    return [sum(sizes[first:stop]) for first, stop in pairwise(ends)]


# One input whose files are the subpartitions of its only partition, so they are cut alike.
ALONE = [
    case
    for case in cases("parallelism", "decide")
    if len(case["in"]["inputs"]) == 1
    and len(case["in"]["inputs"][0]["bytes"]) == 1
    and not case["in"]["inputs"][0].get("broadcast")
    and not any(name.startswith("vertex") for name in case["in"])
]


def test_one_folder_gives_flinks_decision() -> None:
    assert len(ALONE) == 95
    differ = 0
    for case in ALONE:
        given_ = case["in"]
        (sizes,) = given_["inputs"][0]["bytes"]

        def run(given_: Any = given_, sizes: Any = sizes) -> BatchParallelism:
            with patch(
                "statestore.maintenance.batch_parallelism.input_files",
                lambda *_: InputFiles(tuple(sizes)),
            ):
                return choose_batch_parallelism(
                    ["x"],
                    bytes_per_task=given_["per_task"],
                    min_parallelism=given_["min"],
                    max_parallelism=given_["max"],
                )

        if "error" in case:
            with pytest.raises(InvalidArgumentError):
                run()
            continue
        got = run()
        assert got.parallelism == case["out"]["parallelism"]
        differ += got.parallelism != got.first_guess
    assert differ


def test_known_sizes_of_a_shuffle_are_supported(folder: Path) -> None:
    """The bytes of each subpartition of a join, whose equal keys must meet."""
    joined = [ConsumedInput([[10, 20, 30, 40]], type_number=side) for side in (0, 1)]
    got = choose_batch_parallelism(joined, bytes_per_task=60)
    assert (got.parallelism, got.task_bytes) == (3, (60, 60, 80))
    assert [one.url for one in got.inputs] == ["input 0", "input 1"]
    skewed = ConsumedInput([[10, 500, 10, 5]] * 3, intra_correlated=False)
    split = choose_batch_parallelism(
        [skewed], bytes_per_task=200, max_parallelism=4, skewed_threshold=100
    )
    assert split.parallelism == 4
    assert sum(split.task_bytes or ()) == skewed.size_bytes
    assert (
        choose_batch_parallelism([skewed], algorithm="1.16").inputs[0].size_bytes
        == skewed.size_bytes
    )


def test_only_the_newest_version_of_a_delta_table_counts(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "delta"
    write_deltalake(table, ROWS)
    write_deltalake(table, ROWS.slice(0, 10), mode="overwrite")
    (newest,) = choose_batch_parallelism([str(table)]).inputs
    assert newest.size_bytes < size(table)
    both = choose_batch_parallelism([str(folder), str(table)], bytes_per_task=size(folder) // 5)
    assert len(both.inputs) == 2


def test_the_older_rule_uses_powers_of_two_and_counts_broadcast_bytes(folder: Path) -> None:
    per_task = size(folder) // 5
    old = choose_batch_parallelism([str(folder)], bytes_per_task=per_task, algorithm="1.16")
    assert old.parallelism == 4
    beside = choose_batch_parallelism(
        [str(folder)], broadcast=[str(folder)], bytes_per_task=per_task, algorithm="1.16"
    )
    assert beside.parallelism == 8  # half of each task's capacity is used
    new = choose_batch_parallelism([str(folder)], broadcast=[str(folder)], bytes_per_task=per_task)
    assert (
        new.parallelism
        == choose_batch_parallelism([str(folder)], bytes_per_task=per_task).parallelism
    )


def test_invalid_inputs(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NotFoundError):
        choose_batch_parallelism([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError):
        choose_batch_parallelism([str(tmp_path / "empty")])
    with pytest.raises(InvalidArgumentError, match="bytes"):
        choose_batch_parallelism([str(folder)], bytes_per_task=0)


@pytest.mark.parametrize(
    ("urls", "message"), [("/x/a.parquet", "inputs must be of type Sequence"), ([], "at least one")]
)
def test_inputs_are_a_list(urls: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        choose_batch_parallelism(urls)


def test_an_unknown_algorithm_is_refused(folder: Path) -> None:
    wrong: Any = "9.9"
    with pytest.raises(InvalidArgumentError, match=r"algorithm must be of type '2\.3' \| '1\.16'"):
        choose_batch_parallelism([str(folder)], algorithm=wrong)


@pytest.mark.parametrize(
    "line",
    ['{"add": {"path": "a"}}', "5", '{"add": 5}', '{"add": {"path": "a", "size": -5}}', "[1]"],
)
def test_a_malformed_delta_log_is_named(tmp_path: Path, line: str) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text(line)
    with pytest.raises(CorruptionError, match=f"cannot read the Delta log of {tmp_path}"):
        choose_batch_parallelism([str(tmp_path)])
