"""Build commands from verbs, with common options, settings, the store, and help.

``--store``, ``--output`` and ``--config`` may be given before or after the verb; the latter wins.
Nothing is opened before a verb asks for it. The help describes a verb's output, shows examples and
suggests similar names. The meaning of an exit status is taken from the error classes, so that it is
defined once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

import click

from statestore.cli.completion import complete_checkpoint, complete_operator, complete_state
from statestore.errors import StateStoreError
from statestore.settings import ResolvedSettings, Settings, resolve_settings

if TYPE_CHECKING:
    from statestore.listeners import CheckpointListener
    from statestore.store import StateStore

__all__ = [
    "CHECKPOINT_WAS_OPTION",
    "CLOSED_PIPE",
    "INTERRUPTED",
    "Invocation",
    "KeyVerb",
    "LazyVerb",
    "Root",
    "Verb",
    "checkpoint_argument",
    "checkpoint_option",
    "common_options",
    "exit_statuses",
    "key_option",
    "no_checkpoint_argument",
    "one_state_options",
    "operator_option",
    "pass_invocation",
    "state_option",
    "state_options",
]

F = TypeVar("F", bound=Callable[..., Any])

CHECKPOINT_WAS_OPTION = {"--checkpoint": "the argument CHECKPOINT"}
"""The replaced option of the commands whose checkpoint was an option in an earlier release."""

INTERRUPTED = 130
CLOSED_PIPE = 141  # the status that shells report for a tool ended by SIGPIPE


class Invocation:
    """The arguments given so far, with the settings and the store that follow from them."""

    def __init__(self) -> None:
        """Start with no arguments."""
        self.arguments: dict[str, Any] = {}

    @cached_property
    def resolved(self) -> ResolvedSettings:
        """The effective settings. Raises SettingsError if one is invalid."""
        options = {name: value for name, value in self.arguments.items() if name != "config"}
        return resolve_settings(
            config=self.arguments.get("config"), environment=os.environ, arguments=options
        )

    @property
    def settings(self) -> Settings:
        """The values of the settings."""
        return self.resolved.settings

    def store(self, spark: Any = None, listeners: Sequence[CheckpointListener] = ()) -> StateStore:
        """Open the store, with a Spark session and listeners if given.

        Raises a usage error if no store is named.
        """
        # these imports take longer than everything that --help needs
        from statestore.parquet.writer import ParquetOptions
        from statestore.storage.local_cache import CacheOptions
        from statestore.store import StateStore

        url = self.settings.store
        if not url:
            raise click.UsageError("no store is named: pass --store URL, or set STATESTORE_URI")
        settings, cache = self.settings, None
        if settings.local_cache:
            cache = CacheOptions(settings.local_cache, settings.local_cache_bytes)
        return StateStore.open(
            url,
            spark=spark,
            table_format=settings.table_format,
            layout=settings.layout,
            storage_options=settings.storage_options,
            parquet=ParquetOptions(
                row_group_rows=settings.row_group_rows,
                row_group_bytes=settings.row_group_bytes,
                memory_bytes=settings.memory_bytes,
                zstd_level=settings.zstd_level,
            ),
            cache=cache,
            parallel_streams=settings.parallel_streams,
            listeners=listeners,
        )


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def common_options() -> list[click.Parameter]:
    """Return the common options of the command and of every verb."""
    outputs = get_args(get_type_hints(Settings)["output"])
    return [
        _option("--store", metavar="URL", help="The path or URL of the store. [STATESTORE_URI]"),
        _option(
            "--output",
            type=click.Choice(outputs),
            help="Print text for people or json for programs. [STATESTORE_OUTPUT]",
        ),
        _option("--config", metavar="FILE", help="A settings file in TOML. [STATESTORE_CONFIG]"),
    ]


def checkpoint_argument(function: Any) -> Any:
    """Add the argument CHECKPOINT: a number, a savepoint's name, or ``latest``, the default."""
    return _checkpoint_argument(default="latest")(function)


