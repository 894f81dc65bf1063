"""Savepoints, pins, what was given up and what was collected, as JSON; ``documents.py`` lists
all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from statestore.cli.values import (
    CheckpointList,
    Collected,
    Expired,
    Pinned,
    Repaired,
    Saved,
    Unpinned,
)
from statestore.format.documents import Held, Pin

__all__ = [
    "collected_document",
    "expired_document",
    "holds_document",
    "pinned_document",
    "repaired_document",
    "saved_document",
    "unpinned_document",
]


def holds_document(result: CheckpointList) -> dict[str, Any]:
    """Return the savepoints and the pins of a list; ``expired`` says that nothing but the savepoint
    keeps its checkpoint, ``over`` that the lease is.
    """
    visible = {row.checkpoint_id for row in result.rows}
    savepoints = [
        {
            "name": one.name,
            "id": one.checkpoint_id,
            "created_at_ms": one.created_at_ms,
            "age_ms": result.now_ms - one.created_at_ms,
            "expired": one.checkpoint_id not in visible,
        }
        for one in result.savepoints
    ]
    pins = [_pin(pin) | {"over": pin.until_ms <= result.now_ms} for pin in result.pins]
    return {"savepoints": savepoints, "pins": pins}


def saved_document(result: Saved) -> dict[str, Any]:
    """Return a savepoint that was made or deleted."""
    number = result.checkpoint_id
    return {"store": result.store, "name": result.name, "id": number, "deleted": result.deleted}


def pinned_document(result: Pinned) -> dict[str, Any]:
    """Return a pin that was made."""
    return {"store": result.store} | _pin(result.pin)


def unpinned_document(result: Unpinned) -> dict[str, Any]:
    """Return a pin that is gone."""
    return {"store": result.store, "token": result.token}


def expired_document(result: Expired) -> dict[str, Any]:
    """Return what was given up."""
    return asdict(result.expired) | {"held": _held(result.expired.held)}


def repaired_document(result: Repaired) -> dict[str, Any]:
    """Return what was mended."""
    return asdict(result.repaired)


def collected_document(result: Collected) -> dict[str, Any]:
    """Return what was collected."""
    return asdict(result.collected) | {"held": _held(result.collected.held)}


def _pin(pin: Pin) -> dict[str, Any]:
    known = {"token": pin.token, "id": pin.checkpoint_id, "holder": pin.holder}
    return known | {"until_ms": pin.until_ms}


def _held(held: Iterable[Held]) -> list[dict[str, Any]]:
    return [{"id": one.checkpoint_id, "by": one.by} for one in held]
