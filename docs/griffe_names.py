"""Show values in signatures instead of names that only the code knows.

A default such as ``LATEST`` becomes ``'latest'``, and an annotation such as ``Columns`` becomes
``str | Sequence[str]``. A method that a class takes from a function, such as
``to_pandas = as_pandas``, has the docstring of the function, and its signature without the object.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ValuesForNames"]


class ValuesForNames(griffe.Extension):
    """Replaces module-level names in the signatures of functions and in the fields of classes."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the signatures of a loaded package."""
        for scope in classes(pkg):
            take_functions(scope, pkg)
        for member in members(pkg):
            if isinstance(member, griffe.Attribute):
                member.value = with_values(member.value, pkg)
                member.annotation = with_values(member.annotation, pkg)
                continue
            for parameter in member.parameters:
                parameter.default = with_values(parameter.default, pkg)
                parameter.annotation = with_values(parameter.annotation, pkg)
            member.returns = with_values(member.returns, pkg)


def classes(scope: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    """Yield the classes in a module or class, at any depth."""
    for member in scope.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from classes(member)


def take_functions(scope: griffe.Class, package: griffe.Module) -> None:
    """Make methods of the functions that a class has under a name of its own."""
    for name, member in list(scope.members.items()):
        if isinstance(member, griffe.Attribute) and isinstance(
            member.value, griffe.ExprName | griffe.ExprAttribute
        ):
            function = definition(member.value.canonical_path, package)
            if isinstance(function, griffe.Function):
                method = copy.copy(function)
                method.name, method.parent = name, scope
                method.parameters = griffe.Parameters(*list(function.parameters)[1:])
                scope.members[name] = method


def members(
    scope: griffe.Module | griffe.Class,
) -> Iterator[griffe.Function | griffe.Attribute]:
    """Yield the functions of a module or class and of what is in it, and the fields of classes."""
    kinds = (griffe.Function, griffe.Attribute)
    own = griffe.Function if isinstance(scope, griffe.Module) else kinds
    for member in scope.members.values():
        if isinstance(member, griffe.Module | griffe.Class):
            yield from members(member)
        elif isinstance(member, kinds) and isinstance(member, own):
            yield member


def with_values(expression: Any, package: griffe.Module) -> Any:
    """Return an expression in which the value of a name takes the place of the name."""
    if isinstance(expression, list | tuple):
        return type(expression)(with_values(part, package) for part in expression)
    if isinstance(expression, griffe.ExprName):
        value = value_of(expression.canonical_path, package)
        return expression if value is None else with_values(value, package)
    if isinstance(expression, griffe.Expr) and dataclasses.is_dataclass(expression):
        parts = {
            field.name: with_values(getattr(expression, field.name), package)
            for field in dataclasses.fields(expression)
        }
        return dataclasses.replace(expression, **parts)
    return expression


def value_of(path: str, package: griffe.Module) -> griffe.Expr | str | None:
    """Return the value of a module-level name of the package; None for anything else."""
    target = definition(path, package)
    if not isinstance(target, griffe.Attribute) or not isinstance(target.parent, griffe.Module):
        return None
    return None if "TypeVar" in str(target.value) else target.value


def definition(path: str, package: griffe.Module) -> griffe.Object | None:
    """Return what a dotted name of the package names; None for a name of another package."""
    inside = path.removeprefix(f"{package.path}.")
    if inside == path or "." not in inside:
        return None
    try:
        member = package[inside]
        return member.final_target if isinstance(member, griffe.Alias) else member
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None  # the name of a type parameter
