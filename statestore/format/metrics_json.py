"""The metrics of a checkpoint in its manifest."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from msgspec import Struct, field, structs

from statestore.format.documents import Count, convert_json
from statestore.format.metrics import CheckpointMetrics, StateMetrics

__all__ = ["MetricsDocument", "metrics_from_json", "metrics_to_json"]


def metrics_to_json(metrics: CheckpointMetrics) -> dict[str, Any]:
    """Return the member ``metrics`` of a manifest, which docs/FORMAT.md describes."""
    return {
        "duration_ms": metrics.duration_ms,
        "phases": {f"{name}_ms": spent for name, spent in metrics.phases.items()},
        "states": [_state_json(state) for state in metrics.states],
        "compaction": asdict(metrics.compaction),
    }


def _state_json(state: StateMetrics) -> dict[str, Any]:
    document = {
        "uid": state.operator,
        "name": state.state,
        "write_ms": state.write_ms,
        **asdict(state.written),
    }
    return document if state.base_rows is None else document | {"base_rows": state.base_rows}


class _Amount(Struct, frozen=True):
    rows: Count
    size_bytes: Count
    files: Count


class _State(_Amount, frozen=True, kw_only=True):
    operator: str = field(name="uid")
    state: str = field(name="name")
    write_ms: Count
    base_rows: Count | None = None

    @property
    def written(self) -> _Amount:
        return self


class MetricsDocument(Struct, frozen=True):
    """The stored metrics; a missing phase took no time."""

    duration_ms: Count
    phases: dict[str, Any]
    states: tuple[_State, ...]
    compaction: _Amount


def metrics_from_json(value: Any, name: str, place: str) -> CheckpointMetrics:
    """Parse the result of :func:`metrics_to_json` at ``place`` of the document ``name``.

    Raises MalformedManifestError with the place.
    """
    read = convert_json(value, MetricsDocument, name, place)
    measured = {phase: spent for phase, spent in read.phases.items() if spent is not None}
    return convert_json(structs.replace(read, phases=measured), CheckpointMetrics, name, place)
