"""What a release can do in a store whose writer version this tree has raised."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from statestore import StateStore
from statestore.catalog.fence import WRITER_VERSIONS
from statestore.errors import InvalidArgumentError
from tests.versions.content import NOW_MS
from tests.versions.history import SNAPSHOT, History
from tests.versions.peer import Peer, RefusedError
from tests.versions.releases import Release

pytestmark = [pytest.mark.versions, pytest.mark.slow]

VERSION, RELEASE = max(WRITER_VERSIONS.items())


@pytest.fixture
def history(tmp_path: Path, released: Peer, release: Release) -> History:
    """A store with three checkpoints of a release that does not know the newest writer version."""
    if numbers(release.version) >= numbers(RELEASE):
        pytest.fail(f"release {release.version} knows writer version {VERSION}: exempt it here")
    history = History(tmp_path, Random("upgrade"), {"table_format": "parquet"})
    for how in ("full", "changes", "mixed"):
        history.write(released, how)
    return history


def numbers(version: str) -> list[int]:
    """Return the parts of a version, which can be compared."""
    return [*map(int, version.split("."))]


def upgrade(history: History, **options: Any) -> None:
    """Run the command of this tree."""
    StateStore.open(history.url).maintenance.upgrade(**options)


def test_a_running_writer_of_a_release_is_fenced_and_then_refused(
    history: History, released: Peer, tree: Peer
) -> None:
    """It commits nothing, and still reads. After the upgrade is undone, it writes again."""
    _, requests = history.draw()
    released("begin", url=history.url, name="late", store=history.store, **SNAPSHOT)
    upgrade(history)
    with pytest.raises(RefusedError) as conflict:
        released("finish", name="late", requests=requests)
    assert "CommitConflictError" in conflict.value.names
    user = min(history.contents[history.latest].rows["totals/by-user"])[0]
    needing: dict[str, dict[str, Any]] = {
        "write": {"requests": requests, "store": history.store, **SNAPSHOT},
        "edit": {"operator": "totals", "state": "by-user", "put": [], "delete": [user]},
        "compact": {"now_ms": NOW_MS},
        "purge": {"operator": "totals", "key": user},
        "repair": {},
        "verify": {},
    }
    for action, arguments in needing.items():
        with pytest.raises(RefusedError, match=f"format version {VERSION}") as refused:
            released(action, url=history.url, **arguments)
        assert "FormatVersionError" in refused.value.names, action
        assert "writers/" in refused.value.message, action
    history.check_newest(released)
    history.check(tree)
    assert released("checkpoints", url=history.url) == (1, 2, 3)
    released("gc", url=history.url)
    history.check(tree)
    upgrade(history, back=True)
    for peer in (released, tree):
        history.write(peer)
        history.check(released)
        history.check(tree)


def test_a_release_reads_what_it_understands_of_an_upgraded_store(
    history: History, released: Peer, tree: Peer
) -> None:
    """An upgrade with a checkpoint after it is not undone."""
    upgrade(history)
    history.write(tree)
    history.check_newest(released)
    with pytest.raises(InvalidArgumentError, match="cannot be undone: checkpoint 4"):
        upgrade(history, back=True)
    history.write(tree)
    history.check(tree)
