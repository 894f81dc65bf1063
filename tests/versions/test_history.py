"""The model of the matrix finds a row, a digest or an element that a store does not have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from multiprocessing import Pipe
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.versions.content import FORMS, Content
from tests.versions.history import History
from tests.versions.peer import TREE, Peer, RefusedError, or_refused, running

pytestmark = pytest.mark.slow

Change = Callable[[Content], Content]


def with_value(name: str, column: str, value: Any) -> Change:
    """Return a change of one value of the first row of a state."""

    def change(content: Content) -> Content:
        identity, row = min(content.rows[name].items())
        return content.with_rows(name, {identity: row | {column: value}}, set())

    return change


def without_a_row(content: Content) -> Content:
    """Delete a row."""
    name = FORMS[0].name
    return content.with_rows(name, {}, {min(content.rows[name])})


CHANGES: dict[str, Change] = {
    "a value": with_value("totals/by-number", "text", "other"),
    "a digit": with_value("windows/sums", "sum", Decimal("0.1234567891")),
    "a sign of zero": with_value("totals/by-user", "share", -0.0),
    "a row": without_a_row,
    "an element": lambda content: replace(content, offset=content.offset + 1),
}


@pytest.fixture(scope="module")
def peer() -> Any:
    """A process with this tree."""
    with running(None) as peer:
        yield peer


@pytest.mark.search_program
@pytest.mark.parametrize("change", CHANGES)
def test_the_model_finds_each_difference(change: str, tmp_path: Path, peer: Peer) -> None:
    history = History(tmp_path, Random(change), {"table_format": "parquet"})
    zero = with_value("totals/by-user", "share", 0.0)
    content, requests = history.draw()
    content = zero(content)
    requests[0]["rows"] = FORMS[0].table(content.rows[FORMS[0].name])
    done = peer("write", url=history.url, requests=requests, store=history.store, parallelism=2)
    history.add(done["id"], content)
    history.check(peer)
    history.contents[done["id"]] = CHANGES[change](content)
    with pytest.raises(AssertionError, match="tree, checkpoint 1 of"):
        history.check(peer)


def test_a_peer_reports_the_stores_own_errors_only(tmp_path: Path, peer: Peer) -> None:
    with pytest.raises(RefusedError) as refused:
        peer("expire", url=str(tmp_path / "none"), retain=1)
    assert refused.value.peer == TREE
    assert refused.value.names[:2] == ("StoreNotFoundError", "NotFoundError")
    with pytest.raises(AssertionError, match="TypeError"):
        peer("expire", url=str(tmp_path / "none"), keep=1)


def peers(*names: str) -> tuple[Peer, Peer]:
    """Return peers that only have names."""
    ours, _ = Pipe()
    first, second = (Peer(name, ours) for name in names)
    return first, second


@pytest.mark.parametrize(
    ("names", "by", "error", "is_accepted"),
    [
        ((TREE, "0.1.0"), "0.1.0", "FormatVersionError", True),
        ((TREE, "0.1.0"), "0.1.0", "CorruptionError", False),
        ((TREE, "0.1.0"), TREE, "FormatVersionError", False),
        (("0.1.0", TREE), "0.1.0", "FormatVersionError", False),
        (("0.1.0", TREE), TREE, "FormatVersionError", False),
    ],
)
def test_only_a_release_may_refuse_only_a_store_of_this_tree(
    names: tuple[str, str], by: str, error: str, is_accepted: bool
) -> None:
    """This tree refuses no store, and a release refuses none of its own."""

    @or_refused
    def test(pair: tuple[Peer, Peer]) -> None:
        raise RefusedError(by, [error, "StateStoreError"], "a message")

    with nullcontext() if is_accepted else pytest.raises(RefusedError, match="a message"):
        test(pair=peers(*names))
