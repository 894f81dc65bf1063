"""A test that replaces a name of a module must replace one that the module uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.syntax import Module, modules


@pytest.mark.slow
def test_a_patched_name_is_used_where_it_is_patched() -> None:
    """A function that moved leaves its import behind, and the patch has no effect there."""
    unused = [
        f"{test.name}:{line} patches {name} of {module}, which does not use it"
        for test in modules("tests")
        if "setattr(" in test.text
        for line, module, name in _patches(test)
        if not _uses(module, name)
    ]
    assert unused == []


def _patches(test: Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the module and the name of each ``setattr(module, "name", …)``."""
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in test.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statestore")
        for alias in node.names
    }
    for node in test.nodes:
        match node:
            case ast.Call(
                ast.Attribute(attr="setattr"), [ast.Name(id=target), ast.Constant(str(name)), *_]
            ) if target in imported:
                yield node.lineno, imported[target], name


@cache
def _uses(module: str, name: str) -> bool:
    """Return whether a module reads a name; True for a class, whose members any code may use."""
    found = next((one for one in modules("statestore") if one.name == module), None)
    return found is None or any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in found.nodes
    )
