"""Rewrite the files of some key groups of a keyed state; all other files are referenced unchanged.

Every command that changes stored rows uses this module. The new rows of some key groups are written
to new files. These take the place of the files that had the key groups, and the layers of changes
no longer apply to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import live_without, widened_spans
from statestore.format.manifest import KeyedEntry
from statestore.keys.groups import KeyGroupRange, merge_ranges

Write = Callable[[KeyedEntry, Iterable[pa.Table]], tuple[KeyedStateHandle, ...]]
"""Writes ascending pieces as new files of a state."""


@dataclass(frozen=True)
class RewrittenState:
    """A state with ``new`` files in the place of the ``replaced`` ones."""

    entry: KeyedEntry
    new: tuple[KeyedStateHandle, ...]
    replaced: tuple[KeyedStateHandle, ...]


def owning_spans(entry: KeyedEntry, groups: Iterable[int]) -> tuple[KeyGroupRange, ...]:
    """Return the ranges of key groups to rewrite if some key groups change, ascending.

    These are the ranges of the files that have the key groups. In a state with layers, a key group
    without a file belongs to the file before it. Otherwise it is a range of its own.
    """
    wanted, own = sorted(set(groups)), set[int]()
    files = widened_spans(entry) if entry.layers else [file.key_groups for file in entry.handles]
    spans = []
    for span in files:
        changed = wanted[bisect_left(wanted, span.first) : bisect_right(wanted, span.last)]
        if changed:
            spans.append(span)
            own.update(changed)
    spans += [KeyGroupRange(group, group) for group in wanted if group not in own]
    return tuple(sorted(spans, key=lambda span: span.first))


def rewrite_spans(
    entry: KeyedEntry, rows: Iterable[tuple[KeyGroupRange, Iterable[pa.Table]]], write: Write
) -> RewrittenState:
    """Write the new rows of some ranges of key groups; return the state with the new files.

    Each range is yielded with all of its rows, as ascending pieces. A file has either all or none
    of its key groups in these ranges. Raises the errors of ``write`` and of the rows.
    """
    spans, new = list[KeyGroupRange](), list[KeyedStateHandle]()
    for span, pieces in rows:
        new += write(entry, pieces)
        spans.append(span)
    return with_new_files(entry, spans, new)


def with_new_files(
    entry: KeyedEntry, spans: Iterable[KeyGroupRange], new: Iterable[KeyedStateHandle]
) -> RewrittenState:
    """Return the state with ``new`` files for the key groups in ``spans``, without their changes.

    No table version has these files, and the number of the state's rows is no longer known.
    """
    spans, new = merge_ranges(spans), tuple(new)
    rewritten = {group for span in spans for group in span}
    replaced, kept = list[KeyedStateHandle](), list[KeyedStateHandle]()
    for handle in entry.handles:
        (replaced if handle.key_groups.first in rewritten else kept).append(handle)
    layers = (live_without(layer, spans) for layer in entry.layers)
    changed = replace(
        entry,
        handles=tuple(sorted((*kept, *new), key=lambda handle: handle.key_groups.first)),
        table=entry.table.without_version(),
        layers=tuple(layer for layer in layers if layer is not None),
        merged=None,
    )
    return RewrittenState(changed, new, tuple(replaced))
