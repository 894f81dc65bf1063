"""Plans, drawn by a seed: who meets whom, when, and on which storage."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulate.actors import Actor
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


def _jobs(random: Random) -> list[Actor]:
    return [_job(random, number) for number in range(1, random.randint(3, 4))]


def _keepers(random: Random) -> list[Actor]:
    back = random.randint(0, 2)
    return [
        _job(random, 1),
        _actor(random, "savepoint", 1, back=back),
        *_some(random, [_actor(random, "unsave", 1), _actor(random, "reader", 1, back=back)], 0),
        _actor(random, "expire", 1, retain=random.randint(1, 2)),
        _actor(random, "gc", 1),
    ]


def _blotted(random: Random) -> list[Actor]:
    return [
        _actor(random, "savepoint", 1, **{"as": "other"}),
        _actor(random, "blot", 1, **{"as": "other"}),
        _actor(random, "savepoint", 2, back=1),
        _actor(random, "expire", 1, retain=1),
    ]


def _copies(random: Random) -> list[Actor]:
    others = [
        _job(random, 1, "b"),
        _actor(random, "expire", 1, "b"),
        _job(random, 2),
        _actor(random, "copy", 2),
    ]
    return [_actor(random, "copy", 1), _actor(random, "gc", 1, "b"), *_some(random, others, 1)]


def _forks(random: Random) -> list[Actor]:
    return [_actor(random, "fork", 1), _actor(random, "gc", 1, "b"), _actor(random, "fork", 2)]


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


def _salvages(random: Random) -> list[Actor]:
    broken = Actor("damage", "damage1", 0.0)
    return [broken, _actor(random, "salvage", 1), _job(random, 1, how="full")]


def _rekeys(random: Random) -> list[Actor]:
    others = [_actor(random, "gc", 1), _actor(random, "expire", 1)]
    return [_actor(random, "rekey", 1), _actor(random, "rekey", 2), *_some(random, others, 0)]


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


MIXES: dict[str, tuple[Draw, tuple[str, ...], tuple[int, ...], tuple[str, ...]]] = {
    # how actors are drawn, on which storages, after how many checkpoints, kinds of events
    "jobs": (_jobs, ("local", "s3"), (2, 3), KINDS),
    "writers": (_writers, ("local", "s3"), (2, 3), KINDS),
    "keepers": (_keepers, ("local", "s3"), (3,), KINDS),
    "blotted": (_blotted, ("local", "s3"), (3,), KINDS),
    "copies": (_copies, ("local", "s3"), (2,), KINDS),
    "forks": (_forks, ("local",), (2,), KINDS),
    "clones": (_clones, ("local", "s3"), (1,), KINDS),
    "purges": (_purges, ("local", "s3"), (3,), KINDS),
    "salvages": (_salvages, ("local", "s3"), (2,), KINDS),
    "rekeys": (_rekeys, ("local", "s3"), (1, 2), KINDS),
    "queries": (_queries, ("local", "s3"), (0,), (*KINDS, "power")),
    "salvaged queries": (_salvaged_queries, ("s3",), (0,), ("wait", "kill")),
    "first": (_first, ("local",), (0,), ("power",)),
    "power": (_writers, ("local",), (2,), ("wait", "power")),
    "exports": (_exports, ("local", "s3"), (1,), ("kill", "wait")),
    "all": (_all, ("local", "s3"), (3,), KINDS),
}


def drawn(seed: int, mixes: tuple[str, ...] = tuple(MIXES)) -> tuple[str, Plan, Chance]:
    """Return the plan of a seed, and how its events are drawn; which of ``mixes`` it is of."""
    random = Random(seed)
    mix = random.choice(mixes)
    actors, kinds, setups, events = MIXES[mix]
    kind, setup = random.choice(kinds), random.choice(setups)
    plan = Plan(kind, setup, tuple(actors(random)))
    if kind == "s3":  # a bucket loses no power
        events = tuple(one for one in events if one != "power")
    rate = random.choice((1 / 120, 1 / 40, 1 / 12))
    return mix, plan, Chance(random, rate, random.randint(1, 5), events)
