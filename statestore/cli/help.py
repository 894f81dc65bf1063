"""How the command describes itself: what a verb prints, examples, exit status, close names.

The exit status is read off the error classes, so that it is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import click

from statestore.cli.invocation import common_options
from statestore.errors import StateStoreError

__all__ = ["INTERRUPTED", "Root", "Verb", "exit_statuses"]

INTERRUPTED = 130


def exit_statuses() -> dict[int, str]:
    """Return what every exit status means, in ascending order."""
    meanings = {0: "success", StateStoreError.exit_code: "a failure without a class of its own"}
    for error in _with_own_code(StateStoreError):
        meanings[error.exit_code] = f"{error.kind}: {_summary(error)}"
    meanings[INTERRUPTED] = "interrupted"
    return dict(sorted(meanings.items()))


def _with_own_code(error: type[StateStoreError]) -> list[type[StateStoreError]]:
    found = []
    for child in error.__subclasses__():
        found += [child] if "exit_code" in vars(child) else []
        found += _with_own_code(child)
    return found


def _summary(error: type[StateStoreError]) -> str:
    first = (error.__doc__ or "").split("\n\n")[0]
    # What follows is about attributes, which a shell does not see.
    for_shells = " ".join(first.split()).partition("; ``")[0]
    return for_shells.replace("``", "").rstrip(".")


class Verb(click.Command):
    """A command whose help says what it prints, and shows examples."""

    def __init__(
        self, *args: Any, prints: str = "", examples: Sequence[str] = (), **attributes: Any
    ) -> None:
        """Take what click takes, and the two more parts of the help."""
        super().__init__(*args, **attributes)
        self.prints, self.examples = prints, tuple(examples)
        self.params.extend(common_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; of what is too much the message says how a store is named."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            plural = "s" if len(rest) > 1 else ""
            hint = f"; a store is named so: --store {rest[0]}" if _is_path(rest[0]) else ""
            raise click.UsageError(
                f"got unexpected extra argument{plural} ({' '.join(rest)}){hint}", ctx
            )
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what stands below the options."""
        _write_sections(formatter, self.prints, self.examples)
        formatter.write_paragraph()
        formatter.write_text("What an exit status means: statestore --help")


class Root(click.Group):
    """The command itself: knows its verbs, and a close one for a name that is none."""

    examples: tuple[str, ...] = ()
    sections: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs under their headings, each with all of its sentence."""
        width = max(map(len, self.commands))
        for title, names in self.sections.items():
            with formatter.section(title):
                rows = [(f"{name:<{width}}", _sentence(self.commands[name])) for name in names]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb; a usage error with close names when there is no such verb."""
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        verbs = self.list_commands(ctx)
        close = get_close_matches(name, verbs, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"there is {', '.join(verbs)}"
        raise click.UsageError(f"no command '{name}'; {hint}", ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what stands below the verbs."""
        _write_sections(formatter, "", self.examples)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), text) for code, text in exit_statuses().items()])


def _is_path(text: str) -> bool:
    return "/" in text or text.startswith(".") or Path(text).exists()


def _sentence(command: click.Command) -> str:
    return " ".join((command.help or "").split()).rstrip(".")


def _write_sections(formatter: click.HelpFormatter, prints: str, examples: Sequence[str]) -> None:
    if prints:
        with formatter.section("Prints"):
            formatter.write_text(prints)
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"  {example}\n")
