"""A model of a store's protocol: what each actor may do next, one request at a time.

The model's store consists of claims, manifests, tombstones, data files and holds. The actors are:

* A writer or copier claims, looks, writes, checks, puts and looks again.
* A holder looks, puts its hold and looks again.
* A collector expires checkpoints and then deletes files. An expirer only expires them.
* A cleaner deletes expired manifests, and tombstones that have no manifest.

Each step is one request. Any actor may stop between two requests, for any time or forever. Time
passes when files grow old. After that, no actor commits an attempt that it began before. Garbage
collection relies on this limit while writers are active.

``faults`` restore defects of the design, one by one. :func:`wrong` checks the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["FAULTS", "Made", "State", "Step", "begin", "steps", "wrong"]

FAULTS = {
    "no fence": "who was replaced goes on",
    "a put overwrites": "of two manifests of a number the later stays",
    "deletes after its put": "who finds a tombstone behind its put deletes what it wrote",
    "old files are named again": "who finds a file there takes it as it is, however old it is",
    "names are shared": "copies of one checkpoint write a file under one name, anew if it is there",
    "an error deletes a shared name": "and a copy that fails deletes it",
    "no second look": "who holds a checkpoint does not look whether it is visible still",
    "holds before tombstones": "a collector lists holds first, and tombstones then",
    "holds are not marked": "a collector goes by what is visible alone",
    "young files go": "a collector takes what writers at work have written",
    "the newest expires": "an expiry keeps nothing",
    "young tombstones go": "a tombstone goes while writers are at work that began before it",
    "tombstones go first": "a tombstone goes before its manifest",
}

SHARING = {"old files are named again", "names are shared", "an error deletes a shared name"}

Files = frozenset[str]
Numbers = frozenset[int]


class Made(NamedTuple):
    """A manifest: its writer's generation, its files, and the checkpoints that its writer saw."""

    number: int
    generation: int
    files: Files
    saw: Numbers


class Actor(NamedTuple):
    """The position and knowledge of an actor; its kind decides which fields are used."""

    kind: str
    at: str = "begin"
    rounds: int = 1
    generation: int = 0
    number: int = 0
    files: Files = frozenset()
    saw: Numbers = frozenset()
    wrote: Files = frozenset()

    def ended(self) -> Actor:
        """Return this actor after its last step, without any knowledge."""
        return Actor(self.kind, "end", 0)


class State(NamedTuple):
    """A store, its actors, and the results that they have received."""

    actors: tuple[Actor, ...]
    generation: int = 1
    made: tuple[Made, ...] = (Made(1, 1, frozenset({"first"}), frozenset({1})),)
    tombstones: Numbers = frozenset()
    young: Files = frozenset()
    old: Files = frozenset({"first"})
    holds: Numbers = frozenset()
    reported: Numbers = frozenset()
    held: Numbers = frozenset()
    aged: Numbers = frozenset()  # old tombstones
    gone: Numbers = frozenset()  # deleted manifests
    ages: int = 1

    @property
    def numbers(self) -> Numbers:
        return frozenset(one.number for one in self.made)

    @property
    def visible(self) -> Numbers:
        return self.numbers - self.tombstones

    @property
    def next_number(self) -> int:
        return max(self.numbers | self.tombstones, default=0) + 1

    def of(self, number: int) -> Made | None:
        """Return the manifest with this number, or None."""
        return next((one for one in self.made if one.number == number), None)

    def files_of(self, numbers: Numbers) -> Files:
        """Return all files that these manifests name."""
        return frozenset().union(*(one.files for one in self.made if one.number in numbers))


Step = tuple[str, State]


