"""The type of a column that Python values make, where nobody says it: one type, and no mixture.

Integers are long, and with fractions among them double or decimal, in which they come out equal.
Dictionaries are structs of every name that one of them has; a map has to be declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from statestore.table.exact import UnfitError, bare, is_list, is_missing

__all__ = ["guessed_kind"]

_KINDS: tuple[tuple[tuple[type, ...], str, pa.DataType], ...] = (
    ((bool,), "boolean", pa.bool_()),  # before int, which it is one of
    ((int,), "whole number", pa.int64()),
    ((float,), "float", pa.float64()),
    ((Decimal,), "decimal", None),
    ((str,), "text", pa.string()),
    ((bytes, bytearray, memoryview), "bytes", pa.binary()),
    ((time,), "time of day", pa.time64("us")),
    ((timedelta, np.timedelta64), "duration", pa.duration("us")),
    ((np.datetime64,), "time without a zone", pa.timestamp("us")),
)
_TYPES = {word: kind for _, word, kind in _KINDS} | {
    "date": pa.date32(),
    "time without a zone": pa.timestamp("us"),
    "time with a zone": pa.timestamp("us", "UTC"),
}
_PLAIN = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
}
"""Of these nothing more has to be known."""
_MOST_DIGITS = 76
"""Arrow has no decimal of more; of more than 38 it cannot be stored, and is refused there."""


def guessed_kind(values: Iterable[Any]) -> pa.DataType:
    """Return the type of the values; of none but nulls, Arrow's null.

    Raises UnfitError for a value that is of another type than one before it, or of none.
    """
    values = [*values]
    types = {*map(type, values)} - {type(None)}
    if len(types) == 1 and (plain := _PLAIN.get(*types)) is not None:
        return plain
    found: dict[str, list[Any]] = {}
    for value in values:
        if is_missing(value):
            continue
        word = _word(value)
        others = [other for other in found if not _go_together(word, other)]
        if others:
            raise UnfitError(value, others[0], f"it is a {word}, and a column has one type")
        found.setdefault(word, []).append(value)
    if not found:
        return pa.null()
    if "dictionary" in found:
        return _struct(found["dictionary"])
    if "list" in found:
        return pa.list_(guessed_kind(_items(found["list"])))
    if "decimal" in found:
        return _decimal([value for held in found.values() for value in held])
    return _TYPES["float" if "float" in found else next(iter(found))]


def _word(value: Any) -> str:
    value = bare(value)
    if isinstance(value, Mapping):
        return "dictionary"
    if is_list(value):
        return "list"
    if isinstance(value, datetime):
        return "time without a zone" if value.utcoffset() is None else "time with a zone"
    if isinstance(value, date):
        return "date"
    for types, word, _ in _KINDS:
        if isinstance(value, types):
            return word
    reason = f"{type(value).__name__} is none"
    if isinstance(value, UUID):
        reason += "; say key_types='UUID' where it is a key, else give its text or its 16 bytes"
    raise UnfitError(value, "one of the types of columns", reason)


def _go_together(one: str, other: str) -> bool:
    return one == other or {one, other} in (
        {"whole number", "float"},
        {"whole number", "decimal"},
    )


def _struct(values: Sequence[Mapping[Any, Any]]) -> pa.DataType:
    names = list(dict.fromkeys(name for value in values for name in value))
    fields = []
    for name in names:
        if not isinstance(name, str):
            reason = "the names of a struct are strings; declare a map with an Arrow schema"
            raise UnfitError(name, "a dictionary", reason)
        try:
            fields.append((name, guessed_kind(value.get(name) for value in values)))
        except UnfitError as error:
            raise error.within(f".{name}") from None
    return pa.struct(fields)


def _items(values: Sequence[Iterable[Any]]) -> Iterable[Any]:
    for value in values:
        yield from value


def _decimal(values: Sequence[Any]) -> pa.DataType:
    before = behind = 0
    for value in values:
        _, digits, exponent = Decimal(bare(value)).as_tuple()
        if isinstance(exponent, int):
            before = max(before, len(digits) + exponent)
            behind = max(behind, -exponent)
    if before + behind > _MOST_DIGITS:
        reason = f"their values need {before + behind} digits, more than a decimal has"
        raise UnfitError(values[-1], "decimals", reason)
    width = max(before + behind, 1)
    return (pa.decimal128 if width <= 38 else pa.decimal256)(width, behind)
