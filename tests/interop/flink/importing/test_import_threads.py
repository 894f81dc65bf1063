"""Threads import a savepoint, each with a range of key groups, and the checkpoint is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import DamagedFileError, InvalidArgumentError
from statestore.interop.flink import ImportedSavepoint, import_savepoint
from statestore.interop.flink.options import SavepointHints
from statestore.interop.flink.types.java_types import Scalar
from statestore.jobgraph.operators import operator_id
from statestore.keys.hashing import key_group_of
from tests.interop.flink.goldens import Golden
from tests.interop.flink.importing.test_import import CANONICAL, imported
from tests.interop.flink.written import GROUPS, written_savepoint

pytestmark = pytest.mark.slow

LONG = Scalar("Long")
KEYS = list(range(1000))
UIDS = {operator_id("big"): "big"}
NAMES = ("2.3_heap_canonical", "2.3_rocksdb_incremental", "2.3_heap_native", "2.3_sql")


def rows_of(store: StateStore, done: ImportedSavepoint) -> dict[tuple[str, str], list[Any]]:
    """Return all rows of keyed states, in order of key group and key."""
    restored = store.restore()
    found: dict[tuple[str, str], list[Any]] = {}
    for one in (one for one in done.record.states if one.is_keyed):
        state = restored.keyed(one.operator, one.state)
        subtasks = range(restored.parallelism_of(one.operator))
        found[one.operator, one.state] = [
            row for at in subtasks for row in state.to_arrow(at).to_pylist()
        ]
    return found


IN_EACH_RUN = {("2.3_heap_native", 3)}


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        pytest.param(
            name, threads, marks=[] if (name, threads) in IN_EACH_RUN else pytest.mark.long
        )
        for name in NAMES
        for threads in (2, 3)
    ],
)
def test_any_number_of_threads_makes_the_same_checkpoint(
    name: str, threads: int, tmp_path: Path
) -> None:
    golden = Golden(name)
    store, alone = imported(golden, tmp_path, threads=1)
    rows = rows_of(store, alone)
    other = StateStore.open(str(tmp_path / "of threads"), table_format="parquet")
    store, done = imported(golden, tmp_path, other, threads=threads)
    assert done.record == alone.record  # includes the count and digest of each state's rows
    assert repr(rows_of(store, done)) == repr(rows)  # NaN does not equal itself


@pytest.mark.long
def test_an_incremental_import_is_the_same_too(tmp_path: Path) -> None:
    found = []
    for threads in (1, 3):
        folder, some = tmp_path / str(threads), ["by_long"]
        store, _ = imported(CANONICAL, folder, operators=some, threads=threads)
        _, done = imported(Golden("2.3_rescaled"), folder, store, operators=some, threads=threads)
        assert done.is_incremental
        found.append((done.record.states, rows_of(store, done)))
    assert found[0] == found[1]


@pytest.mark.long_cases("wrong1", "wrong2", "wrong3")
@pytest.mark.parametrize("wrong", [[10], [100], [10, 100], [63, 64]])
def test_an_error_in_any_range_leaves_no_checkpoint(wrong: list[int], tmp_path: Path) -> None:
    """The error equals that of a single thread."""
    groups = {key: key_group_of(key, max_parallelism=GROUPS) for key in KEYS}
    for group in wrong:  # one of its keys is in the next one
        key = next(key for key in KEYS if groups[key] == group)
        groups[key] = (group + 1) % GROUPS
    place = written_savepoint(
        tmp_path / "w", LONG, pa.array(KEYS), KEYS, groups=[groups[key] for key in KEYS]
    )
    said = set()
    for threads in (1, 2, 3):
        store = StateStore.open(str(tmp_path / str(threads)), table_format="parquet")
        with pytest.raises(DamagedFileError, match="are in the wrong key group") as caught:
            import_savepoint(str(place), store, threads=threads, hints=SavepointHints(uids=UIDS))
        said.add(str(caught.value).partition("the first in")[2])
        assert not list((tmp_path / str(threads)).rglob("*.parquet"))
        assert not list((tmp_path / str(threads)).rglob("checkpoints/*.json"))
    assert len(said) == 1


@pytest.mark.parametrize("threads", [0, -1, 65, True, 1.5, "2"])
def test_an_invalid_number_of_threads_is_refused(threads: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"threads must be in 1\.\.64"):
        imported(CANONICAL, tmp_path, threads=threads)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("threads", [2, 3])
def test_progress_of_threads_is_summed(threads: int, tmp_path: Path) -> None:
    told: list[float] = []
    imported(
        CANONICAL,
        tmp_path,
        operators=["by_long"],
        threads=threads,
        on_progress=lambda done, total, what: told.append(done),
    )
    assert told == sorted(told)
    assert {0, 1, 2, 3, 4} <= {*told}
    assert sum(0 < share < 1 for share in told) > 50
