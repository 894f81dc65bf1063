"""Check the arguments of public functions against the types in their signatures.

A value of a wrong type would fail somewhere below, with an error of Python or of a library that
names neither the argument nor the expected type. So one signature serves as documentation, is
checked by mypy, and is checked when the function is called.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, Unpack, get_args, get_origin

from statestore.errors import InvalidArgumentError

__all__ = ["checked", "checked_fields", "checked_methods"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
Check = Callable[[Any], bool]
"""Whether a value is one of a type."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with its arguments checked.

    InvalidArgumentError names the first argument whose type differs from the signature. ``Any``,
    and types that only a type checker imports, are not checked. The elements of an iterator are not
    checked either, because they can be read only once. InvalidArgumentError is also raised for a
    value, type or statement that is nested more deeply than Python can walk.
    """
    return _checked(function, function.__name__)


def checked_fields(cls: C) -> C:
    """Make a dataclass check the types of its fields in its constructor; return the class."""
    cls.__init__ = _checked(vars(cls)["__init__"], cls.__name__)  # type: ignore[misc]
    return cls


def _checked(function: Callable[P, R], name: str) -> Callable[P, R]:
    """Return the function with its arguments checked; messages begin with ``name``."""
    signature = inspect.signature(function)
    checks: dict[str, _Parameter] | None = None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal checks
        if checks is None:  # at the first call, all names in the signature are defined
            checks = _checks(function, signature)
        arguments = dict(zip(signature.parameters, args, strict=False)) | kwargs
        for parameter, check in checks.items():
            if parameter in arguments and not check.holds(arguments[parameter]):
                raise InvalidArgumentError(
                    f"{name}: {check.problem(parameter, arguments[parameter])}"
                )
        try:
            return function(*args, **kwargs)
        except RecursionError as error:
            raise InvalidArgumentError(
                f"{name}: a value, a type or a statement is nested too deeply ({error}); store or "
                "pass the inner part as JSON or as binary"
            ) from error

    return call


def checked_methods(cls: C) -> C:
    """Return the class with each of its own public methods wrapped by :func:`checked`."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, types.FunctionType):
            setattr(cls, name, checked(member))
        elif isinstance(member, classmethod):
            setattr(cls, name, classmethod(checked(member.__func__)))
    return cls


@dataclass(frozen=True)
class _Parameter:
    """The check for a parameter, and its type."""

    holds: Check
    annotation: Any

    def problem(self, name: str, value: Any) -> str:
        """Describe why a value fails the check.

        For a list, tuple or mapping, name the first wrong element and its place.
        """
        place, annotation, wrong = _first_wrong(self.annotation, value, name)
        return f"{place} must be of type {_text(annotation)}, not {type(wrong).__name__}"


def _checks(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, _Parameter]:
    names = _Names(vars(sys.modules[function.__module__]))
    checks = {}
    for name, annotation in _annotations(signature, names):
        check = _check_of(annotation)
        if check is not None:
            checks[name] = _Parameter(check, annotation)
    return checks


def _annotations(signature: inspect.Signature, names: _Names) -> Iterator[tuple[str, Any]]:
    """Yield the parameters with their types, including each keyword of an unpacked ``TypedDict``.

    ``names`` are the names of the module that defines the function.
    """
    for name, parameter in signature.parameters.items():
        if parameter.annotation is parameter.empty or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        annotation = _evaluate(parameter.annotation, names)
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield name, annotation
        elif get_origin(annotation) is Unpack:
            (keywords,) = get_args(annotation)
            names_there = _Names(vars(sys.modules[keywords.__module__]))
            for keyword, forward in keywords.__annotations__.items():
                yield keyword, _evaluate(forward.__forward_arg__, names_there)


class _Names(dict[str, Any]):
    """The names of a module; a name that only a type checker knows accepts everything."""

    def __missing__(self, name: str) -> Any:
        builtins: dict[str, Any] = vars(sys.modules["builtins"])
        return builtins.get(name, _Anything)


