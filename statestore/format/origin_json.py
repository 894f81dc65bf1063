"""The origin: a manifest's record of the command that made its checkpoint, with checks.

The checks matter because ``purge`` acts on the record to finish an interrupted run: it moves
savepoints and expires a checkpoint.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from statestore.format.documents import (
    Moment,
    convert_json,
    report_place,
)
from statestore.format.hold_documents import is_savepoint_name

__all__ = ["origin_from_json"]


_FROM_ELSEWHERE = ("copy", "fork")


class _Moved(Struct, frozen=True):
    name: str
    created_at_ms: Moment

    def __post_init__(self) -> None:
        if not is_savepoint_name(self.name):
            raise ValueError(f"no savepoint is called {self.name!r}")


class _Origin(Struct, frozen=True):
    command: str
    checkpoint: Any
    savepoints: tuple[_Moved, ...] | None = None
    expired: bool | None = None


def origin_from_json(value: dict[str, Any], checkpoint_id: int, name: str) -> dict[str, Any]:
    """Return the origin of checkpoint ``checkpoint_id``.

    Raises MalformedManifestError with the place for an origin that no command writes. Members that
    no command uses are not checked.
    """
    origin = convert_json(value, _Origin, name, ".origin")
    old = origin.checkpoint
    is_derived = origin.command in _FROM_ELSEWHERE or (type(old) is int and 0 < old < checkpoint_id)
    with report_place(name, ".origin.checkpoint"):
        if not is_derived:
            raise ValueError(
                f"the source of checkpoint {checkpoint_id} cannot be checkpoint {old!r}"
            )
    return value
