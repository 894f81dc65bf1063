"""Write docs/statestore.schema.json from the types of the commands' results.

    python -m docs.json_schema

Each command has a definition under its name, such as ``list`` or ``flink import``, and each class
of a result one under the class's name, with its docstring as the description.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from statestore.cli.main import cli
from statestore.cli.output import Output, members
from statestore.maintenance.derive import DerivedReport

FILE = Path(__file__).with_name("statestore.schema.json")
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}
OF_PYTHON = {"None": "null", "True": "true", "False": "false", "``": "`"}

Schema = dict[str, Any]


def schema_text() -> str:
    """Return the text of docs/statestore.schema.json."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """Return the JSON Schema of all documents that ``--output json`` prints."""
    commands = dict(documents(cli, ""))
    classes = {result for results in commands.values() for result in results}
    for result in [*classes]:
        classes |= inner_classes(result)
    definitions = {result.__name__: object_schema(result) for result in classes}
    assert len(definitions) == len(classes), "two classes have one name"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What statestore prints with --output json",
        "anyOf": [reference(name) for name in sorted(commands)],
        "$defs": {
            name: {"anyOf": [reference(result.__name__) for result in commands[name]]}
            for name in sorted(commands)
        }
        | dict(sorted(definitions.items())),
    }


def reference(name: str) -> Schema:
    """Return the schema that refers to a definition; a fragment of a URI has no spaces."""
    return {"$ref": f"#/$defs/{name.replace(' ', '%20')}"}


def documents(group: click.Group, prefix: str) -> Iterator[tuple[str, list[type[Any]]]]:
    """Yield the name of each command that prints JSON, and its results."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from documents(command, f"{prefix}{name} ")
        elif results := list(_results_of(command.callback)):
            yield f"{prefix}{name}", results


def _results_of(callback: Callable[..., Any] | None) -> Iterator[type[Any]]:
    assert callback is not None
    returned = _hints(inspect.unwrap(callback))["return"]
    for choice in (returned, *get_args(returned)):
        if get_origin(choice) in (Output, Iterator):
            (result,) = get_args(choice)
            yield result


def object_schema(result: type[Any]) -> Schema:
    """Return the schema of a class: its docstring, and its members with their types.

    Members are only ever added, so a document can have others. One that can be null can be absent.
    """
    types = dict(_types(result))
    return {
        "description": _doc(result),
        "type": "object",
        "properties": {name: type_schema(hint) for name, hint in types.items()},
        "required": [name for name, hint in types.items() if NoneType not in get_args(hint)],
    }


def inner_classes(result: type[Any]) -> set[type[Any]]:
    """Return the classes of the members of a class, and of their members."""
    found: set[type[Any]] = set()
    for _, hint in _types(result):
        for inner in _classes_in(hint):
            found |= {inner} | inner_classes(inner)
    return found


def _classes_in(hint: Any) -> Iterator[type[Any]]:
    if is_dataclass(hint):
        assert isinstance(hint, type)
        yield hint
    for part in get_args(hint):
        yield from _classes_in(part)


def _types(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the type of each member; digests are text in JSON."""
    hints = _hints(result)
    for name in members(result):
        hint = hints[name] if name in hints else _hints(getattr(result, name).fget)["return"]
        if name == "digest":
            hint = str | None if NoneType in get_args(hint) else str
        yield name, hint


def _hints(described: Any) -> dict[str, Any]:
    """Return the types of a class's fields, or of a function's arguments and result."""
    module = inspect.getmodule(described)
    assert module is not None
    return get_type_hints(described, localns=_imported_for_types(module))


@cache
def _imported_for_types(module: Any) -> dict[str, Any]:
    """Return the names that a module imports under ``TYPE_CHECKING``."""
    imported: dict[str, Any] = {}
    for block in ast.parse(inspect.getsource(module)).body:
        if not (isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"):
            continue
        for statement in block.body:
            assert isinstance(statement, ast.Import | ast.ImportFrom)
            for alias in statement.names:
                if isinstance(statement, ast.Import):
                    imported[alias.asname or alias.name] = import_module(alias.name)
                else:
                    source = import_module(statement.module or "")
                    imported[alias.asname or alias.name] = getattr(source, alias.name)
    return imported


def type_schema(hint: Any) -> Schema:
    """Return the schema of a member's type; {} is a value of a column, or of a setting."""
    origin = get_origin(hint)
    choices = [choice for choice in get_args(hint) if choice is not ...]
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum | Path)):
        return {"type": "string"}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": type_schema(choices[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": type_schema(choices[1])}
    if choices:
        return {"anyOf": [type_schema(choice) for choice in choices]}
    if hint is NoneType:
        return {"type": "null"}
    if hint is Any:
        return {}
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    assert isinstance(hint, type), hint
    assert is_dataclass(hint), hint
    return reference(hint.__name__)


def _doc(result: type[Any]) -> str:
    """Return the docstring of a class in the words of JSON; a report's base has the rest of it."""
    text = inspect.cleandoc(result.__doc__ or "")
    if issubclass(result, DerivedReport):
        _, _, shared = inspect.cleandoc(DerivedReport.__doc__ or "").partition("\n\n")
        text = f"{text}\n\n{shared}"
    text = re.sub(r"``|\b(?:None|True|False)\b", lambda match: OF_PYTHON[match[0]], text)
    return re.sub(r":\w+:`(\w+)`", r"`\1`", text)


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
