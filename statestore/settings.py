"""Read settings: TOML files checked against dataclasses, and the command's own settings.

:func:`from_table` converts a table to any frozen dataclass, for the jobs and for the command. A
field may be ``str``, ``int``, ``float``, ``bool``, ``Literal[…]``, ``X | None``, ``tuple[X, …]``,
``dict[str, X]``, or another dataclass (a table; a tuple of them is a list of tables).
:func:`setting` adds unit and bounds. An unknown or missing name, a wrong type and a value out of
bounds each raise a SettingsError, which names the file, the key, and the allowed values.

:class:`Settings` has the settings of ``statestore`` itself, documented in ``conf/statestore.toml``.
Later sources override earlier ones: defaults, the file, the environment, arguments.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from statestore.errors import InvalidArgumentError, SettingsError
from statestore.parsing import nearest_double, parse_integer, parse_toml

__all__ = [
    "ENVIRONMENT",
    "ResolvedSettings",
    "Setting",
    "Settings",
    "from_table",
    "read_text",
    "read_toml",
    "resolve_settings",
    "setting",
]

T = TypeVar("T")

CONFIG_VARIABLE: Final = "STATESTORE_CONFIG"


def setting(
    default: Any = MISSING,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a dataclass field with a unit and closed bounds; without a default it is required."""
    metadata = {"unit": unit, "low": low, "high": high}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the ``statestore`` command; ``conf/statestore.toml`` explains them."""

    store: str | None = setting(None, unit="path or URL")
    output: Literal["text", "json"] = setting("text", unit="text or json")
    table_format: Literal["delta", "parquet"] | None = setting(None, unit="delta or parquet")
    row_group_rows: int = setting(65_536, unit="rows", low=1, high=2**31 - 1)
    row_group_bytes: int = setting(32 * 1024 * 1024, unit="bytes", low=1, high=2**31 - 1)
    zstd_level: int = setting(1, unit="level", low=1, high=22)
    local_cache: str | None = setting(None, unit="path")
    local_cache_bytes: int = setting(10 * 2**30, unit="bytes", low=1)
    parallel_streams: int = setting(16, unit="streams", low=1, high=1024)

    def __post_init__(self) -> None:
        """Refuse a store URL with credentials, because the settings are displayed."""
        if self.store is None:
            return
        from statestore.storage import refuse_credentials  # not needed for --help

        try:
            refuse_credentials(self.store)
        except InvalidArgumentError as error:
            raise SettingsError(f"store: {error}") from None


ENVIRONMENT: Final = {
    "store": "STATESTORE_URI",
    "output": "STATESTORE_OUTPUT",
    "table_format": "STATESTORE_TABLE_FORMAT",
    "row_group_rows": "STATESTORE_ROW_GROUP_ROWS",
    "row_group_bytes": "STATESTORE_ROW_GROUP_BYTES",
    "zstd_level": "STATESTORE_ZSTD_LEVEL",
    "local_cache": "STATESTORE_LOCAL_CACHE",
    "local_cache_bytes": "STATESTORE_LOCAL_CACHE_BYTES",
    "parallel_streams": "STATESTORE_PARALLEL_STREAMS",
}
"""The environment variable of every setting.

