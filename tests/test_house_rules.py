"""What every module keeps to, beyond what ruff and mypy can say."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import statestore
from statestore.api.inspection import StoreInspection
from statestore.api.maintenance import StoreMaintenance
from statestore.restore.restored import RestoredKeyedState, RestoredOperatorState
from tests.syntax import Module, modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Function = ast.FunctionDef | ast.AsyncFunctionDef

MODULE_LINES = 560  # without the docstrings of functions, which are long where much is public
FUNCTION_LINES = 50  # of code: a long signature and its docstring are not hard to follow

FORMATS_DURATIONS = ("statestore.display", "statestore.durations")
UNIT_OF_TIME = re.compile(r" (?:ms|s|min|h|d|seconds?|minutes|hours|days)\b")
NAME_OF_DURATION = re.compile(r"(?:\b|_)(?:ms|s|seconds|milliseconds|minutes|elapsed|took)$")
LOGGED_DURATION = re.compile(rf"%[-.\d]*[dfgs]{UNIT_OF_TIME.pattern}")
FORMAT_OF_NUMBER = re.compile(r":[^:}]*[,efg]\}")

PRODUCT = ("statestore", "jobs", "bench")
EVERYTHING = (*PRODUCT, "tests")
# Split, so that this file passes its own test.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


def test_modules_are_short() -> None:
    assert [m.name for m in modules(*EVERYTHING) if code_lines(m) > MODULE_LINES] == []


def test_functions_are_short() -> None:
    found = ((m, function) for m in modules(*EVERYTHING) for function in functions(m))
    assert [f"{m.name}.{f.name}" for m, f in found if lines(f) > FUNCTION_LINES] == []


def test_what_is_public_is_documented() -> None:
    found = ((m, name, node) for m in modules(*PRODUCT) for name, node in public(m))
    assert [(m.name, name) for m, name, node in found if not ast.get_docstring(node)] == []


def test_docstrings_of_the_public_surface_have_sections() -> None:
    """``Args:``, which names all parameters, ``Returns:`` and ``Raises:``, as tools render them."""
    incomplete = {name: found for name, member in surface() if (found := missing(member))}
    assert incomplete == {}


def test_nothing_is_left_to_do() -> None:
    found = ((m, line) for m in modules(*EVERYTHING) for line in m.text.splitlines())
    assert [(m.name, line) for m, line in found if UNFINISHED.search(line)] == []


def test_no_error_is_swallowed() -> None:
    found = ((m, node) for m in modules(*EVERYTHING) for node in m.statements)
    silent = [
        f"{m.name}, line {node.lineno}"
        for m, node in found
        if isinstance(node, ast.ExceptHandler) and is_silent(node)
    ]
    assert silent == []


def test_no_module_binds_a_name_twice() -> None:
    """The second constant of a name would silently replace the first one in functions above it."""
    bound = {m.name: Counter(top_level_names(m)) for m in modules(*PRODUCT)}
    twice = {name: [n for n, count in names.items() if count > 1] for name, names in bound.items()}
    assert {name: names for name, names in twice.items() if names} == {}


def test_durations_are_formatted_in_one_place() -> None:
    """``display.duration`` rounds for people, and ``duration_text`` is exact for settings."""
    found = [
        f"{m.name}, line {node.lineno}"
        for m in modules("statestore", "jobs")
        if m.name not in FORMATS_DURATIONS
        for node in m.nodes
        if isinstance(node, ast.Constant | ast.JoinedStr) and formats_a_duration(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{wait / 1000:g} s"', True),
        ('f"took {x:.1f} seconds"', True),
        ('f"{limit_ms} ms"', True),
        ('f"{seconds:.3g}"', True),
        ('f"{began.took_ms:,}"', True),
        ('"planned in %.3f s"', True),
        ('f"{duration(took_ms)} ago"', False),
        ('"planned in %s, of %d steps"', False),
        ('f"{name}s"', False),
        ('f"{rate}/s"', False),
        ('f"{length_ms}ms"', False),
        ('f"not {limit_s!r:.80}"', False),
    ],
)
def test_the_rule_for_durations_finds_them(source: str, found: bool) -> None:
    assert formats_a_duration(ast.parse(source, mode="eval").body) == found


def formats_a_duration(text: ast.AST) -> bool:
    """Say whether a text has a number with a unit of time, or a duration's own format.

    ``500ms`` without a blank is the exact form of settings and documents.
    """
    if isinstance(text, ast.Constant):
        return isinstance(text.value, str) and bool(LOGGED_DURATION.search(text.value))
    if not isinstance(text, ast.JoinedStr):
        return False
    for value, after in zip(text.values, [*text.values[1:], None], strict=True):
        if not isinstance(value, ast.FormattedValue):
            continue
        follows = after.value if isinstance(after, ast.Constant) else ""
        if UNIT_OF_TIME.match(str(follows)):
            return True
        formatted = value.format_spec is not None and FORMAT_OF_NUMBER.search(ast.unparse(value))
        if formatted and NAME_OF_DURATION.search(ast.unparse(value.value)):
            return True
    return False


def top_level_names(module: Module) -> Iterator[str]:
    """Yield the names that a module defines, except decorated ones and those in conditions."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.decorator_list:
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            if isinstance(target, ast.AnnAssign):
                target = target.target
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (part.id for part in parts if isinstance(part, ast.Name))


def code_lines(module: Module) -> int:
    return len(module.text.splitlines()) - sum(map(docstring_lines, functions(module)))


def functions(module: Module) -> Iterator[Function]:
    for node in module.statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines(function: Function) -> int:
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return (function.end_lineno or 0) - function.body[documented].lineno + 1


def docstring_lines(function: Function) -> int:
    if ast.get_docstring(function) is None:
        return 0
    return (function.body[0].end_lineno or 0) - function.body[0].lineno + 1


def surface() -> Iterator[tuple[str, Any]]:
    """Yield the functions, methods and properties that callers use, and their names."""
    exported = [getattr(statestore, name) for name in statestore.__all__]
    inner = [StoreInspection, StoreMaintenance, RestoredKeyedState, RestoredOperatorState]
    for one in (*exported, *inner):
        if inspect.isfunction(one):
            yield one.__name__, one
        for name, member in vars(one).items() if inspect.isclass(one) else ():
            function = getattr(member, "__func__", member)
            if not name.startswith("_") and (
                inspect.isfunction(function) or isinstance(function, property)
            ):
                yield f"{one.__name__}.{name}", function


def missing(member: Callable[..., Any] | property) -> list[str]:
    """Return the sections, and the parameters in them, that a docstring lacks."""
    text = inspect.getdoc(member) or ""
    sections = dict(re.findall(r"^(\w+):\n((?:(?: .*)?(?:\n|\Z))+)", text, re.MULTILINE))
    found = ["Raises"] if re.search(r"\bRaises [A-Z]", text) else []
    if isinstance(member, property):
        return found
    signature = inspect.signature(member)
    own = [
        name
        for name, one in signature.parameters.items()
        if name not in ("self", "cls") and one.kind is not one.VAR_KEYWORD
    ]
    if len(own) < 2:
        return found
    named = re.findall(r"^    (\w+): ", sections.get("Args", ""), re.MULTILINE)
    if signature.return_annotation != "None" and not {"Returns", "Yields"} & sections.keys():
        found.append("Returns")
    return found + [name for name in own if name not in named]


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
