"""A test that replaces a name of a module must replace one that the module uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_a_patched_name_is_used_where_it_is_patched() -> None:
    """A function that moved leaves its import behind, and the patch has no effect there."""
    unused = [
        f"{path.relative_to(ROOT)}:{line} patches {name} of {module}, which does not use it"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "setattr(" in (text := path.read_text())
        for line, module, name in _patches(ast.parse(text))
        if not _uses(module, name)
    ]
    assert unused == []


def _patches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the module and the name of each ``setattr(module, "name", …)``."""
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statestore")
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                ast.Attribute(attr="setattr"), [ast.Name(id=target), ast.Constant(str(name)), *_]
            ) if target in modules:
                yield node.lineno, modules[target], name


@cache
def _uses(module: str, name: str) -> bool:
    """Return whether a module reads a name; True for a class, whose members any code may use."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return True
    if spec is None or spec.origin is None:
        return True
    tree = ast.parse(Path(spec.origin).read_text())
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )
