"""``repair``: a store that no writer could use works again, and no writer is admitted wrongly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.catalog.fence import claim_from_json
from statestore.cli.main import main
from statestore.errors import (
    CommitConflictError,
    CorruptionError,
    MalformedManifestError,
    StateStoreError,
    StoreNotFoundError,
)
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import over
from tests.support.stores import file_bytes, opened
from tests.support.writers import take

pytestmark = pytest.mark.slow

Damage = Callable[[Path], object]


def flipped(path: Path, at: int = 30) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:25])


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = opened(str(tmp_path / "store"))
    for number in (1, 2, 3):
        take(made, number)
    return made


def again(store: StateStore) -> StateStore:
    return opened(store.url)


def claim_of(store: StateStore, generation: int) -> Any:
    raw = Path(store.url, f"writers/{generation:010}.json").read_bytes()
    return claim_from_json(raw, name="claim", generation=generation)


@pytest.mark.parametrize("damage", [flipped, cut, Path.unlink])
def test_a_store_file_is_rebuilt(store: StateStore, damage: Damage) -> None:
    """It is identical byte for byte. Its content comes from its checksum or from the
    checkpoints.
    """
    file = Path(store.url, "statestore.json")
    before = file.read_bytes()
    damage(file)
    with pytest.raises(StateStoreError, match="repair"):
        again(store).checkpoints()
    with pytest.raises(StateStoreError, match="repair"):
        take(again(store), 4)
    damaged = file.read_bytes() if file.exists() else None
    planned = again(store).maintenance.repair(dry_run=True)
    assert (file.read_bytes() if file.exists() else None) == damaged
    done = again(store).maintenance.repair()
    assert (done.repaired, done.left) == (planned.repaired, ())
    assert [one.file for one in done.repaired] == ["statestore.json"]
    if damage is flipped:
        assert file.read_bytes() == before
    assert json.loads(file.read_bytes())["store_id"] == json.loads(before)["store_id"]
    take(again(store), 4)
    assert again(store).checkpoints() == (1, 2, 3, 4)
    assert again(store).maintenance.repair().repaired == ()


def test_a_store_file_that_cannot_be_rebuilt_is_left(tmp_path: Path) -> None:
    """A folder that is not a store is an error, and nothing is created there."""
    store = opened(str(tmp_path / "store"))
    take(store, 1)
    for path in Path(store.url, "checkpoints").iterdir():
        path.write_bytes(b"?")
    cut(Path(store.url, "statestore.json"))
    before = file_bytes(store.url)
    done = again(store).maintenance.repair()
    assert (done.repaired, [one.file for one in done.left]) == ((), ["statestore.json"])
    assert before.items() <= file_bytes(store.url).items()
    assert main(["--store", store.url, "repair"]) == CorruptionError.exit_code
    with pytest.raises(StoreNotFoundError):
        StateStore.open(str(tmp_path / "nothing")).maintenance.repair()
    assert not (tmp_path / "nothing").exists()


def test_a_damaged_claim_is_followed_by_the_next_one(store: StateStore) -> None:
    """I6: the damaged claim stays unchanged. The next claim repeats its announced id, and the
    active job can no longer commit.
    """
    job = again(store).snapshot(parallelism=2, checkpoint_id=50).__enter__()  # this announces id 50
    job.carry_rest()
    newest = max(Path(store.url, "writers").iterdir())
    generation = int(newest.stem)
    assert claim_of(store, generation).announced_id == 50
    flipped(newest)
    damaged = newest.read_bytes()
    with pytest.raises(MalformedManifestError, match="repair"):
        take(again(store))
    done = again(store).maintenance.repair()
    assert [one.file for one in done.repaired] == [f"writers/{newest.name}"]
    assert newest.read_bytes() == damaged
    assert claim_of(store, generation + 1).announced_id == 50
    assert take(again(store)).id == 50  # never below an id that the other writer may still put
    with pytest.raises(CommitConflictError):
        job.__exit__(None, None, None)
    assert again(store).checkpoints() == (1, 2, 3, 50)
    assert again(store).maintenance.repair().repaired == ()


def test_ids_jump_if_the_announced_id_is_unknown(store: StateStore) -> None:
    """I6: the new id is greater than any id that a job may have requested."""
    newest = max(Path(store.url, "writers").iterdir())
    cut(newest)
    done = again(store).maintenance.repair()
    assert "9,000,000,000" in done.repaired[0].what
    assert take(again(store)).id == 9_000_000_000
    assert take(again(store)).id == 9_000_000_001


def test_only_one_of_two_repairs_claims(store: StateStore) -> None:
    """The other one finds nothing to repair. A repair of an intact store claims nothing."""
    assert again(store).maintenance.repair().repaired == ()
    writers = Path(store.url, "writers")
    flipped(max(writers.iterdir()))
    before = len(list(writers.iterdir()))
    first, second = again(store), again(store)
    first.maintenance.repair()
    second.maintenance.repair()
    assert len(list(writers.iterdir())) == before + 1


@pytest.mark.long_cases("flipped-statestore.json", "cut-writers")
@pytest.mark.parametrize("file", ["statestore.json", "writers"])
@pytest.mark.parametrize("damage", [flipped, cut])
def test_a_repair_that_fails_anywhere_can_be_run_again(
    tmp_path: Path, file: str, damage: Damage
) -> None:
    """I10: at any storage call, whether or not the call took effect."""

    take(opened(str(tmp_path / "whole")), 1)

    def damaged(name: str) -> LocalStorage:
        folder = shutil.copytree(tmp_path / "whole", tmp_path / name)
        place = folder / file
        damage(place if place.is_file() else max(place.iterdir()))
        return LocalStorage(str(folder))

    calls = calls_of(damaged("calls"), lambda storage: over(storage).maintenance.repair())
    assert len(calls) > 3
    for call in calls:
        for kind in (FaultKind.ERROR, FaultKind.ANSWER_LOST):
            storage = damaged(f"{call.number}-{kind.name}")
            with suppress(StateStoreError):
                over(FaultyStorage(storage, Fault(call.number, kind))).maintenance.repair()
            store = opened(storage.url)
            assert store.maintenance.repair().left == ()
            assert store.checkpoints() == (1,)
            take(store)


def test_the_command_reports_the_repair(
    store: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    flipped(Path(store.url, "statestore.json"))
    assert main(["--store", store.url, "repair", "--dry-run"]) == 0
    assert "would repair 1 file" in capsys.readouterr().out
    assert main(["--store", store.url, "repair", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["repaired"][0]["file"] == "statestore.json"
    assert found["left"] == []
