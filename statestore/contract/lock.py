"""The lock file ``state.lock``: a contract as TOML, sorted, one value a line.

It is committed next to the job. It has no data, keys, statistics or addresses, so that everybody
who reads the job's code may read it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from msgspec import ValidationError

from statestore.contract.model import JobContract
from statestore.errors import FormatVersionError, InvalidArgumentError
from statestore.format.documents import convert_value
from statestore.parsing import parse_toml
from statestore.restore.row_files import check_output_file, output_file

FORMAT = 1
"""The newest format of a lock that this release reads, and the one that it writes."""

_COMMENT = "# What the state of the job looks like, written by: statestore contract"
_SEAL = "\n# SHA-256 of the lines above: "
_REMEDY = "write it again with statestore contract"
_LEFT_OUT = ("rows", "bytes")
_NAMES = ("id", "name", "kind")
_PARTS = ("sources", "operators", "states")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def lock_text(contract: JobContract) -> str:
    """Return the text of a lock file: equal contracts have equal texts.

    Raises:
        InvalidArgumentError: If a form has a value that TOML lacks.
    """
    body = {"format": FORMAT, **_members(contract)}
    return "\n".join([_COMMENT, *_table_lines(body, ())]) + "\n"


def write_lock(path: Path, contract: JobContract) -> bool:
    """Write a lock file, whose last line tells a file that was cut or changed.

    Args:
        path: The file. Only a lock is replaced.
        contract: The contract.

    Returns:
        Whether the file has changed.

    Raises:
        InvalidArgumentError: If the path has a file that is not a lock, or is inside a store.
        StorageError: If the file cannot be read or written.
    """
    body = lock_text(contract)
    text = f"{body}{_SEAL}{_digest(body)}\n"
    check_output_file(path, replace=_COMMENT.encode())
    if path.exists() and path.read_bytes() == text.encode():
        return False
    with output_file(path, replace=True) as file:
        file.write(text.encode())
    return True


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def parse_lock(text: str, name: str) -> JobContract:
    """Return the contract in the text of a lock file.

    Args:
        text: The content of the file.
        name: The name of the file, for messages.

    Raises:
        FormatVersionError: If a newer release wrote the file.
        InvalidArgumentError: If the text is not a lock; the message has the place.
    """
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is not TOML: {error}; {_REMEDY}") from error
    version = document.pop("format", None)
    if not isinstance(version, int):
        raise InvalidArgumentError(f"{name} is not a lock: it has no format number; {_REMEDY}")
    if version > FORMAT:
        raise FormatVersionError(
            f"{name} has format {version}, but this release supports at most {FORMAT}. Upgrade "
            "statestore as described in the section Install of its README"
        )
    try:
        return convert_value(document, JobContract)
    except ValidationError as error:
        raise InvalidArgumentError(f"{name} is not a lock: {error}; {_REMEDY}") from error


def read_lock(path: Path) -> JobContract:
    """Return the contract in a lock file.

    Raises:
        FormatVersionError: If a newer release wrote the file.
        InvalidArgumentError: If the file cannot be read, is not a lock, or was cut or changed.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the lock {path} cannot be read: {error}; {_REMEDY}") from error
    contract = parse_lock(text, str(path))
    body, _, digest = text.rpartition(_SEAL)
    if digest.strip() != _digest(body):
        raise InvalidArgumentError(
            f"{path} was cut, merged or changed: its last line is not the digest of the others; "
            f"{_REMEDY}"
        )
    return contract


def _members(value: Any) -> dict[str, Any]:
    """Return the members of a part of a contract that a lock has."""
    named = ((each.name, getattr(value, each.name)) for each in fields(value))
    return {
        name: [_members(item) for item in member] if name in _PARTS else member
        for name, member in named
        if name in _NAMES or (name not in _LEFT_OUT and member not in (None, "", (), {}))
    }


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its values first, then the tables in it."""
    is_free = bool({"form", "settings"}.intersection(path))
    members = sorted(table.items()) if is_free else list(table.items())
    nested = [
        (name, value)
        for name, value in members
        if isinstance(value, Mapping) or (name in _PARTS and not is_free)
    ]
    for name, value in members:
        if (name, value) not in nested:
            yield f"{_key(name)} = {_lines(value, len(name) + 3)}"
    for name, value in nested:
        inner = (*path, name)
        title = ".".join(map(_key, inner))
        for item in _in_order(name, value):
            yield from ("", f"[{title}]" if isinstance(value, Mapping) else f"[[{title}]]")
            yield from _table_lines(item, inner)


def _in_order(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the tables of a member; only the order of sources has a meaning."""
    if isinstance(value, Mapping):
        return [value]
    if name == "sources":
        return list(value)
    return sorted(value, key=lambda part: (part.get("id", ""), part["name"], part["kind"]))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _lines(value: Any, indent: int) -> str:
    """Return a value of a table; a long list, or one of tables, has an item on each line."""
    text = _value(value)
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or (indent + len(text) <= _WIDTH and "{" not in text):
        return text
    return "\n".join(["[", *(f"  {_value(item)}," for item in value), "]"])


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():  # TOML has the escapes of JSON, and one for DEL
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            inner = [f"{_key(name)} = {_value(item)}" for name, item in sorted(value.items())]
            return f"{{{', '.join(inner)}}}"
        case Sequence():
            return f"[{', '.join(map(_value, value))}]"
    raise InvalidArgumentError(f"a contract cannot have the value {value!r}")