def no_checkpoint_argument(function: Any) -> Any:
    """Add the argument CHECKPOINT without a default."""
    return _checkpoint_argument(required=False)(function)


def _checkpoint_argument(**attributes: Any) -> Callable[[F], F]:
    return click.argument(
        "checkpoint", metavar="[CHECKPOINT]", shell_complete=complete_checkpoint, **attributes
    )


def from_older_option(function: F) -> F:
    """Add the option ``--from-older`` of commands that make a checkpoint from another one."""
    text = "Allow a checkpoint that is not the newest: the new checkpoint undoes the newer ones."
    return click.option("--from-older", is_flag=True, help=text)(function)


def key_option(text: str) -> Callable[[F], F]:
    """Return a decorator that adds the required option ``--key``; ``text`` names its use."""
    return click.option("--key", required=True, metavar="KEY", help=text)


def checkpoint_option(
    text: str, *, default: str | None = "latest", note: str = " [latest]"
) -> Callable[[F], F]:
    """Return a decorator that adds ``--checkpoint``; ``text`` names the checkpoint's use.

    Only a command whose argument is something else has this option; the others have the argument
    CHECKPOINT.
    """
    return click.option(
        "--checkpoint",
        default=default,
        metavar="CHECKPOINT",
        help=f"{text}: its number, a savepoint's name, or latest.{note}",
        shell_complete=complete_checkpoint,
    )


def state_options(function: Any) -> Any:
    """Add ``--operator`` and ``--state``, which restrict a verb to some states."""
    return operator_option("Only this operator.")(
        state_option("Only this state of the operator.")(function)
    )


def one_state_options(function: Any) -> Any:
    """Add ``--operator`` and ``--state``, both required, which select one keyed state."""
    return operator_option("The operator.", required=True)(
        state_option("The keyed state.", required=True)(function)
    )


def operator_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds ``--operator`` with this help text."""
    return click.option(
        "--operator",
        "uid",
        metavar="OPERATOR",
        required=required,
        help=text,
        shell_complete=complete_operator,
    )


def state_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds ``--state`` with this help text."""
    return click.option(
        "--state",
        "name",
        metavar="STATE",
        required=required,
        help=text,
        shell_complete=complete_state,
    )


