"""Arguments for writing a keyed state: its changes, and options that are seldom needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statestore.arguments import checked_fields
from statestore.format.state import Layout, StateKind, TimeDomain
from statestore.format.ttl import TimeToLive

__all__ = ["DEFAULTS", "Changes", "Columns", "KeyTypes", "KeyedArguments", "KeyedOptions"]

Columns = str | Sequence[str]

KeyTypes = str | Mapping[str, str | None] | Sequence[str | None] | None
"""What key columns are hashed as: one name, by column, or in the key's order; None: as they are."""


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes of a keyed state since a checkpoint.

    Each field accepts a DataFrame, an Arrow table or stream, or dictionaries.

    Attributes:
        upserts: whole rows with the state's columns. Each replaces the row with the same key,
            namespace and entry columns, or is new.
        deletes: rows to delete. A key deletes all rows of the key. A key and namespace deletes the
            rows of both. A row that also has the entry columns deletes one list element, map entry
            or timer. Value columns are ignored. A list of dictionaries may mix the three.
        cleared: deletes of keys that upserts of the same checkpoint may write again.
    """

    upserts: Any = None
    deletes: Any = None
    cleared: Any = None


@checked_fields
@dataclass(frozen=True, kw_only=True)
class KeyedOptions:
    """Options for writing a keyed state that most states do not need.

    Attributes:
        kind: what a row is; by default ``value``. Without ``key``, the default is the stored kind.
        entry: the columns that identify the entries of one key, in a list, map or timer state.
        time_domain: ``event`` or ``processing``, for timers.
        hash_scheme: how keys are hashed; defaults to the stored scheme, then to Flink's scheme for
            Java objects.
        key_types: the type that a key column is hashed as, if it is not its own type. It is one
            name, one name per column, or a dictionary by column (``{"at": "TIMESTAMP(3)"}``).
            Defaults to the stored types.
        renamed: ``{"old": "new"}`` gives the new name of a value column. Value columns may also be
            new, left out or wider than before.
        dropped: value columns that are removed without a replacement.
        regroup: lets ``max_parallelism`` differ from the stored one.
        co_located: True if Spark partition i of a DataFrame has subtask i's rows, as after a
            restore at this parallelism. In that case nothing is shuffled. A row that belongs to
            another subtask is refused. It applies to all rows of a state, not to changes.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    kind: StateKind | str | None = None
    entry: Columns | None = None
    time_domain: TimeDomain | str | None = None
    hash_scheme: str | None = None
    key_types: KeyTypes = None
    renamed: Mapping[str, str] | None = None
    dropped: Columns = ()
    regroup: bool = False
    co_located: bool = False


DEFAULTS = KeyedOptions()


@dataclass(frozen=True)
class KeyedArguments:
    """The arguments that all methods for keyed state share; see ``CheckpointWriter.write_keyed``.

    ``key`` and ``namespace`` are None for rows that use the stored columns.
    """

    operator: str
    state: str
    key: Columns | None
    namespace: Columns | None
    max_parallelism: int | None
    layout: Layout | str | None
    ttl: TimeToLive | str | None
    options: KeyedOptions
