"""Pages about the command ``statestore``: an overview, and one page per task.

Everything comes from the commands themselves: purposes, arguments, options and examples.
"""

from __future__ import annotations

import html
import re
from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from statestore.cli.command import Verb, common_options, exit_statuses
from statestore.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["command_pages"]

FOLDER = "reference/commands"
WIDTH = 95  # of a block on a page, in characters
# What Markdown would read as markup, and what a reader types.
MARKUP = re.compile(r"([\\`*_\[\]])")
TYPED = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*|'[^'\n]+')(?![\w-])")
DEFAULT = re.compile(r"^(.*?)\s*\[([^\]]+)\]\.?$", re.DOTALL)


def command_pages() -> Iterator[tuple[str, str, str]]:
    """Yield the path, the title and the Markdown of each page, the overview first."""
    yield f"{FOLDER}.md", "Commands", "\n\n".join(overview())
    root = click.Context(cli, info_name="statestore")
    for task, verbs in cli.sections.items():
        parts = [f"# {task}", "[Commands](../commands.md) has the options of every command."]
        for name in verbs:
            parts += described(name, cli, root)
        yield f"{FOLDER}/{slug(task)}.md", task, "\n\n".join(parts)


def overview() -> Iterator[str]:
    """Yield what holds for all commands, and the commands of each task."""
    yield "# Commands"
    yield code([f"statestore {' '.join(['[OPTIONS]', 'COMMAND', '[ARGUMENTS]…'])}"])
    yield "`statestore COMMAND --help` prints the same as these pages in the terminal."
    for task, verbs in cli.sections.items():
        yield f"## {task}"
        page = f"commands/{slug(task)}.md"
        yield table(
            ("command", "purpose"),
            [
                (f"[`{name}`]({page}#statestore-{name})", prose(verb.does))
                for name, verb in verbs.items()
            ],
        )
    yield "## Options of every command"
    yield table(("option", "meaning", "variable"), map(option_row, common_options()))
    yield "## Exit status"
    yield table(
        ("status", "meaning"),
        [(str(status), prose(meaning)) for status, meaning in exit_statuses().items()],
    )


def described(name: str, group: click.Group, parent: click.Context) -> Iterator[str]:
    """Yield a command's heading and description, and those of the commands in it."""
    command = group.get_command(parent, name)
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=parent)
    yield f"## {context.command_path}"
    yield prose(cleandoc(command.help or ""))
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from described(inner, command, context)
        return
    yield code([f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}"])
    common = {option.name for option in common_options()}
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and option.name not in common and not option.hidden
    ]
    if options:
        yield table(("option", "meaning", "default"), map(option_row, options))
    if isinstance(command, Verb):
        if command.prints:
            yield f"**Prints:** {prose(cleandoc(command.prints))}"
        if command.examples:
            yield code(command.examples)


def option_row(option: click.Parameter) -> tuple[str, str, str]:
    """Return an option with its value, its meaning, and its default or variable."""
    assert isinstance(option, click.Option)
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {value_of(option)}"
    text = option.help or ""
    if found := DEFAULT.match(text):
        text, default = found[1], found[2]
    elif option.required:
        default = "required"
    elif option.is_flag:
        default = "off"
    else:
        default = str(option.default) if is_set(option.default) else "not set"
    return f"`{names}{value}`", prose(text), prose(default)


def is_set(default: Any) -> bool:
    """Return whether an option has a default."""
    return isinstance(default, str | int | float) and default != ""


def value_of(option: click.Option) -> str:
    """Return the name of an option's value, or its choices."""
    if isinstance(option.type, click.Choice):
        return " or ".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper()


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, str]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(lines: list[str] | tuple[str, ...]) -> str:
    """Return a block of what a user types."""
    return "\n".join(["```text", *(part for line in lines for part in folded(line)), "```"])


def folded(line: str) -> list[str]:
    """Return a command as lines that fit on a page; a shell reads them as one."""
    lines = [""]
    for part in re.split(r" (?=-)", line):
        if lines[-1] and len(f"{lines[-1]} {part}") > WIDTH - len(" \\"):
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return lines


def prose(text: str) -> str:
    """Return a text of a command as Markdown that shows the same text."""
    paragraphs = [" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")]
    return "\n\n".join(
        "".join(
            typed(part) if number % 2 else escaped(part)
            for number, part in enumerate(TYPED.split(paragraph))
        )
        for paragraph in paragraphs
    )


def typed(text: str) -> str:
    """Return what a user types in the form of code."""
    return f"`{text.strip(chr(39))}`"


def escaped(text: str) -> str:
    """Return a text whose characters have no meaning in Markdown."""
    return MARKUP.sub(r"\\\1", html.escape(text, quote=False)).replace("|", "&#124;")


def slug(title: str) -> str:
    """Return the file name of a task."""
    return title.lower().replace(" ", "-")
