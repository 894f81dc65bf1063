"""The result of a salvage: per state the lost parts, their older copies, and the replacements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

__all__ = ["LostPart", "SalvagedState", "merge_lost_parts", "origin_of"]


@dataclass(frozen=True, kw_only=True)
class LostPart:
    """A part of a damaged checkpoint that cannot be read.

    It covers key groups ``first`` to ``last``; both are None for a whole operator state.
    ``known_in`` is the newest older checkpoint with an intact copy of this part, and ``keys`` the
    number of its keys there. Both are None without such a copy; ``keys`` is also None for elements.
    ``filled_from`` is the checkpoint whose rows replaced the lost ones.
    """

    first: int | None
    last: int | None
    rows: int
    known_in: int | None = None
    keys: int | None = None
    filled_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class SalvagedState:
    """A state with damaged files: its row counts in the damaged and the new checkpoint.

    In a state with changes, ``rows_before`` and the rows of ``lost`` count the rows in its files,
    in base and changes together.

    ``lost`` is ordered by key group; adjacent key groups with the same outcome are one part.
    ``keys`` are lost keys that were found in older checkpoints, by column, up to the requested
    limit.
    ``why_not_filled`` gives the reasons why the rows of older checkpoints could not be used.
    """

    operator: str
    state: str
    sort: str
    damaged_files: int
    rows_before: int
    rows_after: int
    lost: tuple[LostPart, ...]
    keys: tuple[Mapping[str, Any], ...] = ()
    why_not_filled: tuple[str, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = ("lost_rows", "lost_key_groups", "lost_keys")

    @property
    def lost_rows(self) -> int:
        """The number of unreadable rows, whether or not older rows replaced them."""
        return sum(part.rows for part in self.lost)

    @property
    def lost_key_groups(self) -> int:
        """The number of unreadable key groups."""
        return sum(_width(part) for part in self.lost)

    @property
    def lost_keys(self) -> int:
        """The number of keys that older checkpoints have in the lost parts.

        The lost parts may have had other keys as well.
        """
        return sum(part.keys or 0 for part in self.lost)


def merge_lost_parts(parts: Iterable[LostPart]) -> tuple[LostPart, ...]:
    """Merge adjacent parts with the same outcome; the parts are ordered by key group."""
    merged_parts: list[LostPart] = []
    for part in parts:
        last = merged_parts[-1] if merged_parts else None
        if last is None or not _is_adjacent(last, part):
            merged_parts.append(part)
            continue
        keys = None if last.keys is None else last.keys + (part.keys or 0)
        merged_parts[-1] = replace(last, last=part.last, rows=last.rows + part.rows, keys=keys)
    return tuple(merged_parts)


def origin_of(checkpoint_id: int, states: Iterable[SalvagedState]) -> dict[str, Any]:
    """Return the ``origin`` of the new checkpoint.

    ``lost`` lists the missing parts, and ``filled`` the parts replaced by older rows. Both have
    ``uid`` and ``state``, and for keyed state ``first`` and ``last``.
    """
    lost, filled = [], []
    for state in states:
        for part in state.lost:
            place: dict[str, Any] = {"uid": state.operator, "state": state.state}
            if part.first is not None:
                place |= {"first": part.first, "last": part.last}
            if part.filled_from is None:
                lost.append(place | {"rows": part.rows})
            else:
                filled.append(place | {"checkpoint": part.filled_from})
    return {"command": "salvage", "checkpoint": checkpoint_id, "lost": lost, "filled": filled}


def _is_adjacent(last: LostPart, part: LostPart) -> bool:
    fate = (last.known_in, last.filled_from) == (part.known_in, part.filled_from)
    return fate and None not in (last.last, part.first) and part.first == (last.last or 0) + 1


def _width(part: LostPart) -> int:
    return 0 if part.first is None or part.last is None else part.last - part.first + 1
