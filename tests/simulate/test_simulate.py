"""A sample of the schedules, and tests of the simulator.

It finds intentional defects, and every defect that it has found before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Claim, Fence
from statestore.catalog.holds import Holds
from statestore.format.manifest import Batch, Manifest
from statestore.layers import merge
from statestore.maintenance import erase_search, gc, rekey
from statestore.maintenance.copy import FileCopy
from statestore.maintenance.erase_subject import ColumnSubject, KeySubject
from statestore.snapshot import writer
from statestore.snapshot.pending_checkpoint import PriorCheckpoints
from statestore.storage import LocalStorage, local
from tests.simulate.bucket import SimulatedS3
from tests.simulate.disk import Disk
from tests.simulate.known import KNOWN, Known, shown_by
from tests.simulate.plans import MIXES, drawn
from tests.simulate.run import main, run_schedules
from tests.simulate.scheduler import Scheduler
from tests.simulate.shrink import shrunk
from tests.simulate.simulation import simulate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_threads")]


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.long)])
def test_a_sample_of_the_schedules(count: int) -> None:
    """I4, I5, I6, I9, I10; `make simulate` runs more."""
    counts, calls, wrong = run_schedules(range(count), tuple(MIXES), most_wrong=count)
    assert counts.total() == count
    assert calls > 50 * count
    assert [(seed, mix, one.wrong) for seed, mix, one in wrong] == []


@pytest.mark.long
def test_a_seed_always_gives_the_same_run() -> None:
    for seed in range(1, 6):
        _, plan, _ = drawn(seed)
        runs = [simulate(plan, drawn(seed)[2], trace=True) for _ in range(2)]
        assert runs[0].trace == runs[1].trace
        assert len(runs[0].trace) == runs[0].calls
        again = simulate(runs[0].plan, trace=True)
        assert (again.trace, again.wrong) == (runs[0].trace, runs[0].wrong)


@pytest.mark.long
@pytest.mark.parametrize("known", KNOWN, ids=lambda one: one.name)
def test_a_known_defect_does_not_occur(known: Known) -> None:
    found = shown_by(known)
    assert found is None, f"{found.wrong}\n{found.plan}"


def broken_fence(patch: pytest.MonkeyPatch) -> None:
    """A replaced writer continues."""
    patch.setattr(Fence, "check", lambda self: None)
    patch.setattr(Fence, "check_after_put", lambda self, checkpoint_id: None)


def broken_mark(patch: pytest.MonkeyPatch) -> None:
    """Savepoints and pins do not protect their checkpoints."""
    patch.setattr(Holds, "held", lambda self, now_ms, listed=(): {})


def broken_ages(patch: pytest.MonkeyPatch) -> None:
    """Young files of active writers are collected."""
    patch.setattr(gc, "is_old", lambda *_: True)


def broken_sweep(patch: pytest.MonkeyPatch) -> None:
    """Manifests of expired checkpoints stay."""
    of = gc._ExpiredFiles.of
    patch.setattr(gc._ExpiredFiles, "of", lambda *given: replace(of(*given), without_files=()))


def broken_changes(patch: pytest.MonkeyPatch) -> None:
    """A change of a key that the base has is ignored."""
    real = merge._apply_changes

    def keep_base(rows: pa.Table, *given: Any) -> pa.Table:
        base, merged = {row["k"]: row for row in rows.to_pylist()}, real(rows, *given)
        return pa.Table.from_pylist(
            [base.get(row["k"], row) for row in merged.to_pylist()], merged.schema
        )

    patch.setattr(merge, "_apply_changes", keep_base)


def broken_look(patch: pytest.MonkeyPatch) -> None:
    """An actor that holds a checkpoint does not check whether it has expired meanwhile."""
    patch.setattr(Holds, "_check_still_visible", lambda self, path, visible: None)


def broken_sync(patch: pytest.MonkeyPatch) -> None:
    """Data files are not synced."""
    patch.setattr(LocalStorage, "sync", lambda self, names: None)


def broken_put(patch: pytest.MonkeyPatch) -> None:
    """The folder is not synced after a put."""
    real = local.sync_path
    patch.setattr(local, "sync_path", lambda path: None if path.is_dir() else real(path))


def broken_base(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is committed although its base is no longer the newest checkpoint."""
    real = Catalog.refuse_taken
    patch.setattr(Catalog, "refuse_taken", lambda self, number, *_: real(self, number))