Other ``STATESTORE_*`` variables are left alone: Kubernetes makes some of its own for every service
called ``statestore``.
"""


@dataclass(frozen=True)
class Setting:
    """One effective setting; ``source`` is where its value comes from."""

    name: str
    value: Any
    unit: str
    default: Any
    source: str


@dataclass(frozen=True)
class ResolvedSettings:
    """The effective settings, and the source of each value by name."""

    settings: Settings
    sources: Mapping[str, str]

    def each(self) -> tuple[Setting, ...]:
        """Return every setting with value, unit, default and source, in the order of the file."""
        return tuple(
            Setting(
                name=field.name,
                value=getattr(self.settings, field.name),
                unit=field.metadata["unit"],
                default=field.default,
                source=self.sources.get(field.name, "default"),
            )
            for field in dataclasses.fields(Settings)
        )


def resolve_settings(
    *,
    config: str | Path | None = None,
    environment: Mapping[str, str],
    arguments: Mapping[str, Any],
) -> ResolvedSettings:
    """Return the effective settings; a None argument or an empty variable is ignored.

    The file is ``config``, or the one that STATESTORE_CONFIG names, or none. Raises SettingsError.
    """
    file = config or environment.get(CONFIG_VARIABLE) or None
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file is not None:
        table = read_toml(file)
        from_table(table, Settings, where=str(file))
        values.update(table)
        sources.update(dict.fromkeys(table, f"file {file}"))
    for name, variable in ENVIRONMENT.items():
        if text := environment.get(variable):
            values[name] = _from_text(name, text, variable)
            sources[name] = f"environment {variable}"
    for name, value in arguments.items():
        if value is not None:
            values[name] = value
            sources[name] = f"argument --{name.replace('_', '-')}"
    return ResolvedSettings(from_table(values, Settings, where="the arguments"), sources)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        SettingsError: The file does not exist, is not TOML, or contains a number that is not exact.
    """
    text = read_text(path)
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def read_text(path: str | Path) -> str:
    """Return the content of a settings file.

    Raises SettingsError if it does not exist or is not text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"the settings file {path} does not exist; check the path") from None
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def from_table(table: Mapping[str, Any], settings_type: type[T], *, where: str, key: str = "") -> T:
    """Convert a mapping to the dataclass ``settings_type``.

    ``where`` (a file) and ``key`` are used in messages.

    Raises SettingsError if it does not fit (see the module's docstring), or if the dataclass raises
    InvalidArgumentError. The fields' types must be imported where ``settings_type`` is defined, not
    only under TYPE_CHECKING.
    """
    fields = {
        field.name: field for field in dataclasses.fields(cast(Any, settings_type)) if field.init
    }
    hints = get_type_hints(settings_type)
    for name in table:
        if name not in fields:
            raise SettingsError(
                f"{where}: unknown setting {_join(key, name)!r}; {_hint(name, fields)}"
            )
    missing = [
        _join(key, name) for name, field in fields.items() if _is_missing(field, name, table)
    ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise SettingsError(f"{where}: {', '.join(map(repr, missing))} {verb} missing")
    values = {
        name: _value(value, hints[name], where, _join(key, name), fields[name].metadata)
        for name, value in table.items()
    }
    try:
        return settings_type(**values)
    except InvalidArgumentError as error:
        inside = f" [{key}]" if key else ""
        raise SettingsError(f"{where}{inside}: {error}") from error


def _value(value: Any, declared: Any, where: str, key: str, metadata: Mapping[str, Any]) -> Any:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _value(value, inner, where, key, metadata)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) is not isinstance(arguments[0], bool):
            close = _hint(value, arguments) if isinstance(value, str) else ""
            raise SettingsError(
                (f"{where}: {key} must be one of {', '.join(map(str, arguments))}, not {value!r}")
                + (f"; {close}" if close.startswith("did") else "")
            )
        return value
    if origin is tuple:
        items = _check_type(value, list, "a list", where, key)
        return tuple(
            _value(item, arguments[0], where, f"{key}[{index}]", metadata)
            for index, item in enumerate(items)
        )
    if origin is dict:
        table = _check_type(value, dict, "a table", where, key)
        return {
            name: _value(item, arguments[1], where, _join(key, name), metadata)
            for name, item in table.items()
        }
    if dataclasses.is_dataclass(declared):
        table = _check_type(value, dict, "a table", where, key)
        return from_table(table, cast(type[Any], declared), where=where, key=key)
    return _check_bounds(_plain_value(value, declared, where, key), where, key, metadata)


def _plain_value(value: Any, declared: Any, where: str, key: str) -> Any:
    if declared is Any:
        return value
    if declared is float and type(value) is int:
        try:
            return nearest_double(value)
        except ValueError as error:
            raise SettingsError(f"{where}: {key}: {error}") from None
    checked = _check_type(value, declared, _NAMES.get(declared, declared.__name__), where, key)
    if isinstance(checked, float) and not math.isfinite(checked):
        raise SettingsError(f"{where}: {key} must be a finite number, not {checked}")
    if isinstance(checked, int) and not -(2**63) <= checked < 2**63:
        raise SettingsError(f"{where}: {key} must be a 64-bit integer; use a smaller number")
    return checked


def _check_type(value: Any, declared: type[T], name: str, where: str, key: str) -> T:
    # In Python bool is an int, but a setting never means it as one.
    if not isinstance(value, declared) or (isinstance(value, bool) and declared is not bool):
        actual = _NAMES.get(type(value), type(value).__name__)
        raise SettingsError(f"{where}: {key} must be {name}, not {actual} ({value!r})")
    return value


def _check_bounds(value: Any, where: str, key: str, metadata: Mapping[str, Any]) -> Any:
    low, high = metadata.get("low"), metadata.get("high")
    above = low is None or value >= low
    below = high is None or value <= high
    if above and below:
        return value
    if high is None:
        bounds = f"must be at least {low}"
    elif low is None:
        bounds = f"must be at most {high}"
    else:
        bounds = f"must be in {low}..{high}"
    raise SettingsError(f"{where}: {key} {bounds}, not {value}")


def _from_text(name: str, text: str, variable: str) -> Any:
    """Convert a variable's text to the setting's type and check it; errors name the variable."""
    value: Any = text
    if get_type_hints(Settings)[name] is int:
        try:
            value = parse_integer(text)
        except ValueError:
            raise SettingsError(f"{variable} must be an integer, not {text!r:.80}") from None
    from_table({name: value}, Settings, where=variable)
    return value


def _is_missing(field: dataclasses.Field[Any], name: str, table: Mapping[str, Any]) -> bool:
    optional = field.default is not MISSING or field.default_factory is not MISSING
    return not optional and name not in table


def _hint(name: str, known: Iterable[Any]) -> str:
    names = [str(name) for name in known]
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known names are {', '.join(sorted(names))}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


_NAMES: Final[dict[Any, str]] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
