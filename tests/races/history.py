"""The history of a race, for a linearizability checker: commits, and lists of all checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.linearizability.history import History, Operation, commit, list_ids, read
from tests.races.plan import Look, Try

__all__ = ["history_of"]

DONE = ("committed", "late")
SECOND_NS = 1_000_000_000


def history_of(tries: Sequence[Try], looks: Sequence[Look]) -> History:
    """Return the operations of all writers of one race.

    A late commit is visible, although its writer was replaced. A checkpoint that a writer found
    already committed was read by it.
    """
    return [*_commits(tries), *_lists(looks)]


def _commits(tries: Sequence[Try]) -> Iterator[Operation]:
    for each in tries:
        called, returned = _ns(each.began), _ns(each.ended)
        value = str(each.digest)
        if each.outcome in DONE:
            yield commit(each.writer, called, returned, each.id, value, "done")
        elif each.outcome == "already":
            yield read(each.writer, called, returned, each.id, value)
        elif each.outcome == "conflict" and each.id:
            refused = f"writer {each.writer}, attempt {each.number}"
            yield commit(each.writer, called, returned, each.id, refused, "refused")


def _lists(looks: Sequence[Look]) -> Iterator[Operation]:
    for look in looks:
        yield list_ids(look.writer, _ns(look.began), _ns(look.ended), look.ids)


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)
