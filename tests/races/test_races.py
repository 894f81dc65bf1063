"""A short sample of the races, on disk and on S3, and tests of the checker."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import LateCommitError
from statestore.format.names import CHECKPOINTS
from statestore.storage import LocalStorage
from tests.linearizability.judge import violations
from tests.races.check import problems
from tests.races.history import history_of
from tests.races.plan import MOST_WRITERS, POINTS, Part, Race, Try, draw
from tests.races.run import CEPH, SEAWEEDFS, main, on_disk, on_s3, run_races
from tests.races.worker import Task, rows_of, write
from tests.servers.s3_zoo import COMPATIBLE

pytestmark = pytest.mark.slow


# A small number of races may miss the rarer outcomes.
OFTEN = {"committed", "replaced"}
RACED = (
    *(pytest.param(name, 40, marks=pytest.mark.long) for name in (SEAWEEDFS, *COMPATIBLE)),
    pytest.param(CEPH, 40, marks=[pytest.mark.long, pytest.mark.ceph]),
)
OVER_A_BAD_NETWORK = (
    *(pytest.param(name, marks=pytest.mark.long) for name in (SEAWEEDFS, *COMPATIBLE)),
    pytest.param(CEPH, marks=[pytest.mark.long, pytest.mark.ceph]),
)
OUTCOMES = {*OFTEN, "conflict", "already", "refused"}


@pytest.mark.search_program
@pytest.mark.parametrize(
    ("count", "least"), [(8, OFTEN), pytest.param(200, OUTCOMES, marks=pytest.mark.long)]
)
def test_races_on_disk(count: int, least: set[str]) -> None:
    """I4, I6; `make races` runs more."""
    with on_disk() as place:
        result = run_races(place, count, seed=2, seconds=500, verbose=False)
    assert result.problems == []
    assert result.races == count
    assert least <= set(result.outcomes) <= {*OUTCOMES, "late"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "count"),
    [(SEAWEEDFS, 2), *RACED],
)
def test_races_on_s3(server: str, count: int) -> None:
    """I4, I6: many races at a time."""
    with on_s3(server) as place:
        result = run_races(place, count, seed=2, seconds=500, verbose=False)
    assert result.problems == []
    assert result.races == count
    assert set(result.outcomes) >= OFTEN


@pytest.mark.parametrize("server", OVER_A_BAD_NETWORK)
def test_races_over_a_bad_network(server: str) -> None:
    """I4, I6: lost and late answers change no outcome."""
    with on_s3(server, over_a_bad_network=True) as place:
        result = run_races(place, 20, seed=3, seconds=500, verbose=False)
    assert result.problems == []
    assert result.races == 20
    assert set(result.outcomes) >= OFTEN


@pytest.mark.search_program
def test_the_command_prints_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--races", "3", "--seed", "5"]) == 0
    assert "3 races of" in capsys.readouterr().out


def test_a_seed_draws_the_same_race_again() -> None:
    """Over the draws, all sizes and all stalls occur."""
    races = [draw(number, 1, 0.1) for number in range(200)]
    assert races == [draw(number, 1, 0.1) for number in range(200)]
    assert {len(race.parts) for race in races} == set(range(2, MOST_WRITERS + 1))
    assert {point for race in races for part in race.parts for point in part.stalls} == set(POINTS)


# --- the checker ----------------------------------------------------------------------------------

PART = Part(writer=0, stalls={}, retries=0, reopens=True, checkpoints=1, ids=(None,))
RACE = Race(2, (PART, replace(PART, writer=1)))


def taken(url: str, race: Race, part: Part) -> list[Try]:
    return write(Task(url, {}, race.number, part, 0.0, race.table_format))[0]


def raced(url: str, race: Race = RACE) -> list[Try]:
    """Run both writers of a race, one after the other."""
    return [made for part in race.parts for made in taken(url, race, part)]


@pytest.mark.parametrize("race", [RACE, replace(RACE, number=3)], ids=["parquet", "delta"])
def test_the_checker_accepts_a_correct_race(tmp_path: Path, race: Race) -> None:
    tries = raced(str(tmp_path), race)
    assert [each.id for each in tries] == [1, 2]
    assert problems(race, tries, str(tmp_path), {}) == []


def test_the_checker_finds_a_table_version_of_another_checkpoint(tmp_path: Path) -> None:
    race = replace(RACE, number=3)
    tries = raced(str(tmp_path), race)
    log = tmp_path / "operators/races/keyed/rows/_delta_log"
    shutil.copyfile(log / f"{0:020}.json", log / f"{1:020}.json")
    assert "version 1 is not checkpoint 2" in "\n".join(problems(race, tries, str(tmp_path), {}))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"outcome": "conflict"}, "visible are"),
        ({"outcome": "conflict", "message": "no name"}, "names nobody"),
        ({"outcome": "refused"}, "was not asked for"),
        ({"digest": 1}, "is not what its writer was told"),
        ({"number": 7}, "and not the rows of"),
        ({"id": 2}, "visible are"),
        ({"asked_id": 9}, "another id"),
        ({"began": 1e12}, "came after"),
        (
            {
                "outcome": "conflict",
                "message": "checkpoint 2 of x was committed by writer me (statestore 1, "
                "generation 1)",
            },
            "names another winner",
        ),
        (
            {
                "outcome": "conflict",
                "message": "writer me (statestore 1, generation 9, since now) has taken over x",
            },
            "was replaced by nobody",
        ),
    ],
)
def test_the_checker_finds_each_false_report(
    change: dict[str, object], found: str, tmp_path: Path
) -> None:
    """Each row is one way in which a writer's report can differ from the store."""
    first, second = raced(str(tmp_path))
    changed = replace(first, **change)  # type: ignore[arg-type]
    assert found in "\n".join(problems(RACE, [changed, second], str(tmp_path), {}))


