"""Pages that are made when the site is built, from the code that they describe.

Commands, errors, settings and docstrings describe themselves; nothing is written twice. The page
about benchmarks is bench/README.md, and CHANGELOG.md and CONTRIBUTING.md are pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

from docs.absent_packages import stand_in

stand_in()  # before the package is imported

from docs.command_pages import command_pages  # noqa: E402
from docs.python_pages import PYTHON, ROLE, python_pages  # noqa: E402
from statestore import errors  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

__all__ = ["PYTHON", "on_files", "on_page_content", "on_page_markdown", "pages"]

ROOT = Path(__file__).resolve().parent.parent

SEVERAL = re.compile(r"<code>\(((?:<[^>]+>|\w+Error|,? or |, )+)\)</code>")

# The search ranks a guide above any page that only lists what exists.
MAIN, GUIDE, OTHER, REFERENCE = 1000.0, 100.0, 1.0, 0.01
# The guides to the tasks that every user has.
TASKS = {"spark", "incremental", "restore", "read", "look", "keep", "repair", "kafka", "my-query"}
START = {"index.md", "install.md", "stored.md", "limits.md", "REPACK.md", "troubleshooting.md"}
LISTS = {"JSON.md", "FORMAT.md", "INVARIANTS.md", "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here, and put those of tasks and classes below their overview."""
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    config.nav = nested(config.nav, below_overviews())
    return files


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of each page that is made."""
    yield from single_pages()
    for path, _, text in command_pages():
        yield path, text
    for overview, overview_text, classes in python_pages():
        yield overview, overview_text
        yield from ((path, text) for path, _, text in classes)


def below_overviews() -> dict[str, list[dict[str, str]]]:
    """Return the title and path of each page of a task or class, by the path of its overview."""
    (commands, _, _), *tasks = command_pages()
    below = {commands: [{title: path} for path, title, _ in tasks]}
    for overview, _, classes in python_pages():
        below[overview] = [{title: path} for path, title, _ in classes]
    return below


def nested(entry: Any, below: dict[str, list[Any]]) -> Any:
    """Return a part of the navigation in which an overview has other pages below it."""
    if isinstance(entry, list):
        return [nested(part, below) for part in entry]
    if isinstance(entry, dict):
        return {title: nested(part, below) for title, part in entry.items()}
    return [entry, *below[entry]] if entry in below else entry


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set the rank of a page in the search; the text stays as it is."""
    path = page.file.src_uri
    if path in {f"how/{task}.md" for task in TASKS}:
        boost = MAIN
    elif path.startswith("how/") or path in START:
        boost = GUIDE
    else:
        boost = REFERENCE if path.startswith("reference/") or path in LISTS else OTHER
    page.meta.setdefault("search", {"boost": boost})
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Return a page without Sphinx's roles, and with each error of a list as a name of its own."""
    return SEVERAL.sub(separated, ROLE.sub(r"\1", html))


def separated(errors_in_list: re.Match[str]) -> str:
    """Return errors such as ``(AError, BError or CError)``, parsed as one name, as single names."""
    names = re.sub(r"<[^>]+>", "", errors_in_list[1])
    return re.sub(r"\w+Error", r"<code>\g<0></code>", names)


def single_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of each page that stands alone."""
    yield "benchmarks.md", (ROOT / "bench/README.md").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yield "changelog.md", changes.replace("](docs/", "](")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    contributing = re.sub(r"\[([\w/]+\.md)\]\(\1\)", r"`\1`", contributing)
    yield "contributing.md", contributing.replace("](docs/", "](")
    yield "reference/errors.md", "\n\n".join(error_classes())
    yield "reference/settings.md", "\n\n".join(settings())


def error_classes() -> Iterator[str]:
    """Yield what :mod:`statestore.errors` says of all errors together, then each of them."""
    introduction, _, rest = (errors.__doc__ or "").partition("\n\n::\n\n")
    tree, _, notes = rest.partition("\n\n")
    yield "# Errors"
    yield introduction
    yield f"```text\n{dedent(tree)}\n```"
    yield ROLE.sub(r"\1", notes)
    yield "| error | kind | exit status | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(
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
