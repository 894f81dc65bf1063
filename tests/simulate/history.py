"""The operations of all actors of a run, for a linearizability checker.

A job's commit begins when the job enters its block, and ends when the job learns the outcome. A
command reports only that it has ended. So its changes are taken from the files: each begins when
the actor puts or deletes the document, and ends when the command reports success. If the actor dies
or fails, the change never ends.

Only the commands that may delete a checkpoint or a savepoint have operations that do so. If another
actor deletes one, the next read of it contradicts the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from tests.linearizability.history import (
    History,
    Operation,
    Outcome,
    commit,
    expire,
    hold,
    latest,
    list_ids,
    look_up,
    read,
    release,
)
from tests.simulate.scheduler import Task

__all__ = ["Commit", "OperationLog"]

EXPIRING = ("expire", "purge", "forget", "query")
RELEASING = ("unsave", "savepoint", "purge", "forget", "blot")


@dataclass
class _Pending:
    """An operation whose actor has not yet learned the outcome."""

    store: str
    client: str
    operation: Operation


@dataclass
class Commit:
    """A commit of a job, with the outcome that the job learns."""

    number: int = 0
    token: str = ""
    outcome: Outcome = "unknown"


class OperationLog:
    """All operations of one run, by store, with times that count the moments of the run."""

    def __init__(self, current: Callable[[], Task | None]) -> None:
        """Take ``current``, which returns the running actor."""
        self._current = current
        self.clear()

    def clear(self) -> None:
        """Forget all operations until now."""
        self._moments = count()
        self._operations: dict[str, list[Operation]] = {}
        self._pending: list[_Pending] = []
        self._clients: dict[str, int] = {}
        self._tokens: set[str] = set()
        self.is_judgeable = True
        """False if a store went back in time, by a power loss or a backup."""

    def histories(self) -> dict[str, History]:
        """Return the operations of each store."""
        found = {store: [*operations] for store, operations in self._operations.items()}
        for pending in self._pending:
            found.setdefault(pending.store, []).append(pending.operation)
        return {**found}

    def now(self) -> int:
        """Return the current moment, which is later than all before."""
        return next(self._moments)

    # --- Reports of actors
    # ----------------------------------------------------------------------------

    def begin(self, store: str, tokens: Mapping[int, str], savepoints: Mapping[str, int]) -> None:
        """Record the visible checkpoints and the savepoints that a store has at its beginning."""
        client = self._client("before")
        for number, token in sorted(tokens.items()):
            self._add(store, commit(client, self.now(), self.now(), number, token, "done"))
        for name, number in sorted(savepoints.items()):
            self._add(store, hold(client, self.now(), self.now(), name, number, "done"))

    def succeeded(self) -> None:
        """Record that the actor has reported its changes until now as done."""
        name, now = self._name(), self.now()
        for pending in [one for one in self._pending if one.client == name]:
            self._pending.remove(pending)
            self._add(pending.store, replace(pending.operation, returned=now))

    @contextmanager
    def committing(self, store: str) -> Iterator[Commit]:
        """Record the commit of a job in this block; the job sets its outcome."""
        told, called = Commit(), self.now()
        try:
            yield told
        finally:
            if told.token:
                returned = None if told.outcome == "unknown" else self.now()
                facts = told.number, told.token, told.outcome
                self._add(store, commit(self._client(), called, returned, *facts))

    def planned(self, told: Commit, number: int, token: str) -> None:
        """Record the id and the token that the commit of a job will have."""
        told.number, told.token = number, token
        self._tokens.add(token)

    def listed(self, store: str, called: int, numbers: tuple[int, ...]) -> None:
        """Record the list of checkpoints that an actor has read."""
        self._add(store, list_ids(self._client(), called, self.now(), numbers))

    def has_read(self, store: str, called: int, number: int, token: str) -> None:
        """Record the token of a checkpoint that an actor has read; empty if it was not there."""
        self._add(store, read(self._client(), called, self.now(), number, token))

    def got_newest(self, store: str, called: int, number: int) -> None:
        """Record the newest checkpoint that an actor has read; 0 if there was none."""
        self._add(store, latest(self._client(), called, self.now(), number))

    def looked_up(self, store: str, called: int, name: str, number: int) -> None:
        """Record the checkpoint of a savepoint that an actor has read; 0 if it was not there."""
        self._add(store, look_up(self._client(), called, self.now(), name, number))

    def expired(self, store: str, called: int, numbers: tuple[int, ...]) -> None:
        """Record that an actor has reported these checkpoints as expired."""
        for number in numbers:
            self._report(store, expire(self._client(), called, None, number, "done"))

    def held(self, store: str, called: int, name: str, number: int) -> None:
        """Record that an actor has reported a savepoint of a checkpoint."""
        self._report(store, hold(self._client(), called, None, name, number, "done"))

    # --- Changes of files
    # -----------------------------------------------------------------------------

    def manifest_put(self, store: str, number: int, token: str) -> None:
        """Record a manifest that the actor has put, unless a job reports its outcome."""
        if token not in self._tokens:
            self._wait(store, commit(self._client(), self.now(), None, number, token, "done"))

    def tombstone_put(self, store: str, number: int) -> None:
        """Record a tombstone that the actor has put, if it is one that may do so."""
        if self._doing().startswith(EXPIRING):
            self._wait(store, expire(self._client(), self.now(), None, number, "done"))

    def savepoint_put(self, store: str, name: str, number: int) -> None:
        """Record a savepoint that the actor has put."""
        self._wait(store, hold(self._client(), self.now(), None, name, number, "done"))

    def savepoint_deleted(self, store: str, name: str) -> None:
        """Record a savepoint that the actor has deleted, if it is one that may do so."""
        if self._doing().startswith(RELEASING):
            self._wait(store, release(self._client(), self.now(), None, name, "done"))

    def _wait(self, store: str, operation: Operation) -> None:
        """Record an operation that ends when its actor succeeds."""
        self._pending.append(_Pending(store, self._name(), operation))

    def _report(self, store: str, operation: Operation) -> None:
        """Record a reported change, unless it was noticed in the files."""
        same = replace(operation, called=0)
        noticed = (replace(one.operation, called=0) for one in self._pending if one.store == store)
        if same not in noticed:
            self._wait(store, operation)

    def _add(self, store: str, operation: Operation) -> None:
        self._operations.setdefault(store, []).append(operation)

    def _client(self, name: str = "") -> int:
        return self._clients.setdefault(name or self._name(), len(self._clients))

    def _name(self) -> str:
        task = self._current()
        return task.name if task else "nobody"

    def _doing(self) -> str:
        task = self._current()
        return task.doing if task else ""
