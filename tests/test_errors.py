"""The error tree: every error travels between processes, and says what to do next."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from statestore import errors
from statestore.errors import (
    InvalidArgumentError,
    NullKeyError,
    ParallelismError,
    Remedy,
    StateStoreError,
)

CLASSES: list[Any] = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if value.__module__ == errors.__name__ and issubclass(value, Exception)
]


@pytest.mark.parametrize("error_class", CLASSES)
def test_an_error_survives_pickling(error_class: type[StateStoreError]) -> None:
    """Spark carries errors from its workers, with the same message, attributes and notes."""
    error = error_class("what to do")
    error.add_note("where it happened")
    vars(error)["detail"] = 7
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is error_class
    assert str(copy) == str(error) == "what to do"
    assert copy.args == error.args
    assert copy.__notes__ == ["where it happened"]
    assert vars(copy)["detail"] == 7


def test_a_null_key_error_carries_the_number_of_rows() -> None:
    """Also through pickling, where Spark's tasks add theirs up."""
    copy = pickle.loads(pickle.dumps(NullKeyError("5 rows have a null key", 5)))
    assert copy.rows == 5
    assert str(copy) == "5 rows have a null key"
    copy.reword(lambda argument, value: None)
    assert str(copy) == "5 rows have a null key"


def test_a_front_end_words_the_arguments_of_an_error() -> None:
    def option(argument: str, value: int | None) -> str | None:
        if argument == "elsewhere":
            return None
        return f"--{argument}" if value is None else f"--{argument} {value}"

    remedy = Remedy("max", 16, "it is a multiple")
    error = ParallelismError("restore at 8 or less", remedy=remedy)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "restore at 8 or less, or pass max=16: it is a multiple"
    copy.reword(option)
    assert str(copy) == "restore at 8 or less, or pass --max 16: it is a multiple"
    other = ParallelismError("restore at 8 or less", remedy=Remedy("elsewhere", 16, "so"))
    other.reword(option)
    assert str(other) == "restore at 8 or less"
    for argument, name in (("last", "--last"), ("elsewhere", "elsewhere")):
        subject = InvalidArgumentError("must be above 0", argument=argument)
        assert str(pickle.loads(pickle.dumps(subject))) == f"{argument} must be above 0"
        subject.reword(option)
        assert str(subject) == f"{name} must be above 0"


def test_every_error_has_a_kind_of_its_own() -> None:
    """Programs match on it."""
    kinds = [error_class.__dict__["kind"] for error_class in CLASSES]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind) for kind in kinds)


def test_an_exit_code_is_of_one_branch() -> None:
    """Shells tell by it what to do: no two branches below the root share one."""
    branches = StateStoreError.__subclasses__()
    codes = {branch: branch.exit_code for branch in branches}
    assert len({0, StateStoreError.exit_code, *codes.values()}) == 2 + len(branches)
    for error_class in CLASSES:
        if error_class is not StateStoreError:
            branch = next(branch for branch in branches if issubclass(error_class, branch))
            assert error_class.exit_code == codes[branch]


def test_the_drawn_tree_is_the_classes() -> None:
    """The docstring's tree, its exit codes and the builtins that it names."""
    assert _drawn() == {
        error_class.__name__: (
            error_class.__bases__[0].__name__,
            tuple(base.__name__ for base in error_class.__bases__[1:]),
        )
        for error_class in CLASSES
    }
    drawn = re.findall(r"(\w+Error)\b.*?\s(\d+)  ", errors.__doc__ or "")
    assert {name: int(code) for name, code in drawn} == {
        error_class.__name__: error_class.exit_code
        for error_class in StateStoreError.__subclasses__()
    }


def test_all_lists_every_class_sorted() -> None:
    """And nothing else."""
    assert errors.__all__ == sorted(error_class.__name__ for error_class in CLASSES)


def _drawn() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Class → (class above it, builtins beside it), as the docstring draws it."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+Error)(?: +\((\w+)\))?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        above[depth] = match[2]
        parent = above[depth - 1] if depth else "Exception"
        found[match[2]] = (parent, (match[3],) if match[3] else ())
    return found
