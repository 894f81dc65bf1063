"""A node of a compiled plan: an operator, its properties in the plan, and its input rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from statestore.errors import CorruptionError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import LogicalType
from statestore.interop.flink_plans.plan_types import PlanField, parse_row_type

T = TypeVar("T")


@dataclass(frozen=True)
class PlanNode:
    """A node.

    ``name`` is the type without its version, such as ``stream-exec-join``. ``inputs`` are the
    rows of each input. ``is_single`` is true if all rows of an input go to one subtask. ``where``
    is the place in the plan, for messages.
    """

    id: int
    name: str
    version: str
    data: Mapping[str, Any]
    inputs: tuple[tuple[PlanField, ...], ...]
    is_single: bool
    where: str

    def value(self, name: str, value_type: type[T]) -> T:
        """Return a member of the node; CorruptionError if it is missing or of another type."""
        value = self.data.get(name)
        if not isinstance(value, value_type) or (value_type is int and isinstance(value, bool)):
            raise self.error(f"has no valid {name!r}: {value!r:.100}")
        return value

    def flag(self, name: str) -> bool:
        """Return a member that is true or false, false if it is missing."""
        return self.data.get(name) is not None and self.value(name, bool)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a member that is a list of whole numbers."""
        return self._check_numbers(self.value(name, list), name)

    def number_lists(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return a member that is a list of lists of whole numbers, empty if it is missing."""
        if self.data.get(name) is None:
            return ()
        return tuple(self._check_numbers(part, name) for part in self.value(name, list))

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return a member that is a list of values that are true or false."""
        values = self.value(name, list)
        if not all(isinstance(value, bool) for value in values):
            raise self.error(f"has no valid {name!r}: {values!r:.100}")
        return tuple(values)

    def row(self, name: str) -> tuple[PlanField, ...]:
        """Return the fields of a member that is a row type."""
        return parse_row_type(self.data.get(name), f"{name!r} of {self.where}")

    def member(self, name: str) -> PlanNode:
        """Return an object within the node, with its members."""
        data = self.value(name, dict)
        where = f"{name!r} of {self.where}"
        return PlanNode(self.id, self.name, self.version, data, self.inputs, self.is_single, where)

    def members(self, name: str) -> tuple[PlanNode, ...]:
        """Return the objects of a list within the node."""
        return tuple(
            PlanNode(
                self.id,
                self.name,
                self.version,
                {name: item},
                self.inputs,
                self.is_single,
                self.where,
            ).member(name)
            for item in self.value(name, list)
        )

    def input(self, number: int = 0) -> tuple[PlanField, ...]:
        """Return the fields of an input."""
        if number >= len(self.inputs):
            raise self.error(f"has {len(self.inputs)} inputs, but needs {number + 1}")
        return self.inputs[number]

    def select(self, fields: Sequence[T], indexes: Sequence[int], name: str) -> tuple[T, ...]:
        """Return fields by their indexes, which the member ``name`` has."""
        if any(not 0 <= index < len(fields) for index in indexes):
            raise self.error(f"has {name!r} with an index that its input does not have: {indexes}")
        return tuple(fields[index] for index in indexes)

    def error(self, text: str) -> CorruptionError:
        """Return an error about the node."""
        return CorruptionError(f"{self.where} {text}")

    def _check_numbers(self, values: Any, name: str) -> tuple[int, ...]:
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self.error(f"has no valid {name!r}: {values!r:.100}")
        return tuple(values)


def field_types(fields: Sequence[PlanField]) -> tuple[LogicalType, ...]:
    """Return the types of fields.

    Raises UnsupportedTypeError, which names all fields that cannot be columns of a table.
    """
    unknown = [f"{field.name} {field.text}" for field in fields if field.type is None]
    if unknown:
        raise UnsupportedTypeError(
            f"no column of a table has the type of {', '.join(unknown)}: only numbers, text, "
            "bytes, booleans, dates, times and timestamps can be columns"
        )
    return tuple(field.type for field in fields if field.type is not None)
