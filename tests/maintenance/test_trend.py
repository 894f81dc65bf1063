"""Trends against the manifests, plans and rows of the same checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, ParallelismError, StateNotFoundError
from statestore.format.handles import list_of
from statestore.format.names import manifest_path
from statestore.maintenance.trend import trend_of
from statestore.maintenance.trend_report import StateTrend, StoreTrend
from statestore.parquet.writer import ParquetOptions
from statestore.storage import LocalStorage
from statestore.testing.faults import CountingStorage
from tests.support.held import count_held
from tests.support.retimed import HOUR_MS, START_MS, retime

GROUPS = 16


def table(count: int) -> pa.Table:
    return pa.table({"k": [f"k{n}" for n in range(count)], "v": range(count)})


def take(store: StateStore, number: int) -> None:
    """Take a checkpoint: a state that grows, one with changes, one that is carried, and offsets."""
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("u", "grows", table(100 * number), key="k", max_parallelism=GROUPS)
        if number == 1:
            checkpoint.write_keyed("u", "changes", table(1000), key="k")
            checkpoint.write_keyed("w", "stays", table(50), key="k", max_parallelism=GROUPS)
        else:
            checkpoint.write_changes("u", "changes", table(1000 + number).slice(900))
            checkpoint.carry("w", "stays")
        offsets = [[{"p": p, "o": number}] for p in range(3)]
        checkpoint.write_union("src", "offsets", offsets)


def filled(folder: Path, count: int = 8, **options: Any) -> StateStore:
    store = StateStore.open(str(folder), table_format="parquet", **options)
    for number in range(1, count + 1):
        take(store, number)
    retime(folder)
    return StateStore.open(str(folder))


def state(trend: StoreTrend, name: str) -> StateTrend:
    return next(state for state in trend.states if state.state == name)


def test_points_are_those_of_the_manifests(tmp_path: Path) -> None:
    store = filled(tmp_path)
    trend = store.inspect.trend(rate=1000.0)
    assert [point.checkpoint_id for point in trend.checkpoints] == [*store.checkpoints()]
    for point in trend.checkpoints:
        manifest = store.checkpoint(point.checkpoint_id).manifest
        assert (point.rows, point.size_bytes) == (manifest.rows, manifest.size_bytes)
        assert point.created_at_ms == manifest.created_at_ms
        option = store.inspect.compare([3], checkpoint=point.checkpoint_id, rate=1000.0).options[0]
        assert (point.largest_bytes, point.seconds) == (option.largest_bytes, option.seconds)
    for one in trend.states:
        for own in one.points:
            entry = store.checkpoint(own.checkpoint_id).manifest.find(one.operator, one.state)
            assert (own.rows, own.size_bytes) == (entry.rows, entry.size_bytes)
    assert {(one.operator, one.state) for one in trend.states} == {
        *(("u", "grows"), ("u", "changes"), ("w", "stays"), ("src", "offsets"))
    }


def test_the_skew_is_that_of_the_heaviest_key_group(tmp_path: Path) -> None:
    """At each checkpoint, also after a compaction, and after one that changes nothing else."""
    store = filled(tmp_path, 4)
    store.maintenance.compact(everything=True)
    take(store, 6)
    trend = store.inspect.trend()
    for operator, name in (("u", "grows"), ("u", "changes"), ("w", "stays")):
        points = state(trend, name).points
        assert [point.checkpoint_id for point in points] == [1, 2, 3, 4, 5, 6]
        for point in points:
            report = store.inspect.skew(
                operator, name, keys=0, checkpoint=point.checkpoint_id, factor=1
            )
            heaviest = report.operators[0].skewed[0]
            assert point.heaviest_bytes == heaviest.size_bytes
            assert point.skew == pytest.approx(heaviest.times)
    for whole in trend.checkpoints:
        option = store.inspect.compare([3], checkpoint=whole.checkpoint_id).options[0]
        assert whole.largest_bytes == option.largest_bytes
    offsets = state(trend, "offsets")
    assert {(point.heaviest_bytes, point.skew) for point in offsets.points} == {(None, None)}


def test_growth_is_the_written_rows_a_day(tmp_path: Path) -> None:
    """A checkpoint every 6 hours, each with 100 rows more."""
    trend = filled(tmp_path).inspect.trend()
    rows = state(trend, "grows").rows
    assert rows is not None
    assert (rows.per_day, rows.points, rows.span_ms) == (400, 8, 42 * HOUR_MS)
    stays = state(trend, "stays")
    assert stays.rows is not None
    assert stays.size is not None
    assert (stays.rows.per_day, stays.size.direction) == (0, "steady")
    growing = [one.size.per_day for one in trend.states if one.size]
    assert growing == sorted(growing, reverse=True)


def test_live_rows_are_the_rows_that_a_restore_returns(tmp_path: Path) -> None:
    """They are unknown where the writer of changes did not compare them with the base."""
    store = filled(tmp_path, 3)
    for name in ("grows", "changes", "stays"):
        for point in state(store.inspect.trend(), name).points:
            operator = "w" if name == "stays" else "u"
            restored = store.restore(checkpoint=point.checkpoint_id).keyed(operator, name)
            if point.live_rows is not None:
                assert point.live_rows == restored.to_arrow().num_rows
            else:
                assert point.changed_rows > 0
    changes = state(store.inspect.trend(), "changes")
    assert changes.points[-1].changed_bytes > 0
    assert changes.points[-1].rows == 1000 + changes.points[-1].changed_rows


@pytest.mark.slow
def test_folds_are_counted_and_few_make_growth_provisional(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet", compaction=None)
    for number in range(1, 7):
        take(store, number)
    waiting = state(store.inspect.trend(), "changes")
    assert (waiting.folds, waiting.is_provisional) == (0, True)
    for number in range(7, 13):
        store.maintenance.compact(everything=True)
        take(store, number)
    folded = state(store.inspect.trend(), "changes")
    assert (folded.folds, folded.is_provisional) == (6, False)
    grows = state(store.inspect.trend(), "grows")
    assert (grows.folds, grows.is_provisional) == (None, False)


def test_the_age_is_the_time_since_the_last_write(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    stays = state(store.inspect.trend(), "stays")
    assert [point.age_ms for point in stays.points] == [n * 6 * HOUR_MS for n in range(4)]
    assert not any(point.is_least_age for point in stays.points)
    assert {point.age_ms for point in state(store.inspect.trend(), "grows").points} == {0}
    newest = state(store.inspect.trend(last=2), "stays").points
    assert [(point.age_ms, point.is_least_age) for point in newest] == [
        (0, True),
        (6 * HOUR_MS, True),
    ]


def test_a_savepoint_keeps_its_point(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    store.maintenance.savepoint("before", checkpoint=1)
    store.maintenance.expire(retain=2)
    assert [point.checkpoint_id for point in store.inspect.trend().checkpoints] == [1, 3, 4]
    assert state(store.inspect.trend(), "stays").points[-1].age_ms == 18 * HOUR_MS


def test_few_checkpoints_have_points_and_no_growth(tmp_path: Path) -> None:
    store = filled(tmp_path, 4)
    trend = store.inspect.trend(size_bytes=10**9, restore_time="10m", rate=1.0)
    assert (trend.size, trend.largest) == (None, None)
    assert {(one.rows, one.size, one.skew) for one in trend.states} == {(None, None, None)}
    assert trend.reaches is not None
    assert trend.reaches.reason == "not enough checkpoints, or too short a time"
    assert {one.reaches.reason for one in trend.states if one.reaches} == {
        "not enough checkpoints, or too short a time"
    }


def test_forecasts_of_a_size_and_a_restore_time(tmp_path: Path) -> None:
    """Pure lines have the same time as their bounds, and a rate turns bytes into a time."""
    manifests = grown(tmp_path, [10_000 * n for n in range(1, 9)])
    newest = manifests[-1]
    trend = trend_of(
        iter(manifests),
        newest,
        size_bytes=100_000,
        restore_ms=2000,
        rate=50_000.0,
        parallelism=1,
    )
    assert trend.size is not None
    assert trend.size.per_day == pytest.approx(40_000)
    at_ms = START_MS + 54 * HOUR_MS  # 8 checkpoints at 0 to 42 h, and 20,000 bytes more
    for found in (trend.reaches, trend.states[0].reaches):
        assert found is not None
        assert (found.limit, found.at_ms) == (100_000, at_ms)
        assert (found.earliest_ms, found.latest_ms) == (at_ms, at_ms)
    assert trend.restore_reaches is not None
    assert (trend.restore_reaches.limit, trend.restore_reaches.at_ms) == (2000, at_ms)
    assert trend.checkpoints[-1].seconds == 1.6


def grown(folder: Path, sizes: Sequence[int]) -> list[Any]:
    """Return manifests of one file with these sizes, 6 hours apart, made from a real one."""
    store = StateStore.open(str(folder), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", table(10), key="k", max_parallelism=1)
    manifest = store.checkpoint().manifest
    (entry,) = manifest.keyed
    (handle,) = entry.handles

    def grown_file(number: int, size_bytes: int) -> Any:
        return replace(handle, path=f"{number:010}-{handle.path}", size_bytes=size_bytes)

    return [
        replace(
            manifest,
            checkpoint_id=number,
            created_at_ms=START_MS + (number - 1) * 6 * HOUR_MS,
            keyed=(replace(entry, handles=(grown_file(number, size_bytes),)),),
        )
        for number, size_bytes in enumerate(sizes, 1)
    ]


def test_without_a_rate_the_restore_time_has_a_reason(tmp_path: Path) -> None:
    trend = filled(tmp_path).inspect.trend(restore_time="10m")
    assert trend.restore_reaches is not None
    assert trend.restore_reaches.reason == "the rate of a restore is not known"
    assert trend.checkpoints[-1].seconds is None
    assert trend.reaches is None


def test_a_state_has_points_only_where_it_exists(store: StateStore) -> None:
    for number in range(1, 7):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "old" if number < 4 else "new", table(9), key="k")
            if number == 4:
                checkpoint.drop("u", "old")
    trend = store.inspect.trend()
    assert [point.checkpoint_id for point in state(trend, "old").points] == [1, 2, 3]
    assert [point.checkpoint_id for point in state(trend, "new").points] == [4, 5, 6]
    only = store.inspect.trend("u", "old")
    assert [point.checkpoint_id for point in only.checkpoints] == [1, 2, 3]


def test_a_checkpoint_that_cannot_be_restored_so_has_no_largest_subtask(store: StateStore) -> None:
    for parallelism in (2, 4):
        with store.snapshot(parallelism=parallelism) as checkpoint:
            name = f"for {parallelism}"
            checkpoint.write_keyed(name, "s", table(9), key="k", max_parallelism=parallelism)
            if parallelism == 4:
                checkpoint.drop("for 2", "s")
    points = store.inspect.trend().checkpoints
    assert [point.largest_bytes is None for point in points] == [True, False]
    with pytest.raises(ParallelismError, match="for 4"):
        store.inspect.trend(parallelism=5)
    assert store.inspect.trend(parallelism=2).checkpoints[0].largest_bytes is not None


def test_an_unreadable_manifest_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for number in (3, 8):
        (tmp_path / manifest_path(number)).write_bytes(b"{}")
    trend = store.inspect.trend()
    assert [point.checkpoint_id for point in trend.checkpoints] == [1, 2, 4, 5, 6, 7]
    assert [one.checkpoint_id for one in trend.unread] == [3, 8]
    assert all(manifest_path(one.checkpoint_id) in one.message for one in trend.unread)
    assert trend.size is not None


def test_only_manifests_are_read_and_two_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    storage = CountingStorage(str(tmp_path))
    store = StateStore.open(storage)
    held = count_held(monkeypatch)
    seen: list[tuple[int, int]] = []
    trend = store.inspect.trend(on_progress=lambda done, total: seen.append((done, total)))
    assert len(trend.checkpoints) == 8
    assert len(held) == 9
    assert max(held) <= 2
    assert seen == [(number, 8) for number in range(1, 9)]
    assert not [name for name in storage.opened if name.endswith(".parquet")]


def test_the_list_of_files_of_a_carried_state_is_read_once(tmp_path: Path) -> None:
    """A list that cannot be read makes its checkpoints unread."""
    store = StateStore.open(
        str(tmp_path), table_format="parquet", parquet=ParquetOptions(list_bytes=1)
    )
    for number in range(1, 6):
        with store.snapshot(parallelism=3) as checkpoint:
            if number in (1, 4):
                checkpoint.write_keyed("u", "s", table(300), key="k", max_parallelism=GROUPS)
            else:
                checkpoint.carry("u", "s")
    lists = [list_of(store.checkpoint(number).manifest.keyed[0].handles) for number in range(1, 6)]
    assert None not in lists
    assert [len({*lists[:3]}), len({*lists[3:]}), len({*lists})] == [1, 1, 2]
    storage = ReadCounts(str(tmp_path))
    trend = StateStore.open(storage).inspect.trend()
    assert {storage.counts[str(name)] for name in lists} == {1}
    points = state(trend, "s").points
    assert [point.size_bytes for point in points] == [
        store.checkpoint(number).manifest.size_bytes for number in range(1, 6)
    ]
    for point, whole in zip(points, trend.checkpoints, strict=True):
        report = store.inspect.skew("u", keys=0, checkpoint=point.checkpoint_id, factor=1)
        assert point.skew == pytest.approx(report.operators[0].skewed[0].times)
        option = store.inspect.compare([3], checkpoint=point.checkpoint_id).options[0]
        assert whole.largest_bytes == option.largest_bytes
    (tmp_path / str(lists[0])).write_bytes(b"{}")
    damaged = store.inspect.trend()
    assert [one.checkpoint_id for one in damaged.unread] == [1, 2, 3]
    assert [point.checkpoint_id for point in damaged.checkpoints] == [4, 5]


class ReadCounts(LocalStorage):
    """Counts how often each document is read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.counts: Counter[str] = Counter()

    def read(self, name: str) -> bytes:
        self.counts[name] += 1
        return super().read(name)


