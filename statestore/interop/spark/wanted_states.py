"""The states that a new query needs; a table can be given for each of them.

Most stores of an operator are one state. The variables of a transformWithState are one state each.
A side of a stream-stream join has two stores, and is one state: its rows. A table need not contain
all of its columns: a key of a join is mostly also a column of the side's rows, and the mark
``matched``, which says whether a row has been joined, has no effect in an inner join.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as T

from statestore.errors import UnsupportedTypeError
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.parts import JOIN, Columns, PartForm, StatePart, find_operator_kind

_MATCHED = "matched"
JOIN_ROWS, JOIN_COUNTS = "keyWithIndexToValue", "keyToNumValues"

_JOIN_NODE = "StreamingSymmetricHashJoinExec"


@dataclass(frozen=True)
class PlannedPart:
    """A part of an operator, and the columns of its rows."""

    part: StatePart
    columns: Columns


@dataclass(frozen=True, kw_only=True)
class WantedColumn:
    """A column of a wanted state; ``type`` is in Spark's notation, as in ``decimal(10,2)``.

    ``role`` is ``key``, ``entry`` (which distinguishes rows of one key) or ``value``.
    """

    name: str
    type: str
    role: str
    is_nullable: bool


@dataclass(frozen=True, kw_only=True)
class WantedState:
    """A state that a query begins with.

    Attributes:
        operator: The operator's name and number, as in ``stateStoreSave-0``.
        state: The name of the state.
        does: What the operator does.
        columns: The columns that its table must have.
        schema: The same columns, as Spark's schema.
        derived: Columns of the state that its table does not need: each with the column that has
            the same value, or None if the value is False.
    """

    operator: str
    state: str
    does: str
    columns: tuple[WantedColumn, ...]
    schema: T.StructType = field(repr=False)
    planned: PlannedPart = field(repr=False)
    derived: Mapping[str, str | None] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The operator and the state, as in ``stateStoreSave-0/default``."""
        return f"{self.operator}/{self.state}"

    @property
    def store_columns(self) -> StoreColumns:
        """The mapping of its columns to Spark's rows."""
        assert isinstance(self.planned.columns, StoreColumns)
        return self.planned.columns

    @property
    def is_join_side(self) -> bool:
        """Whether it is a side of a join, whose rows Spark numbers and counts."""
        return self.planned.part.operator_name == JOIN

    @property
    def key_names(self) -> list[str]:
        """The columns that identify a row; several rows of a join's side may have equal values."""
        return [column.name for column in self.columns if column.role != "value"]


def list_wanted_states(
    parts: Sequence[PlannedPart], sides: Sequence[JoinSide]
) -> tuple[WantedState, ...]:
    """Return the states of a query; ``sides`` are those of its stream-stream joins.

    Raises:
        UnsupportedTypeError: for state that cannot begin with tables.
    """
    return tuple(_list_states(parts, sides))


def _list_states(parts: Sequence[PlannedPart], sides: Sequence[JoinSide]) -> Iterator[WantedState]:
    for planned in parts:
        part, columns = planned.part, planned.columns
        if part.form is PartForm.FAMILIES:
            _refuse_families_without_variables(part, parts)
            continue
        if not isinstance(columns, StoreColumns) or not columns.is_typed:
            raise UnsupportedTypeError(
                f"state {part.state!r} of operator {part.uid} cannot begin with a table: "
                f"{'; '.join(columns.problems)}"
            )
        if part.operator_name == JOIN and part.store.endswith(JOIN_COUNTS):
            continue  # the numbers of rows in the store of the same side
        yield _wanted_state(planned, columns, sides)


def _wanted_state(
    planned: PlannedPart, columns: StoreColumns, sides: Sequence[JoinSide]
) -> WantedState:
    part = planned.part
    kind = find_operator_kind(part.operator_name)
    assert kind is not None, "other operators are refused before"
    state, derived, index = part.state, {}, frozenset[str]()
    if part.operator_name == JOIN:
        state, index = part.state.removesuffix(f"-{JOIN_ROWS}"), frozenset(columns.entry_columns)
        (side,) = (side for side in sides if (side.operator, side.side) == (part.operator, state))
        derived = dict(_derived_columns(columns, side))
    schema = T.StructType(
        [field for field in columns.state_schema if field.name not in index | derived.keys()]
    )
    roles = dict.fromkeys(columns.key_columns, "key") | dict.fromkeys(
        columns.entry_columns, "entry"
    )
    return WantedState(
        operator=part.uid,
        state=state,
        does=kind.does,
        columns=tuple(
            WantedColumn(
                name=column.name,
                type=column.dataType.simpleString(),
                role=roles.get(column.name, "value"),
                is_nullable=column.nullable,
            )
            for column in schema
        ),
        schema=schema,
        planned=planned,
        derived=derived,
    )


def _derived_columns(columns: StoreColumns, side: JoinSide) -> Iterator[tuple[str, str | None]]:
    """Yield each derived column of a join's side, with the column that it is derived from."""
    values = columns.state_schema.names[len(columns.key_columns) + len(columns.entry_columns) :]
    if len(columns.key_columns) == len(side.keys):  # no key is a struct
        for name, position in zip(columns.key_columns, side.keys, strict=True):
            if position is not None:
                yield name, values[position]
    if side.is_inner and values[-1] == _MATCHED:
        yield _MATCHED, None


def _refuse_families_without_variables(store: StatePart, parts: Sequence[PlannedPart]) -> None:
    if store.operator_name == JOIN:
        raise UnsupportedTypeError(
            f"operator {store.uid} keeps a join in column families, which cannot begin with "
            "tables: plan the query with spark.sql.streaming.join.stateFormatVersion=2"
        )
    if not any(part.part.is_view and part.part.operator == store.operator for part in parts):
        raise UnsupportedTypeError(
            f"operator {store.uid} has no variables, so it has no state for a table"
        )


@dataclass(frozen=True)
class JoinSide:
    """A side (``left`` or ``right``) of the join with this operator number.

    ``keys`` has, for each key, the position of the equal column in the side's rows, or None if the
    key is computed.
    """

    operator: int
    side: str
    keys: tuple[int | None, ...]
    is_inner: bool


def find_join_sides(plan: Any) -> tuple[JoinSide, ...]:
    """Return the sides of all joins in Spark's physical plan of a micro-batch."""
    return tuple(_find(plan))


def _find(node: Any) -> Iterator[JoinSide]:
    if node.getClass().getSimpleName() == _JOIN_NODE:
        number = int(node.stateInfo().get().operatorId())
        is_inner = str(node.joinType().toString()) == "Inner"
        for side, child, keys in (
            ("left", node.left(), node.leftKeys()),
            ("right", node.right(), node.rightKeys()),
        ):
            columns = [column.exprId() for column in _list(child.output())]
            yield JoinSide(
                number, side, tuple(_position(key, columns) for key in _list(keys)), is_inner
            )
    for child in _list(node.children()):
        yield from _find(child)


def _list(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _position(key: Any, columns: list[Any]) -> int | None:
    if key.getClass().getSimpleName() != "AttributeReference":
        return None
    return next((index for index, known in enumerate(columns) if known.equals(key.exprId())), None)
