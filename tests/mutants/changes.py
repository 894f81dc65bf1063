"""Every change of one operator or constant that a module allows.

Python's own syntax tree finds them. The library cosmic-ray replaces an operator by every other
one, which mostly is a type error, and it has no change for ``in`` and for texts. The library mutmut
runs tests through internal modules of its own.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

__all__ = ["Change", "changes_of", "function_lines"]

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
    ast.Not: ("not", ""),
    ast.USub: ("-", ""),
    ast.Invert: ("~", ""),
}
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_NAMES_OF_TYPES = {"TypeVar", "ParamSpec", "NewType", "TypeVarTuple", "cast"}


@dataclass(frozen=True)
class Change:
    """One changed operator or constant.

    Attributes:
        file: the path of the module from the root of the project.
        line: the number of the changed line.
        before: the line as it is.
        after: the changed line.
        lines: the lines that run if the changed line does, the most exact first. Import time is
            not counted: for a default they are those of the function, for a constant of a module
            those of all functions of the module.
        name: the name of a module's constant, which other modules may use.
        text: the changed module.
    """

    file: str
    line: int
    before: str
    after: str
    lines: tuple[range, ...] = field(repr=False, compare=False)
    name: str | None = field(repr=False, compare=False)
    text: str = field(repr=False, compare=False)


@dataclass
class _Place:
    """Where the visited node is: its statement, its function and its constant."""

    statement: ast.stmt | None = None
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None
    inside: bool = False
    name: str | None = None


def changes_of(file: str, text: str, lines: Collection[str] | None = None) -> list[Change]:
    """Return the changes of a module, or only of its lines with these texts, in their order.

    Not changed are docstrings, annotations, log calls, ``__all__``, names of type variables,
    ``TYPE_CHECKING``, flags of classes such as ``frozen``, and texts with a blank, which are
    sentences.
    """
    found = [
        change
        for change in _Module(file, text).changes()
        if (lines is None or change.before in lines) and _compiles(change.text)
    ]
    return sorted(found, key=lambda change: change.line)


def function_lines(text: str) -> list[range]:
    """Return the lines of each function's body."""
    return _function_lines(ast.parse(text))


