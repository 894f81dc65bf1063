"""The command ``statestore``: arguments to verbs, results to ``output.py``, errors to the shell.

A verb returns a value and prints nothing. An error of ours is one sentence on stderr and the exit
code of its class; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import click

from statestore._version import __version__
from statestore.cli.command import INTERRUPTED, Invocation, Root, common_options
from statestore.cli.output import Result, is_unicode, page, report
from statestore.cli.verbs.as_of import join_checkpoints, show_history
from statestore.cli.verbs.collect import collect, expire_checkpoints
from statestore.cli.verbs.compact import compact_checkpoint
from statestore.cli.verbs.copy import copy_checkpoint, fork_checkpoint
from statestore.cli.verbs.decide import decide_parallelism
from statestore.cli.verbs.diff import compare_checkpoints
from statestore.cli.verbs.edit import edit_state
from statestore.cli.verbs.get import get_rows
from statestore.cli.verbs.hold import keep_savepoint, pin_checkpoint, unpin_checkpoint
from statestore.cli.verbs.list import list_checkpoints
from statestore.cli.verbs.other import print_settings, run_demo
from statestore.cli.verbs.plan import plan_restore
from statestore.cli.verbs.purge import purge_key
from statestore.cli.verbs.query import query_states
from statestore.cli.verbs.rekey import rekey_operator
from statestore.cli.verbs.restore import restore_checkpoint
from statestore.cli.verbs.salvage import repair_store, salvage_checkpoint
from statestore.cli.verbs.show import show_checkpoint
from statestore.cli.verbs.skew import find_skew
from statestore.cli.verbs.verify import verify_checkpoint
from statestore.cli.verbs.watch import watch_checkpoints
from statestore.errors import StateStoreError

__all__ = ["cli", "main"]


class Command(Root):
    """The root, and what stands around every verb: printing its result, reporting its error."""

    examples = (
        "statestore demo ./demo-store",
        "statestore list --store ./fraud",
        "statestore --store ./fraud plan --parallelism 7",
    )
    sections: ClassVar[dict[str, tuple[str, ...]]] = {}

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, print what it returns, and return the exit status."""
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
        """Run, then exit, or return the status with ``standalone_mode=False``."""
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
for title, verbs in {
    "Look": (
        list_checkpoints,
        show_checkpoint,
        watch_checkpoints,
        get_rows,
        query_states,
        find_skew,
    ),
    "Plan and restore": (plan_restore, restore_checkpoint, decide_parallelism),
    "Compare": (compare_checkpoints, join_checkpoints, show_history),
    "Keep and collect": (
        keep_savepoint,
        pin_checkpoint,
        unpin_checkpoint,
        expire_checkpoints,
        collect,
        compact_checkpoint,
    ),
    "Check and repair": (verify_checkpoint, salvage_checkpoint, repair_store),
    "Change": (edit_state, rekey_operator, purge_key),
    "Move": (copy_checkpoint, fork_checkpoint),
    "This command": (print_settings, run_demo),
}.items():
    for verb in verbs:
        cli.add_command(verb)
    Command.sections[title] = tuple(str(verb.name) for verb in verbs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run with ``argv``, by default the process's arguments, and return the exit status."""
    if hasattr(sys.stdout, "reconfigure"):
        # A name that the terminal's encoding lacks is printed as an escape instead of an error.
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
    """Click's message in our form: without a full stop, beginning with a small letter."""

    def __str__(self) -> str:
        text = str(self.args[0]).rstrip(".")
        return text[:1].lower() + text[1:]
