"""What a micro-batch does to states: changes, and an update for one key at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField, StructType

from statestore.errors import InvalidArgumentError
from statestore.files.exact import is_list
from statestore.spark.hashing import column_of
from statestore.spark.tasks import numbered, settle
from statestore.streaming.planned import MicroBatch

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Changes",
    "Updated",
    "by_key",
]


# What a micro-batch does to a state.


@dataclass(frozen=True)
class Changes:
    """What an update does to the state: rows that come, and keys or entries that go.

    They are those of ``checkpoint.changes``: DataFrames, or what else that takes. ``shared`` is a
    DataFrame that several of them are made of: it is computed once, and kept until the micro-batch
    is committed.
    """

    upserts: Any = None
    deletes: Any = None
    cleared: Any = None
    shared: DataFrame | None = None


@dataclass(frozen=True)
class Updated:
    """What an update comes to: changes by state, and rows that go to the query's ``output``."""

    changes: Mapping[str, DataFrame | Changes]
    output: DataFrame | None = None


# An update written for one key at a time, in pandas.


Function = Callable[[tuple[Any, ...], "pd.DataFrame", "pd.DataFrame"], "pd.DataFrame"]

_CLEARED = "__the_key_is_cleared"


def by_key(
    key: str | Sequence[str], function: Function, *, entry: str | Sequence[str] = ()
) -> Callable[[DataFrame, Mapping[str, DataFrame], MicroBatch], Mapping[str, Changes]]:
    """Return an update for a :class:`StatefulQuery` of one state that calls ``function`` for each
    touched key.

    ``function(key, events, state)`` gets the key's events of the micro-batch and its stored rows,
    none for a new key, and returns the rows that it has from now on, in the columns of the state:
    stored rows that it does not return are deleted. ``entry`` names the columns that tell the rows
    of a key apart (namespace, map key, position), if it can have several.
    """
    names, apart = _names(key), _names(entry)

    def rows_of(key: tuple[Any, ...], events: pd.DataFrame, state: pd.DataFrame) -> pd.DataFrame:
        settle()
        rows = function(key, events, state).assign(**{_CLEARED: False})
        if _entries(state, apart) <= _entries(rows, apart):
            return rows
        # Its values play no part: those of a row at hand leave the types of the columns alone.
        like = (rows if len(rows) else state).iloc[[0]]
        own = {name: state[name].iloc[[0]].set_axis(like.index) for name in names}
        return _joined(like.assign(**own, **{_CLEARED: True}), rows)

    def update(
        events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
    ) -> Mapping[str, Changes]:
        if len(states) != 1:
            raise InvalidArgumentError(
                f"by_key updates one state, and the query has {len(states)} "
                f"({', '.join(states)}): write a StatefulProcessor, and StatefulQuery.of_processor"
            )
        ((name, state),) = states.items()
        in_events, in_state = list(events.columns), list(state.columns)

        def called(key: tuple[Any, ...], new: pd.DataFrame, old: pd.DataFrame) -> pd.DataFrame:
            return rows_of(key, new.set_axis(in_events, axis=1), old.set_axis(in_state, axis=1))

        left, right = (
            numbered(frame).groupBy(*(f"c{columns.index(name)}" for name in names))
            for frame, columns in ((events, in_events), (state, in_state))
        )
        fields = [StructField(one.name, one.dataType) for one in state.schema.fields]
        marked = StructType([*fields, StructField(_CLEARED, BooleanType())])
        both = left.cogroup(right).applyInPandas(called, marked)
        changes = Changes(
            upserts=both.where(~both[_CLEARED]).drop(_CLEARED),
            cleared=both.where(both[_CLEARED]).select(*map(column_of, names)),
            shared=both,
        )
        return {name: changes}

    return update


def _entries(rows: pd.DataFrame, apart: Sequence[str]) -> set[tuple[Any, ...]]:
    """Return what tells the rows of one key apart."""
    if not apart:
        return {()} if len(rows) else set()
    return {tuple(map(_told_apart, row)) for row in rows[[*apart]].itertuples(index=False)}


def _told_apart(value: Any) -> Any:
    """Return a value as one that is hashable, and equal for equal entries alone."""
    if isinstance(value, Mapping):
        return tuple((name, _told_apart(part)) for name, part in value.items())
    if is_list(value):
        return tuple(map(_told_apart, value))
    is_special = isinstance(value, float) and (value == 0 or value != value)
    return repr(float(value)) if is_special else value


def _joined(first: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([first, rows]) if len(rows) else first


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
