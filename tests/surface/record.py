"""The public surface: what a later release may not change without a line in CHANGELOG.md.

    python -m tests.surface.record tests/surface/0.2.0.json

It is run once per release, and an existing record is never rewritten. A surface has an item for
each public name, command, setting, kind of error and document. An item has parts, such as the
parameters of a function, each with a description.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import click
from msgspec import Meta
from msgspec.structs import fields

from docs.hooks import PYTHON
from docs.json_schema import documents, inner_classes, object_schema
from statestore import errors
from statestore.catalog import fence, holds
from statestore.catalog.catalog import STORE_FORMAT, STORE_FORMAT_VERSION
from statestore.cli.main import cli
from statestore.format import files_json, manifest_json
from statestore.settings import ENVIRONMENT, Settings

__all__ = ["Surface", "surface"]

Surface = Mapping[str, Mapping[str, str]]
SHARED = {"LeftOutState": "left-out state", "CheckpointMetrics": "metrics"}
WORDS = {"string": "text", "boolean": "true or false"}
WORDS |= {name: name for name in ("integer", "number", "null", "any")}
FORMATS = {
    STORE_FORMAT: STORE_FORMAT_VERSION,
    manifest_json.FORMAT: manifest_json.FORMAT_VERSION,
    fence.CLAIM_FORMAT: fence.WRITER_VERSION,
    files_json.LIST_FORMAT: files_json.LIST_VERSION,
    holds.SAVEPOINT_FORMAT: holds.HOLD_VERSION,
    holds.PIN_FORMAT: holds.HOLD_VERSION,
}


def surface() -> dict[str, dict[str, str]]:
    """Return the surface of this tree: the description of each part of each item."""
    items = [*names(), *commands(), *json_documents(), *settings(), *error_kinds()]
    items += [
        (f"format {form}", {"format_version": str(version)}) for form, version in FORMATS.items()
    ]
    found = {name: dict(sorted(parts.items())) for name, parts in sorted(items)}
    assert len(found) == len(items), "two items have one name"
    return found


def names() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the names on the reference pages: functions, classes, and their methods."""
    for _, packages, objects in PYTHON.values():
        exported = [(package, name) for package in packages for name in public(package)]
        handed_out = [tuple(place.rsplit(".", 1)) for place in objects]
        for module, name in (*exported, *handed_out):
            value = getattr(import_module(module), name)
            prefix = "" if module == "statestore" or (module, name) in handed_out else f"{module}."
            if inspect.isclass(value):
                yield from class_items(f"{prefix}{name}", value)
            elif is_call(value):
                yield f"{prefix}{name}", parts_of_call(value)
            elif name != "__version__":
                yield f"{prefix}{name}", {"type": type(value).__name__}


def public(package: str) -> list[str]:
    """Return the public names of a package."""
    return list(import_module(package).__all__)


