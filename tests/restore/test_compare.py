"""Parallelisms of a real store, compared before any data file is read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.restore.compare_plans import Prices
from statestore.storage.local_cache import CacheOptions


def made(folder: Path, cache: Path | None = None) -> StateStore:
    store = StateStore.open(
        str(folder),
        table_format="parquet",
        layout="partitioned",
        cache=CacheOptions(cache) if cache else None,
    )
    rows = [{"k": f"k{i % 90}", "n": i} for i in range(600)]
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, kind="list", key="k", entry="n", max_parallelism=32)
        checkpoint.write_union("source", "offsets", [[{"o": i}] for i in range(4)])
    return store


def test_each_option_has_the_numbers_of_its_plan(tmp_path: Path) -> None:
    store = made(tmp_path / "s")
    found = store.inspect.compare([8, 2, 4, 4], rate=1000.0, prices=Prices(per_1000_requests=1.0))
    assert [option.parallelism for option in found.options] == [2, 4, 8]
    for option in found.options:
        plan = store.plan(parallelism=option.parallelism)
        assert (option.size_bytes, option.files) == (plan.size_bytes, plan.files)
        assert option.largest_bytes == max(
            operator.largest.size_bytes for operator in plan.operators
        )
        assert option.seconds == option.largest_bytes / 1000
        requests = sum(task.requests for operator in plan.operators for task in operator.subtasks)
        assert (option.requests, option.money) == (requests, requests / 1000)
    assert [option.moved_bytes for option in found.options][1] == 0
    assert found.options[0].moved_bytes > 0


def test_balanced_ranges_have_a_smaller_largest_subtask(tmp_path: Path) -> None:
    store = made(tmp_path / "s")
    even, balanced = store.inspect.compare([5]), store.inspect.compare([5], balance="bytes")
    assert balanced.options[0].largest_bytes <= even.options[0].largest_bytes
    assert balanced.options[0].moved_bytes > 0


def test_a_host_with_all_copies_moves_nothing(tmp_path: Path) -> None:
    store = made(tmp_path / "s", tmp_path / "cache")
    here = socket.gethostname()
    found = store.inspect.compare([2, 8], hosts={here: 8})
    assert found.hosts == (here,)
    assert [option.moved_bytes for option in found.options] == [0, 0]
    other = store.inspect.compare([2], hosts={f"not-{here}": 2}).options[0]
    keyed = store.checkpoint().manifest.keyed_entry("u", "s")
    assert other.moved_bytes == keyed.size_bytes


def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    store = made(tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match="either hosts or balance"):
        store.inspect.compare([2], hosts={"a": 2}, balance="rows")
    with pytest.raises(ParallelismError, match="33"):
        store.inspect.compare([2, 33])
    with pytest.raises(InvalidArgumentError, match="4,8,16"):
        store.inspect.compare([])
