"""Find a subject outside of rows: in Delta logs' statistics and partition values, and in text.

A number or a text alone proves nothing: a bound of another column may be the same number. So these
rules apply:

* **Bounds.** A Delta log has the minimum and maximum of some columns of each file. They show a
  subject if every column of it that has bounds has its value as a bound, and the file either has a
  row of the subject or no longer exists. The bounds of a file without such a row are values of
  other rows.
* **Partition values** show a subject by the same rule.
* **Text** shows a subject if it contains each of the values as a word. A number or a short text
  also occurs in other texts, so the text must contain the name of the column too. Names of
  operators, states and jobs are not values.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from statestore.maintenance.erase_subject import Selection
from statestore.parquet.statistics import bound_forms
from statestore.rows.python_values import display_rows

SHORTEST_TEXT = 4
"""Text of fewer bytes is part of many texts, and is searched together with its column's name."""

_STATISTICS = ("stats", "stats_parsed")
_PARTITION = ("partitionValues", "partitionValues_parsed")
_NO_VALUES = ("metaData", "metadata", "protocol", "txn", "setTransactions", "path", "sidecar")
"""Members of log entries that hold names, paths and numbers of versions."""

IsClean = Callable[[str], bool]
"""Returns whether a file, by its path in its table, exists and has no row of the subject."""


@dataclass(frozen=True)
class _Column:
    name: str
    bounds: tuple[Any, ...]
    texts: tuple[str, ...]
    is_distinctive: bool

    @classmethod
    def from_value(cls, name: str, value: Any) -> _Column:
        return cls(
            name,
            (*bound_forms(value), value),
            _texts_of(value),
            isinstance(value, str) and len(value.encode()) >= SHORTEST_TEXT,
        )

    def is_bound(self, value: Any) -> bool:
        return any(_same(_json_value(value), bound) for bound in self.bounds)

    def is_partition(self, value: Any) -> bool:
        return self.is_bound(value) or str(value) in self.texts

    def is_in_text(self, text: str) -> bool:
        if not any(_has_word(text, word) for word in self.texts):
            return False
        return self.is_distinctive or text in self.texts[:1] or _has_word(text, self.name)


class ValueSearch:
    """Looks for a subject in decoded JSON values."""

    def __init__(self, selections: Iterable[Selection], names: Collection[str] = ()) -> None:
        """Search for selections in texts other than ``names``."""
        self._selections = [
            tuple(
                _Column.from_value(name, value)
                for name, value in display_rows(selection)[0].items()
            )
            for selection in selections
        ]
        self._names = names

    def in_log(self, values: Iterable[Any], is_clean: IsClean) -> bool:
        """Return whether actions of a Delta log show the subject."""
        return any(self._in_action(value, is_clean) for value in values)

    def in_text(self, value: Any, exclude: Collection[str] = ()) -> bool:
        """Return whether a text in a JSON value shows the subject, except in ``exclude``."""
        return any(self._is_in_text(text) for text in _texts_within(value, exclude))

    def _in_action(self, value: Any, is_clean: IsClean) -> bool:
        if isinstance(value, list | tuple):
            return any(self._in_action(item, is_clean) for item in value)
        if not isinstance(value, Mapping):
            return isinstance(value, str) and self._is_in_text(value)
        info = value.get("commitInfo")
        if isinstance(info, Mapping) and str(info.get("engineInfo")).startswith("statestore/"):
            value = {name: inner for name, inner in value.items() if name != "commitInfo"}
        path = value.get("path")
        shown = any(
            self._is_shown_by(statistics, partition)
            for statistics in _statistics_of(value)
            for partition in _partitions_of(value)
        )
        if shown and not (isinstance(path, str) and is_clean(unquote(path))):
            return True
        rest = (
            inner
            for name, inner in value.items()
            if name not in (*_STATISTICS, *_PARTITION, *_NO_VALUES)
        )
        return any(self._in_action(inner, is_clean) for inner in rest)

    def _is_shown_by(self, statistics: Mapping[str, Any], partition: Mapping[str, Any]) -> bool:
        """Return whether a file's bounds and partition values prove a row of the subject."""
        bounds = [
            inner
            for name in ("minValues", "maxValues")
            if isinstance(inner := statistics.get(name), Mapping)
        ]
        return any(_matches(columns, bounds, partition) for columns in self._selections)

    def _is_in_text(self, text: str) -> bool:
        if text in self._names:
            return False
        return any(
            all(column.is_in_text(text) for column in columns) for columns in self._selections
        )


def _matches(
    columns: Iterable[_Column], bounds: list[Mapping[str, Any]], partition: Mapping[str, Any]
) -> bool:
    known = False
    for column in columns:
        values = [inner[column.name] for inner in bounds if inner.get(column.name) is not None]
        if column.name in partition:
            known = True
            if not column.is_partition(partition[column.name]):
                return False
        elif values:
            known = True
            if not any(map(column.is_bound, values)):
                return False
    return known


def _statistics_of(action: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the statistics of a file, or an empty dictionary."""
    statistics: list[Mapping[str, Any]] = []
    for name in _STATISTICS:
        value = action.get(name)
        if isinstance(value, str):
            value = next(iter(json_lines(value.encode())), None)
        if isinstance(value, Mapping):
            statistics.append(value)
    return statistics or [{}]


def _partitions_of(action: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    partitions: list[Mapping[str, Any]] = []
    for name in _PARTITION:
        value = action.get(name)
        if isinstance(value, list):  # a map in Parquet's representation
            value = dict(value)
        if isinstance(value, Mapping):
            partitions.append(value)
    return partitions or [{}]


def json_lines(raw: bytes) -> list[Any]:
    """Return the JSON value of each line; numbers with a decimal point are Decimal.

    Raises ValueError for a line that is not JSON.
    """
    return [json.loads(line, parse_float=Decimal) for line in raw.splitlines() if line.strip()]


def _texts_within(value: Any, exclude: Collection[str]) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in exclude:
                yield from _texts_within(inner, exclude)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts_within(inner, exclude)


def _texts_of(value: Any) -> tuple[str, ...]:
    """Return the texts that can represent a value."""
    match value:
        case str():
            return (value,)
        case bool() | None:
            return ()
        case dt.datetime():
            return (value.isoformat(), value.isoformat(" "), *bound_forms(value))
        case dt.date() | int() | float() | Decimal():
            return (str(value),)
        case bytes():
            return (value.hex(),)
    return ()


def _has_word(text: str, word: str) -> bool:
    """Return whether a text contains a word that is not part of a longer word."""
    if word not in text:
        return False
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def _json_value(value: Any) -> Any:
    """Return a Parquet value in its JSON form."""
    if isinstance(value, dt.datetime | dt.date):
        return (*bound_forms(value), str(value))[0]
    return value


def _same(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal; numbers are compared across numeric types."""
    numbers = (int, float, Decimal)
    both = isinstance(left, numbers) and isinstance(right, numbers)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return (both or type(left) is type(right)) and bool(left == right)
