"""The command ``statestore``: dispatch arguments to verbs, print results, report errors.

A verb returns a value and prints nothing. An error of this package is one sentence on stderr and
the exit code of its class. Any other error is a bug and keeps its traceback.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from statestore._version import __version__
from statestore.cli.command import (
    CLOSED_PIPE,
    INTERRUPTED,
    Invocation,
    Root,
)
from statestore.errors import StateStoreError

__all__ = ["Program", "cli", "main"]


class Program(click.Command):
    """A command that is run by its own name: it prints its result and reports its error."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, print its result, and return the exit status."""
        try:
            return self._invoked(ctx)
        except BrokenPipeError:
            _leave_stdout()
            return CLOSED_PIPE

    def _invoked(self, ctx: click.Context) -> Any:
        invocation = ctx.ensure_object(Invocation)  # before the verb's context takes it over
        result = super().invoke(ctx)
        if result is None or isinstance(result, int):
            return result
        from statestore.cli.output import print_result  # loads rich, which --help does not need

        return print_result(result, as_json=invocation.settings.output == "json")

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run and exit, or with ``standalone_mode=False`` return the status."""
        standalone = extra.pop("standalone_mode", True)
        run: Any = super().main
        status = _guarded(lambda: run(*args, standalone_mode=False, **extra))
        if standalone:
            sys.exit(status)
        return status


class Command(Program, Root):
    """The root command."""


_SECTIONS = (
    "Look",
    "Plan and restore",
    "Keep and delete",
    "Check and repair",
    "Change",
    "Move",
    "This command",
)
"""The headings of the help; each verb names its own."""


@click.group(
    cls=Command,
    name="statestore",
    context_settings={"max_content_width": 100},
    sections=_SECTIONS,
    examples=(
        "statestore demo ./demo-store",
        "statestore list --store ./fraud",
        "statestore --store ./fraud plan --parallelism 7",
    ),
)
@click.version_option(__version__, prog_name="statestore", message="%(prog)s %(version)s")
def cli() -> None:
    """Keep the state of a streaming job as tables, and restore it at any parallelism."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run with ``argv``, by default the process's arguments; return the exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal's encoding lacks is printed as an escape, without an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.getLogger().addFilter(_is_not_of_py4j)
    return int(cli.main(argv, prog_name="statestore", standalone_mode=False))


def _leave_stdout() -> None:
    """Discard buffered output without a reader, or Python would report an error when it exits."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for what Py4J logs if a call of Spark fails or is interrupted by Ctrl-C.

    That is a traceback on stderr. Py4J also raises the exception, which the command reports.
    """
    return record.module != "java_gateway"


def _guarded(run: Any) -> int:
    try:
        return int(run() or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        return error.exit_code
    except click.UsageError as error:
        _report(_Sentence(error.format_message()))
        if error.ctx is not None:
            sys.stderr.write(f"Try: {error.ctx.command_path} --help\n")
        return error.exit_code
    except click.ClickException as error:
        _report(_Sentence(error.format_message()))
        return error.exit_code
    except click.Abort:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except StateStoreError as error:
        _report(error)
        return error.exit_code


def _report(error: Exception) -> None:
    from statestore.cli.output import report  # loads rich, which --help does not need

    report(error)


class _Sentence(Exception):
    """Click's message in this package's form: lower case at the start, no full stop."""

    def __str__(self) -> str:
        text = str(self.args[0]).rstrip(".")
        return text if text[1:2].isupper() else text[:1].lower() + text[1:]