def _function_lines(tree: ast.Module) -> list[range]:
    return [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _compiles(text: str) -> bool:
    try:
        compile(text, "changed", "exec")
    except SyntaxError:
        return False
    return True


class _Module:
    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._lines = text.splitlines(keepends=True)
        self._tree = ast.parse(text)
        self._tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type in (tokenize.OP, tokenize.NAME)
        ]
        self._starts = [token.start for token in self._tokens]
        self._functions = _function_lines(self._tree)

    def changes(self) -> Iterator[Change]:
        yield from self._visit(self._tree, _Place())

    def _visit(self, node: ast.AST, place: _Place) -> Iterator[Change]:
        if isinstance(node, ast.stmt):
            place = _Place(node, place.function, place.inside, _constant_name(node, place))
        yield from self._own(node, place)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_left_out(node, name, child):
                    yield from self._visit(child, _inner(node, name, place))

    def _own(self, node: ast.AST, place: _Place) -> Iterator[Change]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=rights):
                for before, operator in zip([left, *rights], ops, strict=False):
                    yield from self._operator(operator, self._end(before), place)
            case ast.BoolOp(op=operator, values=values):
                for value in values[:-1]:
                    yield from self._operator(operator, self._end(value), place)
            case ast.BinOp(left=left, op=operator, right=right) if not (
                _is_text(left) or _is_text(right)
            ):
                yield from self._operator(operator, self._end(left), place)
            case ast.AugAssign(target=target, op=operator):
                yield from self._operator(operator, self._end(target), place, assigns="=")
            case ast.UnaryOp(op=operator, operand=operand) if not (
                isinstance(operator, ast.USub) and isinstance(operand, ast.Constant)
            ):
                yield from self._operator(operator, self._start(node), place)
            case ast.Constant(value=value) if node.lineno == node.end_lineno:
                for new in _other_constants(value):
                    yield self._change(self._start(node), self._end(node), new, place)
            case _:
                pass

    def _operator(
        self, operator: ast.AST, after: tuple[int, int], place: _Place, assigns: str = ""
    ) -> Iterator[Change]:
        """Yield the change of the first such operator after a position."""
        old, new = _OPERATORS.get(type(operator), ("", ""))
        words = (old + assigns).split()
        for index in range(bisect_left(self._starts, after), len(self._tokens)) if words else ():
            tokens = self._tokens[index : index + len(words)]
            if [token.string for token in tokens] == words:
                yield self._change(tokens[0].start, tokens[-1].end, new and new + assigns, place)
                return

    def _change(
        self, start: tuple[int, int], end: tuple[int, int], new: str, place: _Place
    ) -> Change:
        first, last = self._lines[start[0] - 1], self._lines[end[0] - 1]
        rest = last[end[1] :] if new else last[end[1] :].lstrip()
        line = first[: start[1]] + new + rest
        text = "".join([*self._lines[: start[0] - 1], line, *self._lines[end[0] :]])
        before = "".join(self._lines[start[0] - 1 : end[0]])
        name = place.name if not place.inside else None
        return Change(
            self._file,
            start[0],
            before.strip(),
            line.strip(),
            self._runs(start[0], place),
            name,
            text,
        )

    def _runs(self, line: int, place: _Place) -> tuple[range, ...]:
        if place.inside and place.statement is not None:
            return range(line, line + 1), _header(place.statement)
        inner = place.function
        if inner is not None:
            whole = range(inner.lineno, (inner.end_lineno or 0) + 1)
            own = tuple(one for one in self._functions if one[0] in whole)
            if own:
                return own
        return tuple(self._functions)

    def _start(self, node: ast.expr) -> tuple[int, int]:
        return node.lineno, self._column(node.lineno, node.col_offset)

    def _end(self, node: ast.expr) -> tuple[int, int]:
        line = node.end_lineno or 0
        return line, self._column(line, node.end_col_offset or 0)

    def _column(self, line: int, byte: int) -> int:
        """Return the character of a byte: the tree counts bytes, and tokens count characters."""
        return len(self._lines[line - 1].encode()[:byte].decode())


def _header(statement: ast.stmt) -> range:
    """Return the lines of a statement without the statements inside it."""
    inner = [
        child.lineno
        for child in ast.walk(statement)
        if isinstance(child, ast.stmt) and child is not statement
    ]
    return range(statement.lineno, min(inner, default=(statement.end_lineno or 0) + 1))


def _inner(node: ast.AST, name: str, place: _Place) -> _Place:
    """Return the place of a field of a node. Defaults and decorators run at import time."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not place.inside:
        return _Place(place.statement, node, name == "body")
    if isinstance(node, ast.ClassDef) and not place.inside:
        return _Place(place.statement, node, False)
    if isinstance(node, ast.Lambda) and name == "body":
        return _Place(place.statement, place.function, place.inside, place.name)
    return place


def _constant_name(node: ast.stmt, place: _Place) -> str | None:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name if place.function is None else None
    return None


def _is_left_out(parent: ast.AST, name: str, child: ast.AST) -> bool:
    """Say whether a part of a module is for people, type checkers or linters."""
    if name in ("annotation", "returns", "type_params", "format_spec"):
        return True
    if isinstance(parent, ast.JoinedStr):
        return isinstance(child, ast.Constant)
    match child:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(id=called)) if called in _NAMES_OF_TYPES:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=called)):
            return called in _LOG_METHODS and "log" in of.lower()
        case ast.Subscript(value=ast.Name(id="Literal" | "Callable")):
            return True
        case ast.keyword(arg="frozen" | "slots" | "kw_only"):
            return True
        case ast.FunctionDef(decorator_list=decorators):
            return any(isinstance(one, ast.Name) and one.id == "overload" for one in decorators)
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _other_constants(value: object) -> Iterator[str]:
    match value:
        case bool():
            yield repr(not value)
        case int():
            yield repr(value + 1)
            if value > 1:
                yield repr(value - 1)
        case float():
            yield repr(value * 2 if value else 1.0)
        case str() if value and not any(map(str.isspace, value)):
            yield repr(value + "X")
        case bytes() if value:
            yield repr(value + b"X")