class _AnyAttribute(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Anything(metaclass=_AnyAttribute):
    """An unknown type, module or generic type."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


def _evaluate(annotation: Any, names: _Names) -> Any:
    return eval(annotation, {}, names) if isinstance(annotation, str) else annotation


def _text(annotation: Any) -> str:
    """Return a type as in its annotation, without module names."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(map(_text, get_args(annotation)))
    if annotation is type(None):
        return "None"
    if get_origin(annotation) is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    plain = (
        annotation.__name__
        if isinstance(annotation, type) and not get_args(annotation)
        else str(annotation)
    )
    return re.sub(r"(?:\w+\.)+", "", plain).replace(_Anything.__name__, "Any")


def _check_of(annotation: Any) -> Check | None:
    """Return the check for a type; None if any value is allowed."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union_check([_check_of(part) for part in parts])
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in parts
    if isinstance(annotation, type) and origin is None:
        return _class_check(annotation)
    if origin is None or not isinstance(origin, type):
        return None
    if issubclass(origin, Mapping):
        return _mapping_check(*map(_check_of, parts))
    if issubclass(origin, tuple):
        return _tuple_check([_check_of(part) for part in parts])
    if issubclass(origin, Iterable):
        return _iterable_check(origin, _check_of(parts[0]))
    return lambda value: isinstance(value, origin)


def _union_check(checks: Sequence[Check | None]) -> Check | None:
    if None in checks:
        return None
    known = [check for check in checks if check is not None]
    return lambda value: any(check(value) for check in known)


def _class_check(expected: type) -> Check | None:
    if expected in (Any, object, _Anything) or getattr(expected, "_is_protocol", False):
        return None
    if expected in (int, float):
        number: type = Integral if expected is int else Real
        return lambda value: isinstance(value, number) and not isinstance(value, bool)
    if issubclass(expected, os.PathLike):
        return lambda value: isinstance(value, os.PathLike)
    return lambda value: isinstance(value, expected)


def _mapping_check(key: Check | None, item: Check | None) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            (key is None or key(element)) and (item is None or item(value[element]))
            for element in value
        )

    return check


def _tuple_check(parts: Sequence[Check | None]) -> Check:
    def check(value: Any) -> bool:
        return (
            isinstance(value, tuple | list)
            and len(value) == len(parts)
            and all(
                part is None or part(element) for part, element in zip(parts, value, strict=True)
            )
        )

    return check


def _iterable_check(expected: type, element: Check | None) -> Check:
    """A text is one value, and not a sequence of its letters."""

    def check(value: Any) -> bool:
        if not isinstance(value, expected) or isinstance(value, str | bytes | bytearray):
            return False
        return element is None or not isinstance(value, Collection) or all(map(element, value))

    return check


def _first_wrong(annotation: Any, value: Any, place: str) -> tuple[str, Any, Any]:
    """Return the place, the expected type and the value of the first part of a wrong type.

    ``value`` does not have the type ``annotation``. If it is a collection of the right kind, the
    part is one of its elements, at any depth. Otherwise the part is ``value`` itself.
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    itself = (place, annotation, value)
    if origin in (Union, types.UnionType):
        found = [_first_wrong(part, value, place) for part in parts]
        return next((wrong for wrong in found if wrong[0] != place), itself)
    for part, element, at in _elements(origin, parts, value, place):
        check = _check_of(part)
        if check is not None and not check(element):
            return _first_wrong(part, element, at)
    return itself


def _elements(
    origin: Any, parts: Sequence[Any], value: Any, place: str
) -> Iterator[tuple[Any, Any, str]]:
    """Yield the expected type, the value and the place of each element of a collection.

    Nothing is yielded if the collection does not have the type ``origin``.
    """
    if not isinstance(origin, type):
        return
    if issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield parts[0], key, f"a key of {place}"
                yield parts[1], item, f"{place}[{key!r:.80}]"
    elif issubclass(origin, tuple):
        if isinstance(value, tuple | list) and len(value) == len(parts):
            for index, (part, element) in enumerate(zip(parts, value, strict=True)):
                yield part, element, f"{place}[{index}]"
    elif issubclass(origin, Iterable) and isinstance(value, origin):
        is_text = isinstance(value, str | bytes | bytearray)
        if isinstance(value, Collection) and not is_text:
            for index, element in enumerate(value):
                is_ordered = isinstance(value, Sequence)
                yield (
                    parts[0],
                    element,
                    f"{place}[{index}]" if is_ordered else f"an element of {place}",
                )
