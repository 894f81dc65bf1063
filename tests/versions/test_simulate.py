"""Actors of a release and of this tree meet in a simulated world, also during an upgrade."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore
from statestore.catalog.fence import Fence
from tests.simulate.actors import Actor
from tests.simulate.judged import Judged, simulate_judged
from tests.simulate.plans import MIXES, drawn
from tests.simulate.run import run_schedules
from tests.simulate.simulation import Plan, simulate
from tests.versions.releases import Release
from tests.versions.side_by_side import SecondPackage, second_package

pytestmark = [
    pytest.mark.versions,
    pytest.mark.slow,
    pytest.mark.usefixtures("real_threads"),
]


@pytest.fixture
def second(release: Release) -> Iterator[SecondPackage]:
    """The package of a release next to this tree's, which must not be affected."""
    ours = {name: module for name, module in sys.modules.items() if is_of_the_package(name)}
    yield second_package(release.version)
    now = {name: module for name, module in sys.modules.items() if is_of_the_package(name)}
    assert ours.items() <= now.items()


def is_of_the_package(name: str) -> bool:
    return name.partition(".")[0] == "statestore" or name.startswith("tests.simulate.")


def test_old_writers_meet_new_collectors_and_fleets_are_upgraded(release: Release) -> None:
    """Over the draws, both directions and an upgrade between two jobs occur."""
    met: set[object] = set()
    for seed in range(300):
        _, plan, _ = drawn(seed, ("writers", "keepers", "jobs"), (release.version,))
        jobs = [actor for actor in plan.actors if actor.verb == "job"]
        for gc in (actor for actor in plan.actors if actor.verb == "gc"):
            met |= {(bool(job.release), bool(gc.release)) for job in jobs}
        old = [job.hours for job in jobs if job.release]
        new = [job.hours for job in jobs if not job.release]
        raised = [actor.hours for actor in plan.actors if actor.verb == "upgrade"]
        if old and new and max(old) < min(new):
            met.add("upgraded")
            met |= {"raised" for hours in raised if max(old) < hours <= min(new)}
    releases = {(False, False), (False, True), (True, False), (True, True)}
    assert met == {*releases, "upgraded", "raised"}


@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.long)])
def test_a_sample_of_the_schedules(count: int, second: SecondPackage) -> None:
    """I4, I5, I6, I9, I10; `make simulate ARGS="--release 0.1.0"` runs more."""
    releases = (second.release.version,)
    judging = Judged()
    counts, calls, wrong = run_schedules(
        range(count), tuple(MIXES), most_wrong=count, releases=releases, judging=judging
    )
    assert [(seed, mix, one.wrong) for seed, mix, one in wrong] == []
    assert counts.total() == count
    assert calls > 50 * count
    assert judging.histories >= count


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_job_of_a_release_stops_at_an_upgrade_until_it_is_undone(
    second: SecondPackage, kind: str
) -> None:
    """It commits nothing in between, and a job of this tree continues."""
    version = second.release.version
    if version != "0.1.0":
        pytest.fail(f"release {version} may know the newest writer version: exempt it here")
    every_hour = (("count", 3), ("how", "changes"), ("pause", 1))
    actors = (
        Actor("job", "old", 0.0, 0, "a", every_hour, version),
        Actor("upgrade", "upgrade", 1.5),
        Actor("job", "late", 2.5, 0, "a", every_hour, version),
        Actor("upgrade", "undone", 3.5, 0, "a", (("back", True),)),
        Actor("job", "again", 4.5, 0, "a", (("count", 1),), version),
        Actor("upgrade", "raised", 5.5),
        Actor("job", "new", 6.5, 0, "a", (("count", 1),)),
        Actor("watch", "watch", 0.0, 0, "a", (("count", 20), ("pause", 0.5))),
    )
    outcome = simulate_judged(Plan(kind, 1, actors, release=version))
    assert outcome.wrong is None
    refused = [error.partition(":")[0] for error in outcome.errors]
    assert refused == ["job by old", "job by late"]
    assert all("FormatVersionError" in error for error in outcome.errors)
    committed = [each for each in outcome.histories["a"] if each.kind == "commit"]
    assert [each.number for each in committed if each.outcome == "done"] == [1, 2, 3, 4, 5, 6]


def test_the_actors_of_a_release_use_its_package(
    second: SecondPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: Counter[str] = Counter()
    classes = {"release": second.module("statestore.catalog.fence").Fence, "tree": Fence}
    for name, fence in classes.items():
        real = fence.check

        def counted(self: Fence, name: str = name, real: object = real) -> None:
            checks[name] += 1
            real(self)  # type: ignore[operator]

        monkeypatch.setattr(fence, "check", counted)
    options = (("count", 2), ("how", "changes"))
    for number, version in enumerate(("", second.release.version)):
        before = checks.copy()
        job = Actor("job", "job1", 0.0, 0, "a", options, version)
        outcome = simulate(Plan("local", 1, (job,), release=version))
        assert (outcome.wrong, outcome.errors) == (None, [])
        # At the end this tree commits once with every store.
        new = checks - before
        assert (new["release"] > new["tree"]) is bool(number)
    files = second.files.values()
    assert all(Path(file).is_relative_to(second.release.packages) for file in files)
    assert not Path(str(statestore.__file__)).is_relative_to(second.release.packages)


def test_a_defect_of_a_release_is_found(
    second: SecondPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced writer of the release continues after one of this tree."""
    fence = second.module("statestore.catalog.fence").Fence
    monkeypatch.setattr(fence, "check", lambda self: None)
    monkeypatch.setattr(fence, "check_after_put", lambda self, checkpoint_id: None)
    found = first_violation(second)
    assert found is not None
    _, plan, _ = drawn(found, ("jobs",), (second.release.version,))
    assert {actor.release for actor in plan.actors} == {"", second.release.version}
    monkeypatch.undo()
    _, plan, chance = drawn(found, ("jobs",), (second.release.version,))
    assert simulate(plan, chance).wrong is None


def first_violation(second: SecondPackage) -> int | None:
    """Return the first seed with a violation in a plan with actors of both."""
    for seed in range(1, 300):
        _, plan, chance = drawn(seed, ("jobs",), (second.release.version,))
        if len({actor.release for actor in plan.actors}) == 1:
            continue
        if simulate(plan, chance).wrong is not None:
            return seed
    return None
