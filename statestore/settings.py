"""Read settings: TOML files checked against msgspec's types, and the command's own settings.

A :class:`SettingsTable` declares a table of a settings file: the members with types, bounds and
defaults. :func:`from_table` converts a TOML document to it, for the jobs and for the command. An
unknown or missing name, a wrong type and a value out of bounds each raise a SettingsError, which
names the file, the place in it, and the known names or values.

:class:`Settings` has the settings of ``statestore`` itself, documented in ``conf/statestore.toml``.
Later sources override earlier ones: defaults, the file, the environment, arguments.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import FieldInfo, asdict, fields

from statestore.durations import milliseconds_of
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.parsing import parse_toml
from statestore.restore.byte_sizes import rate_of

T = TypeVar("T", bound=Struct)

CONFIG_VARIABLE: Final = "STATESTORE_CONFIG"
_MOST: Final = 2**31 - 1
_WORDS: Final = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
"""The names of msgspec's types in TOML."""


class SettingsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a settings file; a subclass declares its members."""


class Settings(SettingsTable, frozen=True, kw_only=True):
    """The settings of the ``statestore`` command; ``conf/statestore.toml`` explains them.

    ``title`` is the unit of a setting.
    """

    store: Annotated[str | None, Meta(title="path or URL")] = None
    output: Annotated[
        Literal["text", "json", "markdown"], Meta(title="text, json, or markdown for check")
    ] = "text"
    table_format: Annotated[Literal["delta", "parquet"] | None, Meta(title="delta or parquet")] = (
        None
    )
    layout: Annotated[
        Literal["partitioned", "ranged", "auto"] | None, Meta(title="one of three")
    ] = None
    row_group_rows: Annotated[int, Meta(ge=1, le=_MOST, title="rows")] = 65_536
    row_group_bytes: Annotated[int, Meta(ge=1, le=_MOST, title="bytes")] = 32 * 2**20
    memory_bytes: Annotated[int, Meta(ge=2**20, title="bytes")] = 256 * 2**20
    zstd_level: Annotated[int, Meta(ge=1, le=22, title="level")] = 1
    local_cache: Annotated[str | None, Meta(title="path")] = None
    local_cache_bytes: Annotated[int, Meta(ge=1, title="bytes")] = 10 * 2**30
    parallel_streams: Annotated[int, Meta(ge=1, le=1024, title="streams")] = 16
    verify_files: Annotated[bool, Meta(title="true or false")] = False
    query_time_limit: Annotated[str | None, Meta(title="duration")] = None
    query_memory_bytes: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(title="bytes")] = None
    ui_token: Annotated[str | None, Meta(title="text")] = None
    ui_queries: Annotated[int, Meta(ge=1, title="queries")] = 2
    restore_rate: Annotated[str | None, Meta(title="size per second")] = None
    prices: Annotated[str | None, Meta(title="path")] = None
    readers_url: Annotated[str | None, Meta(title="URL")] = None
    import_threads: Annotated[Annotated[int, Meta(ge=1, le=64)] | None, Meta(title="threads")] = (
        None
    )
    flink_uid_format: Annotated[str | None, Meta(title="text")] = None
    kafka_seconds: Annotated[float, Meta(ge=0.1, le=3600, title="seconds")] = 15.0
    storage_options: Annotated[dict[str, Any], Meta(title="table")] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse texts of another form, and URLs with credentials, as settings are displayed."""
        from statestore.storage import refuse_credentials

        checks: dict[str, Callable[[str], object]] = {
            "store": refuse_credentials,
            "query_time_limit": milliseconds_of,
            "restore_rate": rate_of,
            "readers_url": refuse_credentials,
        }
        for name, check in checks.items():
            text = getattr(self, name)
            try:
                if text is not None:
                    check(text)
            except InvalidArgumentError as error:
                raise SettingsError(f"{name}: {error}") from None


ENVIRONMENT: Final = {
    name: "STATESTORE_URI" if name == "store" else f"STATESTORE_{name.upper()}"
    for name in Settings.__struct_fields__
    if name != "storage_options"
}
"""The environment variable of every setting, except of ``storage_options``, which is a table.

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
        """Return every setting with value, unit, default and source, in the order of the file.

        Secrets are not shown: the token, and the values of ``storage_options``.
        """
        names = sorted(self.settings.storage_options)
        token = None if self.settings.ui_token is None else "hidden"
        effective = asdict(self.settings) | {"ui_token": token, "storage_options": names}
        defaults = asdict(Settings()) | {"storage_options": []}
        return tuple(
            Setting(
                name=each.name,
                value=effective[each.name],
                unit=next(
                    part.title
                    for part in _parts(each.type)
                    if isinstance(part, Meta) and part.title
                ),
                default=defaults[each.name],
                source=self.sources.get(each.name, "default"),
            )
            for each in fields(Settings)
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
            checked = from_table({name: text}, Settings, where=variable, is_text=True)
            values[name] = getattr(checked, name)
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


def from_table(
    table: Mapping[str, Any], settings_type: type[T], *, where: str, is_text: bool = False
) -> T:
    """Convert a TOML document to ``settings_type``; with ``is_text``, numbers are texts.

    Raises SettingsError with ``where`` (a file) and the place in it, if the document does not fit,
    or if the ``__post_init__`` of a table raises InvalidArgumentError.
    """
    try:
        return convert(table, settings_type, strict=not is_text)
    except ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        place = path.removesuffix("`").removeprefix(".")
        raise SettingsError(f"{where}: {_problem(reason, place, settings_type)}") from error


def _problem(reason: str, place: str, settings_type: type[Struct]) -> str:
    """Return msgspec's error in the words of TOML, with the names or values that fit."""
    named = re.fullmatch(r"Object (contains unknown|missing required) field `(.+)`", reason)
    if named is not None:
        name = f"{place}.{named[2]}".removeprefix(".")
        if named[1] == "missing required":
            return f"{name!r} is missing"
        names = [each.encode_name for each in _members(_type_at(settings_type, place))]
        return f"unknown setting {name!r}; {_hint(named[2], names)}"
    if invalid := re.fullmatch(r"Invalid enum value '(.*)'", reason, re.DOTALL):
        choices = [part for part in _parts(_type_at(settings_type, place)) if isinstance(part, str)]
        return f"{place} cannot be {invalid[1]!r}; {_hint(invalid[1], choices)}"
    if not reason.startswith("Expected"):  # the error of a table's own check
        return f"[{place}] {reason}" if place else reason
    plain = re.sub(r" \| null|null \| ", "", reason.removeprefix("Expected ")).replace("got", "not")
    return f"{place} must be " + re.sub(r"`([\w |]+)`", _in_words, plain)


def _in_words(types: re.Match[str]) -> str:
    return " or ".join(_WORDS.get(name, name) for name in types[1].split(" | "))


def _type_at(declared: Any, place: str) -> Any:
    """Return the type of the value at a place (``keyed[0].source``) of a settings file."""
    for name in re.sub(r"\[[^]]*\]", "", place).split("."):
        if name:
            declared = next(m.type for m in _members(declared) if m.encode_name == name)
    return declared


def _members(declared: Any) -> Iterator[FieldInfo]:
    """Yield the members of the table that a type is, or contains."""
    for part in _parts(declared):
        if isinstance(part, type) and issubclass(part, Struct):
            yield from fields(part)


def _parts(declared: Any) -> Iterator[Any]:
    """Yield a type, and what it consists of: types, annotations, and values of a Literal."""
    yield declared
    for part in get_args(declared):
        yield from _parts(part)


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it can be {', '.join(sorted(known))}"
