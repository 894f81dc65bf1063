"""The origin: a manifest's record of the command that made its checkpoint, with checks.

The writer and the reader of a manifest both call :func:`origin_from_json`. The writer also calls
:func:`refuse_changed`, because it has Python values, which JSON can change.

The checks matter because ``purge`` acts on the record to finish an interrupted run: it moves
savepoints and expires a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from statestore.format.documents import (
    Moment,
    convert_json,
    report_place,
)
from statestore.format.hold_documents import is_savepoint_name

__all__ = ["REPLACING", "origin_from_json", "refuse_changed"]


_FROM_ELSEWHERE = ("copy", "fork")
REPLACING = ("purge", "forget")
"""The commands whose checkpoints replace others, which a later run finishes by the origin."""
_MOST_LEVELS = 32


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
    if origin.command in REPLACING and None in (origin.savepoints, origin.expired):
        with report_place(name, ".origin"):
            raise ValueError(f"a {origin.command} records 'savepoints' and 'expired'")
    with report_place(name, ".origin.checkpoint"):
        if not is_derived:
            raise ValueError(
                f"the source of checkpoint {checkpoint_id} cannot be checkpoint {old!r}"
            )
    return value


def refuse_changed(origin: Mapping[str, Any] | None, read: Mapping[str, Any] | None) -> None:
    """Raise ValueError if an origin differs from the one that was ``read`` from its document.

    Also raises it for values that some readers of JSON cannot hold.
    """
    if read != origin:
        raise ValueError(f"the origin would be read as {read!r:.200}, not {origin!r:.200}")
    _refuse_unusual(read, _MOST_LEVELS)


def _refuse_unusual(value: Any, levels: int) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"the number {value} of the origin does not fit 64 bits")
    if not isinstance(value, (dict, list)):
        return
    if levels == 0:
        raise ValueError(f"the origin has more than {_MOST_LEVELS} nested levels")
    for part in value.values() if isinstance(value, dict) else value:
        _refuse_unusual(part, levels - 1)