class Verb(click.Command):
    """A command whose help describes its output and shows examples."""

    def __init__(
        self,
        *args: Any,
        prints: str = "",
        examples: Sequence[str] = (),
        replaced: Mapping[str, str] | None = None,
        had_store: bool = False,
        **attributes: Any,
    ) -> None:
        """Take click's arguments, the two additional parts of the help, and replaced forms.

        ``replaced`` has the new option or argument for each option that an earlier release had.
        ``had_store`` says that the store was the first argument in an earlier release.
        """
        super().__init__(*args, **attributes)
        self.prints, self.examples = prints, tuple(examples)
        self.replaced, self.had_store = replaced or {}, had_store
        self.params.extend(common_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; for a surplus argument, the message explains how to name a store."""
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            new = self.replaced.get(error.option_name)
            if new is None:
                raise
            raise click.UsageError(
                f"no such option {error.option_name!r}; it is {new} since version 0.2.0", ctx
            ) from error
        if rest and not ctx.resilient_parsing:
            plural = "s" if len(rest) > 1 else ""
            hint = f"; to name a store, use --store {rest[0]}" if _is_path(rest[0]) else ""
            if self.had_store:
                first = next(iter(self.params)).name
                hint = f"; the store is --store {ctx.params[str(first)]} since version 0.2.0"
            raise click.UsageError(
                f"got unexpected extra argument{plural} ({' '.join(rest)}){hint}", ctx
            )
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; an error names this verb's options instead of arguments in Python."""
        try:
            return super().invoke(ctx)
        except StateStoreError as error:
            error.reword(self._word_option)
            raise

    def _word_option(self, argument: str, value: int | None) -> str | None:
        options = (one for one in self.params if isinstance(one, click.Option))
        option = next((one for one in options if one.name == argument), None)
        if option is None:
            return None
        name = option.opts[0] if option.is_flag else option.opts[-1]
        return name if value is None or option.is_flag else f"{name} {value}"

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the part of the help below the options."""
        _write_sections(formatter, self.prints, self.examples)
        formatter.write_paragraph()
        formatter.write_text("'statestore --help' lists the exit statuses.")


class KeyVerb(Verb):
    """A command whose option ``--key`` was the argument KEY in an earlier release."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; without ``--key``, the message explains how to pass a key."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if error.param is None or error.param.name != "key":
                raise
        except click.NoSuchOption as error:
            if not re.match(r"-[0-9.]", error.option_name):
                raise
        raise click.UsageError(
            "pass the key as --key KEY; it was the argument KEY before version 0.2.0", ctx
        )


class LazyVerb(NamedTuple):
    """A verb that is not imported yet: its module, its name, and its description."""

    place: str
    does: str


class Root(click.Group):
    """The root command: it knows all verbs, and suggests similar names for an unknown one."""

    examples: tuple[str, ...] = ()
    sections: ClassVar[Mapping[str, Mapping[str, LazyVerb]]] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Create the context with an invocation, which shell completion needs too."""
        context = super().make_context(info_name, args, parent, **extra)
        context.ensure_object(Invocation)
        return context

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs, in order."""
        return sorted(name for verbs in self.sections.values() for name in verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb; return None for an unknown name."""
        for verbs in self.sections.values():
            if cmd_name in verbs:
                module, name = verbs[cmd_name].place.split(":")
                verb: click.Command = getattr(import_module(f"statestore.cli.verbs.{module}"), name)
                return verb
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs under their headings, each with its complete description."""
        width = max(map(len, self.list_commands(ctx)))
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:<{width}}", command.does) for name, command in verbs.items()]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb. Raises a usage error with similar names for an unknown verb."""
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        verbs = self.list_commands(ctx)
        close = get_close_matches(name, verbs, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"the commands are {', '.join(verbs)}"
        raise click.UsageError(f"unknown command '{name}'; {hint}", ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the part of the help below the verbs."""
        _write_sections(formatter, "", self.examples)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), text) for code, text in exit_statuses().items()])


def exit_statuses() -> dict[int, str]:
    """Return the meaning of every exit status, in ascending order."""
    meanings = {0: "success", StateStoreError.exit_code: "another failure"}
    for error in _with_own_code(StateStoreError):
        meanings[error.exit_code] = f"{error.kind}: {_summary(error)}"
    meanings[INTERRUPTED] = "interrupted"
    meanings[CLOSED_PIPE] = "stdout was closed by its reader"
    return dict(sorted(meanings.items()))


def _option(name: str, **attributes: Any) -> click.Option:
    return click.Option([name], expose_value=False, callback=_remember, **attributes)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and parameter.name is not None:
        context.ensure_object(Invocation).arguments[parameter.name] = value


def _with_own_code(error: type[StateStoreError]) -> list[type[StateStoreError]]:
    with_code = []
    for child in error.__subclasses__():
        with_code += [child] if "exit_code" in vars(child) else []
        with_code += _with_own_code(child)
    return with_code


def _summary(error: type[StateStoreError]) -> str:
    first = (error.__doc__ or "").split("\n\n")[0]
    # What follows is about attributes, which a shell does not see.
    for_shells = " ".join(first.split()).partition("; ``")[0]
    return re.sub(r":\w+:`(\w+)`", r"\1", for_shells).replace("``", "").rstrip(".")


def _is_path(text: str) -> bool:
    return "/" in text or text.startswith(".") or Path(text).exists()


def _write_sections(formatter: click.HelpFormatter, prints: str, examples: Sequence[str]) -> None:
    if prints:
        with formatter.section("Prints"):
            formatter.write_text(prints)
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"  {example}\n")
