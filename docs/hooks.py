"""Pages that are made when the site is built, of the code that they are about.

Commands tell of themselves, errors and settings too, and Python by its docstrings: nothing of it is
written a second time. The benchmarks' page is bench/README.md, and the changelog's CHANGELOG.md.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import click
from mkdocs.structure.files import File, Files

from statestore import errors
from statestore.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(<code>|`+)~?")

WAY_IN = "StateStore"
ELSEWHERE = {"__version__", "errors", "DEFAULT_SECONDS"}  # on no page, or on one of its own
# Of each page the packages whose public names it documents, and what these hand out.
PYTHON = {
    "python": (
        "Python",
        ("statestore",),
        (
            "statestore.api.inspection.StoreInspection",
            "statestore.api.maintenance.StoreMaintenance",
            "statestore.restore.restored.RestoredKeyedState",
            "statestore.restore.restored.RestoredOperatorState",
            "statestore.snapshot.bootstrap.BootstrapPlan",
            "statestore.snapshot.bootstrap_elements.ElementsPlan",
            "statestore.maintenance.translate_offsets.TranslationPlan",
        ),
    ),
    "streaming": ("Python, streaming", ("statestore.streaming",), ()),
    "engines": (
        "Python, Spark and Flink",
        (
            "statestore.interop.spark_checkpoints",
            "statestore.interop.flink_savepoints",
            "statestore.interop.tables",
            "statestore.jobgraph",
        ),
        (),
    ),
    "jobs": (
        "Python, jobs and sources",
        (
            "statestore.sources.discovery",
            "statestore.sources.kafka",
            "statestore.sources.mirror",
            "statestore.sources.mirror_names",
            "statestore.sources.mirror_policies",
        ),
        ("statestore.prometheus.PrometheusListener",),
    ),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for name, text in pages():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_content(html: str, **_: object) -> str:
    """Return a page without the roles of Sphinx, which docstrings name things by."""
    return ROLE.sub(r"\1", html)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the Markdown of each page that is made."""
    yield "benchmarks.md", (ROOT / "bench/README.md").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yield "changelog.md", changes.replace("](docs/", "](")
    yield "reference/commands.md", "\n\n".join(commands())
    yield "reference/errors.md", "\n\n".join(error_classes())
    yield "reference/settings.md", "\n\n".join(settings())
    for name, (title, packages, objects) in PYTHON.items():
        yield f"reference/{name}.md", "\n\n".join([f"# {title}", *documented(packages, objects)])


def commands() -> Iterator[str]:
    """Yield each command's own help, under the headings of ``statestore --help``."""
    root = click.Context(cli, info_name="statestore", terminal_width=WIDTH, max_content_width=WIDTH)
    yield "# Commands"
    yield "Each command says of itself what is below: `statestore COMMAND --help`."
    yield told(cli, root)
    for title, verbs in cli.sections.items():
        yield f"## {title}"
        for name in verbs:
            yield from command(name, cli, root)


def command(name: str, group: click.Group, parent: click.Context) -> Iterator[str]:
    """Yield a command's heading and help, and those of the commands in it."""
    found = group.get_command(parent, name)
    assert found is not None, name
    context = click.Context(found, info_name=name, parent=parent)
    yield f"### {context.command_path}"
    yield told(found, context)
    if isinstance(found, click.Group):
        for inner in found.list_commands(context):
            yield from command(inner, found, context)


def told(found: click.Command, context: click.Context) -> str:
    """Return a command's help as a block."""
    return f"```text\n{found.get_help(context)}\n```"


def error_classes() -> Iterator[str]:
    """Yield what :mod:`statestore.errors` says of all errors together, then each of them."""
    introduction, _, rest = (errors.__doc__ or "").partition("\n\n::\n\n")
    tree, _, notes = rest.partition("\n\n")
    yield "# Errors"
    yield introduction
    yield f"```text\n{dedent(tree)}\n```"
    yield ROLE.sub(r"\1", notes)
    yield "| error | kind | exit status | |\n| --- | --- | --- | --- |\n" + "\n".join(
        f"| `{one.__name__}` | `{one.kind}` | {one.exit_code} | {said(one)} |"
        for one in family(errors.StateStoreError)
    )


def family(error: type[errors.StateStoreError]) -> Iterator[type[errors.StateStoreError]]:
    """Yield an error's class and those under it, each before its own."""
    yield error
    for child in error.__subclasses__():
        yield from family(child)


def said(error: type[errors.StateStoreError]) -> str:
    """Return a class's docstring in one line."""
    return ROLE.sub(r"\1", " ".join((error.__doc__ or "").split()))


def settings() -> Iterator[str]:
    """Yield the files in ``conf/``, which say why each setting is there, its unit and default."""
    yield "# Settings"
    yield (
        "Each file is as it lies in `conf/`. A setting has its reason above it. Unit and default "
        "are in brackets. An unknown name, a wrong type or a value out of bounds is an error that "
        "names the file and the setting."
    )
    for path in sorted((ROOT / "conf").iterdir()):
        language = "toml" if path.suffix == ".toml" else "properties"
        yield f"## conf/{path.name}"
        yield f"```{language}\n{path.read_text(encoding='utf-8').rstrip()}\n```"


def documented(packages: tuple[str, ...], objects: tuple[str, ...]) -> Iterator[str]:
    """Yield the public names of packages, then single objects, for mkdocstrings to put in."""
    for package in packages:
        module = import_module(package)
        yield f"## {package}"
        yield ROLE.sub(r"\1", (module.__doc__ or "").partition("::\n")[0])
        names = sorted(set(module.__all__) - ELSEWHERE, key=lambda name: (name != WAY_IN, name))
        yield from (f"::: {package}.{name}" for name in names)
    if objects:
        yield "## What these hand out" if packages == ("statestore",) else "## More"
    yield from (f"::: {name}" for name in objects)
