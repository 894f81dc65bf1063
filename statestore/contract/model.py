"""The contract of a job's state, and what a comparison of two contracts finds.

A contract has no data, keys, statistics or addresses. Its values are plain: text, integers,
booleans, lists and tables, so that a file of them is readable in a diff.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
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
