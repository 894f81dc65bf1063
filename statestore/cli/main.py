"""The command ``statestore``: dispatch arguments to verbs, print results, report errors.

A verb returns a value and prints nothing. An error of this package is one sentence on stderr and
the exit code of its class. Any other error is a bug and keeps its traceback.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from statestore._version import __version__
from statestore.cli.command import (
    CLOSED_PIPE,
    INTERRUPTED,
    Invocation,
    LazyVerb,
    Root,
)
from statestore.cli.output import (
    Output,
    document_text,
    is_unicode,
    leave_stdout,
    page,
    report,
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
            leave_stdout()
            return CLOSED_PIPE

    def _invoked(self, ctx: click.Context) -> Any:
        invocation = ctx.ensure_object(Invocation)  # before the verb's context takes it over
        result = super().invoke(ctx)
        if isinstance(result, Iterator):
            return _drain(result, as_json=invocation.settings.output == "json")
        if not isinstance(result, Output):
            return result
        if invocation.settings.output == "json":
            text = document_text(result.result, indent=2, ascii_only=not is_unicode(sys.stdout))
            sys.stdout.write(f"{text}\n")
        else:
            result.write(page(), result.result)
        sys.stdout.flush()
        if result.problem is not None:
            raise result.problem
        return result.status

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


_SECTIONS: Mapping[str, Mapping[str, LazyVerb]] = {
    "Look": {
        "list": LazyVerb(
            "list:list_checkpoints", "List the checkpoints of a store, or follow them"
        ),
        "show": LazyVerb("show:show_checkpoint", "Show what a checkpoint contains"),
        "get": LazyVerb("get:get_rows", "Look up one key, in one keyed state or in all"),
        "diff": LazyVerb(
            "diff:compare_checkpoints", "Compare two checkpoints of one store or of two"
        ),
        "query": LazyVerb("query:query_states", "Query the states of a checkpoint with SQL"),
        "trend": LazyVerb(
            "trend:show_trend",
            "Show the growth of each state, and when it reaches a size or a restore time",
        ),
        "ui": LazyVerb(
            "ui:serve_store", "Serve the store in a browser, or write a report as one HTML file"
        ),
    },
    "Plan and restore": {
        "plan": LazyVerb(
            "plan:plan_restore",
            "Show what a restore for another parallelism or job would read",
        ),
        "restore": LazyVerb(
            "restore:restore_checkpoint",
            "Write the restored rows to files, one directory per subtask",
        ),
    },
    "Keep and delete": {
        "savepoint": LazyVerb(
            "savepoint:keep_savepoint",
            "Keep a checkpoint under a name, or while it is being read",
        ),
        "expire": LazyVerb("collect:expire_checkpoints", "Expire all but the newest checkpoints"),
        "gc": LazyVerb("collect:collect", "Delete the files that no kept checkpoint needs"),
        "compact": LazyVerb(
            "compact:compact_checkpoint",
            "Fold incremental changes into their base files, as a new checkpoint",
        ),
    },
    "Check and repair": {
        "verify": LazyVerb(
            "verify:verify_checkpoint",
            "Check that the files of a checkpoint, or of all, are unchanged",
        ),
        "repair": LazyVerb(
            "repair:repair_store",
            "Rebuild damaged documents that block all writers, or a damaged checkpoint",
        ),
        "upgrade": LazyVerb(
            "upgrade:upgrade_store",
            "Raise the writer version, so that older releases refuse to write",
        ),
    },
    "Change": {
        "edit": LazyVerb("edit:edit_state", "Change one keyed state offline, as a new checkpoint"),
        "rekey": LazyVerb(
            "rekey:rekey_operator",
            "Distribute keyed states over other key groups, as a new checkpoint",
        ),
        "forget": LazyVerb(
            "forget:forget_subject",
            "Remove a key or a subject from all kept checkpoints",
        ),
    },
    "Move": {
        "bootstrap": LazyVerb(
            "bootstrap:bootstrap_state",
            "Begin a state with the rows of a table, as a new checkpoint",
        ),
        "copy": LazyVerb("copy:copy_checkpoint", "Copy a checkpoint or savepoint to another store"),
        "publish": LazyVerb(
            "publish:publish_state",
            "Show a state of a checkpoint as an Iceberg table, without a copy",
        ),
        "spark": LazyVerb(
            "spark:spark",
            "Show, import and export the state of Spark's own queries",
        ),
        "flink": LazyVerb(
            "flink:flink", "Show, import, export and repack Flink savepoints, without Flink"
        ),
        "kafka": LazyVerb("kafka:kafka", "Move the offsets of Kafka sources to another cluster"),
    },
    "This command": {
        "config": LazyVerb(
            "other:print_settings", "Print the settings and the source of each value"
        ),
        "demo": LazyVerb(
            "other:run_demo",
            "Take a snapshot and restore it at another parallelism, as a demonstration",
        ),
    },
}
"""The module of each verb, and its description in the help; it is imported when the verb runs."""


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


def _drain(results: Iterator[Any], *, as_json: bool) -> int:
    """Write results to stdout as lines of JSON, or let the verb show them, until Ctrl-C."""
    try:
        for result in results:
            if as_json:
                sys.stdout.write(f"{document_text(result, indent=None, ascii_only=True)}\n")
                sys.stdout.flush()  # the reader of a pipe needs each result immediately
    except KeyboardInterrupt:
        return 0
    return 0


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for what Py4J logs if a call of Spark fails or is interrupted by Ctrl-C.

    That is a traceback on stderr. Py4J also raises the exception, which the command reports.
    """
    return record.module != "java_gateway"


def _guarded(run: Any) -> int:
    try:
        return int(run() or 0)
    except click.UsageError as error:
        report(_Sentence(error.format_message()))
        if error.ctx is not None:
            sys.stderr.write(f"Try: {error.ctx.command_path} --help\n")
        return error.exit_code
    except click.ClickException as error:
        report(_Sentence(error.format_message()))
        return error.exit_code
    except click.Abort:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except StateStoreError as error:
        report(error)
        return error.exit_code


class _Sentence(Exception):
    """Click's message in this package's form: lower case at the start, no full stop."""

    def __str__(self) -> str:
        text = str(self.args[0]).rstrip(".")
        return text[:1].lower() + text[1:]
