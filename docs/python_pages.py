"""Pages about Python: for each package an overview with its functions, and one page per class.

mkdocstrings puts the signatures and the docstrings in.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PYTHON", "ROLE", "place_of", "python_pages"]

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
            "statestore.maintenance.translate_offsets.TranslationPlan",
        ),
    ),
    "streaming": ("Python, streaming", ("statestore.streaming",), ()),
    "engines": (
        "Python, Spark and Flink",
        (
            "statestore.interop.spark",
            "statestore.interop.flink",
            "statestore.interop.flink_plans",
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
            "statestore.sources.mirror_policies",
        ),
        ("statestore.prometheus.PrometheusListener",),
    ),
}


def python_pages() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Yield the name and the text of each overview, and the pages of its classes.

    A class's page has a path, a title and a text.
    """
    for page, (title, packages, objects) in PYTHON.items():
        classes: list[tuple[str, str, str]] = []
        parts = [f"# {title}"]
        for package in packages:
            module = import_module(package)
            names = sorted(set(module.__all__) - ELSEWHERE, key=lambda name: (name != WAY_IN, name))
            parts += [f"## {package}", ROLE.sub(r"\1", (module.__doc__ or "").partition("::\n")[0])]
            parts += members([place_of(package, name) for name in names], page, classes)
        if objects:
            parts.append("## What these hand out" if page == "python" else "## More")
            parts += members(list(objects), page, classes)
        paths = [path.casefold() for path, _, _ in classes]
        assert len(set(paths)) == len(paths), "two classes have one page"
        yield f"reference/{page}.md", "\n\n".join(parts), classes


def members(names: list[str], page: str, classes: list[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a table of the classes, and the functions; add the classes' pages to ``classes``."""
    values = {name: value_of(name) for name in names}
    rows = []
    for path, value in values.items():
        if inspect.isclass(value):
            name = path.rpartition(".")[2]
            rows.append(f"| [`{name}`]({page}/{name}.md) | {summary(value)} |")
            classes.append((f"reference/{page}/{name}.md", name, class_page(path)))
    if rows:
        yield "\n".join(["| class | purpose |", "| --- | --- |", *rows])
    for path, value in values.items():
        if not inspect.isclass(value):
            yield f"::: {path}"


def place_of(package: str, name: str) -> str:
    """Return the dotted name of a public name; a module can have the same name as its function."""
    value = value_of(f"{package}.{name}")
    has_own_module = inspect.isfunction(value) and value.__module__ == f"{package}.{name}"
    return f"{value.__module__}.{name}" if has_own_module else f"{package}.{name}"


def value_of(path: str) -> Any:
    """Return the object with a dotted name."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def summary(value: type[Any]) -> str:
    """Return the first paragraph of a class's docstring, in one line."""
    first = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    return ROLE.sub(r"\1", " ".join(first.split())).replace("|", "\\|")


def class_page(path: str) -> str:
    """Return the page of one class."""
    return f"::: {path}\n    options:\n      heading_level: 1"
