"""The figures of a checkpoint as its manifest has them, and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from statestore.model.document import Node
from statestore.model.metrics import Amount, CheckpointMetrics, PhaseTimes, StateMetrics

__all__ = ["metrics_from_json", "metrics_to_json"]


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
        "uid": state.uid,
        "name": state.name,
        "write_ms": state.write_ms,
        **asdict(state.written),
    }
    return document if state.base_rows is None else document | {"base_rows": state.base_rows}


def metrics_from_json(node: Node) -> CheckpointMetrics:
    """Return what :func:`metrics_to_json` wrote; MalformedManifestError with the place.

    A phase that is missing took no time.
    """
    phases = node.at("phases")
    phases.object()
    known = {one.name: phases.maybe(one.name) for one in fields(PhaseTimes)}
    return CheckpointMetrics(
        duration_ms=node.at("duration_ms").number(),
        phases=PhaseTimes(**{name: spent.number() for name, spent in known.items() if spent}),
        states=tuple(_state(state) for state in node.at("states").items()),
        compaction=_amount(node.at("compaction")),
    )


def _state(node: Node) -> StateMetrics:
    base = node.maybe("base_rows")
    return StateMetrics(
        uid=node.at("uid").text(),
        name=node.at("name").text(),
        write_ms=node.at("write_ms").number(),
        written=_amount(node),
        base_rows=base.number() if base else None,
    )


def _amount(node: Node) -> Amount:
    return Amount(
        node.at("rows").number(), node.at("size_bytes").number(), node.at("files").number()
    )
