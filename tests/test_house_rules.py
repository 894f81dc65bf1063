"""What every module keeps to, beyond what ruff and mypy can say."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.syntax import Module, imports, modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    Function = ast.FunctionDef | ast.AsyncFunctionDef

MODULE_LINES = 600
SMALL_LINES = 80
FUNCTION_LINES = 50  # of code: a long signature and its docstring are not hard to follow

PRODUCT = modules("statestore", "jobs", "bench")
EVERYTHING = modules("statestore", "jobs", "bench", "tests")
# Split, so that this file passes its own test.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


@pytest.mark.parametrize("module", EVERYTHING, ids=str)
def test_modules_are_short(module: Module) -> None:
    assert len(module.text.splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("module", EVERYTHING, ids=str)
def test_functions_are_short(module: Module) -> None:
    too_long = [f.name for f in functions(module) if lines(f) > FUNCTION_LINES]
    assert too_long == []


def test_small_modules_have_several_importers() -> None:
    """A module of a few lines that one other uses belongs to that one."""
    importers: dict[str, set[str]] = {}
    for module in EVERYTHING:
        for one in imports(module):
            # Of a name that is imported the longer form is no module, which changes nothing.
            for name in (one.name, one.name.rpartition(".")[0]):
                importers.setdefault(name, set()).add(module.name)
    small = [one.name for one in modules("statestore") if 0 < one.text.count("\n") < SMALL_LINES]
    assert [name for name in small if len(importers.get(name, ())) == 1] == []


@pytest.mark.parametrize("module", PRODUCT, ids=str)
def test_what_is_public_is_documented(module: Module) -> None:
    undocumented = [name for name, node in public(module) if not ast.get_docstring(node)]
    assert undocumented == []


@pytest.mark.parametrize("module", EVERYTHING, ids=str)
def test_nothing_is_left_to_do(module: Module) -> None:
    assert [line for line in module.text.splitlines() if UNFINISHED.search(line)] == []


@pytest.mark.parametrize("module", EVERYTHING, ids=str)
def test_no_error_is_swallowed(module: Module) -> None:
    handlers = (node for node in ast.walk(module.tree) if isinstance(node, ast.ExceptHandler))
    assert [f"line {handler.lineno}" for handler in handlers if is_silent(handler)] == []


def functions(module: Module) -> Iterator[Function]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines(function: Function) -> int:
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return (function.end_lineno or 0) - function.body[documented].lineno + 1


def public(module: Module) -> Iterator[tuple[str, ast.Module | ast.ClassDef | Function]]:
    """Yield the module, unless it is empty, and its public classes, functions and methods."""
    if module.tree.body:
        yield module.name, module.tree
    yield from _public(module.tree)


def _public(
    parent: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") or is_documented_elsewhere(node):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _public(node, f"{node.name}.")


def is_documented_elsewhere(node: ast.ClassDef | Function) -> bool:
    """Overloads, overrides and setters: the function that they belong to has the docstring."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"overload", "override", "setter"})


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Say whether a handler names no error, or does nothing about the one that it caught."""
    nothing = all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in handler.body
    )
    return handler.type is None or nothing
