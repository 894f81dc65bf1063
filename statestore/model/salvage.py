"""What a salvage found and did: per state what was lost, who still knows it, what replaced it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["LostPart", "SalvagedState", "merged", "origin_of"]


@dataclass(frozen=True, kw_only=True)
class LostPart:
    """Rows of a damaged checkpoint that cannot be read: of the key groups ``first`` to ``last``,
    both None for all of an operator state.

    ``known_in`` is the newest older checkpoint that has the same part whole, and ``keys`` how many
    keys it has there; None where there is none, and for elements. ``filled_from`` is the checkpoint
    whose rows have taken the place of the lost ones.
    """

    first: int | None
    last: int | None
    rows: int
    known_in: int | None = None
    keys: int | None = None
    filled_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class SalvagedState:
    """A state with damaged files: its rows in the damaged checkpoint, and in the one made of it.

    Of a state with changes ``rows_before``, and the rows of ``lost``, are those in its files: base
    and changes together.

    ``lost`` is in order of key group, neighbours of one fate together. ``keys`` are lost keys as
    older checkpoints know them, by column, up to the limit that was asked for. ``why_not_filled``
    says of older checkpoints why their rows could not be taken.
    """

    uid: str
    name: str
    sort: str
    damaged_files: int
    rows_before: int
    rows_after: int
    lost: tuple[LostPart, ...]
    keys: tuple[Mapping[str, Any], ...] = ()
    why_not_filled: tuple[str, ...] = ()

    @property
    def lost_rows(self) -> int:
        """Rows that could not be read, whether or not others have taken their place."""
        return sum(part.rows for part in self.lost)

    @property
    def lost_key_groups(self) -> int:
        """Key groups that could not be read."""
        return sum(_width(part) for part in self.lost)

    @property
    def lost_keys(self) -> int:
        """Keys that older checkpoints have in what was lost; it may have had others as well."""
        return sum(part.keys or 0 for part in self.lost)


def merged(parts: Iterable[LostPart]) -> tuple[LostPart, ...]:
    """Return the parts, in order of key group, with neighbours of one fate as one part."""
    found: list[LostPart] = []
    for part in parts:
        last = found[-1] if found else None
        if last is None or not _continues(last, part):
            found.append(part)
            continue
        keys = None if last.keys is None else last.keys + (part.keys or 0)
        found[-1] = replace(last, last=part.last, rows=last.rows + part.rows, keys=keys)
    return tuple(found)


def origin_of(checkpoint_id: int, states: Iterable[SalvagedState]) -> dict[str, Any]:
    """Return what the manifest of the new checkpoint says about where it comes from.

    ``lost`` is what is missing, ``filled`` what older rows have taken the place of; both by ``uid``
    and ``state``, with ``first`` and ``last`` where it is keyed state.
    """
    lost, filled = [], []
    for state in states:
        for part in state.lost:
            place: dict[str, Any] = {"uid": state.uid, "state": state.name}
            if part.first is not None:
                place |= {"first": part.first, "last": part.last}
            if part.filled_from is None:
                lost.append(place | {"rows": part.rows})
            else:
                filled.append(place | {"checkpoint": part.filled_from})
    return {"command": "salvage", "checkpoint": checkpoint_id, "lost": lost, "filled": filled}


def _continues(last: LostPart, part: LostPart) -> bool:
    fate = (last.known_in, last.filled_from) == (part.known_in, part.filled_from)
    return fate and None not in (last.last, part.first) and part.first == (last.last or 0) + 1


def _width(part: LostPart) -> int:
    return 0 if part.first is None or part.last is None else part.last - part.first + 1
