"""Plans drawn from a seed: which actors meet, when, and on which storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

from statestore.format.names import GREATEST_GIVEN_ID
from tests.simulate.actors import UID, Actor
from tests.simulate.simulation import Chance, Plan

__all__ = ["MIXES", "drawn"]

KINDS = ("wait", "wait", "wait", "wait", "kill", "lost", "again")
HOURS = (0.0, 0.0, 0.0, 0.5, 1.5, 26.0, 50.0)
SKEWS = (0, 0, -60_000, 90_000)
Draw = Callable[[Random], list[Actor]]


def _actor(random: Random, verb: str, number: int, store: str = "a", **options: Any) -> Actor:
    hours, skew_ms = random.choice(HOURS), random.choice(SKEWS)
    return Actor(verb, f"{verb}{number}", hours, skew_ms, store, tuple(sorted(options.items())))


def _job(random: Random, number: int, store: str = "a", **options: Any) -> Actor:
    how = random.choice(("full", "changes", "against"))
    pause = random.choice((0, 0, 1, 25))
    options = {"count": random.randint(1, 3), "how": how, "pause": pause, **options}
    return _actor(random, "job", number, store, **options)


def _some(random: Random, verbs: list[Actor], least: int) -> list[Actor]:
    return random.sample(verbs, random.randint(least, len(verbs)))


def _writers(random: Random) -> list[Actor]:
    others = [
        _actor(random, "expire", 1, retain=random.randint(1, 2)),
        _actor(random, "gc", 1),
        _actor(random, "compact", 1),
        _actor(random, "edit", 1),
    ]
    return [_job(random, 1), _job(random, 2), *_some(random, others, 1)]


def _batches(random: Random) -> list[Actor]:
    """Attempts of one job, and commands that use ids between its batches."""
    others = [
        _actor(random, "edit", 1),
        _actor(random, "compact", 1),
        _actor(random, "purge", 1),
        _actor(random, "expire", 1, retain=1),
        _actor(random, "rekey", 1),
    ]
    how = random.choice(("full", "changes"))
    attempts = [
        _actor(random, "batches", number, count=random.randint(1, 3), how=how)
        for number in range(1, random.randint(2, 3) + 1)
    ]
    return [*attempts, *_some(random, others, 1)]


def _at_once(random: Random) -> list[Actor]:
    """Two snapshots of one process are open at the same time."""
    options: dict[str, Any] = {
        "how": random.choice(("full", "changes", "against")),
        "order": random.choice(((0, 1), (1, 0))),
        "apart": random.choice((1, 1, 2, 9)),
        "rest": random.choice((True, False)),
    }
    others = [_job(random, 1), _actor(random, "edit", 1), _actor(random, "expire", 1)]
    return [_actor(random, "twice", 1, **options), *_some(random, others, 0)]


def _brought_back(random: Random) -> list[Actor]:
    """Some jobs began before a store was restored from a backup, and another begins after that."""
    pauses = (1, 1, 25)
    return [
        _job(random, 1, count=3, pause=random.choice(pauses)),
        _job(random, 2, count=2, pause=random.choice(pauses)),
        _actor(random, "restored", 1, pause=random.choice((1, 30))),
        *_some(random, [_job(random, 3), _actor(random, "edit", 1)], 0),
    ]


def _jobs(random: Random) -> list[Actor]:
    return [_job(random, number) for number in range(1, random.randint(3, 4))]


def _claims(random: Random) -> list[Actor]:
    """Claims of replaced writers are deleted after a month, while a replaced writer continues."""
    paused = [
        _job(random, number, pause=random.choice((1, 799, 800)), count=2)
        for number in range(1, random.randint(3, 5))
    ]
    late = [Actor(verb, f"{verb}9", 800.0) for verb in ("edit", "purge", "repair", "job")]
    back = Actor("upgrade", "upgrade2", 800.0, 0, "a", (("back", True),))
    blot = Actor("blot", "blot1", 799.0, 0, "a", (("file", "claim"),))
    collections = [Actor("gc", "gc1", 800.0), Actor("gc", "gc2", 800.0), Actor("gc", "gc3", 900.0)]
    return [
        *(Actor("upgrade", "upgrade1"), *paused, *collections),
        *_some(random, [*late, back, blot], 0),
    ]


def _given_up(random: Random) -> list[Actor]:
    """A job builds on a checkpoint whose writer has not been notified of its commit yet."""
    how = random.choice(("changes", "against"))
    return [
        Actor("job", "job1", 0.0, 0, "a", (("count", 2), ("how", how))),
        Actor("job", "job2", 0.5, 0, "a", (("count", 1), ("how", "changes"))),
        Actor("expire", "expire1", 1.0),
    ]


def _busy(random: Random) -> list[Actor]:
    busy = Actor("job", "job1", 0.0, 0, "a", (("count", 3), ("how", "full")))
    return [busy, Actor("gc", "gc1"), Actor("gc", "gc2")]


def _great_ids(random: Random) -> list[Actor]:
    ids = random.choice((9_999_999_999, 9_000_000_000, GREATEST_GIVEN_ID))
    return [Actor("job", "job1", 0.0, 0, "a", (("count", 1), ("ids", ids)))]


def _resumed(random: Random) -> list[Actor]:
    """A copy was killed a day ago; the next copy reuses its leftovers."""
    return [
        Actor("copy", "copy1", 0.0),
        Actor("copy", "copy2", 50.0),
        Actor("gc", "gc1", 50.0, 0, "b"),
    ]


def _keepers(random: Random) -> list[Actor]:
    back = random.randint(0, 2)
    return [
        _job(random, 1),
        _actor(random, "savepoint", 1, back=back),
        *_some(random, [_actor(random, "unsave", 1), _actor(random, "reader", 1, back=back)], 0),
        _actor(random, "expire", 1, retain=random.randint(1, 2)),
        _actor(random, "gc", 1),
    ]


def _several(random: Random) -> list[Actor]:
    """Jobs write several states, while other actors keep, expire, derive and collect."""
    old: dict[str, Any] = {"hours": random.randint(1, 48)} if random.random() < 0.5 else {}
    others = [
        _actor(random, "savepoint", 1, back=random.randint(0, 2)),
        _actor(random, "savepoint", 2, back=random.randint(0, 2), name="other"),
        _actor(random, "unsave", 1),
        _actor(random, "reader", 1, back=random.randint(0, 2)),
        _actor(random, "compact", 1),
        _actor(random, "edit", 1),
        _actor(random, "gc", 2),
    ]
    return [
        _job(random, 1, several=True),
        _job(random, 2, several=True),
        _actor(random, "expire", 1, retain=random.randint(1, 3), **old),
        _actor(random, "gc", 1),
        *_some(random, others, 0),
    ]


def _holders(random: Random) -> list[Actor]:
    """A checkpoint expires while an actor begins to hold it."""
    return [
        Actor("savepoint", "savepoint1", 0.0, 0, "a", (("back", random.randint(0, 2)),)),
        Actor("reader", "reader1", 0.0, 0, "a", (("back", 1), ("pause", 30))),
        Actor("expire", "expire1", 0.5),
        Actor("job", "job1", 1.0),
        Actor("gc", "gc1", 40.0),
    ]


def _blotted(random: Random) -> list[Actor]:
    return [
        _actor(random, "savepoint", 1, name="other"),
        _actor(random, "blot", 1, name="other"),
        _actor(random, "savepoint", 2, back=1),
        _actor(random, "expire", 1, retain=1),
    ]


def _repaired(random: Random) -> list[Actor]:
    """A document that blocks writers is damaged while they are active; two actors repair it."""
    file = random.choice(("store", "claim"))
    return [
        _job(random, 1, how="full"),
        Actor("blot", "blot1", random.choice((0.0, 0.5)), 0, "a", (("file", file),)),
        Actor("repair", "repair1", 0.5),
        Actor("repair", "repair2", random.choice((0.5, 1.0))),
        _job(random, 2, how="changes"),
        *_some(random, [_actor(random, "expire", 1, retain=1), _actor(random, "gc", 1)], 0),
    ]


def _upgraded(random: Random) -> list[Actor]:
    """The writer version is raised, and perhaps lowered again, while jobs and commands write."""
    others = [
        Actor("upgrade", "upgrade2", random.choice((0.5, 1.5)), 0, "a", (("back", True),)),
        Actor("upgrade", "upgrade3", random.choice((0.5, 1.5))),
        _actor(random, "edit", 1),
        _actor(random, "compact", 1),
        _actor(random, "purge", 1),
        _actor(random, "repair", 1),
        _actor(random, "expire", 1, retain=1),
        _actor(random, "gc", 1),
    ]
    raised = Actor("upgrade", "upgrade1", random.choice((0.0, 0.5, 26.0)))
    return [_job(random, 1), _job(random, 2), raised, *random.sample(others, random.randint(1, 3))]


def _copies(random: Random) -> list[Actor]:
    others = [
        _job(random, 1, "b"),
        _actor(random, "expire", 1, "b"),
        _job(random, 2),
        _actor(random, "copy", 2),
    ]
    return [_actor(random, "copy", 1), _actor(random, "gc", 1, "b"), *_some(random, others, 1)]


def _rivals(random: Random) -> list[Actor]:
    return [Actor("copy", "copy1", 0.0), Actor("copy", "copy2", 0.0)]


def _forks(random: Random) -> list[Actor]:
    return [_actor(random, "fork", 1), _actor(random, "gc", 1, "b"), _actor(random, "fork", 2)]


def _late_forks(random: Random) -> list[Actor]:
    """A fork shares files that were written days ago."""
    return [_job(random, 1), Actor("fork", "fork1", 50.0), Actor("gc", "gc1", 50.0, 0, "b")]


def _clones(random: Random) -> list[Actor]:
    return [
        Actor("clone", "clone1", 0.0, 0, "a", (("to", "c"),)),
        _job(random, 1),
        _job(random, 2, "c"),
        _actor(random, "copy", 1),
        _actor(random, "copy", 2, "c"),
    ]


def _purges(random: Random) -> list[Actor]:
    others = [_job(random, 1), _actor(random, "gc", 1), _actor(random, "purge", 2)]
    keeps = _actor(random, "savepoint", 1, back=random.randint(0, 2))
    expires = _actor(random, "expire", 1, retain=1)
    return [_actor(random, "purge", 1), keeps, expires, *_some(random, others, 0)]


def _late_purges(random: Random) -> list[Actor]:
    """A job or another purge stalls while a purge runs, and continues in its middle."""
    how = random.choice(("full", "changes", "against"))
    others = [
        Actor("purge", "purge2", random.choice((0.0, 0.5, 26.0))),
        Actor("expire", "expire1", random.choice((0.0, 0.5, 26.0)), 0, "a", (("retain", 1),)),
        Actor("edit", "edit1", 0.0),
    ]
    return [
        Actor("job", "job1", 0.0, 0, "a", (("count", 3), ("how", how))),
        Actor("savepoint", "savepoint1", 0.0, 0, "a", (("back", random.randint(0, 2)),)),
        Actor("purge", "purge1", 0.0),
        *_some(random, others, 0),
    ]


def _renamed(random: Random) -> list[Actor]:
    """An operator without uid has other names in newer job graphs; each attempt has one of them."""
    how = random.choice(("full", "changes"))
    jobs = [
        _job(random, number, how=how, label=random.choice(("old", "new", "newer")))
        for number in range(1, random.randint(2, 3) + 1)
    ]
    others = [
        _actor(random, "purge", 1, by=random.choice(("oldest", "newest"))),
        _actor(random, "purge", 2, by="newest"),
        _actor(random, "forget", 1),
        _actor(random, "edit", 1),
        _actor(random, "rekey", 1),
        _actor(random, "compact", 1),
        _actor(random, "savepoint", 1, back=random.randint(0, 2)),
        _actor(random, "expire", 1, retain=random.randint(1, 2)),
        _actor(random, "gc", 1),
        _actor(random, "reader", 1, back=random.randint(0, 1)),
    ]
    return [*jobs, *random.sample(others, random.randint(1, 4))]


def _forgets(random: Random) -> list[Actor]:
    """A subject is forgotten by two actors and a purge, while jobs, holds and expiries run."""
    others = [
        _job(random, 1),
        _actor(random, "forget", 2),
        _actor(random, "purge", 1),
        _actor(random, "compact", 1),
        _actor(random, "edit", 1),
        _actor(random, "gc", 1),
        _actor(random, "expire", 1, retain=1),
        _actor(random, "reader", 1, back=random.randint(0, 2)),
    ]
    keeps = _actor(random, "savepoint", 1, back=random.randint(0, 2))
    return [_actor(random, "forget", 1), keeps, *_some(random, others, 0)]


def _forgotten_at_once(random: Random) -> list[Actor]:
    """A subject is forgotten, its files are deleted immediately, and another run finishes."""
    back = (("back", random.randint(0, 2)),)
    return [
        Actor("savepoint", "savepoint1", 0.0, 0, "a", back),
        Actor("forget", "forget1", 1.0, 0, "a", (("gc", True),)),
        Actor("forget", "forget2", 26.0, 0, "a", (("gc", True),)),
    ]


def _salvages(random: Random) -> list[Actor]:
    broken = Actor("damage", "damage1", 0.0)
    return [broken, _actor(random, "salvage", 1), _job(random, 1, how="full")]


def _rekeys(random: Random) -> list[Actor]:
    others = [_actor(random, "gc", 1), _actor(random, "expire", 1)]
    return [_actor(random, "rekey", 1), _actor(random, "rekey", 2), *_some(random, others, 0)]


def _late_rekeys(random: Random) -> list[Actor]:
    """A rekey was killed days ago; the next one adopts its leftovers."""
    return [Actor("rekey", "rekey1"), Actor("rekey", "rekey2", 50.0), Actor("gc", "gc1", 50.0)]


def _queries(random: Random) -> list[Actor]:
    return [
        Actor("query", "query1", 0.0, 0, "a", (("produced", random.randint(3, 6)),)),
        Actor("query", "query2", 1.0, 0, "a", (("pace", 3), ("produced", 9))),
        Actor("query", "query3", 2.0, 0, "a", (("produced", 12), ("retain", 1))),
    ]


def _salvaged_queries(random: Random) -> list[Actor]:
    damage = (("state", "operator/progress"),)
    return [
        *_queries(random),
        Actor("damage", "damage1", random.choice((0.5, 1.5)), 0, "a", damage),
        Actor("salvage", "salvage1", random.choice((0.6, 1.6))),
    ]


def _first(random: Random) -> list[Actor]:
    return [_job(random, number, empty=True) for number in range(1, random.randint(2, 3))]


def _made(random: Random) -> list[Actor]:
    """Two actors create a store, and its files are collected while one of them stalls."""
    return [
        Actor("job", "job1", 0.0, 0, "a", (("count", 1), ("empty", True))),
        Actor("job", "job2", 0.5, 0, "a", (("count", 1), ("empty", True))),
        Actor("gc", "gc1", random.choice((1.0, 26.0, 48.0))),
    ]


def _exports(random: Random) -> list[Actor]:
    return [
        Actor("export", "export1", 0.0),
        Actor("person", "person1", random.choice((0.0, 1.0))),
        Actor("export", "export2", random.choice((0.0, 1.0, 2.0))),
    ]


def _all(random: Random) -> list[Actor]:
    one = _actor
    others = [
        *(_job(random, 1), _job(random, 2), one(random, "gc", 1), one(random, "expire", 1)),
        *(one(random, "savepoint", 1, back=1), one(random, "reader", 1), one(random, "compact", 1)),
        *(one(random, "edit", 1), one(random, "purge", 1), one(random, "rekey", 1)),
        *(one(random, "copy", 1), one(random, "gc", 2, "b"), one(random, "fork", 1, to="c")),
    ]
    return random.sample(others, random.randint(3, 6))


@dataclass(frozen=True)
class Mix:
    """How to draw actors, storages, the number of checkpoints, and the kinds and rate of events.

    ``label`` is the name that an operator without uid starts with.
    """

    actors: Draw
    setups: tuple[int, ...]
    kinds: tuple[str, ...] = ("local", "s3")
    events: tuple[str, ...] = KINDS
    often: float = 1
    label: str = UID


MIXES = {
    "jobs": Mix(_jobs, (2, 3)),
    "writers": Mix(_writers, (2, 3)),
    "batches": Mix(_batches, (1, 2)),
    "at once": Mix(_at_once, (1, 2)),
    "brought back": Mix(_brought_back, (2,), events=("wait", "wait", "lost", "again")),
    "claims": Mix(_claims, (1, 2), often=2),
    "given up": Mix(_given_up, (2,), events=("wait",)),
    "busy": Mix(_busy, (2,), events=("wait",), often=4),
    "great ids": Mix(_great_ids, (1,)),
    "keepers": Mix(_keepers, (3,)),
    "several states": Mix(_several, (1, 2), events=(*KINDS, "fail")),
    "holders": Mix(_holders, (3,), events=("wait",), often=4),
    "stale": Mix(_keepers, (3,), ("s3",), ("wait", "stale", "stale"), 4),
    "blotted": Mix(_blotted, (3,), events=("wait",), often=4),
    "repaired": Mix(_repaired, (2,), often=2),
    "upgraded": Mix(_upgraded, (1, 2), often=2),
    "copies": Mix(_copies, (2,), events=(*KINDS, "fail")),
    "rivals": Mix(_rivals, (1,), events=("wait", "wait", "fail", "kill"), often=4),
    "resumed": Mix(_resumed, (1,), events=("wait", "wait", "kill"), often=4),
    "forks": Mix(_forks, (2,), ("local",)),
    "late forks": Mix(_late_forks, (1,), events=("wait", "wait", "kill"), often=4),
    "clones": Mix(_clones, (1,)),
    "purges": Mix(_purges, (3,)),
    "late purges": Mix(_late_purges, (3,), events=("wait", "wait", "wait", "kill"), often=4),
    "renamed": Mix(_renamed, (1, 2, 3), label="old"),
    "forgets": Mix(_forgets, (3,)),
    "forgotten at once": Mix(_forgotten_at_once, (3,), events=("wait", "kill"), often=4),
    "salvages": Mix(_salvages, (2,)),
    "rekeys": Mix(_rekeys, (1, 2)),
    "late rekeys": Mix(_late_rekeys, (1,), events=("wait", "wait", "kill"), often=4),
    "queries": Mix(_queries, (0,), events=(*KINDS, "power", "power")),
    "salvaged queries": Mix(_salvaged_queries, (0,), events=("kill",), often=2),
    "first": Mix(_first, (0,), ("local",), ("power",), 4),
    "made": Mix(_made, (0,), events=("wait", "wait", "kill"), often=4),
    "power": Mix(_writers, (2,), ("local",), ("wait", "power"), 2),
    "exports": Mix(_exports, (1,), events=("kill", "kill", "wait"), often=4),
    "all": Mix(_all, (3,)),
}


JOBS = ("job", "batches", "twice", "query")


def _of_releases(random: Random, plan: Plan, releases: tuple[str, ...]) -> Plan:
    """Let some actors be of a release, and the others of this tree.

    They are the jobs, all others, drawn ones, or the ones that start before an upgrade. In some
    plans this tree also raises the writer version at that time.
    """
    release, upgrade = random.choice(releases), random.choice((0.2, 1.0, 30.0))
    fleets: tuple[Callable[[Actor], bool], ...] = (
        lambda actor: actor.verb in JOBS,
        lambda actor: actor.verb not in JOBS,
        lambda actor: random.random() < 0.5,
        lambda actor: actor.hours < upgrade,
    )
    is_old = random.choice(fleets)
    actors = [
        replace(actor, release=release) if actor.verb != "upgrade" and is_old(actor) else actor
        for actor in plan.actors
    ]
    if random.random() < 0.4 and all(actor.verb != "upgrade" for actor in actors):
        actors.append(Actor("upgrade", "upgrade1", upgrade))
    return replace(plan, actors=tuple(actors), release=random.choice(("", release)))


def _watched(random: Random, plan: Plan) -> Plan:
    """Add actors that read every store of a plan for some hours, or for some days."""
    stores = {actor.option("to", actor.store) for actor in plan.actors}
    names = [str(actor.option("name", "keep")) for actor in plan.actors]
    watchers = [
        Actor(
            "watch",
            f"watch{number}",
            random.choice((0.0, 0.5)),
            random.choice(SKEWS),
            store,
            (("count", count), ("name", random.choice(names)), ("pause", pause)),
        )
        for number, (store, (count, pause)) in enumerate(
            product(sorted({"a", *stores}), ((8, 0.3), (24, 3.0))), 1
        )
    ]
    return replace(plan, actors=(*plan.actors, *watchers))


def drawn(
    seed: int,
    mixes: tuple[str, ...] = tuple(MIXES),
    releases: tuple[str, ...] = (),
    *,
    watched: bool = False,
) -> tuple[str, Plan, Chance]:
    """Return the name of a seed's mix, its plan, and the settings for drawing its events.

    With ``releases``, some actors are of one of these. With ``watched``, other actors read the
    stores meanwhile.
    """
    random = Random(seed)
    name = random.choice(mixes)
    mix = MIXES[name]
    kind, setup = random.choice(mix.kinds), random.choice(mix.setups)
    plan = Plan(kind, setup, tuple(mix.actors(random)), label=mix.label)
    if watched:
        plan = _watched(Random(f"{seed} watchers"), plan)
    if releases:
        plan = _of_releases(Random(f"{seed} releases"), plan, releases)
    rate = min(random.choice((1 / 120, 1 / 40, 1 / 12)) * mix.often, 0.2)
    return name, plan, Chance(random, rate, random.randint(1, 5), mix.events)
