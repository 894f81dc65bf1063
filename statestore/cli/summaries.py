"""The totals of a checkpoint as JSON and text, from its manifest without a value for each file.

``list`` reads a thousand manifests. So nothing here imports pyarrow, numpy or rich, each of which
takes longer to import than all the manifests to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from statestore.cli.drawing import count, counted, duration, size_and_files
from statestore.cli.output import ReadError
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.metrics import CheckpointMetrics

if TYPE_CHECKING:
    from statestore.catalog.catalog import Catalog
    from statestore.format.manifest import Manifest, Writer
    from statestore.format.manifest_summary import ManifestSummary

UNREADABLE = (CorruptionError, FormatVersionError)
"""The errors of a checkpoint that exists and cannot be read."""

S = TypeVar("S", bound="CheckpointSummary")


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    """A checkpoint, with ``rows`` in its files, of which ``changed_rows`` are changes.

    ``command`` is the command that made the checkpoint. It is None for a job, and for an import
    with an older release. ``is_incremental`` is false if all files were written for this
    checkpoint, and None if an older release did not record it. ``origin`` is as in docs/FORMAT.md,
    and None for a checkpoint that a job took. A damaged checkpoint has an id and an error; its
    other members are None.
    """

    checkpoint_id: int
    created_at_ms: int | None = None
    age_ms: int | None = None
    took_ms: int | None = None
    parallelism: int | None = None
    operators: int | None = None
    states: int | None = None
    rows: int | None = None
    changed_rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    layers: int | None = None
    is_incremental: bool | None = None
    command: str | None = None
    origin: Mapping[str, Any] | None = None
    left_out: tuple[LeftOutState, ...] | None = None
    metrics: CheckpointMetrics | None = None
    error: ReadError | None = None
    failure: StateStoreError | None = field(default=None, repr=False)  # not in the JSON

    @classmethod
    def read(
        cls: type[S],
        catalog: Catalog,
        checkpoint_id: int,
        now_ms: int,
        unreadable: tuple[type[StateStoreError], ...] = UNREADABLE,
        **more: Any,
    ) -> S | None:
        """Return the summary of a checkpoint; None if it has expired since it was listed.

        ``unreadable`` are the errors with which it is damaged. ``more`` are members of a subclass.
        """
        try:
            return cls.of(catalog.summary(checkpoint_id), now_ms, **more)
        except CheckpointNotFoundError:
            return None
        except unreadable as error:
            return cls(
                checkpoint_id=checkpoint_id, error=ReadError.of(error), failure=error, **more
            )

    @classmethod
    def of(cls: type[S], summary: ManifestSummary, now_ms: int, **more: Any) -> S:
        """Return the summary of a readable checkpoint; ``more`` are members of a subclass."""
        origin = summary.origin
        return cls(
            checkpoint_id=summary.checkpoint_id,
            created_at_ms=summary.created_at_ms,
            age_ms=now_ms - summary.created_at_ms,
            took_ms=summary.took_ms,
            parallelism=summary.parallelism,
            operators=summary.operators,
            states=summary.states,
            rows=summary.amount.rows,
            changed_rows=summary.changed_rows,
            size_bytes=summary.amount.size_bytes,
            files=summary.amount.files,
            layers=summary.layers,
            is_incremental=summary.is_incremental,
            command=(origin or {}).get("command", summary.command),
            origin=origin,
            left_out=summary.left_out,
            metrics=summary.metrics,
            **more,
        )


def rows_text(rows: int, changed: int) -> str:
    """Return a number of rows, with the rows of changes among them listed separately."""
    base = count(rows - changed)
    return f"{base} + {count(changed)}" if changed else base


def extent(incremental: bool | None, command: str | None) -> str:
    """Return ``full`` or ``incremental``, and an empty text if it is unknown.

    A checkpoint of the command ``compact`` that has files of earlier ones, too, is ``compacted``.
    """
    if incremental and command == "compact":
        return "compacted"
    return "" if incremental is None else "incremental" if incremental else "full"


def maker(origin: Mapping[str, Any] | None, command: str | None) -> str:
    """Return the command that made a checkpoint, with its source checkpoint, or ``job``."""
    return f"{origin['command']} of {origin['checkpoint']}" if origin else command or "job"


def made_by(manifest: Manifest) -> str:
    """Return the command or job that made a checkpoint, and the checkpoint that it follows."""
    command = manifest.writer.command or (manifest.job and f"job {manifest.job}")
    made = maker(manifest.origin, command)
    return made if manifest.follows is None else f"{made}, after checkpoint {manifest.follows}"


def written_by(writer: Writer) -> str:
    """Return the actor, process and release that wrote a checkpoint."""
    actor = "" if writer.actor is None else f"{writer.actor}, "
    return f"{actor}{writer.name}, statestore {writer.release}"


def rows_explanation(rows: int, changed: int) -> str:
    """Return a sentence that explains :func:`rows_text` with these numbers."""
    return (
        f"rows {rows_text(rows, changed)}: {count(rows - changed)} in base files, and "
        f"{count(changed)} changed or deleted rows that a restore applies to them"
    )


def held_text(rows: int, changed: int, size_bytes: int, files: int) -> str:
    """Return the content of a checkpoint, with rows of changes listed separately."""
    more = f" and {counted(changed, 'row')} of changes" if changed else ""
    return f"{counted(rows - changed, 'row')}{more}, {size_and_files(size_bytes, files)}"


def metrics_text(metrics: CheckpointMetrics | None) -> list[tuple[str, str]]:
    """Return the lines of ``show`` about a checkpoint's metrics; empty if it has none."""
    if metrics is None:
        return []
    phases = [
        f"{name} {duration(taken)}" + (" in the background" if name == "compaction" else "")
        for name, taken in metrics.phases.items()
    ]
    return [("phases", ", ".join(phases)), ("written", _written(metrics))]


def share(changed: float | None) -> str:
    """Format a changed share as a percentage with two digits, or ``-`` if it is unknown."""
    return "-" if changed is None else f"{changed * 100:.2g}%" if changed < 1 else f"{changed:.0%}"


def _written(metrics: CheckpointMetrics) -> str:
    written, compacted = metrics.written, metrics.compaction
    text = f"{counted(written.rows, 'row')}, {size_and_files(written.size_bytes, written.files)}"
    if compacted.files:
        text += f", and {size_and_files(compacted.size_bytes, compacted.files)} by compaction"
    if metrics.changed_share is not None:
        text += f"; changed share {share(metrics.changed_share)}"
    return text
