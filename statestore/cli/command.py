"""Build commands from verbs, with common options, settings, the store, and help.

``--store``, ``--output`` and ``--config`` may be given before or after the verb; the latter wins.
Nothing is opened before a verb asks for it. The help describes a verb's output, shows examples and
suggests similar names. The meaning of an exit status is taken from the error classes, so that it is
defined once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from statestore.errors import StateStoreError

if TYPE_CHECKING:
    from statestore.listeners import CheckpointListener
    from statestore.settings import ResolvedSettings, Settings
    from statestore.storage import Storage
    from statestore.store import StateStore

__all__ = [
    "CLOSED_PIPE",
    "INTERRUPTED",
    "Invocation",
    "LazyVerb",
    "Root",
    "Verb",
    "common_options",
    "exit_statuses",
    "pass_invocation",
]

INTERRUPTED = 130
CLOSED_PIPE = 141  # the status that shells report for a tool ended by SIGPIPE
_OUTPUTS = ("text", "json")  # of the setting ``output``
_VERBS = "statestore.cli.verbs"
_DECLARED = re.compile(
    r'^@click\.(?:command|group)\(\n    "(?P<name>[\w-]+)",\n    cls=\w+,\n'
    r'    section="(?P<section>[^"]+)",.*?^def (?P<function>\w+)\(.*?^    """(?P<does>.*?)\.?"""',
    re.MULTILINE | re.DOTALL,
)
"""The declaration of a verb in the text of its module, up to the end of its description."""


class Invocation:
    """The arguments given so far, with the settings and the store that follow from them."""

    def __init__(self) -> None:
        """Start with no arguments."""
        self.arguments: dict[str, Any] = {}

    @cached_property
    def resolved(self) -> ResolvedSettings:
        """The effective settings. Raises SettingsError if one is invalid."""
        from statestore.settings import resolve_settings  # --help needs no msgspec

        options = {name: value for name, value in self.arguments.items() if name != "config"}
        return resolve_settings(
            config=self.arguments.get("config"), environment=os.environ, arguments=options
        )

    @property
    def settings(self) -> Settings:
        """The values of the settings."""
        return self.resolved.settings

    def storage(self) -> Storage:
        """Return the storage of the store, without what a :class:`StateStore` needs.

        Raises a usage error if no store is named.
        """
        from statestore.storage import open_storage

        return open_storage(
            self._url,
            self.settings.storage_options,
            self.settings.parallel_streams,
            of_store=True,
        )

    @property
    def _url(self) -> str:
        url = self.settings.store
        if not url:
            raise click.UsageError("no store is named: pass --store URL, or set STATESTORE_URI")
        return url

    def store(self, spark: Any = None, listeners: Sequence[CheckpointListener] = ()) -> StateStore:
        """Open the store, with a Spark session and listeners if given.

        Raises a usage error if no store is named.
        """
        # these imports take longer than everything that --help needs
        from statestore.parquet.writer import ParquetOptions
        from statestore.storage.local_cache import CacheOptions
        from statestore.store import StateStore

        url, settings, cache = self._url, self.settings, None
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


def common_options(other_outputs: Sequence[str] = ()) -> list[click.Parameter]:
    """Return the common options of the command and of every verb.

    ``other_outputs`` are the outputs that only some verbs have.
    """
    return [
        _option("--store", metavar="URL", help="The path or URL of the store. [STATESTORE_URI]"),
        _option(
            "--output",
            type=click.Choice((*_OUTPUTS, *other_outputs)),
            help="Print text for people or json for programs. [STATESTORE_OUTPUT]",
        ),
        _option("--config", metavar="FILE", help="A settings file in TOML. [STATESTORE_CONFIG]"),
    ]


class Verb(click.Command):
    """A command whose help describes its output and shows examples."""

    def __init__(
        self,
        *args: Any,
        section: str = "",
        prints: str = "",
        examples: Sequence[str] = (),
        modes: Mapping[str, Sequence[str]] | None = None,
        has_store: bool = True,
        outputs: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        """Take click's arguments, the heading of the verb, two parts of the help, and the modes.

        ``modes`` has, for each option that selects a mode, the options and arguments that only this
        mode takes. Those under an empty name need the command without a mode. Without
        ``has_store``, the verb refuses ``--store``, which it would not use. ``outputs`` are the
        values of ``--output`` that only this verb has.
        """
        super().__init__(*args, **attributes)
        self.section, self.prints, self.examples = section, prints, tuple(examples)
        self.modes = modes or {}
        for option in self.params:
            if isinstance(option, click.Option) and option.multiple:
                option.help = f"{option.help} Repeatable."
        self.params.extend(
            option for option in common_options(outputs) if has_store or option.name != "store"
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; for a surplus argument, the message explains how to name a store.

        Options of a mode that was not selected are refused.
        """
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return rest
        if rest:
            plural = "s" if len(rest) > 1 else ""
            hint = f"; to name a store, use --store {rest[0]}" if _is_path(rest[0]) else ""
            raise click.UsageError(
                f"got unexpected extra argument{plural} ({' '.join(rest)}){hint}", ctx
            )
        self._check_modes(ctx)
        return rest

    def _check_modes(self, ctx: click.Context) -> None:
        """Refuse two modes, and an option that the mode does not take."""
        words = {word: parameter for parameter in self.params for word in parameter.opts}
        passed = {
            word
            for word, parameter in words.items()
            if ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        }
        chosen = [mode for mode in self.modes if mode in passed]
        names = {
            word: word if word[:1] == "-" else parameter.human_readable_name.strip("[]")
            for word, parameter in words.items()
        }
        if len(chosen) > 1:
            first, second = map(names.__getitem__, chosen[:2])
            raise click.UsageError(f"{first} and {second} exclude each other: pass one", ctx)
        mode = chosen[0] if chosen else ""
        for other, options in self.modes.items():
            for word in sorted(passed & ({*options} - {*self.modes.get(mode, ())})):
                reason = f"it needs {names[other]}" if other else f"{names[mode]} takes none"
                raise click.UsageError(f"remove {names[word]}: {reason}", ctx)

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

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options without ``--output`` and ``--config``, which no help has to repeat."""
        shown = [
            text
            for one in self.get_params(ctx)
            if isinstance(one, click.Option) and one.name not in ("output", "config")
            if (text := one.get_help_record(ctx))
        ]
        with formatter.section("Options"):
            formatter.write_dl(shown)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the part of the help below the options."""
        _write_sections(formatter, self.prints, self.examples)
        formatter.write_paragraph()
        formatter.write_text("'statestore --help' has --output, --config and the exit statuses.")