def broken_claim(patch: pytest.MonkeyPatch) -> None:
    """A writer compares the generation of its claim, but not its token."""
    patch.setattr(
        Fence, "_is_replaced", lambda self, mine, _: self._claim_at(mine.generation + 1) is not None
    )


def broken_version(patch: pytest.MonkeyPatch) -> None:
    """A claim does not inherit the writer version of an upgraded store."""
    real = Fence._parse

    def first_version(self: Fence, generation: int, raw: bytes) -> Claim:
        return replace(real(self, generation, raw), writer_version=1, upgrade=None)

    patch.setattr(Fence, "_parse", first_version)


def broken_batches(patch: pytest.MonkeyPatch) -> None:
    """A batch counts as committed if there is a checkpoint with the next number."""

    def done(catalog: Catalog, batch: Batch, visible: Sequence[int]) -> Manifest | None:
        return catalog.load_header(batch.number + 1) if batch.number + 1 in visible else None

    patch.setattr(writer, "_find_by_record", done)


def broken_purge(patch: pytest.MonkeyPatch) -> None:
    """A purge identifies the operator by its label instead of its id."""
    patch.setattr(KeySubject, "includes", lambda self, manifest, state: state.uid == self.operator)


def broken_forget(patch: pytest.MonkeyPatch) -> None:
    """A subject is searched only in the newest checkpoint."""
    real = ColumnSubject.__init__

    def noted(self: ColumnSubject, values: Any, manifests: Sequence[Manifest]) -> None:
        real(self, values, manifests)
        patch.setattr(
            ColumnSubject, "includes", lambda self, manifest, state: manifest == manifests[-1]
        )

    patch.setattr(ColumnSubject, "__init__", noted)


def broken_search(patch: pytest.MonkeyPatch) -> None:
    """A search reads only documents."""
    patch.setattr(erase_search._Search, "_add_rows", lambda self, name: None)


def broken_labels(patch: pytest.MonkeyPatch) -> None:
    """Changes build on the state with the operator's label, instead of its id."""
    patch.setattr(
        PriorCheckpoints,
        "keyed_in",
        lambda self, manifest, uid, name: manifest.keyed_entry(uid, name),
    )


def broken_youth(patch: pytest.MonkeyPatch) -> None:
    """A shared file has the same age in the new store as in the other one."""

    def linked(old: Path, new: Path, **_: bool) -> bool:
        new.parent.mkdir(parents=True, exist_ok=True)
        os.link(old, new)
        return True

    patch.setattr(local, "_young_link", linked)


def broken_names(patch: pytest.MonkeyPatch) -> None:
    """A copy or rekey references the leftovers of another one."""
    for storage in (LocalStorage, SimulatedS3):
        patch.setattr(storage, "renew", lambda self, old, new: True)
    real = FileCopy._renew_file
    patch.setattr(FileCopy, "_renew_file", lambda *given: real(*given) and given[1])
    patch.setattr(rekey, "new_name", lambda handle, number: handle.path)