def begin(kinds: tuple[str, ...], *, rounds: int = 1, ages: int = 1) -> State:
    """Return the first state: one checkpoint, and a file of a copy that was killed.

    A ``latecomer`` is a writer that is about to put a manifest. Another writer has put a manifest
    with the same number, and that checkpoint has expired.
    """
    often = {"writer": rounds, "cleaner": 2}
    actors = tuple(Actor(kind, rounds=often.get(kind, 1)) for kind in kinds)
    copies = "copier" in kinds
    old = frozenset({"first", "copied"}) if copies else frozenset({"first"})
    if "latecomer" not in kinds:
        return State(actors, old=old, ages=ages)
    late = Actor("writer", "put", 1, 0, 1, frozenset({"late"}), frozenset({1}), frozenset({"late"}))
    actors = tuple(late if actor.kind == "latecomer" else actor for actor in actors)
    second = Made(2, 1, frozenset({"second"}), frozenset({1, 2}))
    return State(
        actors,
        made=(*State(()).made, second),
        tombstones=frozenset({1}),
        young=frozenset({"late"}),
        old=old | {"second"},
        ages=ages,
    )


def steps(state: State, faults: frozenset[str], *, tidy: bool = True) -> Iterator[Step]:
    """Yield each possible next step and its result; ``tidy`` merges states that continue alike."""
    for place, actor in enumerate(state.actors):
        for said, after, changed in ACTS[actor.kind](state, actor, faults):
            actors = (*state.actors[:place], changed, *state.actors[place + 1 :])
            after = after._replace(actors=actors)
            after = _tidied(after, faults) if tidy else after
            yield f"{actor.kind} {changed.generation or actor.generation or ''} {said}", after
    if state.ages and state.young:
        yield "files grow old", _aged(state)


def _tidied(state: State, faults: frozenset[str]) -> State:
    """Return one representative of the many states that continue alike.

    A writer that will be refused in any case is refused now, because nothing shows its steps until
    then. Files that no actor can name any more are removed. Actors of one kind are sorted by claim.
    """
    if faults & SHARING:  # a refused writer deletes files that others may name
        return state
    actors = [actor.ended() if _refused(state, actor, faults) else actor for actor in state.actors]
    used = state.files_of(state.numbers).union(
        *(actor.files | actor.wrote for actor in actors if actor.kind in ("writer", "copier"))
    )
    for place, one in enumerate(actors):
        if one.kind == "collector" and one.files:
            left = one.files & used
            actors[place] = one._replace(files=left) if left else one.ended()
    actors.sort(key=lambda one: (one.kind, one.generation, one.at))
    return state._replace(actors=tuple(actors), young=state.young & used, old=state.old & used)


def _refused(state: State, me: Actor, faults: frozenset[str]) -> bool:
    """Return True if a writer will never reach its put; each of these reasons is permanent."""
    if me.kind not in ("writer", "copier") or me.at not in ("look", "write", "check"):
        return False
    replaced = "no fence" not in faults and state.generation > me.generation
    taken = me.at != "look" and state.next_number > me.number
    return replaced or taken or not me.files <= state.young | state.old


def _aged(state: State) -> State:
    actors = tuple(
        actor.ended() if actor.at in ("write", "check", "put") else actor for actor in state.actors
    )
    return state._replace(
        actors=actors,
        old=state.old | state.young,
        young=frozenset(),
        aged=state.tombstones,
        ages=state.ages - 1,
    )


Act = Iterator[tuple[str, State, Actor]]


def _write(state: State, me: Actor, faults: frozenset[str]) -> Act:
    """A writer may reuse the newest checkpoint's files, and always adds a file of its own."""
    if me.at == "begin":
        claim = state.generation + 1
        yield "claims", state._replace(generation=claim), me._replace(at="look", generation=claim)
    elif me.at == "look":
        changed = me._replace(at="write", number=state.next_number, saw=state.numbers)
        yield "looks, and writes all", state, changed
        if me.kind == "writer":
            again = state.files_of(frozenset({max(state.visible)}))
            yield "looks, and writes changes", state, changed._replace(files=again)
    elif me.at == "write":
        yield from _file(state, me, faults)
    elif me.at == "check":
        if _refused(state, me, faults):
            yield "is refused", _without(state, me.wrote), me.ended()
        else:
            yield "checks", state, me._replace(at="put")
    elif me.at == "put":
        yield from _put(state, me, faults)
    elif me.at == "tombstone":
        if me.number not in state.tombstones:
            next_round = Actor(me.kind, "look", me.rounds - 1, me.generation)
            changed = next_round if next_round.rounds else me.ended()
            yield "is done", state._replace(reported=state.reported | {me.number}), changed
        elif "deletes after its put" in faults:
            yield "deletes", _without(state, me.wrote), me.ended()
        else:
            yield "finds a tombstone", state, me.ended()


