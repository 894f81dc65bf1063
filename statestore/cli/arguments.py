"""Parse values in arguments: keys, rows and columns, and the job graph of a file.

There is one rule for the value of a column, in a key and in ``COLUMN=VALUE``:

* A JSON string in double quotes is the text within them: ``"u17"`` is ``u17``. A text with quotes
  of its own is therefore written as JSON.
* Anything else is the value itself: ``u17``, ``42``, ``2026-01-31``. In a text column, ``123`` and
  ``true`` are texts.
* A struct, array or map is JSON.

A key of several columns is JSON: a list in the order of the key or an object by column name. Inside
JSON too, dates and times are ISO 8601 strings, decimals may be strings, and bytes are hex digits.
Years before 1 and after 9999 have the form that ``statestore query`` prints, and ``infinity``. A
``timestamp`` needs ``Z`` or an offset, because a guessed time zone would name another instant.
Numbers are exact; :mod:`statestore.parsing` defines which ones a double accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import click

from statestore.errors import InvalidArgumentError, SettingsError
from statestore.format.names import unescape
from statestore.format.schema import DataType, type_text
from statestore.format.state import KeyedState
from statestore.jobgraph.graph import JobGraph
from statestore.parsing import (
    nearest_double,
    nearest_float,
    parse_json,
    parse_number,
    parse_toml,
    whole_number,
)
from statestore.settings import read_text

__all__ = [
    "column_values",
    "distinct",
    "graph_of",
    "key_of",
    "key_value",
    "named_values",
    "parse_instant",
    "parse_key",
    "parse_row",
    "parse_value",
    "quoted_name",
    "state_name",
    "toml_of",
]

K = TypeVar("K")
V = TypeVar("V")


def graph_of(path: str | None) -> JobGraph | None:
    """Read the job graph from a TOML file.

    Raises SettingsError or InvalidArgumentError with the place in the file.
    """
    if path is None:
        return None
    if not Path(path).exists():
        raise SettingsError(f"the job graph {path} does not exist; check the path")
    try:
        return JobGraph.from_toml(read_text(Path(path)))
    except InvalidArgumentError as error:
        error.add_note(f"in {path}")
        raise


def toml_of(option: str, file: Path) -> dict[str, Any]:
    """Read the TOML file of an option; a usage error if it is invalid."""
    try:
        return parse_toml(file.read_text("utf-8"))
    except ValueError as error:
        raise click.UsageError(f"{option}: {file} is not valid TOML: {error}") from error


def state_name(text: str, form: str = "OPERATOR/STATE") -> tuple[str | None, str | None]:
    """Return the operator and the state of ``OPERATOR/STATE``, ``OPERATOR`` or ``/STATE``.

    A ``/`` within a name is written as ``~2F``, as in the paths of a store. Raises ValueError; its
    message has the ``form``.
    """
    operator, slash, state = text.partition("/")
    if not (state if slash else operator):
        raise ValueError(f"{text!r:.1000} must have the form {form}")
    if "/" in state:
        raise ValueError(f"{text!r:.1000} has several '/'; write a '/' within a name as ~2F")
    if not _is_text(operator) or not _is_text(state):
        raise ValueError(
            f"{text!r:.1000} has bytes that are not UTF-8; write a '~' within a name as ~7E"
        )
    return unescape(operator) or None, unescape(state) or None


def _is_text(name: str) -> bool:
    return "\ufffd" not in unescape(name) or "\ufffd" in name


def quoted_name(name: str) -> str:
    """Return the name of an operator or state as :func:`state_name` reads it."""
    return _READ_AS_ESCAPE.sub(lambda found: f"~{ord(found[0]):02X}", name)


def parse_key(text: str, state: KeyedState) -> tuple[Any, ...]:
    """Return the values of the key columns, in order.

    Raises:
        InvalidArgumentError: The text is not a key of the state. The message names the key's
            columns and, for a value that does not fit, the column and the reason.
    """
    types = {name: state.schema.type_of(name) for name in state.key}
    try:
        if len(types) == 1:
            ((name, data_type),) = types.items()
            return (parse_value(text, data_type, name),)
        values = _key_columns(parse_json(text), state.key)
        return tuple(_converted(values[name], data_type, name) for name, data_type in types.items())
    except ValueError as error:
        raise _no_key(text, state, error) from error


def parse_value(text: str, data_type: DataType, name: str) -> Any:
    """Parse the value of a column from text; the module describes its form.

    Raises:
        ValueError: The text is not a value of the type.
    """
    value: Any = text
    if not isinstance(data_type, str):
        with suppress(json.JSONDecodeError):  # the text has no fields or items: refused below
            value = parse_json(text)
    elif len(text) > 1 and text[0] == text[-1] == '"':
        with suppress(ValueError):  # it is not JSON, so the quotes belong to the text
            value = parse_json(text)
    return _converted(value, data_type, name)


def column_values(option: str, texts: Mapping[str, str], state: KeyedState) -> dict[str, Any]:
    """Parse values of columns from ``COLUMN=VALUE``, as :func:`parse_value`.

    ``null`` is null, and ``"null"`` is a text.

    Raises:
        InvalidArgumentError: For an unknown column, or a text that is not a value of the column.
    """
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in state.schema.names:
            raise InvalidArgumentError(
                f"{option} {name}: {state} has no such column; its columns are ({state.schema})"
            )
        data_type = state.schema.type_of(name)
        try:
            values[name] = None if text == "null" else parse_value(text, data_type, name)
        except ValueError as error:
            raise InvalidArgumentError(f"{option} {name}={text:.1000}: {error}") from error
    return values


def key_value(values: tuple[Any, ...]) -> Any:
    """Convert a key for a lookup: the value of a single column, or all values of several."""
    return values[0] if len(values) == 1 else values


def key_of(text: str) -> Callable[[KeyedState], Any]:
    """Return a function that parses the key for a state and converts it for a lookup."""
    return lambda state: key_value(parse_key(text, state))


def parse_row(text: str, state: KeyedState) -> dict[str, Any]:
    """Parse a row from a JSON object by column.

    Raises:
        InvalidArgumentError: The text is not a row of the state. The message names the columns and,
            for a value that does not fit, the column and the reason.
    """
    try:
        row = parse_json(text)
        if not isinstance(row, dict):
            raise _FormError("it is not a JSON object")
        for name in row:
            if name not in state.schema.names:
                raise _FormError(f"it has {name!r}, which is not a column")
        return {name: _converted(row[name], state.schema.type_of(name), name) for name in row}
    except ValueError as error:
        form = f"; pass a JSON object with its columns ({state.schema})"
        raise InvalidArgumentError(
            f"{text!r:.1000} is not a row of {state}: {error}{form if _is_form(error) else ''}"
        ) from error


class _FormError(ValueError):
    """The text does not have the form of a key or row; its values were not read."""


def _is_form(error: ValueError) -> bool:
    """Return True if the form of a text is wrong, and False if one of its values is wrong."""
    return isinstance(error, _FormError | json.JSONDecodeError)


def named_values(
    option: str, form: str, texts: Sequence[str], *, at_last: bool = False
) -> dict[str, str]:
    """Return the values of a repeatable option of the form ``NAME=VALUE``, by name.

    Args:
        option: The option, for messages.
        form: Its form, for messages, such as ``COLUMN=TYPE``.
        texts: Its values.
        at_last: Whether a text is split at its last ``=`` instead of its first.

    Raises:
        click.UsageError: For a value of another form, and for a name that is given twice.
    """
    return distinct(option, (_named_value(option, form, text, at_last) for text in texts))


def _named_value(option: str, form: str, text: str, at_last: bool) -> tuple[str, str]:
    name, equals, value = text.rpartition("=") if at_last else text.partition("=")
    if name and equals and not value:
        empty = f"; an empty text is {option} '{name}=\"\"'" if form == "COLUMN=VALUE" else ""
        raise click.UsageError(f"{option} {text!r} has no value after '='{empty}")
    if not (name and equals):
        raise click.UsageError(f"{option} {text!r} must have the form {form}")
    return name, value


def distinct(option: str, pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    """Return the pairs by name; a usage error for a name that is given twice."""
    values: dict[K, V] = {}
    for name, value in pairs:
        if name in values:
            raise click.UsageError(f"{option} is passed twice for {name}; pass it only once")
        values[name] = value
    return values


def _key_columns(value: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return a key of several columns as a mapping by column."""
    if isinstance(value, dict) and set(value) == set(names):
        return value
    if isinstance(value, list) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    raise _FormError("it does not contain each key column exactly once")


