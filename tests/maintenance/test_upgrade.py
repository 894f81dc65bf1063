"""``upgrade``: older releases can no longer write, no checkpoint changes, and it can be undone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Claim, Fence, Upgrade, claim_from_json, claim_to_json
from statestore.cli.main import main
from statestore.errors import (
    CommitConflictError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateStoreError,
)
from statestore.format.documents import document_bytes
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, over
from tests.support.stores import opened
from tests.support.writers import claims, take

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with one checkpoint."""
    made = opened(str(tmp_path / "store"))
    take(made, 1)
    return made


def files_of(url: str) -> dict[str, bytes]:
    """Return each file of a store, without the claims."""
    return {
        str(path.relative_to(url)): path.read_bytes()
        for path in Path(url).rglob("*")
        if path.is_file() and path.parent.name != "writers"
    }


def version_of(url: str) -> int:
    """Return the writer version of a store."""
    return claims(url)[-1].writer_version


def test_an_upgrade_adds_claims_alone_and_is_inherited(store: StateStore) -> None:
    before = files_of(store.url)
    planned = opened(store.url).maintenance.upgrade(dry_run=True)
    assert (planned.previous_version, planned.writer_version) == (1, 2)
    assert planned.is_changed
    assert len(claims(store.url)) == 1
    done = opened(store.url).maintenance.upgrade()
    assert (done.previous_version, done.writer_version) == (1, 2)
    assert done.needs_release == "0.2.0"
    assert files_of(store.url) == before
    take(opened(store.url))
    take(opened(store.url))
    versions = [(claim.generation, claim.writer_version) for claim in claims(store.url)]
    assert versions == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    again = opened(store.url).maintenance.upgrade()
    assert not again.is_changed
    assert len(claims(store.url)) == 5
    assert opened(store.url).checkpoints() == (1, 2, 3)


def test_a_store_without_writers_is_upgraded_from_the_first_version(tmp_path: Path) -> None:
    Catalog.open(LocalStorage(str(tmp_path)), create=True)
    empty = opened(str(tmp_path))
    for dry_run in (True, False):
        done = empty.maintenance.upgrade(dry_run=dry_run)
        assert (done.previous_version, done.writer_version) == (1, 2)
    assert version_of(empty.url) == 2


def test_a_store_without_an_upgrade_stays_in_the_first_version(store: StateStore) -> None:
    """The claim of a new store has the members that the first release wrote, and no others."""
    raw = Path(store.url, "writers/0000000001.json").read_bytes()
    assert list(json.loads(raw)) == [
        *("format", "format_version", "generation", "name", "token", "release"),
        *("claimed_at_ms", "announced_id", "sha256"),
    ]
    assert json.loads(raw)["format_version"] == 1
    assert not opened(store.url).maintenance.upgrade(back=True).is_changed


@pytest.mark.parametrize("back", [False, True])
def test_a_running_job_cannot_commit_after_an_upgrade(store: StateStore, back: bool) -> None:
    if back:
        opened(store.url).maintenance.upgrade()
    checkpoint = opened(store.url).snapshot(parallelism=1)
    checkpoint.__enter__().carry_rest()
    opened(store.url).maintenance.upgrade(back=back)
    with pytest.raises(CommitConflictError, match="taken over"):
        checkpoint.__exit__(None, None, None)
    assert opened(store.url).checkpoints() == (1,)
    take(opened(store.url))
    assert opened(store.url).checkpoints() == (1, 2)


def test_an_upgrade_is_undone_until_a_checkpoint_is_committed(store: StateStore) -> None:
    before = files_of(store.url)
    opened(store.url).maintenance.upgrade()
    undone = opened(store.url).maintenance.upgrade(back=True)
    assert (undone.previous_version, undone.writer_version) == (2, 1)
    assert version_of(store.url) == 1
    assert files_of(store.url) == before
    opened(store.url).maintenance.upgrade()
    take(opened(store.url))
    count = len(claims(store.url))
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="cannot be undone: checkpoint 2"):
            opened(store.url).maintenance.upgrade(back=True, dry_run=dry_run)
    assert len(claims(store.url)) == count
    assert version_of(store.url) == 2


def test_a_checkpoint_between_the_check_and_the_claim_prevents_the_undoing(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(store.url).maintenance.upgrade()
    claim = Fence.claim
    committed: list[int] = []

    def late(self: Fence, **arguments: Any) -> Claim:
        if not committed:
            committed.append(0)
            committed.append(take(opened(store.url)).id)
        return claim(self, **arguments)

    monkeypatch.setattr(Fence, "claim", late)
    with pytest.raises(InvalidArgumentError, match="cannot be undone: checkpoint 2"):
        opened(store.url).maintenance.upgrade(back=True)
    assert version_of(store.url) == 2


@pytest.mark.parametrize("back", [False, True])
def test_the_version_does_not_change_while_an_announced_checkpoint_is_missing(
    store: StateStore, back: bool
) -> None:
    if back:
        opened(store.url).maintenance.upgrade()
    fence = Fence(LocalStorage(store.url), release="test")
    fence.claim()
    fence.announce(10)
    with pytest.raises(InvalidArgumentError, match="checkpoint 10 is announced but missing"):
        opened(store.url).maintenance.upgrade(back=back)
    assert version_of(store.url) == (2 if back else 1)
    assert take(opened(store.url)).id >= 10
    if not back:
        assert opened(store.url).maintenance.upgrade().is_changed


def test_of_two_upgrades_at_once_one_wins_and_the_other_says_so(store: StateStore) -> None:
    both = Barrier(2)

    def run(_: int) -> str:
        mine = opened(store.url)
        both.wait()
        try:
            return str(mine.maintenance.upgrade().writer_version)
        except CommitConflictError as error:
            return error.kind

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(run, range(2))]
    assert set(found) <= {"2", "commit-conflict"}
    assert "2" in found
    assert version_of(store.url) == 2
    raised = [claim.upgrade.generation for claim in claims(store.url) if claim.upgrade]
    assert len(set(raised)) == 1