def _file(state: State, me: Actor, faults: frozenset[str]) -> Act:
    """Write a file whose name no other attempt uses."""
    name = f"of-{me.generation}-{me.rounds}"
    shared = me.kind == "copier" and bool(faults & SHARING)
    if shared:
        name = "copied"
    changed = me._replace(at="check", files=me.files | {name}, wrote=frozenset({name}))
    if shared and "an error deletes a shared name" not in faults:
        changed = changed._replace(wrote=frozenset())
    if shared and "old files are named again" in faults and name in state.young | state.old:
        yield "finds a file", state, changed
        return
    written = state._replace(young=state.young | {name}, old=state.old - {name})
    yield "writes", written, changed


def _put(state: State, me: Actor, faults: frozenset[str]) -> Act:
    made = Made(me.number, me.generation, me.files, me.saw | {me.number})
    if state.of(me.number) is not None and "a put overwrites" not in faults:
        yield "is too late", state, me.ended()
        return
    others = tuple(one for one in state.made if one.number != me.number)
    put = state._replace(made=tuple(sorted((*others, made))))
    done = Actor(me.kind, "tombstone", me.rounds, me.generation, me.number, wrote=me.wrote)
    yield "puts", put, done
    yield "puts, and hears of a failure", put, me.ended()


def _without(state: State, files: Files) -> State:
    return state._replace(young=state.young - files, old=state.old - files)


def _hold(state: State, me: Actor, faults: frozenset[str]) -> Act:
    """Add a savepoint for any visible checkpoint."""
    if me.at == "begin":
        for number in sorted(state.visible):
            yield f"looks at {number}", state, me._replace(at="put", number=number)
    elif me.at == "put":
        held = state._replace(holds=state.holds | {me.number})
        if "no second look" in faults:
            held = held._replace(held=state.held | {me.number})
            yield "puts", held, me.ended()
        else:
            yield "puts", held, me._replace(at="look")
    elif me.at == "look":
        if me.number in state.visible:
            held = state._replace(held=state.held | {me.number})
            yield "holds it", held, me.ended()
        else:
            held = state._replace(holds=state.holds - {me.number})
            yield "takes it back", held, me.ended()


def _collect(state: State, me: Actor, faults: frozenset[str]) -> Act:
    """Expire all but the newest checkpoint, then collect; the step decides what ``saw`` means."""
    if me.at == "begin":
        yield "lists checkpoints", state, me._replace(at="expire", saw=state.visible)
    elif me.at == "expire":
        newest = {max(me.saw)} if me.saw and "the newest expires" not in faults else set()
        yield "lists holds", state, _giving_up(me, me.saw - newest - state.holds)
    elif me.at == "give up":
        least = min(me.saw)
        buried = state._replace(tombstones=state.tombstones | {least})
        yield f"gives {least} up", buried, _giving_up(me, me.saw - {least})
    elif me.at in ("list", "mark"):
        yield from _listed(state, me, faults)
    elif me.at == "delete" and me.files:
        name = min(me.files)
        yield (
            f"deletes {name}",
            _without(state, frozenset({name})),
            me._replace(files=me.files - {name}),
        )


def _giving_up(me: Actor, numbers: Numbers) -> Actor:
    if numbers:
        return me._replace(at="give up", saw=numbers)
    return me.ended() if me.kind == "expirer" else Actor(me.kind, "list")


