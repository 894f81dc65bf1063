"""The options and arguments that verbs share: each declared once, with its type and completion.

An option has one meaning and one form of value in all verbs. Its parameter has the name of the
argument in Python.

A shell completes operators, states, checkpoints and savepoints from the store. Click calls the
completion functions while the user types. The store is named by ``--store``, a settings file or the
environment. A shell cannot show an error, so an unreadable store completes nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from statestore.cli.arguments import distinct, parse_instant, quoted_name, state_name
from statestore.durations import milliseconds_of
from statestore.errors import StateStoreError
from statestore.format.names import unescape
from statestore.keys.key_types import HASH_SCHEMES
from statestore.parsing import parse_integer
from statestore.restore.byte_sizes import AUTO, bytes_of
from statestore.restore.key_group_weights import Weight

if TYPE_CHECKING:
    from statestore.cli.command import Invocation
    from statestore.format.manifest import Manifest
    from statestore.interop.spark.query_settings import SparkTarget
    from statestore.store import StateStore

__all__ = [
    "INSTANT",
    "MOST_ROWS",
    "OPERATOR_NAMES",
    "SIZE",
    "SPAN",
    "Parsed",
    "any_state_option",
    "batch_argument",
    "checkpoint_argument",
    "complete_checkpoint",
    "complete_savepoint",
    "dry_run_option",
    "examples_option",
    "from_older_option",
    "hash_scheme_option",
    "key_column_option",
    "key_option",
    "keys_option",
    "leave_out_option",
    "limit_option",
    "location_module",
    "max_parallelism_option",
    "minimum_age_option",
    "no_checkpoint_argument",
    "one_state_option",
    "operators_option",
    "output_mode_option",
    "parallelism_option",
    "restore_options",
    "shape_options",
    "side_arguments",
    "spark_settings_option",
    "spark_target",
    "sql_option",
    "state_option",
    "subtasks_option",
    "time_limit",
    "type_option",
]

F = TypeVar("F", bound=Callable[..., Any])
LATEST = "latest"
MOST_ROWS = 1000
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(candidates: Callable[[StateStore, click.Context], Iterable[str]]) -> Completer:
    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        invocation: Invocation = context.obj
        try:
            names = [*candidates(invocation.store(), context)]
        except (StateStoreError, click.UsageError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _checkpoints(store: StateStore, context: click.Context) -> list[str]:
    ids = sorted(store.checkpoints(), reverse=True)
    return [LATEST, *_savepoints(store, context), *map(str, ids)]


def _savepoints(store: StateStore, context: click.Context) -> list[str]:
    return [savepoint.name for savepoint in store.maintenance.savepoints()]


def _operators(store: StateStore, context: click.Context) -> list[str]:
    return [*_newest(store).uids]


def _states(store: StateStore, context: click.Context) -> list[str]:
    states = [entry.state for entry in _newest(store).entries]
    return sorted({f"{quoted_name(state.uid)}/{quoted_name(state.name)}" for state in states})


def _operators_and_states(store: StateStore, context: click.Context) -> list[str]:
    operators = map(quoted_name, _operators(store, context))
    return sorted({*operators, *_states(store, context)})


def _newest(store: StateStore) -> Manifest:
    """Return the newest checkpoint.

    Click parses arguments last, so a checkpoint given as an argument is not known yet.
    """
    return store.checkpoint(LATEST).manifest


complete_checkpoint = _completer(_checkpoints)
"""Complete ``latest``, the names of savepoints, and the numbers of checkpoints, newest first."""

complete_savepoint = _completer(_savepoints)
"""Complete the names of savepoints."""

complete_state = _completer(_states)
"""Complete the states of the newest checkpoint, each with its operator."""

complete_operator_or_state = _completer(_operators_and_states)
"""Complete the operators of the newest checkpoint, and their states."""


class Parsed(click.ParamType[Any]):
    """The values that a function parses from text; its ValueError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any], problem: str = "{error}") -> None:
        """Take the type's name, the function, and the message for a wrong ``value``."""
        self.name, self._parse, self._problem = name, parse, problem

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parse a value. Raises a usage error if that is not possible."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(self._problem.format(value=value, error=error), param, ctx)


def _span(text: str) -> str:
    milliseconds_of(text)
    return text


SPAN = Parsed("span", _span)
"""A duration, such as 90s; its value is the text."""

NAMED = Parsed("text", unescape)
"""The name of an operator or a state, in which a ``/`` may be written as ``~2F``."""

SIZE = Parsed("size", bytes_of)
"""A number of bytes, such as 256MiB."""

INSTANT = Parsed("time", parse_instant, "{error}; a time is 2026-11-27T10:00:00Z")
"""A time in ISO 8601, with ``Z`` or an offset."""


def time_limit(setting: str | None) -> str | None:
    """Return the time limit of queries from the setting, whose ``0`` means none."""
    return setting if setting is not None and milliseconds_of(setting) else None