def class_items(name: str, value: type[Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield a class with its members and fields, and each of its methods."""
    if issubclass(value, Enum):
        yield name, {member.name: repr(member.value) for member in value}
        return
    parts = {}
    if is_typeddict(value):
        parts = {name: hint.__forward_arg__ for name, hint in value.__annotations__.items()}
    if dataclasses.is_dataclass(value):
        parts = {field.name: str(field.type) for field in dataclasses.fields(value)}
    if not getattr(value, "_is_protocol", False) and "__init__" in vars(value):
        parts |= parts_of_call(value.__init__)
    for base in reversed(value.__mro__):
        if not base.__module__.startswith("statestore"):
            continue
        for attribute, member in vars(base).items():
            if attribute.startswith("_"):
                continue
            if isinstance(member, property | cached_property):
                getter = member.fget if isinstance(member, property) else member.func
                assert getter is not None
                parts[attribute] = str(inspect.signature(getter).return_annotation)
    yield name, parts
    methods = {
        attribute: getattr(value, attribute)
        for base in reversed(value.__mro__)
        if base.__module__.startswith("statestore")
        for attribute in vars(base)
        if not attribute.startswith("_") and is_call(getattr(value, attribute))
    }
    for attribute, method in methods.items():
        yield f"{name}.{attribute}", parts_of_call(method)


def is_call(value: Any) -> bool:
    """Return whether a value is a function or a method of a class."""
    return inspect.isfunction(value) or inspect.ismethod(value)


def parts_of_call(call: Any) -> dict[str, str]:
    """Return the parameters of a function, and what it returns."""
    signature = inspect.signature(call)
    parts = {
        name: f"{parameter.kind.description}: {str(parameter).partition(' at 0x')[0]}"
        for name, parameter in signature.parameters.items()
        if name != "self"
    }
    return parts | {"return": str(signature.return_annotation)}


def commands() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each command with its arguments and options."""
    yield from group_commands(cli, "statestore")


def group_commands(group: click.Group, prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the group itself, and the commands in it."""
    yield prefix, options_of(group)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from group_commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", options_of(command)


def options_of(command: click.Command) -> dict[str, str]:
    """Return the parameters of a command by their longest name."""
    return {max(parameter.opts, key=len): option(parameter) for parameter in command.params}


def option(parameter: click.Parameter) -> str:
    """Describe a parameter of a command, in words that do not depend on click's version."""
    kind, default = parameter.type, parameter.default
    words = [*parameter.opts, *parameter.secondary_opts, kind.name]
    if isinstance(kind, click.Choice):
        words += [str(choice) for choice in kind.choices]
    elif isinstance(kind, click.IntRange | click.FloatRange):
        words += [f"from {kind.min} to {kind.max}"]
    words += ["required"] * parameter.required
    words += ["several"] * (parameter.nargs != 1 or parameter.multiple)
    if isinstance(default, str | int | float | list | tuple) and default:
        words.append(f"default {default}")
    return " ".join(words)


def json_documents() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the JSON of each command, with the type of each member by its path."""
    for name, results in documents(cli, ""):
        schemas = {
            each.__name__: object_schema(each)
            for result in results
            for each in (result, *inner_classes(result))
        }
        parts: dict[str, str] = {}
        for result in results:
            parts |= member_types(schemas[result.__name__], schemas, "")
        yield f"JSON of statestore {name}", parts


def member_types(
    described: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str
) -> dict[str, str]:
    """Return the type of each member of an object, and of the objects in it, by its path."""
    types: dict[str, str] = {}
    for name, member in described["properties"].items():
        words, inner = type_words(member)
        types[prefix + name] = words
        if inner is not None:
            types |= member_types(schemas[inner], schemas, f"{prefix}{name}.")
    return types


def type_words(described: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return a type in words, and the class whose members it has."""
    if "$ref" in described:
        inner = described["$ref"].rpartition("/")[2]
        return (SHARED[inner], None) if inner in SHARED else ("object", inner)
    if "anyOf" in described:
        choices = [type_words(choice) for choice in described["anyOf"]]
        return " or ".join(words for words, _ in choices), choices[0][1]
    if described.get("type") == "array":
        words, inner = type_words(described["items"])
        return f"list of {words}", inner
    if "additionalProperties" in described:
        words, inner = type_words(described["additionalProperties"])
        return f"object of {words}", inner
    return WORDS[described.get("type", "any")], None


def settings() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each setting of the command."""
    types = get_type_hints(Settings)
    for field in fields(Settings):
        bounds = [each for each in nested(field.type) if isinstance(each, Meta)]
        facts = {
            "type": re.sub(
                r"^Optional\[(.*)\]$", r"\1 | None", inspect.formatannotation(types[field.name])
            ),
            "default": repr(getattr(Settings(), field.name)),
            "unit": next(each.title for each in bounds if each.title),
            "low": next((each.ge for each in bounds if each.ge is not None), None),
            "high": next((each.le for each in bounds if each.le is not None), None),
            "variable": ENVIRONMENT.get(field.name),
        }
        yield f"setting {field.name}", {name: str(value) for name, value in facts.items()}


def nested(declared: Any) -> Iterator[Any]:
    """Yield what a type consists of, and the parts of these: types and annotations."""
    for part in get_args(declared):
        yield part
        yield from nested(part)


def error_kinds() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each class of errors."""
    for name in errors.__all__:
        error = getattr(errors, name)
        yield (
            name,
            {
                "kind": error.kind,
                "exit_code": str(error.exit_code),
                "bases": ", ".join(base.__name__ for base in error.__mro__[1:-1]),
            },
        )


def main() -> None:
    """Write the record of this tree into a new file."""
    with Path(sys.argv[1]).open("x", encoding="utf-8") as file:
        # One item on a line, so that a comparison of two records shows the items.
        items = [f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in surface().items()]
        file.write("{\n" + ",\n".join(items) + "\n}\n")


if __name__ == "__main__":
    main()
