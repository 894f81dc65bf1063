"""Parse the Java expression of a ``hashCode()`` into a program for a stack machine.

The grammar is a part of Java's, with Java's precedences::

    expression  = disjunction ["?" expression ":" expression]
    disjunction = operands of "|", "^", "&", "==" and "!=", "<<", ">>" and ">>>", "+" and "-", "*"
    unary       = ("-" | "~" | "(int)" | "(long)") unary | postfix
    postfix     = (number | name | "(" expression ")") {"." name ["(" [expression {","…}] ")"]}

Nothing is executed here. A program has no loops, and calls only known functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from statestore.errors import InvalidArgumentError

_LONGEST = 4_000
_DEEPEST = 30  # each level takes up to eleven Python calls
_NUMBER = r"0[xX][0-9a-fA-F_]+[lL]?|\d[\d_]*[lL]?"
_NAME = r"[A-Za-z_$][\w$]*"
_TOKEN = re.compile(rf"\s*({_NUMBER}|{_NAME}|>>>|<<|>>|==|!=|\S)")
_LEVELS = (("|",), ("^",), ("&",), ("==", "!="), ("<<", ">>", ">>>"), ("+", "-"), ("*",))
_CASTS = ("int", "long")
_END = ""


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction: its kind, and a name or a number.

    ``number``, ``long`` and ``name`` push a value. ``member`` replaces a value by one of its
    fields. ``call`` replaces ``count`` values by the result of a function or method. ``binary``,
    ``unary``, ``cast`` and ``choice`` (a ternary) replace 2, 1, 1 and 3 values.
    """

    does: str
    name: str = ""
    number: int = 0
    count: int = 0


@lru_cache(maxsize=64)
def parse_java_hash(text: str) -> tuple[Step, ...]:
    """Return the program of an expression, such as ``31 * a.hashCode() + b``.

    Raises InvalidArgumentError that names the position for any other text.
    """
    if len(text) > _LONGEST:
        raise InvalidArgumentError(f"a recipe has {len(text)} characters: use at most {_LONGEST}")
    parser = _Parser(text)
    parser.expression()
    parser.expect(_END)
    return tuple(parser.steps)


class _Parser:
    """A recursive-descent parser that appends steps to a program."""

    def __init__(self, text: str) -> None:
        self._text = text
        matches = list(_TOKEN.finditer(text.rstrip()))
        self._tokens = [match[1] for match in matches] + [_END]
        self._places = [match.start(1) for match in matches] + [len(text)]
        self._at, self._depth = 0, 0
        self.steps: list[Step] = []

    def expression(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"it is nested more than {_DEEPEST} levels deep")
        self._operands(0)
        if self._skip("?"):
            self.expression()
            self.expect(":")
            self.expression()
            self.steps.append(Step("choice"))
        self._depth -= 1

    def expect(self, token: str) -> None:
        if not self._skip(token):
            raise self._error(f"expected {token!r}" if token else "unexpected text")

    def _operands(self, level: int) -> None:
        """Parse the operators of a level and of all levels that bind more tightly."""
        if level == len(_LEVELS):
            self._unary()
            return
        self._operands(level + 1)
        while self._next in _LEVELS[level]:
            operator = self._take()
            self._operands(level + 1)
            self.steps.append(Step("binary", operator))

    def _unary(self) -> None:
        before: list[Step] = []
        while True:
            if self._next in ("-", "~"):
                before.append(Step("unary", self._take()))
            elif self._next == "(" and self._tokens[self._at + 1] in _CASTS:
                self._take()
                before.append(Step("cast", self._take()))
                self.expect(")")
            else:
                break
        self._postfix()
        self.steps += reversed(before)

    def _postfix(self) -> None:
        if self._skip("("):
            self.expression()
            self.expect(")")
        elif self._next[:1].isdigit():
            self._number()
        else:
            self.steps.append(Step("name", self._name()))
        while self._skip("."):
            name = self._name()
            if self._skip("("):
                self.steps.append(Step("call", name, count=1 + self._arguments()))
            else:
                self.steps.append(Step("member", name))

    def _arguments(self) -> int:
        if self._skip(")"):
            return 0
        count = 1
        self.expression()
        while self._skip(","):
            self.expression()
            count += 1
        self.expect(")")
        return count

    def _number(self) -> None:
        token = self._next
        is_long = token[-1] in "lL"
        digits = token.rstrip("lL").replace("_", "").lower()
        is_hex = digits.startswith("0x")
        if not is_hex and len(digits) > 1 and digits[0] == "0":
            raise self._error(f"{token} is octal in Java: write it as a decimal number")
        number, bits = int(digits, 16 if is_hex else 10), 64 if is_long else 32
        # The least number is the negation of one that is too large, which a "-" makes of it.
        if number >= 1 << bits if is_hex else number > 1 << bits - 1:
            raise self._error(f"{token} is too large")
        wrapped = (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        self._take()
        self.steps.append(Step("long" if is_long else "number", token, wrapped))

    def _name(self) -> str:
        if not re.fullmatch(_NAME, self._next):
            raise self._error("expected a name or a number")
        return self._take()

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _take(self) -> str:
        token = self._next
        self._at += 1
        return token

    def _skip(self, token: str) -> bool:
        """Skip a token if it is the next one."""
        if self._next != token:
            return False
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return True

    def _error(self, problem: str) -> InvalidArgumentError:
        place = self._places[self._at]
        found = self._text[place : place + 20] or "its end"
        return InvalidArgumentError(
            f"the recipe {self._text!r} is not understood at character {place + 1} ({found}): "
            f"{problem}. Use numbers, fields of the key, + - * ^ | & << >> >>>, field.hashCode(), "
            "Objects.hash(…) and Arrays.hashCode(field)"
        )
