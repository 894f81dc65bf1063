"""Where the bytes of a state lie: one value per data file, as the manifest names it.

Paths are relative to the table's folder, so a store can be moved or copied as a whole. A file is
referred to by its exact length and the SHA-256 of its bytes, never by name or time alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.model.keygroups import KeyGroupRange

__all__ = ["KeyedStateHandle", "OperatorStateHandle"]


@dataclass(frozen=True, slots=True)
class KeyedStateHandle:
    """A data file of a keyed state: the rows of ``key_groups`` (closed range), sorted by entry.

    ``host`` is the name of the machine whose local cache got a copy when the file was written,
    empty when there was no cache.
    """

    path: str
    key_groups: KeyGroupRange
    rows: int
    size_bytes: int
    row_groups: int
    digest: int
    sha256: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class OperatorStateHandle:
    """The data file of an operator state: elements ordered by old subtask and position."""

    path: str
    rows: int
    size_bytes: int
    row_groups: int
    digest: int
    sha256: str
