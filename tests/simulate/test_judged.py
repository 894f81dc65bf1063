"""Porcupine accepts the histories of the simulator, and objects to each fault of a simulated store.

The simulator's own checker overlooks the faults here, so that only the histories show them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from statestore.catalog.catalog import Catalog
from statestore.errors import CommitConflictError
from statestore.format.manifest import Manifest
from statestore.format.names import manifest_path, savepoint_path
from statestore.maintenance.retention import tombstone
from statestore.store import StateStore
from tests.linearizability.judge import violations
from tests.simulate import verbs
from tests.simulate.actors import Actor, Run
from tests.simulate.bucket import Bucket, SimulatedS3
from tests.simulate.check import Checker
from tests.simulate.judged import Judged, simulate_judged
from tests.simulate.plans import MIXES, drawn
from tests.simulate.run import main, run_schedules
from tests.simulate.scheduler import Event
from tests.simulate.simulation import Outcome, Plan, simulate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_threads")]


@pytest.mark.long
@pytest.mark.parametrize("count", [20, 1000])
def test_a_sample_of_the_schedules_is_linearizable(count: int) -> None:
    """I4, I6, I9; `make simulate` runs more."""
    judging = Judged()
    counts, _, wrong = run_schedules(range(count), tuple(MIXES), most_wrong=count, judging=judging)
    assert [(seed, mix, one.wrong) for seed, mix, one in wrong] == []
    assert counts.total() == count
    assert judging.histories >= count
    assert judging.operations > 80 * judging.histories
    assert judging.left_out < 0.25 * count


def test_only_runs_in_which_a_store_went_back_are_left_out() -> None:
    for mix, is_judged in (("brought back", False), ("keepers", True), ("made", True)):
        _, plan, chance = drawn(1, (mix,), watched=True)
        assert bool(simulate(plan, chance).histories) is is_judged
    power = Plan("local", 1, (JOB, WATCH), (Event("job1", 20, "power"),))
    assert simulate(power).histories == {}


def test_the_histories_have_every_kind_of_operation() -> None:
    plan = Plan("s3", 3, (JOB, SAVEPOINT, EXPIRE, Actor("unsave", "unsave1", 3.0), WATCH))
    kinds = {each.kind for each in simulate(plan).histories["a"]}
    assert kinds == {"commit", "read", "list", "latest", "expire", "hold", "look up", "release"}


# --- faults of the store --------------------------------------------------------------------------

JOB = Actor("job", "job1", 0.5, 0, "a", (("count", 2), ("how", "full")))
RIVAL = Actor("job", "job2", 0.5, 0, "a", (("count", 1), ("how", "full")))
EXPIRE = Actor("expire", "expire1", 1.0, 0, "a", (("retain", 1),))
SAVEPOINT = Actor("savepoint", "savepoint1", 0.2)
GC = Actor("gc", "gc1", 1.0)
WATCH = Actor("watch", "watch1", 0.0, 0, "a", (("count", 12), ("pause", 0.3)))


@pytest.fixture
def overlooking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the simulator's own checker continue after each violation."""

    class OverlookedError(Exception):
        pass

    def wrong(self: Checker, kind: str, text: str) -> None:
        raise OverlookedError(text)

    def continuing(method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            with suppress(OverlookedError):
                method(*arguments, **options)

        return call

    monkeypatch.setattr(Checker, "wrong", wrong)
    for name in ("changed", "committed", "counted", "holding", "look", "look_again", "refused"):
        monkeypatch.setattr(Checker, name, continuing(getattr(Checker, name)))


def lost_commit(patch: pytest.MonkeyPatch) -> None:
    """The bucket loses a manifest after its put."""
    commit = Catalog.commit

    def losing(self: Catalog, manifest: Manifest) -> None:
        commit(self, manifest)
        if manifest.checkpoint_id == 3:
            assert isinstance(self.storage, SimulatedS3)
            del self.storage._bucket.objects[f"a/{manifest_path(3)}"]

    patch.setattr(Catalog, "commit", losing)


def overwriting_put(patch: pytest.MonkeyPatch) -> None:
    """A put succeeds although the name is taken."""
    put = Bucket._put_object

    def overwriting(self: Bucket, Key: str, Body: bytes, **more: Any) -> dict[str, Any]:
        if "/checkpoints/" in Key:
            more.pop("IfNoneMatch", None)
        return put(self, Key, Body, **more)

    patch.setattr(Bucket, "_put_object", overwriting)


def failing_put(patch: pytest.MonkeyPatch) -> None:
    """A put is refused, and stores the manifest nevertheless."""
    commit = Catalog.commit

    def refusing(self: Catalog, manifest: Manifest) -> None:
        commit(self, manifest)
        if manifest.checkpoint_id == 3:
            raise CommitConflictError("another writer was faster")

    patch.setattr(Catalog, "commit", refusing)


def stale_list(patch: pytest.MonkeyPatch) -> None:
    """A list of checkpoints lacks the newest one, after it was returned before."""
    listed = StateStore.checkpoints
    calls = []

    def stale(self: StateStore) -> tuple[int, ...]:
        calls.append(listed(self))
        return calls[-1][:-1] if len(calls) == 6 else calls[-1]

    patch.setattr(StateStore, "checkpoints", stale)


def stale_read(patch: pytest.MonkeyPatch) -> None:
    """A manifest is missing when an actor reads it again."""
    read = Bucket.cat_file
    seen = []

    def stale(self: Bucket, path: str, start: int | None = None, end: int | None = None) -> bytes:
        task = self._scheduler.current
        if task and task.name == WATCH.name and path.endswith(manifest_path(2)):
            seen.append(path)
            if len(seen) == 5:
                raise FileNotFoundError(path)
        return read(self, path, start, end)

    patch.setattr(Bucket, "cat_file", stale)


def expiring_gc(patch: pytest.MonkeyPatch) -> None:
    """A garbage collection expires a checkpoint."""

    def gc(run: Run, actor: Actor) -> None:
        catalog = run.world.store(actor.store).parts.catalog()
        catalog.expire(1, tombstone(1, "0", 0))

    patch.setitem(verbs.VERBS, "gc", gc)


def forgetful_gc(patch: pytest.MonkeyPatch) -> None:
    """A garbage collection deletes a savepoint."""

    def gc(run: Run, actor: Actor) -> None:
        run.world.storage(actor.store).delete(savepoint_path("keep"))

    patch.setitem(verbs.VERBS, "gc", gc)


def idle_expire(patch: pytest.MonkeyPatch) -> None:
    """An expiry reports success, and puts no tombstone."""
    patch.setattr(Catalog, "expire", lambda *_: None)


def greedy_expire(patch: pytest.MonkeyPatch) -> None:
    """An expiry includes the newest checkpoint."""

    def expire(run: Run, actor: Actor) -> None:
        catalog = run.world.store(actor.store).parts.catalog()
        catalog.expire(catalog.resolve("latest"), tombstone(1, "0", 0))

    patch.setitem(verbs.VERBS, "expire", expire)


# The first job stalls between its last check and its put, and the second one commits meanwhile.
RIVALS = (JOB, RIVAL)
BOTH = {"register", "list"}
FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[Actor, ...], set[str]]] = {
    "a lost commit": (lost_commit, (JOB,), BOTH),
    "two winners of an id": (overwriting_put, RIVALS, BOTH),
    "a refused commit that is visible": (failing_put, (JOB,), BOTH),
    "a stale list": (stale_list, (JOB,), {"list"}),
    "a stale read": (stale_read, (JOB,), {"register"}),
    "a checkpoint that nobody expired": (expiring_gc, (JOB, GC), BOTH),
    "a checkpoint that has not expired": (idle_expire, (JOB, EXPIRE), BOTH),
    "an expiry of the newest": (greedy_expire, (JOB, EXPIRE), {"list"}),
    "a lost savepoint": (forgetful_gc, (JOB, SAVEPOINT, GC), {"savepoint"}),
}