def test_the_checker_finds_orphan_files(tmp_path: Path) -> None:
    tries = raced(str(tmp_path))
    (tmp_path / "operators/stray.parquet").touch()
    assert "files are left of [None]" in problems(RACE, tries, str(tmp_path), {})[0]


def test_the_checker_finds_a_checkpoint_of_a_fenced_writer(tmp_path: Path) -> None:
    """I6: an older generation above a newer one."""
    old = StateStore.open(str(tmp_path), table_format="parquet")
    old.snapshot(parallelism=2).abandon()
    new = replace(RACE.parts[0], ids=(5,))
    tries = taken(str(tmp_path), RACE, new)
    old.parts.fence.check = lambda: None  # type: ignore[method-assign]
    checkpoint = old.snapshot(parallelism=2)
    number, _ = checkpoint.planned
    with pytest.raises(LateCommitError), checkpoint:
        entry = checkpoint.write_keyed(
            "races", "rows", rows_of(RACE.number, 1, 0), key="k", max_parallelism=2
        )
    late = replace(tries[0], writer=1, id=number, digest=entry.digest, generation=1)
    found = problems(RACE, [*tries, late], str(tmp_path), {})
    assert "generations go down along the ids: [3, 1]" in "\n".join(found)


# --- the linearizability checker ------------------------------------------------------------------

SAME_ID = replace(PART, ids=(1,))
# The second writer takes over while the first one stalls between its last check and its put.
RIVALS = Race(
    2, (replace(SAME_ID, stalls={"put": 1.0}), replace(SAME_ID, writer=1, stalls={"open": 0.5}))
)


def judged(url: str, race: Race) -> list[str]:
    """Play a race in threads of this process, and return the violated models."""
    with ThreadPoolExecutor() as pool:
        tasks = [Task(url, {}, race.number, part, 0.0, race.table_format) for part in race.parts]
        played = [*pool.map(write, tasks)]
    tries = [each for tries, _ in played for each in tries]
    looks = [look for _, looks in played for look in looks]
    (violated,) = violations([history_of(tries, looks)])
    return violated


def test_a_race_for_an_id_is_linearizable(tmp_path: Path) -> None:
    assert judged(str(tmp_path), RIVALS) == []


def test_a_put_that_overwrites_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both writers report that they committed the same checkpoint."""
    put = LocalStorage.put_if_absent

    def overwriting(self: LocalStorage, name: str, data: bytes) -> bool:
        if name.startswith(CHECKPOINTS):
            Path(self.url, name).unlink(missing_ok=True)
        return put(self, name, data)

    monkeypatch.setattr(LocalStorage, "put_if_absent", overwriting)
    assert judged(str(tmp_path), RIVALS) == ["register", "list"]


def test_a_list_without_the_newest_checkpoint_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = StateStore.checkpoints
    monkeypatch.setattr(StateStore, "checkpoints", lambda store: found(store)[:-1])
    assert judged(str(tmp_path), RACE) == ["list"]