@pytest.mark.search_program
@pytest.mark.parametrize(
    ("break_it", "mix", "seed"),
    [
        (broken_fence, "jobs", 1),
        (broken_mark, "keepers", 1),
        pytest.param(broken_ages, "busy", 50, marks=pytest.mark.long),
        (broken_sweep, "several states", 5),
        (broken_changes, "several states", 1),
        (broken_look, "holders", 1),
        (broken_sync, "power", 1),
        (broken_put, "power", 1),
        pytest.param(broken_base, "at once", 1, marks=pytest.mark.long),
        (broken_claim, "brought back", 1),
        (broken_version, "upgraded", 1),
        (broken_batches, "batches", 1),
        pytest.param(broken_purge, "renamed", 1, marks=pytest.mark.long),
        pytest.param(broken_forget, "forgets", 1, marks=pytest.mark.long),
        pytest.param(broken_search, "forgets", 1, marks=pytest.mark.long),
        (broken_labels, "renamed", 1),
    ],
)
def test_each_intentional_defect_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None],
    mix: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_it(monkeypatch)
    found = _first(range(seed, seed + 200), mix)
    assert found is not None
    monkeypatch.undo()
    assert _first(range(found, found + 1), mix) is None, "it is there without the fault too"


@pytest.mark.parametrize(
    ("break_it", "who"),
    [(broken_youth, "a fork"), (broken_names, "a copy"), (broken_names, "a rekey")],
)
def test_the_plan_of_a_fixed_defect_still_reproduces_it(
    break_it: Callable[[pytest.MonkeyPatch], None], who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fix shifts the calls of a command, so the plan must be adjusted."""
    break_it(monkeypatch)
    name = f"{who} reports a checkpoint whose files a collection took"
    (known,) = (known for known in KNOWN if known.name == name)
    assert shown_by(known) is not None


def _first(seeds: range, mix: str) -> int | None:
    """Return the first seed with a violation."""
    for seed in seeds:
        if simulate(*drawn(seed, (mix,))[1:]).wrong is not None:
            return seed
    return None


@pytest.mark.search_program
def test_a_plan_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_mark(monkeypatch)
    _, _, ((_, _, found),) = run_schedules(range(1, 400), ("keepers",))
    short = shrunk(found)
    assert short.wrong is not None
    assert len(short.plan.actors) <= 3
    assert simulate(short.plan).wrong == short.wrong


def test_the_command_prints_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "3", "--seed", "5", "--mix", "keepers"]) == 0
    assert "0 wrong: 3 keepers" in capsys.readouterr().out


def test_a_power_loss(tmp_path: Path) -> None:
    """Synced files survive if the folders above them are synced; nothing else does."""
    disk = Disk(tmp_path, Scheduler(lambda *_: None))
    disk.remembers = True
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("whole")
    for path in ("a/file", "a", ".", "b/file", "."):
        descriptor = os.open(tmp_path / path, os.O_RDONLY)
        disk.sync(descriptor)
        os.close(descriptor)
    disk.lose_power(0)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"a", "a/file", "b", "c"}
    assert (tmp_path / "a/file").read_text() == "whole"


def test_a_new_file_is_not_taken_for_a_deleted_one(tmp_path: Path) -> None:
    """Some file systems give a new file the number of a deleted one."""
    disk = Disk(tmp_path, Scheduler(lambda *_: None))
    disk.remembers = True

    def sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        disk.sync(descriptor)
        os.close(descriptor)

    for number in range(20):
        path = tmp_path / f"{number}"
        path.write_text("synced")
        sync(path)
        sync(tmp_path)
        path.unlink()
        (tmp_path / "new").write_text("not synced")
        sync(tmp_path)
        disk.lose_power(0)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"new": ""}
        (tmp_path / "new").unlink()
    disk.close()


def test_a_put_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: the folders above it survive too, even if another process has created them."""
    disk = Disk(tmp_path, Scheduler(lambda *_: None))
    disk.remembers = True
    monkeypatch.setattr(os, "fsync", disk.sync)
    (tmp_path / "new/store/checkpoints").mkdir(parents=True)
    storage = LocalStorage(str(tmp_path / "new/store"))
    for name in ("statestore.json", "checkpoints/1.json", "savepoints/new/1.json"):
        assert storage.put_if_absent(name, b"x")
    with storage.open_write("operators/u/keyed/s/file") as file:
        file.write(b"x")
    storage.sync(["operators/u/keyed/s/file"])
    disk.lose_power(0)
    left = [name for folder in ("", "checkpoints", "savepoints") for name in storage.list(folder)]
    assert len(set(left)) == 4
