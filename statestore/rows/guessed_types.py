"""The type of a column of Python values without a declared type: one type, and no mixture.

Integers become long. Integers mixed with fractions become double or decimal, if they stay equal.
Dictionaries become structs with the names of all dictionaries; a map has to be declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from statestore.rows.lossless_cast import UnfitError, is_list, is_missing, unwrap_numpy

_KINDS: tuple[tuple[tuple[type, ...], str, pa.DataType], ...] = (
    ((bool,), "boolean", pa.bool_()),  # before int, because bool is a subclass of int
    ((int,), "whole number", pa.int64()),
    ((float,), "float", pa.float64()),
    ((Decimal,), "decimal", None),
    ((str,), "text", pa.string()),
    ((bytes, bytearray, memoryview), "bytes", pa.binary()),
    ((time,), "time of day", pa.time64("us")),
    ((timedelta, np.timedelta64), "duration", pa.duration("us")),
    ((np.datetime64,), "time without a zone", pa.timestamp("us")),
)
_TYPES = {word: data_type for _, word, data_type in _KINDS} | {
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
"""For these Python types, the type alone determines the column type."""
_MOST_DIGITS = 76
"""Arrow's largest decimal; a decimal of more than 38 digits is refused when it is stored."""


def guess_type(values: Iterable[Any]) -> pa.DataType:
    """Return the type of the values; Arrow's null type if all are null.

    Raises UnfitError for a value whose type differs from an earlier one's, or is not supported.
    """
    values = [*values]
    types = {*map(type, values)} - {type(None)}
    if len(types) == 1 and (plain := _PLAIN.get(*types)) is not None:
        return plain
    values_by_word: dict[str, list[Any]] = {}
    for value in values:
        if is_missing(value):
            continue
        word = _word(value)
        others = [other for other in values_by_word if not _have_common_type(word, other)]
        if others:
            raise UnfitError(
                value,
                others[0],
                f"it is a {word}, but all values of a column must have the same type",
            )
        values_by_word.setdefault(word, []).append(value)
    if not values_by_word:
        return pa.null()
    if "dictionary" in values_by_word:
        return _guess_struct(values_by_word["dictionary"])
    if "list" in values_by_word:
        return pa.list_(guess_type(_items(values_by_word["list"])))
    if "decimal" in values_by_word:
        return _guess_decimal([value for held in values_by_word.values() for value in held])
    return _TYPES["float" if "float" in values_by_word else next(iter(values_by_word))]


def _word(value: Any) -> str:
    value = unwrap_numpy(value)
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
    reason = f"Python type {type(value).__name__} is not supported"
    if isinstance(value, UUID):
        reason += (
            "; if it is a key, pass key_types='UUID', otherwise convert it to text "
            "or to its 16 bytes"
        )
    raise UnfitError(value, "one of the column types", reason)


def _have_common_type(first: str, second: str) -> bool:
    return first == second or {first, second} in (
        {"whole number", "float"},
        {"whole number", "decimal"},
    )


def _guess_struct(values: Sequence[Mapping[Any, Any]]) -> pa.DataType:
    names = list(dict.fromkeys(name for value in values for name in value))
    fields = []
    for name in names:
        if not is_name(name):
            reason = (
                "the field names of a struct must be strings of valid Unicode; to store a map, "
                "declare it with an Arrow schema"
            )
            raise UnfitError(name, "a dictionary", reason)
        try:
            fields.append((name, guess_type(value.get(name) for value in values)))
        except UnfitError as error:
            raise error.within(f".{name}") from None
    return pa.struct(fields)


def is_name(name: object) -> bool:
    """Return whether a column or field can have this name: a string without unpaired surrogates."""
    return isinstance(name, str) and name == name.encode(errors="replace").decode()


def _items(values: Sequence[Iterable[Any]]) -> Iterable[Any]:
    for value in values:
        yield from value


def _guess_decimal(values: Sequence[Any]) -> pa.DataType:
    before = behind = 0
    for value in values:
        _, digits, exponent = Decimal(unwrap_numpy(value)).as_tuple()
        if isinstance(exponent, int):
            before = max(before, len(digits) + exponent)
            behind = max(behind, -exponent)
    if before + behind > _MOST_DIGITS:
        reason = f"the values need {before + behind} digits, more than a decimal can have"
        raise UnfitError(values[-1], "decimals", reason)
    width = max(before + behind, 1)
    return (pa.decimal128 if width <= 38 else pa.decimal256)(width, behind)
