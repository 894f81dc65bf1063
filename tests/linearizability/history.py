"""Operations of many clients on the checkpoints of one store, for a linearizability checker.

A commit that was refused never became visible. The outcome of a change is unknown if the client
died, or was replaced before it could see the outcome. Times are integers of one clock.

The value of a checkpoint identifies its contents. A savepoint's number is the id of its checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = [
    "History",
    "Operation",
    "Outcome",
    "commit",
    "expire",
    "hold",
    "latest",
    "list_ids",
    "look_up",
    "read",
    "release",
]

Kind = Literal["commit", "read", "list", "latest", "expire", "hold", "look up", "release"]
Outcome = Literal["done", "refused", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One call of a client; ``returned`` is None if it never returned."""

    client: int
    kind: Kind
    called: int
    returned: int | None
    number: int = 0
    value: str = ""
    outcome: Outcome | Literal[""] = ""
    numbers: tuple[int, ...] = ()
    name: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the members of the JSON document."""
        return asdict(self)


History = Sequence[Operation]


def commit(
    client: int, called: int, returned: int | None, number: int, value: str, outcome: Outcome
) -> Operation:
    """Return the commit of a checkpoint with the contents ``value``."""
    return Operation(
        client=client,
        kind="commit",
        called=called,
        returned=returned,
        number=number,
        value=value,
        outcome=outcome,
    )


def read(client: int, called: int, returned: int, number: int, value: str) -> Operation:
    """Return a read of a checkpoint; ``value`` is empty if it was not there."""
    return Operation(
        client=client, kind="read", called=called, returned=returned, number=number, value=value
    )


def list_ids(client: int, called: int, returned: int, numbers: Sequence[int]) -> Operation:
    """Return a list of all checkpoints."""
    return Operation(
        client=client, kind="list", called=called, returned=returned, numbers=tuple(numbers)
    )


def latest(client: int, called: int, returned: int, number: int) -> Operation:
    """Return a read of the newest checkpoint; ``number`` is 0 if there was none."""
    return Operation(client=client, kind="latest", called=called, returned=returned, number=number)


def expire(
    client: int, called: int, returned: int | None, number: int, outcome: Outcome
) -> Operation:
    """Return the expiry of a checkpoint."""
    return Operation(
        client=client,
        kind="expire",
        called=called,
        returned=returned,
        number=number,
        outcome=outcome,
    )


def hold(
    client: int, called: int, returned: int | None, name: str, number: int, outcome: Outcome
) -> Operation:
    """Return the creation of a savepoint."""
    return Operation(
        client=client,
        kind="hold",
        called=called,
        returned=returned,
        name=name,
        number=number,
        outcome=outcome,
    )


def release(
    client: int, called: int, returned: int | None, name: str, outcome: Outcome
) -> Operation:
    """Return the deletion of a savepoint."""
    return Operation(
        client=client,
        kind="release",
        called=called,
        returned=returned,
        name=name,
        outcome=outcome,
    )


def look_up(client: int, called: int, returned: int, name: str, number: int) -> Operation:
    """Return a read of a savepoint; ``number`` is 0 if it was not there."""
    return Operation(
        client=client, kind="look up", called=called, returned=returned, name=name, number=number
    )