@pytest.mark.long_cases("False")
@pytest.mark.parametrize("back", [False, True])
def test_an_upgrade_that_fails_at_any_call_can_be_run_again(tmp_path: Path, back: bool) -> None:
    """I10: at any storage call, whether or not the call took effect."""
    take(opened(str(tmp_path / "whole")), 1)
    if back:
        opened(str(tmp_path / "whole")).maintenance.upgrade()
    counted = LocalStorage(str(copy_of(tmp_path / "whole", tmp_path / "calls")))
    calls = calls_of(counted, lambda storage: over(storage).maintenance.upgrade(back=back))
    assert [call.operation for call in calls].count("put_if_absent") == 2
    for call in calls:
        for kind in (FaultKind.ERROR, FaultKind.ANSWER_LOST):
            url = str(copy_of(tmp_path / "whole", tmp_path / "store"))
            before = files_of(url)
            faulty = FaultyStorage(LocalStorage(url), Fault(call.number, kind))
            with suppress(StateStoreError):
                over(faulty).maintenance.upgrade(back=back)
            assert files_of(url) == before, call
            assert version_of(url) in (1, 2)
            again = opened(url).maintenance.upgrade(back=back)
            assert again.writer_version == version_of(url) == (1 if back else 2)
            assert opened(url).maintenance.verify("all", deep=True).is_intact
            take(opened(url))


def test_a_damaged_claim_does_not_lose_the_writer_version(store: StateStore) -> None:
    """The upgrade's own claim counts, and so does a later one."""
    opened(store.url).maintenance.upgrade()
    take(opened(store.url))
    newest = max(Path(store.url, "writers").iterdir())
    newest.write_bytes(newest.read_bytes()[:25])
    assert opened(store.url).maintenance.repair().left == ()
    raw = max(Path(store.url, "writers").iterdir()).read_bytes()
    repaired = claim_from_json(raw, name="claim", generation=int(newest.stem) + 1)
    assert repaired.writer_version == 2
    assert repaired.upgrade == Upgrade(generation=3, previous_version=1)


def test_a_claim_of_an_upgraded_store_survives_a_round_trip() -> None:
    claim = Claim(
        generation=3,
        name="host:1",
        token="t",
        release="0.2.0",
        claimed_at_ms=0,
        announced_id=7,
        writer_version=2,
        upgrade=Upgrade(generation=2, previous_version=1),
    )
    raw = claim_to_json(claim)
    assert claim_from_json(raw, name="c", generation=3) == claim
    document = json.loads(raw)
    del document["sha256"]
    assert document["needs_release"] == "0.2.0"
    for upgrade in (
        None,
        {"generation": 4, "previous_version": 1},
        {"generation": 0, "previous_version": 1},
        {"generation": 2, "previous_version": 2},
    ):
        raw = document_bytes(document | {"upgrade": upgrade})
        with pytest.raises(MalformedManifestError, match=r"\.upgrade"):
            claim_from_json(raw, name="c", generation=3)
    raw = document_bytes(document | {"format_version": 1})
    with pytest.raises(MalformedManifestError, match=r"\.upgrade"):
        claim_from_json(raw, name="c", generation=3)


@pytest.mark.parametrize("needs", ["0.9.0", None])
def test_a_newer_writer_version_is_refused_with_the_release_that_knows_it(
    store: StateStore, needs: str | None
) -> None:
    path = Path(store.url, "writers/0000000001.json")
    document = json.loads(path.read_bytes()) | {"format_version": 3}
    del document["sha256"]
    path.write_bytes(document_bytes(document | ({"needs_release": needs} if needs else {})))
    with pytest.raises(FormatVersionError, match="format version 3") as caught:
        take(opened(store.url))
    assert ("statestore 0.9.0 or later is needed" in str(caught.value)) is (needs is not None)
    with pytest.raises(FormatVersionError):
        opened(store.url).maintenance.upgrade()


def test_the_command_reports_the_versions(
    store: StateStore, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--store", store.url, "upgrade"]
    assert main([*at, "--dry-run"]) == 0
    assert "would change the writer version" in capsys.readouterr().out
    assert main([*at, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["previous_version"], found["writer_version"]) == (1, 2)
    assert found["is_changed"]
    assert main(at) == 0
    assert "has writer version 2 already" in capsys.readouterr().out
    take(opened(store.url))
    assert main([*at, "--back"]) == InvalidArgumentError.exit_code
    assert "cannot be undone" in capsys.readouterr().err
