"""How well bytes of an old type fit a new type, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["AS_IS", "Fit", "Level", "fit_of", "worst"]


class Level(IntEnum):
    """The answers of ``TypeSerializerSchemaCompatibility`` and two more, from best to worst."""

    AS_IS = 0
    """The new serializer reads and writes the old bytes."""
    RECONFIGURED = 1
    """The new serializer adapts to the old bytes, such as to another order of constants."""
    MIGRATION = 2
    """The old serializer reads each value once more, and the new one writes it."""
    UNKNOWN = 3
    """The snapshots do not tell."""
    DROPS = 4
    """As ``MIGRATION``, but a part of each value has no place in the new type."""
    INCOMPATIBLE = 5
    """The new serializer cannot read the old bytes."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A level, and the reasons for it and for better levels, each with its own level.

    ``remedy`` is the command that makes the bytes fit, if there is one.
    """

    reasons: tuple[tuple[Level, str], ...] = ()
    remedy: str | None = None

    @property
    def level(self) -> Level:
        """The worst level of all reasons."""
        return max((level for level, _ in self.reasons), default=Level.AS_IS)

    @property
    def text(self) -> str:
        """The reasons, the worst first."""
        ordered = sorted(self.reasons, key=lambda reason: -reason[0])
        return "; ".join(dict.fromkeys(text for _, text in ordered))


AS_IS = Fit()


def fit_of(level: Level, reason: str, remedy: str | None = None) -> Fit:
    """Return a fit with one reason."""
    return Fit(((level, reason),), remedy)


def worst(fits: Iterable[Fit]) -> Fit:
    """Return the fit of a whole from those of its parts: a whole is as bad as its worst part."""
    parts = list(fits)
    remedies = (part.remedy for part in parts if part.remedy is not None)
    return Fit(tuple(reason for part in parts for reason in part.reasons), next(remedies, None))