def test_a_table_has_a_row_for_each_state_and_checkpoint(tmp_path: Path) -> None:
    trend = filled(tmp_path, 3).inspect.trend()
    rows = trend.to_arrow().to_pylist()
    assert len(rows) == 12
    assert rows[0]["checkpoint_id"] == 1
    assert {(row["operator"], row["state"]) for row in rows} == {
        (one.operator, one.state) for one in trend.states
    }
    assert "3 checkpoints, 1 to 3" in repr(trend)
    assert "offsets" in trend._repr_html_()


def test_an_empty_store_has_an_empty_trend(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    take(store, 1)
    (tmp_path / manifest_path(1)).unlink()
    trend = store.inspect.trend(size_bytes=1)
    assert (trend.checkpoints, trend.states, trend.reaches) == ((), (), None)
    assert repr(trend) == "StoreTrend(no checkpoints)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last": 0}, "last must be above 0"),
        ({"size_bytes": 0}, "size_bytes must be above 0"),
        ({"restore_time": "0"}, "restore_time must be above 0"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"state": "s"}, "state 's' requires its operator"),
    ],
)
def test_invalid_arguments(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    store = filled(tmp_path, 1)
    with pytest.raises(InvalidArgumentError, match=message):
        store.inspect.trend(**options)


def test_an_unknown_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateNotFoundError, match="no kept checkpoint has this state"):
        filled(tmp_path, 2).inspect.trend("u", "nothing")


def test_the_age_of_a_state_without_files_may_be_longer(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", table(1).slice(1), key="k", max_parallelism=GROUPS)
    newest = store.inspect.trend().states[0].newest
    assert (newest.age_ms, newest.is_least_age) == (0, True)
