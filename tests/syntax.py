"""The project's own modules as syntax trees, for the tests of its structure."""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, as in ``statestore.store``, its path and its text."""

    name: str
    path: Path = field(repr=False)
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        # These nodes all stay, and Python's collector would examine them repeatedly.
        gc.disable()
        parsed = ast.parse(self.text, str(self.path))
        gc.freeze()
        gc.enable()
        return parsed

    @cached_property
    def statements(self) -> tuple[ast.AST, ...]:
        """All statements, error handlers and cases: a twelfth of the nodes."""
        found: list[ast.AST] = [self.tree]
        for node in found:
            for part in ("body", "handlers", "orelse", "finalbody", "cases"):
                found += getattr(node, part, ())
        return tuple(found)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))


@dataclass(frozen=True)
class Import:
    """One imported module; ``lazy`` inside a function, ``for_types`` under ``TYPE_CHECKING``."""

    name: str
    line: int
    lazy: bool
    for_types: bool


@cache
def modules(*packages: str) -> tuple[Module, ...]:
    """Return every module under the given top directories."""
    return tuple(
        _module(path) for package in packages for path in sorted((ROOT / package).rglob("*.py"))
    )


@cache
def _module(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, path.read_text(encoding="utf-8"))


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Return the imports of ``module`` at any depth, including ``import_module("...")``."""
    # Most nodes are expressions, and only a call of this function is an import inside one.
    expressions = "import_module" in module.text
    return tuple(_imports(module.tree, expressions, lazy=False, for_types=False))


def _imports(node: ast.AST, expressions: bool, *, lazy: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and not expressions:
            continue
        for name in _imported(child):
            yield Import(name, getattr(child, "lineno", 0), lazy, for_types)
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _imports(child, expressions, lazy=lazy or inside, for_types=for_types or guarded)


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(level=0, module=str(package), names=names):
            # `from statestore import errors` imports statestore.errors. For a class or a function
            # the longer name has no effect, because layers are matched by prefix.
            return [f"{package}.{alias.name}" for alias in names]
        case ast.ImportFrom():
            return ["(relative)"]
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
            return [name for name in map(_text, node.args) if name]
    return []


def _text(node: ast.expr) -> str | None:
    """Return a string constant, or the package at the start of an f-string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text.rstrip(".")
    return None
