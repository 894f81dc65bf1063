"""Public calls can be read at their call: few arguments, each with a name and a type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from typing import Any, is_typeddict

from statestore.api.inspection import StoreInspection
from statestore.api.maintenance import StoreMaintenance
from statestore.restore.lookup import LazySubtask
from statestore.restore.restored import RestoredKeyedState, RestoredOperatorState

MOST_ARGUMENTS = 11
UNPACKED = re.compile(r"Unpack\[\w+\]")
"""Keywords whose names and types are in a ``TypedDict``."""
MODULES = (
    "statestore",
    "statestore.interop.flink",
    "statestore.interop.flink_plans",
    "statestore.interop.spark",
    "statestore.jobgraph",
    "statestore.streaming",
)
INNER = (StoreInspection, StoreMaintenance, LazySubtask, RestoredKeyedState, RestoredOperatorState)
# Only the project itself makes objects of these classes.
RESULTS = {
    *("ExportedLocation", "ImportedOperator", "ImportedState", "Manifest", "ShownLocation"),
    "ShownOperator",
}


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions, constructors and methods, with their names."""
    exported = [
        (f"{module}.{name}", getattr(import_module(module), name))
        for module in MODULES
        for name in import_module(module).__all__
    ]
    for name, value in (*exported, *((one.__name__, one) for one in INNER)):
        if inspect.isfunction(value):
            yield name, value
        if not inspect.isclass(value):
            continue
        if is_made_by_users(value):
            yield name, value.__init__
        for attribute in vars(value):
            member = getattr(value, attribute)
            if not attribute.startswith("_") and (
                inspect.isfunction(member) or inspect.ismethod(member)
            ):
                yield f"{name}.{attribute}", member


def is_made_by_users(value: type[Any]) -> bool:
    """Return whether users call the constructor of a class."""
    is_type_only = (
        issubclass(value, Enum) or getattr(value, "_is_protocol", False) or is_typeddict(value)
    )
    return not is_type_only and value.__name__ not in RESULTS and value not in INNER


CALLS = dict(calls())


def arguments(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a caller passes."""
    return [one for one in inspect.signature(call).parameters.values() if one.name != "self"]


def test_an_operator_and_a_state_are_called_so() -> None:
    """A uid is the text that identifies an operator of a job graph."""
    of_graphs = ("statestore.jobgraph.", "statestore.interop.flink.ExportedOperator")
    named = {
        name: {argument.name for argument in arguments(call)}
        for name, call in CALLS.items()
        if not name.startswith(of_graphs)
    }
    assert [name for name, names in named.items() if "uid" in names] == []
    assert [name for name, names in named.items() if {"operator", "name"} <= names] == []


def test_the_calls_are_those_of_users() -> None:
    """Among them are classmethods, and methods that are checked when they are called."""
    assert {
        "statestore.StateStore.open",
        "statestore.StateStore.restore",
        "statestore.CheckpointWriter.write_keyed",
        "statestore.streaming.StatefulQuery",
        "statestore.streaming.StatefulQuery.of_processor",
        "RestoredKeyedState.to_arrow",
    } <= CALLS.keys()


def test_a_call_has_few_arguments_with_names() -> None:
    parameters = {name: arguments(call) for name, call in CALLS.items()}
    assert [name for name, given in parameters.items() if len(given) > MOST_ARGUMENTS] == []
    assert [
        name
        for name, given in parameters.items()
        if any(one.kind is one.VAR_KEYWORD and not UNPACKED.match(one.annotation) for one in given)
    ] == []


def test_a_duration_has_no_unit_in_its_name() -> None:
    """Instants are milliseconds since 1970. An event also reports how long something took."""
    instants = {"now_ms", "planned_at_ms", "watermark_ms", "timestamp_ms", "at_ms"}
    units = ("_ms", "_s", "_seconds", "_minutes", "_hours", "_days")
    parameters = {
        f"{name}({one.name})": one.name for name, call in CALLS.items() for one in arguments(call)
    }
    assert [
        place for place, name in parameters.items() if name.endswith(units) and name not in instants
    ] == []
