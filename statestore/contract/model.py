"""The contract of a job's state, and what a comparison of two contracts finds.

A contract has no data, keys, statistics or addresses. Its values are plain: text, integers,
booleans, lists and tables, so that a file of them is readable in a diff.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

Form = Mapping[str, Any]
"""The engine's own description of a state or source, as values of TOML.

It has exactly what the engine's rules compare. What the new side does not know, its form lacks.
"""


class Verdict(StrEnum):
    """What a new version of a job does to a state."""

    SAME = "same"
    CONVERTS = "converts"
    EMPTY = "begins empty"
    LOST = "is lost"
    UNFIT = "does not fit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class StateContract:
    """A state: its name, its kind, and the form that the engine compares.

    ``rows`` and ``bytes`` are what the state costs. They are not compared, and not part of a lock.
    """

    name: str
    kind: str
    form: Form = field(default_factory=dict)
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class OperatorContract:
    """An operator: the id by which its engine finds its state, and its states.

    The id is the uid in a store, the position in the plan in Spark, and the hash in Flink.
    """

    id: str
    name: str
    kind: str
    uid: str | None = None
    states: tuple[StateContract, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceContract:
    """A source: the id by which its engine finds its offsets, and its form without addresses."""

    id: str
    kind: str
    form: Form = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobContract:
    """All that an engine compares when a job restarts with the state of another version.

    Attributes:
        engine: ``store``, ``spark`` or ``flink``.
        version: The engine's version that wrote the state or plans the job, empty if unknown.
        partitions: The max parallelism, or the number of shuffle partitions; None if the job as a
            whole has no such number.
        settings: The settings that the engine keeps from the first run or refuses to change.
        sources: The sources, in the order of the plan.
        operators: The operators with state.
    """

    engine: str
    version: str = ""
    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[SourceContract, ...] = ()
    operators: tuple[OperatorContract, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A verdict about a state, about an operator (no state), or about the whole job (neither).

    ``reason`` is in the engine's words. ``remedy`` is the command that mends it, or None. ``rows``
    and ``bytes`` are what the verdict concerns, None if they are not known.
    """

    operator: str | None = None
    state: str | None = None
    verdict: Verdict
    reason: str
    remedy: str | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def name(self) -> str:
        """``operator/state``, ``operator``, or ``job``."""
        parts = [part for part in (self.operator, self.state) if part is not None]
        return "/".join(parts) or "job"


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
