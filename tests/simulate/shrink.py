"""Find the shortest plan that reproduces a violation: with fewer actors, events and stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulate.simulation import Outcome, Plan, simulate

__all__ = ["shrunk"]


def shrunk(
    found: Outcome, *, most_runs: int = 400, run: Callable[[Plan], Outcome] = simulate
) -> Outcome:
    """Return the outcome of a minimal plan that still has the same kind of violation.

    ``run`` runs a plan, and finds the violation.
    """
    assert found.wrong is not None
    kind, runs = found.wrong[0], 0
    best = found
    again = True
    while again and runs < most_runs:
        again = False
        for plan in _less(best.plan):
            runs += 1
            tried = run(plan)
            if tried.wrong is not None and tried.wrong[0] == kind:
                best, again = tried, True
                break
            if runs >= most_runs:
                break
    return best


def _less(plan: Plan) -> Iterator[Plan]:
    for place, actor in enumerate(plan.actors):
        rest = plan.actors[:place] + plan.actors[place + 1 :]
        events = tuple(event for event in plan.events if event.task != actor.name)
        yield replace(plan, actors=rest, events=events)
    for place in range(len(plan.events)):
        yield replace(plan, events=plan.events[:place] + plan.events[place + 1 :])
    yield from _simpler(plan)


def _simpler(plan: Plan) -> Iterator[Plan]:
    for number in range(plan.setup):
        yield replace(plan, setup=number)
    if plan.release:
        yield replace(plan, release="")
    for place, actor in enumerate(plan.actors):
        simpler = [replace(actor, skew_ms=0)] if actor.skew_ms else []
        for name, value in (("count", 1), ("pause", 0), ("how", "full"), ("back", 0)):
            if actor.option(name, value) != value:
                options = tuple((n, value if n == name else v) for n, v in actor.options)
                simpler.append(replace(actor, options=options))
        if actor.release:
            simpler.append(replace(actor, release=""))
        if actor.hours:
            simpler.append(replace(actor, hours=0.0))
        for other in simpler:
            yield replace(plan, actors=(*plan.actors[:place], other, *plan.actors[place + 1 :]))
    for place, event in enumerate(plan.events):
        for minutes in (0, 60):
            if minutes < event.minutes:
                other_event = replace(event, minutes=minutes)
                events = (*plan.events[:place], other_event, *plan.events[place + 1 :])
                yield replace(plan, events=events)
        if event.draw:
            events = (*plan.events[:place], replace(event, draw=0), *plan.events[place + 1 :])
            yield replace(plan, events=events)
