"""Shorten a failing history as far as possible while it fails in the same way.

Everything in a history is a value. Tuples lose members, many together or one at a time. Rows lose
values, and numbers and texts become the simplest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

from tests.fuzz.history import Column, Given, History

__all__ = ["shrunk"]

T = TypeVar("T")
MOST_TRIES = 1500
SIMPLEST: dict[type, tuple[Any, ...]] = {
    str: ("", "a"),
    bytes: (b"",),
    int: (0, 1),
    float: (0.0, 1.0),
    bool: (False,),
}


class Fails(Protocol):
    what: str


def shrunk(history: History, what: str, failure: Callable[[History], Any]) -> History:
    """Return a shorter history with the failure ``what``, as determined by ``failure``."""
    left, start, shorter = MOST_TRIES, 0, True
    while shorter and left > 0:
        shorter = False
        for at, candidate in enumerate(simpler(history)):
            if at < start:
                continue
            left -= 1
            found = failure(candidate)
            if found is not None and found.what == what:
                # Earlier candidates would most likely succeed again.
                history, start, shorter = candidate, at, True
                break
            if left <= 0:
                break
        else:
            start, shorter = 0, start > 0
    return history


def simpler(history: History) -> Iterator[History]:
    """Yield histories with less content, the much smaller ones first."""
    for steps in _shorter(history.steps):
        yield replace(history, steps=steps)
    if any(step.elements for step in history.steps):
        yield replace(history, steps=tuple(replace(step, elements={}) for step in history.steps))
    shape = history.shape
    for name in ("operators", "values", "namespace"):
        for part in _shorter(getattr(shape, name)):
            fewer = replace(shape, **{name: part})
            if shape.ttl_ms is None or any(column.name == "t" for column in fewer.values):
                yield replace(history, shape=fewer)
    for name in ("key", "entry"):
        for part in _shorter(getattr(shape, name)):
            if part:
                yield replace(history, shape=replace(shape, **{name: part}))
    for changed in ({"ttl_ms": None}, {"merge_layers": None}, {"max_parallelism": 1}):
        if any(getattr(shape, name) != value for name, value in changed.items()):
            yield replace(history, shape=replace(shape, **changed))
    yield from _simpler_steps(history)
    yield from _simpler_kinds(history)


def _simpler_steps(history: History) -> Iterator[History]:
    for at, step in enumerate(history.steps):
        for name in (field.name for field in fields(step)):
            for value in _simpler_value(getattr(step, name), name):
                changed = replace(step, **{name: value})
                steps = (*history.steps[:at], changed, *history.steps[at + 1 :])
                yield replace(history, steps=steps)


def _simpler_kinds(history: History) -> Iterator[History]:
    """Yield histories with simpler column types: a part of a type, or the simplest type."""
    shape = history.shape
    for name in ("key", "namespace", "entry", "values"):
        columns: tuple[Column, ...] = getattr(shape, name)
        for at, column in enumerate(columns):
            if column.name == "t" or isinstance(column.kind, str):
                continue
            for kind in _parts(column.kind):
                changed = (*columns[:at], Column(column.name, kind), *columns[at + 1 :])
                columns_now: dict[str, Any] = {name: changed}
                yield replace(history, shape=replace(shape, **columns_now))


def _parts(kind: Any) -> Iterator[Any]:
    if kind[0] == "struct":
        for fewer in _shorter(kind[1]):
            if fewer:
                yield ("struct", fewer)
        yield from (part for _, part in kind[1])
    elif kind[0] in ("array", "map"):
        yield from kind[1:]


def _simpler_value(value: Any, name: str = "") -> Iterator[Any]:
    if isinstance(value, Given):
        if value != Given():
            yield Given()
            yield Given(value.writer, 0)
    elif isinstance(value, tuple | list):
        yield from _shorter(value)
        for at, part in enumerate(value):
            for one in _simpler_value(part):
                yield type(value)((*value[:at], one, *value[at + 1 :]))
    elif isinstance(value, dict):
        for key, part in value.items():
            if part is not None:
                yield {**value, key: None} if name != "elements" else {**value, key: ()}
        for key, part in value.items():
            for one in _simpler_value(part):
                yield {**value, key: one}
    elif not is_dataclass(value) and name not in ("look", "layout", "how"):
        for one in SIMPLEST.get(type(value), ()):
            if repr(one) != repr(value):
                yield one
            else:
                break


def _shorter(values: Any) -> Iterator[Any]:
    """Yield a tuple without halves, quarters and single members."""
    size = len(values)
    while size > 0:
        for start in range(0, len(values), size):
            if size < len(values) or len(values) == 1 or start == 0:
                yield values[:start] + values[start + size :]
        size //= 2
