"""The peers of the matrix: this tree, and each release in ``releases.toml``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.versions.peer import Peer, running
from tests.versions.releases import RELEASES, Release


@pytest.fixture(scope="package")
def tree() -> Iterator[Peer]:
    """A process with this tree."""
    with running(None) as peer:
        yield peer


@pytest.fixture(scope="package", params=RELEASES, ids=lambda release: release.version)
def release(request: pytest.FixtureRequest) -> Release:
    """Each release."""
    released: Release = request.param
    return released


@pytest.fixture(scope="package")
def released(release: Release) -> Iterator[Peer]:
    """A process with a release."""
    with running(release) as peer:
        yield peer


@pytest.fixture(params=["release first", "tree first"])
def pair(request: pytest.FixtureRequest, tree: Peer, released: Peer) -> tuple[Peer, Peer]:
    """A release and this tree: the one that creates the store, and the other one."""
    return (released, tree) if request.param == "release first" else (tree, released)
