"""Defects that the simulator has found, each with the shortest plan that reproduces it.

All are fixed and must not return. A later change can shift the calls of a command, so each plan is
also tried with its events at nearby calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tests.simulate.actors import Actor
from tests.simulate.scheduler import Event
from tests.simulate.simulation import Outcome, Plan, simulate

__all__ = ["KNOWN", "Known", "shown_by"]


@dataclass(frozen=True)
class Known:
    """A defect: the checker's name for it, and the reason.

    ``near`` is the number of calls by which an event may be shifted in both directions.
    """

    name: str
    shows: str
    why: str
    plan: Plan
    near: int = 6


def shown_by(known: Known) -> Outcome | None:
    """Return an outcome that reproduces the defect; None if it does not occur."""
    for plan in _nearby(known):
        outcome = simulate(plan)
        if outcome.wrong is not None and outcome.wrong[0] == known.shows:
            return outcome
    return None


def _nearby(known: Known) -> Iterator[Plan]:
    events = known.plan.events
    moves = product(range(-known.near, known.near + 1), repeat=len(events))
    for move in sorted(moves, key=lambda one: sum(map(abs, one))):
        moved = tuple(replace(e, at=e.at + by) for e, by in zip(events, move, strict=True))
        if all(event.at > 0 for event in moved):
            yield replace(known.plan, events=moved)


def _of(verb: str, number: int = 1, hours: float = 0.0, store: str = "a", **more: Any) -> Actor:
    return Actor(verb, f"{verb}{number}", hours, 0, store, tuple(sorted(more.items())))


KNOWN = (
    Known(
        "a writer deletes files that its successor has named again",
        "missing",
        "its manifest was put, a tombstone came, and it took what it wrote for nobody's",
        Plan(
            "s3",
            2,
            (
                _of("job", how="changes", count=1),
                _of("job", 2, how="changes", count=1),
                _of("expire"),
            ),
            (Event("job1", 39, "wait"),),
        ),
    ),
    Known(
        "a rekey deletes files that another run has adopted",
        "missing",
        "two runs share a working folder",
        Plan("s3", 1, (_of("rekey", 1), _of("rekey", 2)), (Event("rekey1", 41, "wait"),)),
    ),
    Known(
        "a copy reports a checkpoint whose files a collection took",
        "missing",
        "files that it finds are as old as the copy that left them there",
        Plan(
            "local",
            1,
            (_of("copy", 1), _of("copy", 2, 50.0), _of("gc", 1, 50.0, "b")),
            (Event("copy1", 48, "kill"), Event("copy2", 35, "wait", 60)),
        ),
        near=2,
    ),
    Known(
        "a copy that failed deletes the file of the next one",
        "missing",
        "both write under one name",
        Plan("local", 1, (_of("copy", 1), _of("copy", 2)), (Event("copy1", 36, "wait"),)),
    ),
    Known(
        "a fork that failed deletes the file of the next one",
        "missing",
        "both write under one name",
        Plan("local", 1, (_of("fork", 1), _of("fork", 2)), (Event("fork1", 36, "wait"),)),
    ),
    Known(
        "a fork reports a checkpoint whose files a collection took",
        "missing",
        "a file that is shared is as old in the new store as it is in the other one",
        Plan(
            "local",
            1,
            (_of("fork", 1, 50.0), _of("gc", 1, 50.0, "b")),
            (Event("fork1", 54, "wait", 60),),
        ),
    ),
    Known(
        "a rekey reports a checkpoint whose files a collection took",
        "missing",
        "files that it adopts are as old as the run that wrote them",
        Plan(
            "s3",
            1,
            (_of("rekey", 1), _of("rekey", 2, 50.0), _of("gc", 1, 50.0)),
            (Event("rekey1", 43, "kill"), Event("rekey2", 33, "wait", 60)),
        ),
    ),
    Known(
        "a store that is made beside a collection ends in a traceback",
        "crashed: FileNotFoundError",
        "the file by which the file system was tried is old, and collected",
        Plan(
            "s3",
            0,
            (
                _of("job", 1, count=1, empty=True),
                _of("job", 2, 0.5, count=1, empty=True),
                _of("gc", 1, 48.0),
            ),
            (Event("job1", 6, "wait", 49 * 60),),
        ),
    ),
    Known(
        "a copy that failed shows a cut object",
        "cut",
        "an object is ended when its file is closed, also after an error",
        Plan("s3", 1, (_of("copy", 1),), (Event("copy1", 29, "fail"),)),
    ),
    Known(
        "a purge beside an expiry loses a savepoint",
        "hold lost",
        "what takes the place of a held checkpoint is not held yet",
        Plan(
            "local",
            3,
            (
                _of("savepoint", back=0),
                _of("expire", 1, 50.0, retain=1),
                _of("job", how="against", count=1),
                _of("purge", 2, 1.5),
            ),
            (Event("purge2", 125, "wait", 49 * 60),),
        ),
    ),
    Known(
        "a forget that stalls at its put commits above its successor",
        "fenced",
        "the ids that a stalled writer could take are taken from the greatest one down",
        Plan(
            "local",
            3,
            (_of("forget", 1), _of("forget", 2)),
            (Event("forget1", 119, "wait"), Event("forget2", 137, "wait")),
        ),
        near=1,
    ),
    Known(
        "two purges at once end in a traceback",
        "crashed: AttributeError",
        "an id that the second wants is visible by then",
        Plan("s3", 3, (_of("purge", 1), _of("purge", 2)), (Event("purge1", 47, "wait"),)),
    ),
    Known(
        "a purge reports what another one has not finished",
        "purged",
        "what it finds to be finished after it has claimed the store is left at that",
        Plan(
            "s3",
            2,
            (
                _of("purge", 1),
                _of("savepoint", 1, back=0),
                _of("expire", retain=1),
                _of("purge", 2),
            ),
            (Event("purge1", 8, "wait"), Event("purge2", 57, "lost")),
        ),
        near=2,
    ),
    Known(
        "a salvage buries what a job committed",
        "buried",
        "it looks at the newest checkpoint, and commits above a newer one",
        Plan(
            "local",
            2,
            (_of("damage"), _of("salvage"), _of("job", how="full", count=1)),
            (Event("salvage1", 16, "wait"),),
        ),
    ),
    Known(
        "a copy takes another checkpoint of that number for its own",
        "other",
        "a store that was copied file by file has the same id, and other checkpoints",
        Plan(
            "local",
            1,
            (
                _of("clone", to="c"),
                _of("job", 1, count=1),
                _of("job", 2, 0.0, "c", count=1),
                _of("copy", 1),
                _of("copy", 2, 0.0, "c"),
            ),
        ),
    ),
    Known(
        "an export deletes what is not its own",
        "foreign",
        "the folder is not empty, which is looked at after it was cleared",
        Plan(
            "local",
            1,
            (_of("export", 1), _of("person"), _of("export", 2)),
            (Event("export1", 4, "kill"),),
        ),
    ),
    Known(
        "a query passes over events when its checkpoint location is behind",
        "buried",
        "a micro-batch that is done may end elsewhere than the one of that number now",
        Plan(
            "s3",
            0,
            (
                _of("query", 1, produced=3),
                _of("query", 2, 1.0, pace=3, produced=9),
                _of("query", 3, 2.0, pace=4, produced=12),
            ),
            (Event("query2", 81, "power"),),
        ),
    ),
    Known(
        "a query counts twice after a salvage that lost its progress",
        "twice",
        "no progress is taken for a new query's",
        Plan(
            "local",
            0,
            (
                _of("query", 1, produced=3),
                _of("damage", 1, 0.5, state="operator/progress"),
                _of("salvage", 1, 0.6),
                _of("query", 2, 1.0, produced=6),
            ),
            (Event("query1", 80, "kill"),),
        ),
    ),
    Known(
        "a store is gone after a loss of power",
        "gone",
        "the folders above new ones are not synced",
        Plan("local", 0, (_of("job", count=2, empty=True),), (Event("job1", 47, "power"),)),
    ),
    Known(
        "parts of a writer that was killed stay",
        "parts stay",
        "nobody ends uploads that were not finished",
        Plan("s3", 1, (_of("job", count=1),), (Event("job1", 16, "kill"),)),
    ),
    Known(
        "a hold that was refused stays, where another savepoint is damaged",
        "left hold",
        "the words of the error ask for all savepoints, and meet the damaged one",
        Plan(
            "local",
            2,
            (
                _of("savepoint", 1, name="other"),
                _of("blot", 1, 0.5, name="other"),
                _of("savepoint", 2, back=1),
                _of("expire", retain=1),
            ),
            (Event("savepoint2", 7, "wait", 60),),
        ),
    ),
    Known(
        "a greatest id leaves no number for the next checkpoint",
        "stuck",
        "ids only grow",
        Plan("local", 1, (_of("job", count=1, ids=9_999_999_999),)),
    ),
    Known(
        "a collection beside a busy job refuses with alarm",
        "alarm",
        "a checkpoint is committed between two listings",
        Plan(
            "s3",
            2,
            (_of("job", count=1), _of("gc", 2)),
            (Event("job1", 23, "wait"), Event("gc2", 5, "wait")),
        ),
        near=2,
    ),
    Known(
        "a search cannot read expired manifests whose file lists were collected",
        "search",
        "a collection deletes the lists first, and keeps manifests while files of theirs are left",
        Plan(
            "s3",
            3,
            (
                _of("compact", 1, 26.0),
                _of("expire", 1, 26.0),
                _of("purge", 1),
                _of("gc", 1, 26.0),
            ),
            (
                Event("purge1", 27, "wait"),
                Event("purge1", 60, "wait", 1),
                Event("gc1", 5, "wait", 1500),
            ),
            "u",
        ),
        near=1,
    ),
)
