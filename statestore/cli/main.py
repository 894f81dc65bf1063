"""The command ``statestore``: dispatch arguments to verbs, print results, report errors.

A verb returns a value and prints nothing. An error of this package is one sentence on stderr and
the exit code of its class. Any other error is a bug and keeps its traceback.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click

from statestore._version import __version__
from statestore.cli.command import (
    CLOSED_PIPE,
    INTERRUPTED,
    Invocation,
    LazyVerb,
    Root,
    common_options,
)
from statestore.cli.output import Result, is_unicode, leave_stdout, page, report
from statestore.errors import StateStoreError

__all__ = ["cli", "main"]


class Command(Root):
    """The root command, which runs a verb, prints its result and reports its error."""

    examples = (
        "statestore demo ./demo-store",
        "statestore list --store ./fraud",
        "statestore --store ./fraud plan --parallelism 7",
    )
    # The module of each verb, and its description in the help; the module is imported when the verb
    # runs.
    sections: ClassVar[Mapping[str, Mapping[str, LazyVerb]]] = {
        "Look": {
            "list": LazyVerb("list:list_checkpoints", "List the checkpoints of a store"),
            "show": LazyVerb("show:show_checkpoint", "Show what a checkpoint holds"),
            "watch": LazyVerb(
                "watch:watch_checkpoints", "Follow a store: show each checkpoint as it is taken"
            ),
            "get": LazyVerb("get:get_rows", "Look up one key, in a keyed state or in all"),
            "query": LazyVerb("query:query_states", "Ask the states of a checkpoint in SQL"),
            "skew": LazyVerb(
                "skew:find_skew", "Say which key groups and keys have more than their share"
            ),
            "ui": LazyVerb("ui:serve_store", "Serve the store to a browser"),
            "report": LazyVerb(
                "ui:write_store_report", "Write what the pages show as one HTML file"
            ),
        },
        "Plan and restore": {
            "plan": LazyVerb(
                "plan:plan_restore",
                "Say what a restore for another parallelism or job would read and find",
            ),
            "restore": LazyVerb(
                "restore:restore_checkpoint",
                "Write the restored rows to files, one directory for each subtask",
            ),
            "decide": LazyVerb(
                "decide:decide_parallelism",
                "Choose a batch job's parallelism from the bytes of its inputs",
            ),
        },
        "Compare": {
            "diff": LazyVerb(
                "diff:compare_checkpoints", "Compare two checkpoints, of one store or of two"
            ),
            "as-of": LazyVerb(
                "as_of:join_checkpoints",
                "Show a keyed state at one checkpoint beside the same at another",
            ),
            "history": LazyVerb(
                "as_of:show_history", "Show what one key had at each kept checkpoint"
            ),
        },
        "Keep and collect": {
            "savepoint": LazyVerb("hold:keep_savepoint", "Keep a checkpoint under a name"),
            "pin": LazyVerb("hold:pin_checkpoint", "Keep a checkpoint while it is read"),
            "unpin": LazyVerb("hold:unpin_checkpoint", "Let go of a checkpoint that was pinned"),
            "expire": LazyVerb(
                "collect:expire_checkpoints", "Expire all but the newest checkpoints"
            ),
            "gc": LazyVerb("collect:collect", "Delete the files that nothing kept needs"),
            "compact": LazyVerb(
                "compact:compact_checkpoint",
                "Fold changes of incremental checkpoints into their base, as a new checkpoint",
            ),
        },
        "Check and repair": {
            "verify": LazyVerb(
                "verify:verify_checkpoint", "Check that a checkpoint is as it was written"
            ),
            "salvage": LazyVerb(
                "salvage:salvage_checkpoint",
                "Make a new checkpoint of what can be read of a damaged one",
            ),
            "repair": LazyVerb(
                "salvage:repair_store",
                "Mend what blocks all writing though no checkpoint is damaged",
            ),
        },
        "Change": {
            "edit": LazyVerb(
                "edit:edit_state", "Change one keyed state offline, as a new checkpoint"
            ),
            "rekey": LazyVerb(
                "rekey:rekey_operator",
                "Put an operator's keyed states over other key groups, as a new checkpoint",
            ),
            "purge": LazyVerb("purge:purge_key", "Remove a key from the checkpoints that are kept"),
            "forget": LazyVerb("forget:forget_subject", "Remove one subject from all operators"),
        },
        "Move": {
            "copy": LazyVerb(
                "copy:copy_checkpoint", "Copy a checkpoint or savepoint to another store"
            ),
            "fork": LazyVerb(
                "copy:fork_checkpoint",
                "Begin a new store with a checkpoint of this one, without copying it",
            ),
            "spark": LazyVerb(
                "spark:spark",
                "Look at the state of Spark's own queries, and take it in and out",
            ),
            "flink": LazyVerb("flink:flink", "Work on savepoints of Flink's jobs, without Flink"),
        },
        "This command": {
            "config": LazyVerb(
                "other:print_settings", "Print the settings and where each comes from"
            ),
            "demo": LazyVerb(
                "other:run_demo",
                "Take a snapshot and restore it at another parallelism, to watch",
            ),
        },
    }

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
        if not isinstance(result, Result):
            return result
        if invocation.settings.output == "json":
            text = json.dumps(result.to_json(), indent=2, ensure_ascii=not is_unicode(sys.stdout))
            sys.stdout.write(f"{text}\n")
        else:
            result.write(page())
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


@click.group(cls=Command, name="statestore", context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="statestore", message="%(prog)s %(version)s")
def cli() -> None:
    """Keep the state of a streaming job as tables, and restore it at any parallelism."""


cli.params.extend(common_options())


def main(argv: Sequence[str] | None = None) -> int:
    """Run with ``argv``, by default the process's arguments; return the exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal's encoding lacks is printed as an escape, without an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    return int(cli.main(argv, prog_name="statestore", standalone_mode=False))


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
