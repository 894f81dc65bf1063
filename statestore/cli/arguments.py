"""What the command line says, as values: what is restored for, keys and rows, spans of time.

A key of one column is the value itself, ``u17`` or ``42`` or ``2026-01-31``. Of several columns, or
of a struct, array or map, it is JSON: a list in the order of the key or an object by column name.
Inside JSON too, dates and times are ISO 8601 strings, decimals may be strings, and bytes are hex
digits. A span of time is ``90s``, ``15min``, ``2h`` or ``7d``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from statestore.errors import InvalidArgumentError, SettingsError
from statestore.flink.graph import JobGraph
from statestore.format.schema import DataType, type_text
from statestore.format.state import KeyedState
from statestore.restore.plan import Weight
from statestore.restore.target import AUTO, bytes_of
from statestore.settings import read_text

__all__ = [
    "SPAN",
    "Bytes",
    "Parallelism",
    "graph_of",
    "key_of",
    "key_value",
    "limit_option",
    "parse_key",
    "parse_row",
    "span_seconds",
    "target_options",
]

F = TypeVar("F", bound=Callable[..., Any])
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_SECONDS)})")
_MOST_ROWS = 1000


def target_options(function: F) -> F:
    """Give a verb ``--parallelism``, ``--bytes-per-task``, ``--graph``, ``--max-parallelism`` and
    ``--balance``.
    """
    for option in reversed(_target_options()):
        function = option(function)
    return function


def graph_of(path: str | None) -> JobGraph | None:
    """Return the job graph in a TOML file; SettingsError or InvalidArgumentError name the place."""
    if path is None:
        return None
    if not Path(path).exists():
        raise SettingsError(f"no job graph {path}; check the path")
    try:
        return JobGraph.from_toml(read_text(Path(path)))
    except InvalidArgumentError as error:
        error.add_note(f"in {path}")
        raise


def limit_option(function: F) -> F:
    """Give a verb ``--limit``, how many rows of an answer it shows."""
    option = click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=_MOST_ROWS,
        metavar="ROWS",
        help=f"At most so many rows; 0 for all. [{_MOST_ROWS}]",
    )
    return option(function)


def _target_options() -> list[Any]:
    return [
        click.option(
            "--parallelism",
            type=Parallelism(),
            metavar="N|auto",
            help="Subtasks to restore for; auto chooses by bytes. Default: as it was taken.",
        ),
        click.option(
            "--bytes-per-task",
            type=Bytes(),
            metavar="SIZE",
            help="Keyed state that a subtask should get, for auto: 256MiB. [16MiB]",
        ),
        click.option(
            "--graph",
            metavar="FILE",
            help="The new job's graph, TOML: its operators find their state by operator id.",
        ),
        click.option(
            "--max-parallelism",
            type=int,
            metavar="N",
            help="Read the stored key groups as N: a multiple of them, or a divisor.",
        ),
        click.option(
            "--balance",
            type=click.Choice([one.value for one in Weight]),
            help="Cut key groups into ranges by this instead of by their number.",
        ),
    ]


class Parallelism(click.ParamType[Any]):
    """A number of subtasks, or ``auto``."""

    name = "parallelism"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | Literal["auto"]:
        """Return it; a usage error when it is neither."""
        if value == AUTO:
            return AUTO
        if not re.fullmatch(r"-?[0-9]+", str(value)):
            self.fail(f"{value!r} is neither a number nor 'auto'", param, ctx)
        return int(value)


class Bytes(click.ParamType[Any]):
    """A number of bytes, such as 256MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the number; a usage error when it is none."""
        try:
            return bytes_of(value)
        except InvalidArgumentError as error:
            self.fail(str(error), param, ctx)


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


def key_value(values: tuple[Any, ...]) -> Any:
    """Return a key as a lookup takes it: of one column its value, of several all of them."""
    return values[0] if len(values) == 1 else values


def key_of(text: str) -> Callable[[KeyedState], Any]:
    """Return what reads a key for a state, as a lookup takes it."""
    return lambda state: key_value(parse_key(text, state))


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


def span_seconds(text: str) -> float:
    """Return a span in seconds; ValueError names the forms that there are."""
    if text == "0":
        return 0
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no span of time; write 90s, 15min, 2h, 7d or 0")
    return float(match[1]) * _SECONDS[match[2]]


class _Span(click.ParamType):  # type: ignore[type-arg]
    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if isinstance(value, int | float) else span_seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SPAN = _Span()
"""The type of an option that takes a span; its value is in seconds."""


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