def violated(outcome: Outcome) -> set[str]:
    """Return the violated models of a run's histories."""
    return {model for found in violations([*outcome.histories.values()]) for model in found}


def put_of(plan: Plan, job: str) -> int:
    """Return the number of the call by which a job puts its first manifest."""
    calls = [text for text in simulate(plan, trace=True).trace if text.startswith(f"{job} #")]
    return 1 + next(place for place, text in enumerate(calls) if "put a/checkpoints/" in text)


@pytest.mark.search_program
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_store_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    break_it, actors, models = FAULTS[name]
    plan = Plan("s3", 2, (*actors, WATCH))
    if actors is RIVALS:
        plan = replace(plan, events=(Event("job1", put_of(plan, "job1"), "wait", 60),))
    right = simulate_judged(plan)
    assert (right.wrong, violated(right)) == (None, set())
    request.getfixturevalue("overlooking")
    break_it(monkeypatch)
    assert violated(simulate(plan)) == models


@pytest.mark.search_program
def test_the_command_prints_the_shortest_plan_and_its_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists lack the newest checkpoint, which only actors that list checkpoints notice."""
    found = StateStore.checkpoints
    monkeypatch.setattr(StateStore, "checkpoints", lambda store: found(store)[:-1])
    asked = ["--steps", "1", "--seed", "1", "--mix", "jobs", "--trace"]
    assert main(asked) == 0
    assert main([*asked, "--judge"]) == 1
    printed = capsys.readouterr().out
    assert "not linearizable: a is not linearizable as a list" in printed
    assert printed.count(": job on a") == 0
    assert printed.count(": watch on a") == 1
    assert ": list [1]" in printed
    assert "1 histories of" in printed
