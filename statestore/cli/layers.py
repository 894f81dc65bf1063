"""How a state with changes is shown, as JSON and as text: its base, and the layers over it."""

from __future__ import annotations

from typing import Any

from statestore.cli.units import count, counted, size
from statestore.format.digest import digest_text
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.restore.plan import OperatorPlan, RestorePlan

__all__ = [
    "amplification_document",
    "changed_rows_document",
    "held_text",
    "layers_document",
    "layers_text",
    "rows_text",
]

Document = dict[str, Any]


def layers_document(entry: KeyedEntry) -> Document:
    """Return the member ``changes`` of a state in ``show``, nothing of one without changes."""
    if not entry.layers:
        return {}
    return {
        "changes": [
            {
                "checkpoint": layer.checkpoint_id,
                "depth": layer.depth,
                "rows": layer.entry.rows,
                "size_bytes": layer.entry.size_bytes,
                "files": layer.entry.files,
                "live": [[one.first, one.last] for one in layer.live],
            }
            for layer in entry.layers
        ]
    }


def changed_rows_document(manifest: Manifest) -> Document:
    """Return the member ``changed_rows`` of a checkpoint, nothing of one without changes."""
    changed = _changed_rows(manifest)
    return {"changed_rows": changed} if changed else {}


def amplification_document(plan: RestorePlan | OperatorPlan) -> Document:
    """Return the member ``read_amplification``, nothing when no changes are read."""
    amplification = plan.read_amplification
    return {} if amplification is None else {"read_amplification": round(amplification, 4)}


def layers_text(entry: KeyedEntry, base: str) -> list[tuple[str, str]]:
    """Return what ``show`` says of a state with changes; ``base`` is what it says of its base."""
    parts = [layer.entry for layer in entry.layers]
    changed = sum(part.size_bytes for part in parts)
    files = sum(part.files for part in parts)
    stored = f"{counted(files, 'file')} of {counted(len(parts), 'layer')}"
    return [
        ("base", base),
        ("digest of base", digest_text(entry.parts[0].digest)),
        (
            "changes",
            f"{counted(entry.changed_rows, 'row')}, {size(changed)} in {stored}",
        ),
    ]


def rows_text(manifest: Manifest) -> str:
    """Return the rows of a checkpoint, those of changes apart."""
    changed = _changed_rows(manifest)
    rows = count(manifest.rows - changed)
    return f"{rows} + {count(changed)}" if changed else rows


def held_text(manifest: Manifest) -> str:
    """Return what a checkpoint holds, rows of changes named apart."""
    changed = _changed_rows(manifest)
    rows = counted(manifest.rows - changed, "row")
    more = f" and {counted(changed, 'row')} of changes" if changed else ""
    return f"{rows}{more}, {size(manifest.size_bytes)} in {counted(manifest.files, 'file')}"


def _changed_rows(manifest: Manifest) -> int:
    return sum(entry.changed_rows for entry in manifest.keyed)
