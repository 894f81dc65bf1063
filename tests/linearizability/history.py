"""Operations of many clients on the checkpoints of one store, for a linearizability checker.

A commit that was refused never became visible. The outcome of a commit is unknown if the client
died, or was replaced before it could see the outcome. Times are integers of one clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

__all__ = ["History", "Operation", "commit", "list_ids", "read"]

Outcome = Literal["done", "refused", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One call of a client; ``returned`` is None if it never returned."""

    client: int
    kind: Literal["commit", "read", "list"]
    called: int
    returned: int | None
    number: int = 0
    value: str = ""
    outcome: Outcome | Literal[""] = ""
    numbers: tuple[int, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the members of the JSON document."""
        return asdict(self)


History = Sequence[Operation]


def commit(
    client: int, called: int, returned: int | None, number: int, value: str, outcome: Outcome
) -> Operation:
    """Return the commit of a checkpoint; ``value`` identifies its contents."""
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