class LazyVerb(NamedTuple):
    """A verb that is not imported yet: its module, its function, and its description."""

    module: str
    function: str
    does: str

    def load(self) -> click.Command:
        """Import the verb."""
        verb: click.Command = getattr(import_module(self.module), self.function)
        return verb


@cache
def _declared_verbs() -> Mapping[str, Mapping[str, LazyVerb]]:
    """Return the verbs of all modules by heading and name.

    Their text is searched for declarations, because importing all modules takes seconds.
    """
    package: Any = find_spec(_VERBS)
    verbs: dict[str, dict[str, LazyVerb]] = {}
    for module in iter_modules(package.submodule_search_locations, f"{_VERBS}."):
        finder: Any = module.module_finder  # of a folder, or of a zip file
        spec = finder.find_spec(module.name)
        for found in _DECLARED.finditer(spec.loader.get_source(module.name)):
            verb = LazyVerb(module.name, found["function"], " ".join(found["does"].split()))
            verbs.setdefault(found["section"], {})[found["name"]] = verb
    return {section: dict(sorted(named.items())) for section, named in verbs.items()}


class Root(click.Group):
    """A command with verbs, by section; it suggests similar names for an unknown verb."""

    def __init__(
        self,
        *args: Any,
        sections: Sequence[str],
        section: str = "",
        examples: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        """Take click's arguments, the headings of the verbs, the own heading, and examples."""
        super().__init__(*args, **attributes)
        self.section, self.examples, self._titles = section, tuple(examples), tuple(sections)
        self.params.extend(common_options())

    @property
    def sections(self) -> Mapping[str, Mapping[str, LazyVerb]]:
        """The verbs by heading and name."""
        return {title: _declared_verbs()[title] for title in self._titles}

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
        found = (verbs[cmd_name] for verbs in self.sections.values() if cmd_name in verbs)
        return next((verb.load() for verb in found), None)

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