def in_order(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator for several, in the order in which the help shows them."""

    def decorate(function: F) -> F:
        return reduce(lambda decorated, each: each(decorated), reversed(decorators), function)

    return decorate


def _checkpoint_argument(**attributes: Any) -> Callable[[F], F]:
    return click.argument(
        "checkpoint", metavar="[CHECKPOINT]", shell_complete=complete_checkpoint, **attributes
    )


checkpoint_argument = _checkpoint_argument(default="latest")
"""A checkpoint: its number, a savepoint's name, or ``latest``, the default."""

no_checkpoint_argument = _checkpoint_argument(required=False)
"""A checkpoint, without a default."""

side_arguments = in_order(
    click.argument("a", metavar="A", shell_complete=complete_checkpoint),
    click.argument("b", default="latest", metavar="[B]", shell_complete=complete_checkpoint),
)
"""Two checkpoints to compare, the second one by default ``latest``."""


def state_option(
    text: str = "Only this operator, or only this state of it.",
    *,
    required: bool = False,
    is_whole: bool = False,
    of_any: bool = False,
) -> Callable[[F], F]:
    """Return ``--state``, whose parameters are ``operator`` and ``state``.

    Args:
        text: The help.
        required: Whether the option must be passed.
        is_whole: Whether its value must name a state, and not only an operator.
        of_any: Whether its value may name a state without its operator.
    """
    form = "OPERATOR/STATE" if is_whole else "OPERATOR[/STATE]"

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        try:
            operator, state = (None, None) if value is None else state_name(value, form)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        lacks_operator = operator is None and not of_any
        if value is not None and (lacks_operator or (is_whole and state is None)):
            raise click.BadParameter(f"{value!r:.1000} must have the form {form}")
        context.params.update(operator=operator, state=state)

    return click.option(
        "--state",
        metavar=form,
        required=required,
        help=text,
        expose_value=False,
        callback=parse,
        shell_complete=complete_state if is_whole else complete_operator_or_state,
    )


any_state_option = state_option(
    "Only this operator, or only this state of it; /STATE is of any operator.", of_any=True
)
"""The states to which a command is restricted that needs no operator."""

one_state_option = state_option("The state, of this operator.", required=True, is_whole=True)
"""The state that a command reads or changes."""

operators_option = click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="OPERATOR",
    help="Only this operator, by uid, name or id.",
    shell_complete=_completer(_operators),
)
"""The operators to which an import or export is restricted."""

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Report what would be done, and change nothing."
)


def minimum_age_option(default: str, help_text: str) -> Callable[[F], F]:
    """Return the option for the age below which files are not deleted."""
    return click.option(
        "--minimum-age",
        "--min-age",
        type=SPAN,
        default=default,
        show_default=True,
        metavar="SPAN",
        help=help_text,
    )


from_older_option = click.option(
    "--from-older",
    is_flag=True,
    help="Allow a checkpoint that is not the newest: the new checkpoint undoes the newer ones.",
)
sql_option = click.option(
    "--sql", metavar="SELECT", help="The rows of the state, as a query of DuckDB."
)
type_option = click.option(
    "--type",
    "types",
    multiple=True,
    metavar="COLUMN=TYPE",
    help="The type of a column of text.",
)


def key_option(text: str, **attributes: Any) -> Callable[[F], F]:
    """Return ``--key``, the value of a key."""
    return click.option("--key", metavar="KEY", help=text, **attributes)


def key_column_option(text: str, metavar: str = "COLUMN") -> Callable[[F], F]:
    """Return ``--key-column``, a column of the key."""
    return click.option("--key-column", "key", multiple=True, metavar=metavar, help=text)


def keys_option(default: int, **attributes: Any) -> Callable[[F], F]:
    """Return ``--keys``, the number of keys to show for each state."""
    return click.option(
        "--keys",
        type=click.IntRange(min=0),
        default=default,
        metavar="N",
        help=f"The number of keys to show for each state. [{default}]",
    )


def examples_option(
    default: int, text: str = "differing rows to show for each state"
) -> Callable[[F], F]:
    """Return ``--examples``, the number of rows to show."""
    return click.option(
        "--examples",
        type=click.IntRange(min=0),
        default=default,
        metavar="N",
        help=f"The number of {text}. [{default}]",
    )


def spark_settings_option(
    text: str = "A setting of Spark with which the query will run.",
) -> Callable[[F], F]:
    """Return ``--conf``, settings of Spark as in ``spark-submit``."""
    return click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help=text)


output_mode_option = click.option(
    "--output-mode",
    type=click.Choice(("append", "update", "complete")),
    default="append",
    help="The output mode of a Spark query. [append]",
)
"""The output mode of a query that a job builds, which its plan does not have."""


