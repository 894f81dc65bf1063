"""Processes of a release and of this tree race for the same stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.races.run import TREE, Place, on_disk, on_s3, run_races
from tests.versions.releases import Release

pytestmark = [pytest.mark.versions, pytest.mark.slow]


@pytest.mark.parametrize(
    ("place", "count"),
    [
        (on_disk, 12),
        pytest.param(on_disk, 300, marks=pytest.mark.long),
        pytest.param(on_s3, 40, marks=[pytest.mark.long, pytest.mark.services]),
    ],
)
def test_versions_race(
    place: Callable[[], AbstractContextManager[Place]], count: int, release: Release
) -> None:
    """I4, I6: `make races ARGS="--release 0.1.0"` runs more."""
    with place() as folder:
        result = run_races(folder, count, seed=3, seconds=500, verbose=False, release=release)
    assert result.problems == []
    assert result.races == count
    assert {"committed", "replaced"} <= set(result.outcomes)
    assert set(result.winners) == {TREE, release.version}
