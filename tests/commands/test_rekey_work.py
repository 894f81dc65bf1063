"""A rekey that is ended, or fails: what stays, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.commands import rekey as command
from statestore.errors import CommitConflictError, CorruptionError, InvalidArgumentError
from statestore.table import respread
from statestore.table.arrow import by_key_group

Rows = list[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)


@pytest.fixture
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respread, "_RANGE_BYTES", 4096)


def put(store: StateStore, rows: Rows) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "s", rows, key="k", max_parallelism=8)


def data(store: StateStore) -> set[str]:
    return {path.name for path in Path(store.url).rglob("*.parquet")}


def plain(rows: Rows) -> list[str]:
    return sorted(repr((row["k"], row["v"])) for row in rows)


def rows_of(store: StateStore) -> Rows:
    state = store.restore(parallelism=1).keyed("u", "s")
    rows: Rows = state.subtask(0).read_all().to_pylist()
    return rows


class Ended(BaseException):
    """What ends a process, and no error of ours."""


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Let a run end before it writes its n-th range; return the ranges that were written."""
    real = respread.write_range

    def set_to(left: int) -> list[int]:
        written: list[int] = []

        def ended(folder: Path, number: int, *rest: Any) -> Any:
            if len(written) == left:
                raise Ended
            written.append(number)
            return real(folder, number, *rest)

        monkeypatch.setattr(command, "write_range", ended)
        return written

    return set_to


@pytest.mark.usefixtures("many_ranges")
def test_a_run_that_was_ended_goes_on(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    rows = [{"k": f"k{i}", "v": i} for i in range(200)]
    put(store, rows)
    work, wanted = tmp_path / "work", {"max_parallelism": 40}
    seen: list[int] = []
    ends = 0
    for left in (0, 1, 2, 100):
        written = ending(left)
        try:
            done = store.rekey("u", work=work, **wanted)  # type: ignore[arg-type]
        except Ended:
            ends += 1
            assert store.checkpoints() == (1,)
        seen += written
    assert ends == 3
    assert seen == sorted(set(seen))  # none was written twice
    assert len(seen) > 4
    assert list(work.iterdir()) == []
    assert store.checkpoints() == (1, done.new_checkpoint_id)
    assert plain(rows_of(store)) == plain(rows)
    report = store.verify("all", deep=True)
    assert (report.is_sound, report.strays) == (True, ())


@pytest.mark.usefixtures("many_ranges")
def test_files_that_were_collected_meanwhile_are_written_again(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    rows = [{"k": f"k{i}", "v": i} for i in range(200)]
    put(store, rows)
    ending(3)
    with pytest.raises(Ended):
        store.rekey("u", max_parallelism=40, work=tmp_path / "work")
    store.gc(minimum_age_s=0)
    ending(100)
    store.rekey("u", max_parallelism=40, work=tmp_path / "work")
    assert plain(rows_of(store)) == plain(rows)
    assert store.verify("latest", deep=True).is_sound


@pytest.mark.usefixtures("many_ranges")
def test_without_a_working_folder_an_ended_run_leaves_no_file(
    store: StateStore, ending: Callable[[int], list[int]]
) -> None:
    put(store, [{"k": f"k{i}", "v": i} for i in range(200)])
    files = data(store)
    ending(3)
    with pytest.raises(Ended):
        store.rekey("u", max_parallelism=40)
    assert data(store) == files


def test_a_working_folder_is_of_one_run(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    put(store, [{"k": 1, "v": 1}])
    work = tmp_path / "work"
    ending(0)
    with pytest.raises(Ended):
        store.rekey("u", max_parallelism=40, work=work)
    with pytest.raises(InvalidArgumentError, match="working folder of another rekey"):
        store.rekey("u", max_parallelism=41, work=work)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        store.rekey("u", max_parallelism=41, work=tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").read_text() == "mine"


def test_rows_that_are_not_the_same_are_not_committed(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [{"k": i, "v": i} for i in range(50)])
    files = data(store)
    real = by_key_group

    def losing(rows: pa.Table) -> pa.Table:
        return real(rows).slice(1)

    monkeypatch.setattr(respread, "by_key_group", losing)
    with pytest.raises(CorruptionError, match=r"50 rows with digest .*, then 49 rows with digest"):
        store.rekey("u", max_parallelism=5)
    assert (store.checkpoints(), data(store)) == ((1,), files)


def test_a_writer_that_was_replaced_commits_nothing(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [{"k": 1, "v": 1}])
    real = respread.write_range

    def meanwhile(*given: Any) -> Any:
        put(StateStore.open(store.url, table_format="parquet", compaction=None), [{"k": 2, "v": 2}])
        return real(*given)

    monkeypatch.setattr(command, "write_range", meanwhile)
    with pytest.raises(CommitConflictError):
        store.rekey("u", max_parallelism=5)
    assert [row["k"] for row in rows_of(store)] == [2]
    assert store.verify("all").strays == ()