def _no_key(text: str, state: KeyedState, error: ValueError) -> InvalidArgumentError:
    columns = ", ".join(f"{name} {type_text(state.schema.type_of(name))}" for name in state.key)
    form = ""
    if _is_form(error):
        form = "; pass it as JSON"
        if len(state.key) > 1:
            form += ", as a list of its values or an object by column"
    return InvalidArgumentError(
        f"{text!r:.1000} is not a key of {state}, whose key is ({columns}): {error}{form}"
    )


def _converted(value: Any, data_type: DataType, place: str) -> Any:
    """Convert a value from :func:`parse_json` to its column's type.

    Values with a JSON type of their own (null, booleans, numbers of whole-number and decimal
    columns) are checked later, when rows are built. Raises ValueError with ``place`` and the
    reason.
    """
    if value is None:
        return None
    if isinstance(data_type, str):
        return _converted_scalar(value, data_type, place)
    if data_type["type"] == "struct" and isinstance(value, dict):
        fields = {field["name"]: field["type"] for field in data_type["fields"]}
        if set(value) == set(fields):
            return {
                name: _converted(value[name], field, f"{place}.{name}")
                for name, field in fields.items()
            }
    elif data_type["type"] == "array" and isinstance(value, list):
        return [
            _converted(item, data_type["elementType"], f"{place}[{index}]")
            for index, item in enumerate(value)
        ]
    elif data_type["type"] == "map" and isinstance(value, list):
        return _entries(value, data_type, place)
    form = _FORMS[data_type["type"]]
    raise ValueError(f"{place!r} is {type_text(data_type)}: pass {form}")


