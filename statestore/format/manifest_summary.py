"""The totals of a checkpoint, from its manifest's bytes, without a value for each of its files.

A list of a thousand checkpoints needs only these. The document's SHA-256 and the types of the
members that are read are checked. ``manifest_json.py`` also checks that the totals are the sums of
the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, structs

from statestore.format.documents import CheckpointId, Count, Header, Moment, parse_document
from statestore.format.left_out import LeftOutState
from statestore.format.manifest_json import (
    FORMAT,
    FORMAT_VERSION,
    LeftOutDocument,
    origin_from_json,
)
from statestore.format.metrics import (
    Amount,
    CheckpointMetrics,
    MetricsDocument,
    is_incremental,
    metrics_from_json,
)


@dataclass(frozen=True, kw_only=True)
class ManifestSummary:
    """The totals of a checkpoint; ``command`` brought its state from outside, and is usually None.

    ``amount`` counts all data files. Of its rows, ``changed_rows`` are changes, in ``layers``
    layers. The other members are as in :class:`statestore.format.manifest.Manifest`.
    """

    checkpoint_id: int
    parallelism: int
    started_at_ms: int
    created_at_ms: int
    command: str | None
    operators: int
    states: int
    amount: Amount
    changed_rows: int
    layers: int
    origin: Mapping[str, Any] | None
    left_out: tuple[LeftOutState, ...]
    metrics: CheckpointMetrics | None

    @property
    def took_ms(self) -> int:
        """The duration of the checkpoint; by the wall clock if it was not measured."""
        if self.metrics is not None:
            return self.metrics.took_ms
        return max(0, self.created_at_ms - self.started_at_ms)

    @property
    def is_incremental(self) -> bool | None:
        """Whether it has changes or files of earlier checkpoints; None if it was not recorded."""
        return is_incremental(self.layers, self.amount.files, self.metrics)


class _Files(Struct, frozen=True):
    rows: tuple[Count, ...]
    size_bytes: tuple[Count, ...]


class _List(Struct, frozen=True):
    files: Count
    rows: Count
    data_bytes: Count


class _Part(Struct, frozen=True):
    """A state's base, or one of its layers."""

    files: _Files | None = None
    file_list: _List | None = None

    def __post_init__(self) -> None:
        if (self.files is None) == (self.file_list is None):
            raise ValueError("exactly one of 'files' and 'file_list' must be present")


class _State(_Part, frozen=True):
    changes: tuple[_Part, ...] | None = None


class _States(Struct, frozen=True):
    uid: str
    keyed: tuple[_State, ...]
    operator: tuple[_Part, ...]


class _Writer(Struct, frozen=True):
    command: str | None = None


class _Manifest(Header, frozen=True):
    checkpoint_id: CheckpointId
    parallelism: Count
    started_at_ms: Moment
    created_at_ms: Moment
    writer: _Writer
    operators: tuple[_States, ...]
    origin: dict[str, Any] | None = None
    metrics: MetricsDocument | None = None
    left_out: tuple[LeftOutDocument, ...] = ()


def summary_from_json(raw: bytes, *, name: str) -> ManifestSummary:
    """Return the totals of a manifest; ``name`` is the document's name in errors.

    Raises MalformedManifestError with the place, or FormatVersionError.
    """
    document = parse_document(raw, _Manifest, name=name, form=FORMAT, newest=FORMAT_VERSION)
    bases = [state for states in document.operators for state in (*states.keyed, *states.operator)]
    layers = [
        layer
        for states in document.operators
        for state in states.keyed
        for layer in state.changes or ()
    ]
    changed = _amount_of(layers)
    origin, metrics = document.origin, document.metrics
    return ManifestSummary(
        checkpoint_id=document.checkpoint_id,
        parallelism=document.parallelism,
        started_at_ms=document.started_at_ms,
        created_at_ms=document.created_at_ms,
        command=document.writer.command,
        operators=len(document.operators),
        states=len(bases),
        amount=_amount_of(bases) + changed,
        changed_rows=changed.rows,
        layers=len(layers),
        origin=None if origin is None else origin_from_json(origin, document.checkpoint_id, name),
        left_out=tuple(LeftOutState(**structs.asdict(part)) for part in document.left_out),
        metrics=None if metrics is None else metrics_from_json(metrics, name, ".metrics"),
    )


def _amount_of(parts: Iterable[_Part]) -> Amount:
    rows = size_bytes = files = 0
    for part in parts:
        if part.files is not None:
            rows += sum(part.files.rows)
            size_bytes += sum(part.files.size_bytes)
            files += len(part.files.rows)
        elif part.file_list is not None:
            rows += part.file_list.rows
            size_bytes += part.file_list.data_bytes
            files += part.file_list.files
    return Amount(rows, size_bytes, files)