def _listed(state: State, me: Actor, faults: frozenset[str]) -> Act:
    """List tombstones and files first, then holds; ``saw`` contains the visible checkpoints."""
    holds_first = "holds before tombstones" in faults
    sees_holds = (me.at == "list") == holds_first
    if sees_holds:
        held = frozenset() if "holds are not marked" in faults else state.holds
        changed = me._replace(saw=me.saw | held)
    else:
        files = state.old | state.young if "young files go" in faults else state.old
        changed = me._replace(saw=me.saw | state.visible, files=files)
    if me.at == "list":
        yield "lists", state, changed._replace(at="mark")
        return
    dead = changed.files - state.files_of(changed.saw)
    yield "marks", state, Actor(me.kind, "delete", files=dead)


def _clean(state: State, me: Actor, faults: frozenset[str]) -> Act:
    """Delete manifests with tombstones first; in another round, tombstones without a manifest."""
    old = state.tombstones if "young tombstones go" in faults else state.aged
    old -= {state.next_number - 1}  # the greatest number remains known
    if me.at == "begin":
        yield "lists tombstones", state, me._replace(at="holds", saw=old & state.numbers)
        bare = old if "tombstones go first" in faults else old - state.numbers
        yield "lists bare tombstones", state, me._replace(at="tombstones", saw=bare)
    elif me.at == "holds":
        yield "lists holds", state, me._replace(at="manifests", saw=me.saw - state.holds)
    elif me.at == "manifests" and me.saw:
        number = min(me.saw)
        made = tuple(one for one in state.made if one.number != number)
        changed = state._replace(made=made, gone=state.gone | {number})
        yield f"takes manifest {number} away", changed, me._replace(saw=me.saw - {number})
    elif me.at == "tombstones" and me.saw:
        number = min(me.saw)
        changed = state._replace(tombstones=state.tombstones - {number}, aged=state.aged - {number})
        yield f"takes tombstone {number} away", changed, me._replace(saw=me.saw - {number})
    elif me.at != "end":
        yield "is done", state, me._replace(at="begin", rounds=1) if me.rounds > 1 else me.ended()


ACTS: dict[str, Callable[[State, Actor, frozenset[str]], Act]] = {
    "writer": _write,
    "copier": _write,
    "holder": _hold,
    "collector": _collect,
    "expirer": _collect,
    "cleaner": _clean,
}


def wrong(before: State, after: State) -> str | None:
    """Return a description of the invariant that a step has violated, or None."""
    there = after.young | after.old
    for one in after.made:
        if one.number in after.visible and not one.files <= there:
            return f"checkpoint {one.number} is visible, and has lost {sorted(one.files - there)}"
        if one.number in after.held and not one.files <= there:
            return f"checkpoint {one.number} is held, and has lost {sorted(one.files - there)}"
    if max(before.visible, default=0) > max(after.visible, default=0):
        return "the newest checkpoint has gone back"
    again = (before.tombstones - after.tombstones) & after.numbers
    if again:
        return f"checkpoint {sorted(again)} expired, and is visible again"
    if not after.reported <= after.numbers | after.gone:
        return "what was reported is not there"
    if after.held & after.gone:
        return f"the manifests of {sorted(after.held & after.gone)} are gone, and held"
    if after.numbers & after.gone:
        return f"checkpoint {sorted(after.numbers & after.gone)} has come back"
    for below, above in zip(after.made, after.made[1:], strict=False):
        if below.generation > above.generation:
            return f"checkpoint {above.number} is of a writer that was replaced"
    newest = after.of(max(after.visible, default=0))
    if newest is not None:
        buried = {number for number in after.reported if number < newest.number} - newest.saw
        if buried:
            return f"{sorted(buried)} were reported, and the newest was not made of them"
    for one in before.made:
        now = after.of(one.number)
        if one.number in before.reported and now != one and one.number not in after.gone:
            return f"checkpoint {one.number} was reported, and is another one's now"
    return None