def max_parallelism_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return ``--max-parallelism``, the number of key groups."""
    return click.option("--max-parallelism", type=int, metavar="N", required=required, help=text)


def subtasks_option(text: str) -> Callable[[F], F]:
    """Return ``--parallelism``, the number of subtasks, for commands that choose no number."""
    return click.option("--parallelism", type=int, metavar="N", help=text)


def hash_scheme_option(text: str) -> Callable[[F], F]:
    """Return ``--hash-scheme``, by which keys get their key groups."""
    return click.option("--hash-scheme", type=click.Choice(HASH_SCHEMES), help=text)


def leave_out_option(text: str) -> Callable[[F], F]:
    """Return ``--leave-out``, the state that an export lacks intentionally."""
    return click.option(
        "--leave-out", type=NAMED, multiple=True, metavar="OPERATOR[/STATE]", help=text
    )


limit_option = click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="ROWS",
    help=f"The maximum number of rows; 0 for all. [{MOST_ROWS} in a table, else all]",
)


def _parse_parallelism(text: str) -> tuple[int | Literal["auto"], int | None]:
    """Return the parallelism and the bytes per task of ``N``, ``auto`` or a size.

    Raises ValueError for another text.
    """
    if text == AUTO:
        return AUTO, None
    with suppress(ValueError):
        return parse_integer(text), None
    try:
        return AUTO, bytes_of(text)
    except ValueError:
        reason = f"{text!r:.80} is neither a number, nor 'auto', nor a size such as 16MiB"
        raise ValueError(reason) from None


def parallelism_option(metavar: str = "N|auto|SIZE", text: str = "") -> Callable[[F], F]:
    """Return ``--parallelism`` of a restore, with the parameters of a restore target.

    If ``metavar`` has a list of numbers, it is the parameter ``compared``; otherwise None.
    """
    compares = "," in metavar

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        parallelism: int | str | None = None
        bytes_per_task = compared = None
        try:
            if compares and value is not None and "," in value:
                compared = tuple(parse_integer(one.strip()) for one in value.split(",") if one)
            elif value is not None:
                parallelism, bytes_per_task = _parse_parallelism(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        context.params.update(parallelism=parallelism, bytes_per_task=bytes_per_task)
        if compares:
            context.params["compared"] = compared

    return click.option(
        "--parallelism",
        metavar=metavar,
        expose_value=False,
        callback=parse,
        help=(
            "The number of subtasks to restore for. auto chooses it from the stored bytes, so that "
            f"a subtask reads 16MiB, or SIZE.{text} [as in the checkpoint]"
        ),
    )


restore_options = in_order(
    click.option(
        "--graph",
        metavar="FILE",
        help="The new job's graph as TOML. Its operators find their state by operator id.",
    ),
    max_parallelism_option(
        "Read the stored key groups as N key groups: a multiple or a divisor of their number."
    ),
    click.option(
        "--balance",
        type=click.Choice([weight.value for weight in Weight]),
        help=(
            "Choose key-group ranges with balanced bytes or rows instead of equal numbers of "
            "key groups."
        ),
    ),
)
"""The target of a restore, except its parallelism."""


def location_module(name: str) -> Any:
    """Import a module that needs Spark."""
    return importlib.import_module(f"statestore.interop.spark.{name}")


batch_argument = click.argument("batch", type=int, required=False, metavar="[BATCH]")
"""A completed micro-batch, by default the newest one."""


def shape_options(function: F) -> F:
    """Add the settings of a new location: its partitions, its provider, and its sources."""
    sources = click.option(
        "--rename-source",
        "sources",
        multiple=True,
        callback=_parse_sources,
        metavar="OLD=NEW",
        help="Rename a source, by name or number; OLD= removes, =NEW adds.",
    )
    return in_order(
        click.option(
            "--shuffle-partitions",
            "partitions",
            type=int,
            required=True,
            metavar="N",
            help="The new number of shuffle partitions of the query.",
        ),
        click.option(
            "--provider",
            type=click.Choice(("hdfs", "rocksdb")),
            help="The state store provider. [as in the query]",
        ),
        sources,
    )(function)


def _parse_sources(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> Mapping[str, Any]:
    """Return the changes of sources, from ``OLD=NEW``, ``OLD=`` and ``=NEW``."""
    renamed: dict[str, str | None] = {}
    added = []
    for value in values:
        old, separator, new = value.partition("=")
        if not separator or not (old or new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW, OLD= or =NEW")
        if old in renamed:
            raise click.BadParameter(f"source {old!r} is changed twice")
        if old:
            renamed[old] = new or None
        else:
            added.append(new)
    return {"renamed_sources": renamed, "added_sources": tuple(added)}


def spark_target(provider: str | None, sources: Mapping[str, Any]) -> SparkTarget:
    """Return the query that continues, from the options of :func:`shape_options`."""
    target: SparkTarget = location_module("query_settings").SparkTarget(
        provider=provider, **sources
    )
    return target


def _parse_names(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> Mapping[int, str]:
    """Return the names of operators by number, from ``NUMBER=NAME``."""
    names = []
    for value in values:
        number, separator, name = value.partition("=")
        if not separator or not number.isdecimal():
            raise click.BadParameter(f"{value!r} is not NUMBER=NAME, such as 0=dedupe")
        names.append((int(number), name))
    return distinct("--operator-name", names)


OPERATOR_NAMES = click.option(
    "--operator-name",
    "operator_names",
    multiple=True,
    metavar="NUMBER=NAME",
    callback=_parse_names,
    help="What an operator of Spark 3 is, if its columns do not tell it.",
)