def _entries(
    pairs: Sequence[Any], data_type: Mapping[str, Any], place: str
) -> list[tuple[Any, Any]]:
    """Convert a map that is given as a list of entries; refuse a key that occurs twice."""
    entries = [_entry(pair, data_type, f"{place}[{index}]") for index, pair in enumerate(pairs)]
    for index, (key, _) in enumerate(entries):
        # NaN does not equal itself.
        if any(key == other or repr(key) == repr(other) for other, _ in entries[:index]):
            raise ValueError(f"{place!r} has the key {key!r:.80} twice; pass it once")
    return entries


def _entry(pair: Any, data_type: Mapping[str, Any], place: str) -> tuple[Any, Any]:
    """Convert a map entry that is given as a list of its key and value."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"{place!r} is an entry of a map: pass a list [key, value]")
    key, value = pair
    return (
        _converted(key, data_type["keyType"], f"{place}.key"),
        _converted(value, data_type["valueType"], f"{place}.value"),
    )


def _converted_scalar(value: Any, data_type: str, place: str) -> Any:
    read_number = _number_reader(data_type)
    try:
        if isinstance(value, str):
            return _read_text(value, data_type)
        if read_number is not None and not isinstance(value, bool | dict | list):
            return read_number(value)
    except ValueError as error:
        raise ValueError(f"{place!r} is {data_type}: {error}") from None
    # Objects and lists, and numbers for a type without numbers.
    if isinstance(value, bool) and data_type == "boolean":
        return value
    shown = json.dumps(value, default=str)
    raise ValueError(f"{place!r} is {data_type}, and {shown:.80} does not fit that type")


def _number_reader(data_type: str) -> Callable[[int | Decimal], Any] | None:
    """Return the converter of numbers for a numeric type; None for types without numbers."""
    if data_type.startswith("decimal"):
        return Decimal
    return _NUMBERS.get(data_type)


def _read_text(text: str, data_type: str) -> Any:
    """Parse a value from text. Raises ValueError if the type cannot represent it."""
    if data_type in _TEXTS:
        try:
            return _TEXTS[data_type](text)
        except ValueError:
            far = _far_time(text, data_type) if data_type in _TIMES else None
            if far is None:
                raise
            return far
    # Python's own floats, as printed by ``--output json``.
    if data_type in ("double", "float") and _NOT_FINITE.fullmatch(text.strip()):
        return float(text)
    read_number = _number_reader(data_type)
    if read_number is None:
        raise ValueError("text does not fit that type")
    return read_number(parse_number(text))


def _far_time(text: str, data_type: str) -> Any:
    from statestore.rows.column_types import arrow_type  # pyarrow is not needed for other values
    from statestore.rows.lossless_cast import far_time

    return far_time(text, arrow_type(data_type))


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text!r:.80} is not two hexadecimal digits for each byte") from None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r:.80} is not true or false")
    return text == "true"


def _moment(text: str) -> datetime:
    """Parse a time in ISO 8601; Python drops digits below the microsecond."""
    if _BELOW_MICROSECONDS.search(text):
        raise ValueError(
            f"{text!r:.80} is more precise than a microsecond, so data would be lost; round it"
        )
    return datetime.fromisoformat(text)


def parse_instant(text: str) -> datetime:
    """Parse a time in ISO 8601 with ``Z`` or an offset. Raises ValueError for another text."""
    moment = _moment(text)
    if moment.tzinfo is None:
        utc = moment.isoformat()
        raise ValueError(
            f"{text!r:.80} has no time zone; add Z for UTC or an offset: {utc}Z or {utc}+01:00"
        )
    return moment


def _local_moment(text: str) -> datetime:
    moment = _moment(text)
    if moment.tzinfo is not None:
        raise ValueError(
            f"{text!r:.80} has a time zone, but the type has none; convert it to the local time "
            "that is meant, and leave out the zone"
        )
    return moment


_READ_AS_ESCAPE = re.compile(r"/|~(?=[0-9A-F]{2})")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_BELOW_MICROSECONDS = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_NUMBERS: Mapping[str, Callable[[int | Decimal], Any]] = {
    "long": whole_number,
    "integer": whole_number,
    "short": whole_number,
    "byte": whole_number,
    "float": nearest_float,
    "double": nearest_double,
}
_TEXTS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": _boolean,
    "binary": _bytes,
    "date": date.fromisoformat,
    "timestamp": parse_instant,
    "timestamp_ntz": _local_moment,
}
_TIMES = ("date", "timestamp", "timestamp_ntz")
_FORMS: Mapping[str, str] = {
    "struct": "a JSON object with all of its fields",
    "array": "a JSON list",
    "map": "a JSON list of [key, value]",
}
