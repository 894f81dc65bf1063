"""A model of writers' claims and their deletion, one request at a time.

A writer finds the newest claim, puts the next one if that name is free, and looks for the preceding
claim. Before each commit it looks for the next claim and for its own. A collector lists the claims
and deletes those of replaced writers, at any age. A repairer is a writer that commits nothing.

Each step is one request. Any actor may stop between two requests, for any time or forever.
``faults`` restore defects of the design, one by one. :func:`wrong` checks the invariants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["FAULTS", "Actor", "State", "begin", "steps", "wrong"]

FAULTS = {
    "descending": "a collector deletes the newest of the claims first",
    "no look back": "a writer trusts its put",
    "the own claim is not read": "a writer looks only for the next claim",
}

Claims = frozenset[tuple[int, str]]
"""Generation and writer of each claim."""


class Actor(NamedTuple):
    """The position and knowledge of an actor.

    ``before`` is the claim that a writer has read: 0 and an empty name if none existed. ``newer``
    is True once another writer had completed a newer claim when a check began.
    """

    kind: str
    name: str
    at: str = "begin"
    rounds: int = 1
    before: tuple[int, str] = (0, "")
    newer: bool = False
    doomed: tuple[int, ...] = ()

    @property
    def generation(self) -> int:
        """The generation of the writer's claim."""
        return self.before[0] + 1


class State(NamedTuple):
    """The claims of a store and its actors.

    ``completed`` are the generations that writers believe to own, and ``late`` is the last writer
    that committed although it was replaced.
    """

    actors: tuple[Actor, ...]
    claims: Claims = frozenset()
    completed: frozenset[tuple[int, str]] = frozenset()
    late: str = ""

    @property
    def newest(self) -> tuple[int, str]:
        return max(self.claims, default=(0, ""))


def begin(*rounds: int, collections: int = 1) -> State:
    """Return a store without claims, a writer for each of ``rounds``, and a collector.

    A writer is restarted as another process until it has run that many times.
    """
    writers = (Actor("writer", f"w{place}", rounds=often) for place, often in enumerate(rounds))
    return State((*writers, Actor("collector", "c", rounds=collections)))


def steps(state: State, faults: frozenset[str]) -> Iterator[tuple[str, State]]:
    """Yield each possible next step and its result."""
    for place, actor in enumerate(state.actors):
        act = _write if actor.kind == "writer" else _collect
        for said, after, changed in act(state, actor, faults):
            actors = (*state.actors[:place], changed, *state.actors[place + 1 :])
            yield f"{actor.name} {said}", after._replace(actors=actors)


Act = Iterator[tuple[str, State, Actor]]


def _write(state: State, me: Actor, faults: frozenset[str]) -> Act:
    mine = (me.generation, me.name)
    if me.at == "begin":
        yield "finds the newest claim", state, me._replace(at="put", before=state.newest)
    elif me.at == "put":
        if any(generation == me.generation for generation, _ in state.claims):
            yield "is too late", state, me._replace(at="begin")
        else:
            put = state._replace(claims=state.claims | {mine})
            yield f"puts claim {me.generation}", put, me._replace(at="look back")
    elif me.at == "look back":
        alone = state.newest == mine if me.generation == 1 else me.before in state.claims
        if alone or "no look back" in faults:
            claimed = state._replace(completed=state.completed | {mine})
            yield "completes its claim", claimed, me._replace(at="look for the next")
        else:
            yield "was replaced", state, me._replace(at="begin")
    elif me.at == "look for the next":
        newer = max(state.completed)[0] > me.generation
        if any(generation == me.generation + 1 for generation, _ in state.claims):
            yield "was replaced", state, _again(me)
        else:
            yield "finds no next claim", state, me._replace(at="look for its own", newer=newer)
    elif me.at == "look for its own":
        if mine not in state.claims and "the own claim is not read" not in faults:
            yield "was replaced", state, _again(me)
        else:
            late = me.name if me.newer else state.late
            yield "commits", state._replace(late=late), me._replace(at="look for the next")
            yield "commits, and ends", state._replace(late=late), _again(me)


def _again(me: Actor) -> Actor:
    """Return a new process in the place of one that has ended."""
    left = me.rounds - 1
    name = f"{me.name.rstrip('+')}{'+' * left}" if left else me.name
    return Actor(me.kind, name, "begin" if left else "end", left)


def _collect(state: State, me: Actor, faults: frozenset[str]) -> Act:
    if me.at == "begin":
        listed = sorted(generation for generation, _ in state.claims)
        whole = [
            generation
            for place, generation in enumerate(listed[:-2])
            if generation == listed[0] + place
        ]
        doomed = tuple(reversed(whole)) if "descending" in faults else tuple(whole)
        yield "lists the claims", state, me._replace(at="delete", doomed=doomed)
    elif me.at == "delete" and me.doomed:
        first, *others = me.doomed
        claims = frozenset(claim for claim in state.claims if claim[0] != first)
        left = me._replace(doomed=tuple(others))
        yield f"deletes claim {first}", state._replace(claims=claims), left
    elif me.at == "delete":
        yield "is done", state, _again(me)


def wrong(before: State, after: State) -> str | None:
    """Return a description of the invariant that a step has violated, or None."""
    if after.late:
        return f"{after.late} was replaced, and commits"
    generations = [generation for generation, _ in after.completed]
    if len(generations) != len(set(generations)):
        return "two writers own one generation"
    if before.claims and not after.claims:
        return "no claim is left"
    return None
