"""``bench.flows``: which modules a flow passes, and how often it returns to one of them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from bench.flows import passage_of

Function = Callable[..., Any]


def module(name: str, code: str) -> dict[str, Any]:
    """Return the members of a module that has this name and code."""
    members: dict[str, Any] = {"__name__": name}
    exec(code, members)
    return members


UPPER = module(
    "statestore.upper",
    """
def straight(lower): return lower(3)
def calls_back(lower): return lower(lambda n: n)
def gives_numbers(lower): return lower(n for n in range(5))
def nothing(): pass
""",
)
LOWER = module(
    "statestore.lower",
    """
def double(n): return 2 * n
def call(function): return function(1)
def total(numbers): return sum(numbers)
""",
)
FOREIGN = module("somewhere", "def call(function): return function(1)")


def test_a_flow_that_only_goes_down_has_no_returns() -> None:
    passage = passage_of(lambda: UPPER["straight"](LOWER["double"]))
    assert passage.modules == {"statestore.upper", "statestore.lower"}
    assert passage.returns == 0


def test_a_callback_is_a_return() -> None:
    passage = passage_of(lambda: UPPER["calls_back"](LOWER["call"]))
    place = ("statestore.lower", "statestore.upper", "calls_back.<locals>.<lambda>")
    assert passage.places == {place: 1}


def test_a_generator_is_one_return_however_many_values_it_has() -> None:
    passage = passage_of(lambda: UPPER["gives_numbers"](LOWER["total"]))
    assert passage.returns == 1


def test_a_second_call_of_a_finished_module_is_no_return() -> None:
    def flow() -> None:
        UPPER["nothing"]()
        LOWER["double"](1)
        UPPER["nothing"]()

    assert passage_of(flow).returns == 0


def test_a_callback_from_another_library_to_its_caller_is_no_return() -> None:
    assert passage_of(lambda: UPPER["calls_back"](FOREIGN["call"])).returns == 0


def test_threads_of_a_flow_count() -> None:
    def flow() -> None:
        thread = Thread(target=UPPER["gives_numbers"], args=[LOWER["total"]])
        thread.start()
        thread.join()

    passage = passage_of(flow)
    assert passage.modules == {"statestore.upper", "statestore.lower"}
    assert passage.returns == 1
