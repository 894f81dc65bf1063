"""A verification looks at layers of changes as at any file, and at a shared file once."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.format.layers import CompactionRule
from statestore.maintenance import verify
from statestore.maintenance.verify import FileCheck, Flaws, check_file
from statestore.store import StateStore
from tests.support.cared import break_file, history, layer_file, names_of, state_of
from tests.support.layered import Layered


@pytest.fixture
def taken(tmp_path: Path) -> Layered:
    return history(tmp_path / "store")


@pytest.mark.parametrize("rule", [None, CompactionRule(merge_layers=2)])
def test_changes_as_they_were_written_are_intact(tmp_path: Path, rule: Any) -> None:
    taken = history(tmp_path / "store", 6, compaction=rule)
    for deep in (False, True):
        report = taken.store.maintenance.verify("all", deep)
        assert report.broken == ()
        if rule is None:  # of a layer that is merged at once the file is named by nothing
            assert report.strays == ()


@pytest.mark.parametrize("kind", ["list", "timers"])
def test_a_delete_of_a_key_names_no_entry_and_is_no_flaw(tmp_path: Path, kind: str) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet", compaction=None)
    rows = pa.table({"k": ["a", "a", "b"], "at": pa.array([1, 2, 1], pa.int64()), "v": [1, 2, 3]})
    options: dict[str, Any] = {"key": "k", "max_parallelism": 4}
    options |= {"kind": kind, "entry": "at"}
    options |= {"time_domain": "event"} if kind == "timers" else {}
    for changed in (False, True):
        with store.snapshot(parallelism=1) as checkpoint:
            if not changed:
                checkpoint.keyed("u", "s", rows, **options)
            else:
                checkpoint.changes("u", "s", rows.slice(2), cleared=[{"k": "a"}])
    assert state_of(store).changed_rows == 2
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_shared_file_is_checked_once_and_reported_for_all_that_name_it(
    taken: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = layer_file(taken.store, 1)  # of checkpoint 3, which 4 and 5 name too
    break_file(taken.store, name)
    checked: Counter[str] = Counter()

    def check(one: FileCheck) -> Flaws | None:
        checked[f"{one.entry.table.path}/{one.handle.path}"] += 1
        return check_file(one)

    monkeypatch.setattr(verify, "check_file", check)
    heard: list[tuple[int, int]] = []
    report = taken.store.maintenance.verify("all", True, on_progress=lambda *now: heard.append(now))
    every = {file for number in taken.taken for file in names_of(taken.store, number)}
    assert checked == dict.fromkeys(every, 1)
    assert report.files == len(every)
    assert heard[-1] == (len(every), len(every))
    assert [(one.checkpoint_id, one.file) for one in report.broken] == [
        (n, name) for n in (3, 4, 5)
    ]
    assert {(one.uid, one.state) for one in report.broken} == {("u", "s")}


@pytest.mark.parametrize("deep", [False, True])
def test_a_layer_that_is_missing_is_named(taken: Layered, deep: bool) -> None:
    Path(taken.store.url, layer_file(taken.store, 0)).unlink()
    report = taken.store.maintenance.verify("latest", deep)
    assert [(one.kind, one.file) for one in report.broken] == [
        ("missing-file", layer_file(taken.store, 0))
    ]


def test_a_layer_in_the_place_of_another_is_found(taken: Layered) -> None:
    first, second = (Path(taken.store.url, layer_file(taken.store, place)) for place in (0, 1))
    shutil.copyfile(first, second)
    assert not taken.store.maintenance.verify("latest", True).is_intact


def test_strays_are_found_beside_changes_also_when_no_layer_is_left(taken: Layered) -> None:
    stray = "operators/u/changes/s/0000000099-00000-left.parquet"
    shutil.copyfile(Path(taken.store.url, layer_file(taken.store, 0)), Path(taken.store.url, stray))
    assert taken.store.maintenance.verify("latest").strays == (stray,)
    number = taken.full(taken.rows)
    assert taken.store.maintenance.verify(number).strays == (stray,)
