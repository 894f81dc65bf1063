"""Write docs/JSON.md from the types of the commands' results: ``python -m docs.json_page``.

The text above the heading "Documents" is written by hand and kept.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from statestore.cli.main import cli
from statestore.cli.output import Output, members
from statestore.format.left_out import LeftOutState
from statestore.format.metrics import CheckpointMetrics
from statestore.maintenance.derive import DerivedReport

PAGE = Path(__file__).with_name("JSON.md")
HEADING = "## Documents\n"
INTRODUCTION = """
Each command's documents follow, with the type of each member. "any" is a value of a column, or of a
setting. A member that can be null may be absent.
"""
SHARED: dict[type[Any], str] = {
    LeftOutState: "left-out state",
    CheckpointMetrics: "metrics",
}
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any"}
WIDTH = 24
OF_PYTHON = {"None": "null", "True": "true", "False": "false", "``": "`"}


def page() -> str:
    """Return the text of docs/JSON.md."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    shared = (section(f"Shared: {name}", [result]) for result, name in SHARED.items())
    commands = (section(f"`{name}`", results) for name, results in documents(cli, ""))
    return head + HEADING + INTRODUCTION + "".join([*shared, *commands])


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


def section(title: str, results: list[type[Any]]) -> str:
    """Return the section of a command: its results with notes and members."""
    parts = [f"\n### {title}\n"]
    for result in results:
        parts.append(f"\n{_doc(result)}\n")
        paths: dict[type[Any], list[str]] = {}
        for path, inner in _inner(result, ""):
            paths.setdefault(inner, []).append(f"`{path}`")
        parts += ["\n"] * bool(paths)
        for inner, names in paths.items():
            text = indent(_doc(inner), "  ").lstrip()
            parts.append(f"* {', '.join(names)}: {text}\n")
        parts.append("\n```text\n" + "\n".join(_members(result, "")) + "\n```\n")
    return "".join(parts)


def _members(result: type[Any], margin: str) -> Iterator[str]:
    for name, hint in _types(result):
        inner, words = _words(hint)
        null = " or null" if NoneType in get_args(hint) else ""
        yield f"{margin + name:<{WIDTH}} {words}{null}"
        if inner is not None:
            yield from _members(inner, f"{margin}  ")


def _inner(result: type[Any], path: str) -> Iterator[tuple[str, type[Any]]]:
    for name, hint in _types(result):
        inner, _ = _words(hint)
        if inner is not None:
            below = f"{path}.{name}".lstrip(".")
            yield below, inner
            yield from _inner(inner, below)


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


def _words(hint: Any) -> tuple[Any, str]:
    """Return the result in a type, whose members are shown, and the type in words."""
    origin = get_origin(hint)
    choices = [choice for choice in get_args(hint) if choice not in (NoneType, ...)]
    if origin is Literal:
        return None, "text"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        inner, words = _words(choices[0])
        return inner, f"list of {words}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner, words = _words(choices[1])
        return inner, f"object of {words}"
    if choices:
        inner, words = _words(choices[0])
        return inner, " or ".join([words, *(_words(choice)[1] for choice in choices[1:])])
    if hint in SHARED:
        return None, SHARED[hint]
    if hint in WORDS:
        return None, WORDS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum | Path):
        return None, "text"
    assert is_dataclass(hint), hint
    return hint, "object"


def _doc(result: type[Any]) -> str:
    """Return the docstring of a class in the words of JSON; a report's base has the rest of it."""
    text = inspect.cleandoc(result.__doc__ or "")
    if issubclass(result, DerivedReport):
        _, _, shared = inspect.cleandoc(DerivedReport.__doc__ or "").partition("\n\n")
        text = f"{text}\n\n{shared}"
    text = re.sub(r"``|\b(?:None|True|False)\b", lambda match: OF_PYTHON[match[0]], text)
    return re.sub(r":\w+:`(\w+)`", r"`\1`", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
