"""A store on which several peers work in turn, and a model of its contents.

Each command runs in one peer. The model follows from the drawn rows alone. ``History.check``
compares a peer's readings with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from statestore.rows.digests import rows_digest
from tests.versions.content import (
    FORMS,
    NOW_MS,
    Content,
    Requests,
    expected_rows,
    first_content,
)
from tests.versions.peer import Peer

__all__ = ["COMMANDS", "History"]

SNAPSHOT = {"parallelism": 2, "now_ms": NOW_MS}


class History:
    """A store, and the content of each kept checkpoint.

    Attributes:
        contents: by the id of each visible checkpoint.
        savepoints: the kept checkpoint and its content, by name.
        pins: the kept checkpoint and its content, by token.
    """

    def __init__(self, folder: Path, random: Random, store: Mapping[str, Any]) -> None:
        self.folder, self.random, self.store = folder, random, store
        self.url = str(folder / "store")
        self.contents: dict[int, Content] = {}
        self.savepoints: dict[str, tuple[int, Content]] = {}
        self.pins: dict[str, tuple[int, Content]] = {}
        self.copies = 0
        self.groups = 4

    @property
    def latest(self) -> int:
        """The newest checkpoint."""
        return max(self.contents)

    def draw(self, how: str = "mixed") -> tuple[Content, Requests]:
        """Draw the content of the next checkpoint, and the requests that write it."""
        if not self.contents:
            return first_content(self.random)
        content, requests = self.contents[self.latest].written(self.random, how)
        if self.groups != 4:  # after a rekey
            requests = [_regrouped(request, self.groups) for request in requests]
        return content, requests

    def write(self, peer: Peer, how: str = "mixed") -> None:
        """Take a checkpoint of all states."""
        content, requests = self.draw(how)
        done = peer("write", url=self.url, requests=requests, store=self.store, **SNAPSHOT)
        assert not done["already"]
        self.add(done["id"], content)

    def add(self, number: int | None, content: Content) -> None:
        """Record a new checkpoint, whose id must be the greatest."""
        assert number is not None
        assert number > max(self.contents, default=0)
        self.contents[number] = content

    def check_newest(self, peer: Peer, *, parallelism: int = 2) -> None:
        """Compare the newest checkpoint, as a peer reads it, with the model."""
        content = self.contents[self.latest]
        check_checkpoint(peer, self.url, "latest", content, self.latest, parallelism)

    def check(self, peer: Peer, *, parallelism: int = 2) -> None:
        """Compare all that a peer reads with the model."""
        assert sorted(peer("checkpoints", url=self.url)) == sorted(self.contents)
        assert peer("savepoints", url=self.url) == {
            name: number for name, (number, _) in self.savepoints.items()
        }
        assert peer("pins", url=self.url) == {
            token: number for token, (number, _) in self.pins.items()
        }
        readable: dict[int | str, tuple[int, Content]] = {
            number: (number, content) for number, content in self.contents.items()
        }
        for checkpoint, (number, content) in (readable | dict(self.savepoints)).items():
            check_checkpoint(peer, self.url, checkpoint, content, number, parallelism)
        assert peer("verify", url=self.url) == []


def check_checkpoint(
    peer: Peer,
    url: str,
    checkpoint: int | str,
    content: Content,
    number: int | None,
    parallelism: int,
) -> None:
    """Compare the rows, types, digests and elements of one checkpoint with its content."""
    found = peer("read", url=url, checkpoint=checkpoint, parallelism=parallelism, now_ms=NOW_MS)
    where = f"{peer.name}, checkpoint {checkpoint} of {url}"
    assert number is None or found["id"] == number, where
    assert set(found["keyed"]) == {form.name for form in FORMS}, where
    for form in FORMS:
        rows = found["keyed"][form.name].drop_columns(["key_group"])
        assert rows.schema.remove_metadata().equals(form.schema), f"{where}: {form.name}"
        expected = expected_rows(form, content)
        ordered = sorted(rows.to_pylist(), key=lambda row: [row[name] for name in form.identity])
        assert ordered == expected.to_pylist(), f"{where}: {form.name}"
        assert found["digests"][form.name] == rows_digest(expected), f"{where}: {form.name}"
    offsets, operator = content.offsets, found["operator"]
    assert operator["source/union"] == [offsets] * parallelism, where
    assert operator["source/broadcast"] == [content.rules] * parallelism, where
    dealt = [element for part in operator["source/split"] for element in part]
    assert sorted(dealt, key=lambda element: element["partition"]) == offsets, where


def _regrouped(request: dict[str, Any], groups: int) -> dict[str, Any]:
    """Return a request with the number of key groups that a rekey of ``totals`` has set."""
    if request["operator"] != "totals" or "max_parallelism" not in request["arguments"]:
        return request
    return request | {"arguments": dict(request["arguments"]) | {"max_parallelism": groups}}


def write_full(history: History, peer: Peer) -> None:
    """Write all states in full."""
    history.write(peer, "full")


def write_changes(history: History, peer: Peer) -> None:
    """Write the changes of all states, with deletes."""
    history.write(peer, "changes")


def write_comparison(history: History, peer: Peer) -> None:
    """Compare all states with the newest checkpoint."""
    history.write(peer, "against")


def write_mixed(history: History, peer: Peer) -> None:
    """Write some states in full, changes of others, and carry the rest."""
    history.write(peer, "mixed")


def compact(history: History, peer: Peer) -> None:
    """Fold all layers, which may drop expired rows and no others."""
    latest = history.latest
    number = peer("compact", url=history.url, now_ms=NOW_MS)
    if number is not None:
        history.add(number, history.contents[latest])


def merge(history: History, peer: Peer) -> None:
    """Merge layers without their base."""
    latest = history.latest
    number = peer("merge", url=history.url, now_ms=NOW_MS)
    if number is not None:
        history.add(number, history.contents[latest])


def edit(history: History, peer: Peer) -> None:
    """Put two rows and delete one."""
    form, random, latest = FORMS[0], history.random, history.latest
    content = history.contents[latest]
    drawn = [form.draw_identity(random) for _ in range(2)]
    put = {identity: form.row(random, identity) for identity in drawn}
    others = sorted(set(content.rows[form.name]) - set(put))
    deleted = set(others[:1])
    number = peer(
        "edit",
        url=history.url,
        operator=form.operator,
        state=form.state,
        put=[*put.values()],
        delete=[identity[0] for identity in deleted],
    )
    history.add(number, content.with_rows(form.name, put, deleted))


def purge(history: History, peer: Peer) -> None:
    """Purge a key of one operator, and find it nowhere after a garbage collection."""
    unpin(history, peer)
    rows = history.contents[history.latest].rows[FORMS[0].name]
    user = history.random.choice(sorted(rows))[0]
    replaced = peer("purge", url=history.url, operator="totals", key=user)
    _replace(history, replaced, lambda content: content.without("totals", "user", user))
    peer("gc", url=history.url)
    assert peer("is_gone", url=history.url, operator="totals", key=user)


def forget(history: History, peer: Peer) -> None:
    """Forget a value of a column in all operators that have it."""
    unpin(history, peer)
    rows = history.contents[history.latest].rows[FORMS[0].name]
    user = history.random.choice(sorted(rows))[0]
    replaced = peer("forget", url=history.url, columns={"user": user})
    _replace(history, replaced, lambda content: content.without("totals", "user", user))


def _replace(
    history: History, replaced: Mapping[int, int], change: Callable[[Content], Content]
) -> None:
    """Record the replacements of checkpoints, to which their savepoints and pins move."""
    before = dict(history.contents)
    kept = before | dict(history.savepoints.values())
    assert set(replaced) <= set(kept)
    for number, new in sorted(replaced.items()):
        history.contents.pop(number, None)
        history.contents[new] = change(kept[number])
    for number, content in history.contents.items():
        assert change(content) == content, f"checkpoint {number} still has the rows"
    for name, (number, _) in list(history.savepoints.items()):
        if number in replaced:
            new = replaced[number]
            history.savepoints[name] = new, history.contents[new]


def rekey(history: History, peer: Peer) -> None:
    """Give an operator another number of key groups."""
    latest, history.groups = history.latest, history.groups + 3
    number = peer("rekey", url=history.url, operator="totals", max_parallelism=history.groups)
    history.add(number, history.contents[latest])


def expire(history: History, peer: Peer) -> None:
    """Expire all checkpoints except the newest two and the held ones."""
    visible = peer("expire", url=history.url, retain=2)
    held = {number for number, _ in (*history.savepoints.values(), *history.pins.values())}
    assert set(visible) == {*sorted(history.contents)[-2:], *held}
    history.contents = {number: history.contents[number] for number in visible}


def gc(history: History, peer: Peer) -> None:
    """Delete all files that nothing references."""
    peer("gc", url=history.url)


def hold(history: History, peer: Peer) -> None:
    """Keep the oldest checkpoint under a name, and pin the newest."""
    oldest, latest = min(history.contents), history.latest
    name = f"kept {len(history.savepoints)} é"
    assert peer("savepoint", url=history.url, name=name, checkpoint=oldest) == oldest
    history.savepoints[name] = oldest, history.contents[oldest]
    token = peer("pin", url=history.url, checkpoint=latest)
    history.pins[token] = latest, history.contents[latest]


def let_go(history: History, peer: Peer) -> None:
    """Delete a savepoint, and end all pins."""
    for name in sorted(history.savepoints)[:1]:
        assert peer("delete_savepoint", url=history.url, name=name)
        del history.savepoints[name]
    unpin(history, peer)


def unpin(history: History, peer: Peer) -> None:
    """End all pins, each of which would refuse a purge."""
    for token in sorted(history.pins):
        peer("unpin", url=history.url, token=token)
    history.pins.clear()


def copy(history: History, peer: Peer) -> None:
    """Copy the newest checkpoint into another store."""
    history.copies += 1
    target = str(history.folder / f"copy-{history.copies}")
    latest = history.latest
    peer("copy", url=history.url, checkpoint=latest, to=target, store=history.store)
    check_checkpoint(peer, target, "latest", history.contents[latest], None, 3)


def fork(history: History, peer: Peer) -> None:
    """Create a store that shares the files of the newest checkpoint."""
    history.copies += 1
    target = str(history.folder / f"fork-{history.copies}")
    latest = history.latest
    peer("fork", url=history.url, checkpoint=latest, to=target)
    check_checkpoint(peer, target, "latest", history.contents[latest], None, 3)


Command = Callable[[History, Peer], None]
COMMANDS: dict[str, Command] = {
    command.__name__: command
    for command in (
        *(write_full, write_changes, write_comparison, write_mixed, compact, merge, edit, purge),
        *(forget, rekey, expire, gc, hold, let_go, copy, fork),
    )
}
