"""A key from the command line: text into a value of the key column's type.

One key column: the value itself, ``u17`` or ``42`` or ``2026-01-31``. Several key columns, or a
struct, array or map: JSON, a list in the order of the key or an object by column name. Inside JSON
too, dates and times are ISO 8601 strings, decimals may be strings, and bytes are hex digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from statestore.errors import InvalidArgumentError
from statestore.format.schema import DataType, type_text
from statestore.format.state import KeyedState

__all__ = ["parse_key", "parse_row"]


def parse_key(text: str, state: KeyedState) -> tuple[Any, ...]:
    """Return the values of the key columns, in order; InvalidArgumentError says what they are."""
    types = [state.schema.type_of(name) for name in state.key]
    if len(types) == 1:
        return (_parse(text, types[0], state),)
    value = _json(text, state)
    if isinstance(value, dict) and set(value) == set(state.key):
        value = [value[name] for name in state.key]
    if not isinstance(value, list) or len(value) != len(types):
        raise _unfit(text, state)
    return tuple(_from_json(item, kind, state) for item, kind in zip(value, types, strict=True))


def parse_row(text: str, state: KeyedState) -> dict[str, Any]:
    """Return a row from a JSON object by column; InvalidArgumentError says what the columns are."""
    try:
        row = json.loads(text, parse_float=Decimal)
        if isinstance(row, dict):
            kinds = {name: state.schema.type_of(name) for name in row}
            return {name: _from_json(value, kinds[name], state) for name, value in row.items()}
    except (InvalidArgumentError, ValueError) as error:
        reason = f": {error}" if type(error) is ValueError else ""
        raise _no_row(text, state, reason) from error
    raise _no_row(text, state, "")


def _no_row(text: str, state: KeyedState, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text!r} is no row of {state}{reason}; give a JSON object with its columns "
        f"({state.schema})"
    )


def _parse(text: str, kind: DataType, state: KeyedState) -> Any:
    if not isinstance(kind, str):
        return _from_json(_json(text, state), kind, state)
    try:
        # Python's numbers may hold underscores; a key with one is a mistake, not a number.
        if kind != "string" and "_" in text:
            raise ValueError(text)
        return _reader(kind)(text)
    except (ValueError, InvalidOperation):
        raise _unfit(text, state) from None


def _reader(kind: str) -> Callable[[str], Any]:
    if kind.startswith("decimal"):
        return Decimal
    return _READERS[kind]


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_READERS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "long": int,
    "integer": int,
    "short": int,
    "byte": int,
    "float": float,
    "double": float,
    "boolean": _boolean,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp": _instant,
    "timestamp_ntz": datetime.fromisoformat,
}


def _json(text: str, state: KeyedState) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError:
        raise _unfit(text, state) from None


def _from_json(value: Any, kind: DataType, state: KeyedState) -> Any:
    """Return a JSON value as its column's type; numbers and booleans are left to Arrow's check."""
    if value is None:
        return None
    if isinstance(kind, str):
        if isinstance(value, str):
            return _parse(value, kind, state)
        if isinstance(value, Decimal) and not kind.startswith("decimal"):
            return float(value)
        return value
    match kind["type"], value:
        case "struct", dict():
            fields = {field["name"]: field["type"] for field in kind["fields"]}
            if set(value) == set(fields):
                return {name: _from_json(value[name], fields[name], state) for name in fields}
        case "array", list():
            return [_from_json(item, kind["elementType"], state) for item in value]
        case "map", list():
            types = (kind["keyType"], kind["valueType"])
            return [
                tuple(_from_json(part, each, state) for part, each in zip(pair, types, strict=True))
                for pair in value
                if isinstance(pair, list) and len(pair) == len(types)
            ]
    raise _unfit(json.dumps(value, default=str), state)


def _unfit(text: str, state: KeyedState) -> InvalidArgumentError:
    columns = ", ".join(f"{name} {type_text(state.schema.type_of(name))}" for name in state.key)
    plain = len(state.key) == 1 and isinstance(state.schema.type_of(state.key[0]), str)
    form = "" if plain else "; give it as JSON, a list of its values or an object by column"
    return InvalidArgumentError(
        f"{text!r} is no key of {state}, which has the key ({columns}){form}"
    )
