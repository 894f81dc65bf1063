"""Actors of a release in a simulated world: they share all of it except the product's modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tests.simulate.actors import Run
from tests.simulate.world import World
from tests.versions.side_by_side import second_package

__all__ = ["ACTORS", "released_run", "replaced_modules"]

ACTORS = "tests.simulate.actors"


def released_run(run: Run, version: str) -> Run:
    """Return a run whose actors are of a release, in the same world."""
    second = second_package(version)
    return cast(
        Run,
        second.module(ACTORS).Run(
            world=_released_world(run.world, version),
            entering=second.entered,
            errors=run.errors,
            unfinished=run.unfinished,
            makers=run.makers,
        ),
    )


@contextmanager
def replaced_modules(world: World, version: str) -> Iterator[None]:
    """Replace the clocks, ids and threads of a release's modules, as of this tree's."""
    second = second_package(version)
    replacing = _released_world(world, version).replaced()
    with second.entered():
        replacing.__enter__()
    try:
        yield
    finally:
        with second.entered():
            replacing.__exit__(None, None, None)


def _released_world(world: World, version: str) -> Any:
    """Return the world as the release's modules see it; its parts and counters are the same."""
    released = second_package(version).module("tests.simulate.world").World
    other = released.__new__(released)
    other.__dict__ = world.__dict__
    return other
