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
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, Unpack, get_args, get_origin

from statestore.errors import InvalidArgumentError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


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
    types_of: dict[str, Any] | None = None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal types_of
        if types_of is None:  # at the first call, all names in the signature are defined
            types_of = dict(_annotations(signature, _Names(vars(sys.modules[function.__module__]))))
        arguments = dict(zip(signature.parameters, args, strict=False)) | kwargs
        for parameter, value in arguments.items():
            wrong = _first_wrong(types_of.get(parameter, Any), value, parameter)
            if wrong is not None:
                place, annotation, part = wrong
                raise InvalidArgumentError(
                    f"{name}: {place} must be of type {_text(annotation)}, not "
                    f"{type(part).__name__}"
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
    """Return the class with each of its own public methods wrapped by :func:`checked`.

    A function of another module can be a method, as in ``gc = collect_garbage``. Documentation then
    shows the name of the method, and ``self`` in place of the function's first parameter.
    """
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, types.FunctionType):
            setattr(cls, name, _method(_checked(member, name), f"{cls.__qualname__}.{name}"))
        elif isinstance(member, classmethod):
            setattr(cls, name, classmethod(checked(member.__func__)))
    return cls


def _method(function: Callable[P, R], qualified_name: str) -> Callable[P, R]:
    """Return a new function that calls a method and has its name and signature."""
    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    own = first.replace(name="self", annotation=first.empty)
    function.__qualname__ = qualified_name
    function.__name__ = qualified_name.rpartition(".")[2]
    function.__signature__ = signature.replace(parameters=[own, *others])  # type: ignore[attr-defined]
    return function


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
    """The names of a module; a name that exists only for type checkers accepts every value."""

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


_origin: Callable[[Any], Any] = cache(get_origin)
_parts: Callable[[Any], tuple[Any, ...]] = cache(get_args)


def _first_wrong(annotation: Any, value: Any, place: str) -> tuple[str, Any, Any] | None:
    """Return the place, the expected type and the value of the first part that has a wrong type.

    The part is ``value``, or one of its elements at any depth. None if all types are right.
    """
    if annotation is Any:
        return None
    parts, itself = _parts(annotation), (place, annotation, value)
    if _origin(annotation) in (Union, types.UnionType):
        wrong_as = []
        for part in parts:
            if (wrong := _first_wrong(part, value, place)) is None:
                return None
            wrong_as.append(wrong)
        return next((wrong for wrong in wrong_as if wrong[0] != place), itself)
    if not _has_type(annotation, value):
        return itself
    for element in _elements(_origin(annotation), parts, value, place) if parts else ():
        if (wrong := _first_wrong(*element)) is not None:
            return wrong
    return None


def _has_type(annotation: Any, value: Any) -> bool:
    """Return whether a value has a type that is not a union; its elements are not checked."""
    expected = _origin(annotation) or annotation
    if annotation is None:
        return value is None
    if expected is Literal:
        return isinstance(value, str) and value in _parts(annotation)
    if not isinstance(expected, type) or expected in (Any, object, _Anything):
        return True
    if getattr(expected, "_is_protocol", False):
        return True
    if expected in (int, float):
        number: type = Integral if expected is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    if issubclass(expected, os.PathLike):
        return isinstance(value, os.PathLike)
    if expected is tuple and _parts(annotation):
        return isinstance(value, tuple | list) and len(value) == len(_parts(annotation))
    if annotation is not expected and issubclass(expected, Iterable):
        # A text is one value, and not a sequence of its letters.
        return isinstance(value, expected) and not isinstance(value, str | bytes | bytearray)
    return isinstance(value, expected)


def _elements(
    origin: Any, parts: Sequence[Any], value: Any, place: str
) -> Iterator[tuple[Any, Any, str]]:
    """Yield the expected type, the value and the place of each element of a collection."""
    is_open = all(part is Any for part in parts)
    if is_open or not isinstance(origin, type) or not isinstance(value, Collection):
        return
    if issubclass(origin, Mapping):
        for key, item in value.items():  # type: ignore[attr-defined]
            yield parts[0], key, f"a key of {place}"
            yield parts[1], item, f"{place}[{key!r:.80}]"
    elif issubclass(origin, tuple):
        for index, (part, element) in enumerate(zip(parts, value, strict=True)):
            yield part, element, f"{place}[{index}]"
    elif issubclass(origin, Iterable):
        elements: Iterable[tuple[int, Any]] = enumerate(value)
        if not _parts(parts[0]):  # one element of each class is enough, which is faster
            seen: dict[type, tuple[int, Any]] = {}
            for index, element in elements:
                seen.setdefault(type(element), (index, element))
            elements = seen.values()
        is_ordered = isinstance(value, Sequence)
        for index, element in elements:
            yield parts[0], element, f"{place}[{index}]" if is_ordered else f"an element of {place}"
