"""Run a plan: record the event at each call, and the violation if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from statestore.errors import StateStoreError
from statestore.format.names import STORE_FILE, WRITERS
from tests.linearizability.history import History
from tests.simulate.actors import UID, Actor, Run, label_of, take
from tests.simulate.check import CHECKPOINT, DATA, savepoint_of
from tests.simulate.documents import KEY
from tests.simulate.released import ACTORS, released_run, replaced_modules
from tests.simulate.scheduler import HOUR_MS, Event, Task
from tests.simulate.verbs import VERBS, restore
from tests.simulate.world import Image, World
from tests.versions.side_by_side import second_package

__all__ = ["Chance", "Outcome", "Plan", "simulate"]

CHANGING = ("put", "link", "delete", "complete_multipart_upload", "rename", "replace", "write")
LISTING = "list_objects_v2"
WAITS = (0, 0, 0, 1, 60, 90, 25 * 60, 25 * 60, 49 * 60)
WRITES_MINUTES = 20 * 60
DAY_MS = 25 * HOUR_MS  # longer than the minimum age


@dataclass(frozen=True)
class Plan:
    """A plan: the storage, the number of earlier checkpoints, the actors and the events.

    ``label`` is the uid of the operator, or the first name of an operator without uid. ``release``
    is the release that takes the earlier checkpoints; empty for this tree.
    """

    kind: str
    setup: int
    actors: tuple[Actor, ...]
    events: tuple[Event, ...] = ()
    label: str = UID
    release: str = ""

    def __str__(self) -> str:
        name = "" if self.label == UID else f" of an operator without uid, {self.label!r}"
        by = f" by release {self.release}" if self.release else ""
        lines = [f"on {self.kind}, {self.setup} checkpoints{name} before{by}"]
        lines += [f"  {actor}" for actor in self.actors]
        lines += [f"  * {event}" for event in self.events]
        return "\n".join(lines)


@dataclass(frozen=True)
class Chance:
    """How to draw events: their rate, their maximum number and their kinds."""

    random: Random
    rate: float
    most: int
    kinds: tuple[str, ...]


@dataclass
class Outcome:
    """The outcome of a plan; ``plan`` includes the events that occurred.

    ``histories`` are the operations on each store, for a linearizability checker.
    ``files`` has the SHA-256 of each file that is left, by name, if a trace was requested.
    """

    plan: Plan
    wrong: tuple[str, str] | None
    calls: int
    errors: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    # by store; none if a store went back in time
    histories: dict[str, History] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def simulate(plan: Plan, chance: Chance | None = None, *, trace: bool = False) -> Outcome:
    """Run a plan with its events, or with drawn events."""
    met: list[Event] = []
    known = {(event.task, event.at): event for event in plan.events}
    begun: list[bool] = []

    def decide(task: Task, operation: str, name: str) -> Event | None:
        if not begun:
            return None
        if chance is None:
            event = known.get((task.name, task.calls))
        else:
            event = _drawn(chance, len(met), task, operation, name)
        if event is not None:
            met.append(event)
        return event

    image = _prepared(plan)
    kinds = {event.kind for event in plan.events} | set(chance.kinds if chance else ())
    with _world(plan, decide) as (world, runs):
        run = runs[""]
        world.disk.remembers = "power" in kinds
        world.bring(image)
        world.disk.settle()
        world.scheduler.trace = [] if trace else None
        world.log.clear()
        for store, before in world.checker.stores.items():
            world.log.begin(store, before.tokens, before.savepoints)
        begun.append(True)
        for actor in plan.actors:
            runs[actor.release].spawn(replace(actor, hours=actor.hours + 1))
        world.scheduler.run()
        begun.clear()
        if world.checker.wrong_is is None and world.scheduler.crashed is None:
            _quiet(run)
            _look_at_the_end(run, plan)
        files = world.image().digests() if trace else {}
    wrong = world.checker.wrong_is
    crashed = world.scheduler.crashed
    if wrong is None and crashed is not None:
        wrong = f"crashed: {type(crashed).__name__}", str(crashed)
    calls = sum(task.calls for task in world.scheduler.tasks)
    seen = replace(plan, events=tuple(met)) if chance else plan
    errors = [error.replace(str(world.folder), "") for error in run.errors]
    histories = world.log.histories() if world.log.is_judgeable else {}
    return Outcome(seen, wrong, calls, errors, world.scheduler.trace or [], histories, files)


@contextmanager
def _world(
    plan: Plan, decide: Callable[[Task, str, str], Event | None]
) -> Iterator[tuple[World, dict[str, Run]]]:
    """Yield an empty world, and a run in it for each release that takes part."""
    world = World(plan.kind, decide)
    run = Run(world)
    runs = {"": run} | {version: released_run(run, version) for version in _releases(plan)}
    try:
        with world.entered(), ExitStack() as replaced:
            for version in _releases(plan):
                replaced.enter_context(replaced_modules(world, version))
            yield world, runs
    finally:
        world.close()


def _releases(plan: Plan) -> list[str]:
    """Return the releases that take part."""
    return sorted({plan.release, *(actor.release for actor in plan.actors)} - {""})


def _drawn(chance: Chance, met: int, task: Task, operation: str, name: str) -> Event | None:
    random = chance.random
    changes = operation.startswith(CHANGING)
    counts = operation == "spark" or (changes and "/operators/" not in name)
    weight = 4 if counts or task.changed else 1
    task.changed = counts
    if met >= chance.most or random.random() >= chance.rate * weight:
        return None
    kind = random.choice(chance.kinds)
    if kind in ("lost", "fail", "again") and not changes:
        return None
    if kind == "stale" and not (operation == LISTING and task.doing.startswith("gc")):
        return None  # writers need correct listings; garbage collection must not
    minutes = random.choice(WAITS) if kind in ("wait", "stale") else 0
    if kind == "wait":
        # A stalled writer must not write for longer than the minimum age while files are collected.
        minutes = min(minutes, WRITES_MINUTES - task.waited) if task.writes else minutes
        task.waited += minutes
    draw = random.choice((0, random.randrange(1, 1000))) if kind == "power" else 0
    return Event(task.name, task.calls, kind, minutes, draw)


BLOCKS = ("a/statestore.json", "a/writers/")  # if damaged, they block writers


def _alone(run: Run, do: Callable[[], object], doing: str = "setup") -> None:
    """Do something while no other actor runs."""
    scheduler = run.world.scheduler
    entering, log = run.entering, run.world.log

    def logged() -> None:
        do()
        log.succeeded()

    task = scheduler.spawn(doing, logged, at_ms=scheduler.now_ms, entering=entering)
    task.doing = f"{doing} by itself"
    scheduler.run()


_PREPARED: dict[tuple[str, int, str, str], Image] = {}


def _prepared(plan: Plan) -> Image:
    """Return the checkpoints that exist before the actors start.

    They are taken in a world of their own, so that the first run of a process starts as all others.
    """
    place = plan.kind, plan.setup, plan.label, plan.release
    if place not in _PREPARED:
        with _world(plan, lambda *_: None) as (world, runs):
            for number in range(plan.setup):
                do = partial(_set_up, runs[plan.release], number, plan)
                _alone(runs[plan.release], do)
            if world.scheduler.crashed is not None:
                raise world.scheduler.crashed
            _PREPARED[place] = world.image()
    return _PREPARED[place]


def _set_up(run: Run, number: int, plan: Plan) -> None:
    keys = ("purged", "first") if number == 0 else (f"before-{number}",)
    how = "full" if number == 0 else "changes"
    taking = second_package(plan.release).module(ACTORS).take if plan.release else take
    taking(run, run.world.store("a"), "a", keys, how=how, label=plan.label)


def _quiet(run: Run) -> None:
    """Once faults have stopped, check that everything continues and no garbage remains."""
    world, scheduler = run.world, run.world.scheduler
    for actor in list(run.unfinished):
        _alone(run, lambda actor=actor: _once_more(run, actor), "purge again")  # type: ignore[misc]
    for store, seen in sorted(world.checker.stores.items()):
        if not seen.known or scheduler.stopped:
            continue
        _alone(run, lambda store=store: _searched(run, store), "quiet")  # type: ignore[misc]
        if store == "a":
            _alone(run, lambda: _goes_on(run), "quiet")
        for hours in (1, 1):
            scheduler.now_ms += hours * DAY_MS
            _alone(run, lambda store=store: _swept(run, store), "quiet")  # type: ignore[misc]
        for look in (_nothing_dead, _searched):
            if not scheduler.stopped:
                _alone(run, lambda look=look, store=store: look(run, store), "quiet")  # type: ignore[misc]
        if any(seen.known[number].others for number in seen.visible) and not scheduler.stopped:
            _alone(run, lambda store=store: _restored(run, store), "quiet")  # type: ignore[misc]


def _look_at_the_end(run: Run, plan: Plan) -> None:
    """Read every store once more, if actors have read it before."""
    if any(actor.verb == "watch" for actor in plan.actors):
        for store in sorted(run.world.checker.stores):
            end = Actor("watch", "end", store=store, options=(("reads", 99),))
            _alone(run, lambda end=end: VERBS["watch"](run, end), "end")  # type: ignore[misc]


def _once_more(run: Run, actor: Actor) -> None:
    """Run an interrupted command again."""
    try:
        VERBS[actor.verb](run, actor)
    except StateStoreError as error:
        run.errors.append(f"{actor.verb} again: {type(error).__name__}: {error}")


def _goes_on(run: Run) -> None:
    """Commit with a new writer, after a repair if one is needed."""
    try:
        if any(one.startswith(BLOCKS) for one in run.world.checker.seen("a").lost):
            run.world.store("a").maintenance.repair()
        label = label_of(run.world.checker.latest("a"))
        take(run, run.world.store("a"), "a", ("quiet",), rest=True, label=label)
    except StateStoreError as error:
        run.world.checker.wrong("stuck", f"no writer can commit any more: {error}")


def _swept(run: Run, store: str) -> None:
    if any(seen.lost for seen in run.world.checker.stores.values()):
        return  # refusing a damaged checkpoint is correct
    try:
        run.world.store(store).maintenance.gc()
    except StateStoreError as error:
        run.world.checker.wrong("stuck", f"nothing can be collected any more: {error}")


def _nothing_dead(run: Run, store: str) -> None:
    """Check that only kept files exist, and that every hold still exists."""
    world, checker = run.world, run.world.checker
    checker.look(store)
    for name in checker.missing_holds(store):
        if name.startswith("savepoints/"):
            checker.wrong("hold lost", f"{name} of {store} was let go of by nobody, and is gone")
    if any(seen.lost for seen in checker.stores.values()):
        return
    seen = checker.seen(store)
    held = {number for number, until_ms in seen.holds.values() if until_ms > world.scheduler.now_ms}
    kept = seen.visible | held
    live = {name for n in kept if n in seen.known for name in seen.known[n].files}
    with world.scheduler.quietly():
        names = [n.partition("/")[2] for n in checker._raw().names() if n.startswith(f"{store}/")]
    for name in sorted(names):
        data = name.startswith(DATA) and name not in live
        document = CHECKPOINT.fullmatch(name)
        manifest = document and document[2] == "json" and int(document[1]) not in kept
        others = (
            *(*DATA, STORE_FILE, WRITERS),
            *("checkpoints/", "savepoints/", "pins/", "deletions/"),
        )
        if data or manifest or "/." in f"/{name}" or not name.startswith(others):
            checker.wrong(
                "dead stays", f"{name} of {store} is of no checkpoint, and stays for ever"
            )
    for upload in world.bucket.uploads.values():
        if upload.key.startswith(f"{store}/"):
            checker.wrong("parts stay", f"parts of {upload.key} were never ended, and stay")


def _restored(run: Run, store: str) -> None:
    """Restore each kept checkpoint that has several states, also by the names of its savepoints."""
    seen = run.world.checker.seen(store)
    if seen.lost:
        return
    for number in sorted(seen.visible):
        restore(run, run.world.store(store), number, seen.known[number])
    for path, (number, _) in sorted(seen.holds.items()):
        if name := savepoint_of(path):
            restore(run, run.world.store(store), name, seen.known[number])


def _searched(run: Run, store: str) -> None:
    """Check that a search for a purged key agrees with the files."""
    checker = run.world.checker
    if not checker.seen(store).purged or checker.seen(store).lost:
        return
    for key in sorted(checker.seen(store).purged):
        with run.world.scheduler.quietly():
            files = checker.files_with(store, key)
        search = run.world.store(store).maintenance.find_subject({KEY: key})
        if search.is_gone != (not files):
            checker.wrong("search", f"{search.found} is said to have {key} in {store}, not {files}")
