"""Write docs/JSON.md from the types of the commands' documents: ``python -m docs.json_page``.

The text above the heading "Documents" is written by hand and kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import click
from msgspec import UnsetType
from msgspec.structs import fields

from statestore.cli.documents import CheckpointMetricsDocument, Document, LeftOutDocument
from statestore.cli.main import cli
from statestore.cli.output import Result
from statestore.cli.verbs.watch import WatchedDocument

PAGE = Path(__file__).with_name("JSON.md")
HEADING = "## Documents\n"
INTRODUCTION = """
Each command's documents follow, with the type of each member. A member marked "may be absent" is
absent if it has nothing to say. "any" is a value of a column, or of a setting.
"""
SHARED: dict[type[Document], str] = {
    LeftOutDocument: "left-out state",
    CheckpointMetricsDocument: "metrics",
}
WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any"}
WIDTH = 24
PRINTED_AS_LINES = {"watch": WatchedDocument}


def page() -> str:
    """Return the text of docs/JSON.md."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    shared = (section(f"Shared: {name}", [document]) for document, name in SHARED.items())
    commands = (section(f"`{name}`", found) for name, found in documents(cli, ""))
    return head + HEADING + INTRODUCTION + "".join([*shared, *commands])


def documents(group: click.Group, prefix: str) -> Iterator[tuple[str, list[type[Document]]]]:
    """Yield the name of each command that prints JSON, and its documents."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from documents(command, f"{prefix}{name} ")
        elif name in PRINTED_AS_LINES:
            yield f"{prefix}{name}", [PRINTED_AS_LINES[name]]
        elif found := list(_documents_of(command.callback)):
            yield f"{prefix}{name}", found


def _documents_of(callback: Callable[..., Any] | None) -> Iterator[type[Document]]:
    assert callback is not None
    function = inspect.unwrap(callback)
    written = inspect.signature(function).return_annotation
    for name in written.split(" | "):
        result = vars(inspect.getmodule(function)).get(name)
        if isinstance(result, type) and issubclass(result, Result):
            returned = inspect.signature(result.document).return_annotation
            yield vars(inspect.getmodule(result))[returned]


def section(title: str, found: list[type[Document]]) -> str:
    """Return the section of a command: its documents with notes and members."""
    parts = [f"\n### {title}\n"]
    for document in found:
        parts.append(f"\n{_doc(document)}\n")
        paths: dict[type[Document], list[str]] = {}
        for path, inner in _inner(document, ""):
            paths.setdefault(inner, []).append(f"`{path}`")
        parts += ["\n"] * bool(paths)
        for inner, names in paths.items():
            text = indent(_doc(inner), "  ").lstrip()
            parts.append(f"* {', '.join(names)}: {text}\n")
        parts.append("\n```text\n" + "\n".join(_members(document, "")) + "\n```\n")
    return "".join(parts)


def _members(document: type[Document], margin: str) -> Iterator[str]:
    hints = get_type_hints(document)
    for member in fields(document):
        inner, words = _words(hints[member.name])
        # None as a default is never printed.
        is_null = NoneType in get_args(hints[member.name]) and member.default is not None
        null = " or null" if is_null else ""
        absent = "" if member.required else ", may be absent"
        yield f"{margin + member.encode_name:<{WIDTH}} {words}{null}{absent}"
        if inner is not None:
            yield from _members(inner, f"{margin}  ")


def _inner(document: type[Document], path: str) -> Iterator[tuple[str, type[Document]]]:
    hints = get_type_hints(document)
    for member in fields(document):
        inner, _ = _words(hints[member.name])
        if inner is not None:
            below = f"{path}.{member.encode_name}".lstrip(".")
            yield below, inner
            yield from _inner(inner, below)


def _words(hint: Any) -> tuple[type[Document] | None, str]:
    """Return the document in a type, whose members are shown, and the type in words."""
    choices = [choice for choice in get_args(hint) if choice not in (UnsetType, NoneType)]
    if get_origin(hint) is list:
        inner, words = _words(choices[0])
        return inner, f"list of {words}"
    if get_origin(hint) is dict:
        inner, words = _words(choices[1])
        return inner, f"object of {words}"
    if choices:
        inner, words = _words(choices[0])
        return inner, " or ".join([words, *(_words(choice)[1] for choice in choices[1:])])
    if hint in SHARED:
        return None, SHARED[hint]
    if hint in WORDS:
        return None, WORDS[hint]
    return hint, "object"


def _doc(document: type[Document]) -> str:
    return inspect.cleandoc(document.__doc__ or "").replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
