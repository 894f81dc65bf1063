"""Arguments are of the types that a signature states, or the error says which is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pytest

from statestore.arguments import checked, checked_fields, checked_methods
from statestore.errors import InvalidArgumentError
from statestore.keys.groups import KeyGroupRange

if TYPE_CHECKING:
    import pyarrow as pa
    from nowhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")
RANGE = KeyGroupRange(0, 1)


@checked
def takes(
    number: int | None = None,
    text: str = "",
    either: int | Literal["auto"] = 1,
    real: float = 1.0,
    flag: bool = False,
    place: str | Path = "",
    names: str | Sequence[str] = (),
    hosts: Mapping[str, int] | None = None,
    some: Iterable[int] = (),
    groups: KeyGroupRange = RANGE,
    call: Callable[[int], None] | None = None,
    pairs: Sequence[tuple[str, Sequence[T]]] = (),
    anything: Any = None,
    far: pa.Table | None = None,
    unknown: Mapping[str, Unknown.Inner[int]] | None = None,
) -> str:
    """Return that it ran."""
    return "ran"


GOOD: dict[str, list[Any]] = {
    "number": [1, np.int64(3), None],
    "text": ["a"],
    "either": [3, "auto"],
    "real": [1, 1.5, np.float32(2)],
    "flag": [True],
    "place": ["a", Path("a")],
    "names": ["a", ["a"], ("a", "b")],
    "hosts": [{"a": 1}, {}, None],
    "some": [[1], iter(["a"]), range(3), {1, 2}],
    "groups": [RANGE],
    "call": [print, None],
    "pairs": [[("a", [1, "b"])], []],
    "anything": [object(), None],
    "far": [None, 3],
    "unknown": [{"a": object()}, None],
}
BAD: dict[str, list[Any]] = {
    "number": [True, 1.5, "1", Decimal(1), [1]],
    "text": [b"a", 1, None],
    "either": ["automatic", 1.5, None],
    "real": ["1", True, 1j, Decimal(1)],
    "flag": [1, "true", None],
    "place": [b"a", 1],
    "names": [1, [1], b"ab", None],
    "hosts": [{"a": "b"}, {1: 1}, [("a", 1)], "ab"],
    "some": [["a"], "12", 3, b"12"],
    "groups": [(0, 1), "0-1"],
    "call": [3],
    "pairs": [["ab"], [("a",)], [("a", "b")]],
    "unknown": [3, {1: 2}],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in GOOD.items() for v in vs])
def test_what_is_of_the_type_goes_through(name: str, value: Any) -> None:
    assert takes(**{name: value}) == "ran"


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_what_is_not_is_refused_by_name(name: str, value: Any) -> None:
    place = rf"(a key of |an element of )?{name}(\[.*\])?"
    with pytest.raises(InvalidArgumentError, match=f"^takes: {place} must be of type .*, not "):
        takes(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("names", ["a", 1], "names[1] must be of type str, not int"),
        ("names", 1, "names must be of type str | Sequence[str], not int"),
        ("hosts", {"a": 1, "b": "c"}, "hosts['b'] must be of type int, not str"),
        ("hosts", {"a": 1, 2: 3}, "a key of hosts must be of type str, not int"),
        ("some", {"a"}, "an element of some must be of type int, not str"),
        ("pairs", [("a", []), ("b", [], 1)], "pairs[1] must be of type tuple[str, Sequence[~T]]"),
        ("pairs", [("a", []), (3, [])], "pairs[1][0] must be of type str, not int"),
    ],
)
def test_a_wrong_element_is_named_with_its_place(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        takes(**{name: value})
    assert str(raised.value).startswith(f"takes: {message}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("number", "int | None"),
        ("place", "str | Path"),
        ("names", "str | Sequence[str]"),
        ("hosts", "Mapping[str, int] | None"),
        ("either", "int | 'auto'"),
        ("groups", "KeyGroupRange"),
        ("unknown", "Mapping[str, Any] | None"),
    ],
)
def test_messages_say_types_as_a_signature_does(name: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        takes(**dict[str, Any]({name: object()}))
    assert str(raised.value) == f"takes: {name} must be of type {text}, not object"


def test_positional_arguments_are_held_too() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^takes: number must be of type int \| None"):
        takes("1")  # type: ignore[arg-type]


def test_errors_of_the_function_are_its_own() -> None:
    """What goes wrong within is not taken for an argument."""

    @checked
    def fails(number: int) -> None:
        raise TypeError("a defect")

    with pytest.raises(TypeError, match="a defect"):
        fails(1)
    with pytest.raises(TypeError, match="missing 1 required"):
        fails()  # type: ignore[call-arg]


def test_public_methods_of_a_class_are_checked() -> None:
    @checked_methods
    class Store:
        def get(self, key: str) -> str:
            return key

        @classmethod
        def open(cls, url: str) -> Store:
            return cls()

        def _own(self, key: str) -> str:
            return key

    store = Store.open("a")
    assert store.get("a") == "a"
    assert store._own(1) == 1  # type: ignore[arg-type, comparison-overlap]
    for wrong in (lambda: store.get(1), lambda: Store.open(1)):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            wrong()


@checked_fields
@dataclass(frozen=True, kw_only=True)
class Options:
    size: int | None = None


def test_fields_of_a_value_are_checked() -> None:
    assert Options(size=1).size == 1
    assert replace(Options(size=1), size=None) == Options()
    wrong: dict[str, Any] = {"size": "1"}
    with pytest.raises(InvalidArgumentError, match=r"Options: size must be of type int \| None"):
        Options(**wrong)
    with pytest.raises(InvalidArgumentError, match="Options: size"):
        replace(Options(), **wrong)
