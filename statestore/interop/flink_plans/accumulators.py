"""The accumulators of aggregate functions, as fields of the row that a group aggregate stores.

``COUNT`` keeps its count, ``SUM``, ``MIN`` and ``MAX`` their value, and ``AVG`` a sum and a count.
``SUM`` also keeps a count if its input can retract rows. The class that Flink chooses for a
function, and with it the types, follow from the type of the argument (``AggFunctionFactory``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type
from statestore.interop.flink_plans.plan_types import PlanField, PlanNode, field_types

ROW_COUNT = "row_count"
"""The name of the count of rows that Flink adds if the input can retract rows."""

_COUNT, _SUM0 = "$COUNT$1", "$$SUM0$1"
_SUM, _AVG, _MIN, _MAX = "$SUM$1", "$AVG$1", "$MIN$1", "$MAX$1"
_BIGINT, _REQUIRED = "BIGINT", "BIGINT NOT NULL"
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_NUMBERS = (*_WHOLE, "FLOAT", "DOUBLE", "DECIMAL")
_COMPARED = (
    *_NUMBERS, "BOOLEAN", "CHAR", "VARCHAR", "DATE", "TIMESTAMP_WITHOUT_TIME_ZONE",
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE",
)  # fmt: skip
_MOST_DIGITS = 38
_NOT_NULL = " NOT NULL"

Fields = list[PlanField]


def accumulator_fields(
    node: PlanNode, arguments: Sequence[PlanField], names: Sequence[str]
) -> tuple[PlanField, ...]:
    """Return the fields of a group aggregate's accumulator row.

    A field whose text says ``NOT NULL`` must have a value; its type in Flink is nullable all the
    same.

    Args:
        node: the aggregate.
        arguments: the row in which the functions find their arguments.
        names: the names of the functions' results.

    Returns:
        The fields, with the types that they have in Flink.

    Raises:
        UnsupportedTypeError: for a function whose accumulator has other values than these.
        CorruptionError: for a node with missing members.
    """
    calls = node.members("aggCalls")
    retracts = node.flags("aggCallNeedRetractions")
    if not len(calls) == len(retracts) == len(names):
        raise node.error(
            f"has {len(calls)} functions, {len(retracts)} retractions and {len(names)} results"
        )
    fields: Fields = []
    for call, name, is_retracted in zip(calls, names, retracts, strict=True):
        fields += _call_fields(call, arguments, name, is_retracted=is_retracted)
    if node.flag("needRetraction") and not _counts_rows(node, calls):
        fields.append(_required(ROW_COUNT, _BIGINT))
    return tuple(fields)


def _counts_rows(node: PlanNode, calls: Sequence[PlanNode]) -> bool:
    """Return whether one of the functions already counts the rows of a key."""
    return node.data.get("indexOfCountStar") is not None or any(map(_is_count_of_rows, calls))


def _is_count_of_rows(call: PlanNode) -> bool:
    return (
        call.data.get("internalName") == _COUNT
        and not call.numbers("argList")
        and call.value("filterArg", int) < 0
        and not call.flag("distinct")
        and not call.flag("approximate")
    )


def _call_fields(
    call: PlanNode, arguments: Sequence[PlanField], name: str, *, is_retracted: bool
) -> Fields:
    """Return the fields of one function."""
    function = call.data.get("internalName") or call.data.get("systemName")
    function = function or call.data.get("catalogName")
    if call.flag("distinct"):
        raise UnsupportedTypeError(
            f"the function {function} of {name!r} is DISTINCT: its accumulator has a map of all "
            "values"
        )
    own = call.select(arguments, call.numbers("argList"), "argList")
    if function == _COUNT:
        return [_required(name, _BIGINT)]
    make = _FUNCTIONS.get(str(function))
    if make is None or len(own) != 1:
        raise UnsupportedTypeError(
            f"the accumulator of the function {function} of {name!r} is not known; only "
            "COUNT, SUM, MIN, MAX and AVG are supported"
        )
    if is_retracted and function in (_MIN, _MAX):
        raise UnsupportedTypeError(
            f"the function {function} of {name!r} has rows that can be retracted: its accumulator "
            "has a map of all values"
        )
    (argument,) = field_types(own)
    fields = make(name, argument)
    if fields is None:
        raise UnsupportedTypeError(
            f"the accumulator of the function {function} of {name!r} is not known for the type "
            f"{own[0].text}"
        )
    if is_retracted and function == _SUM:
        fields.append(_required(f"{name}_count", _BIGINT))
    return fields


def _nullable(name: str, text: str) -> PlanField:
    return PlanField(name, text, key_logical_type(text))


def _required(name: str, text: str) -> PlanField:
    return PlanField(name, f"{text}{_NOT_NULL}", key_logical_type(text))


def _plain(argument: LogicalType) -> str:
    return argument.text.removesuffix(_NOT_NULL)


def _sum_type(argument: LogicalType) -> str | None:
    if argument.root == "DECIMAL":
        return f"DECIMAL({_MOST_DIGITS}, {argument.scale})"
    return _plain(argument) if argument.root in _NUMBERS else None


def _sum_fields(name: str, argument: LogicalType) -> Fields | None:
    text = _sum_type(argument)
    return None if text is None else [_nullable(name, text)]


def _sum0_fields(name: str, argument: LogicalType) -> Fields | None:
    text = _sum_type(argument)
    return None if text is None else [_required(name, text)]


def _average_fields(name: str, argument: LogicalType) -> Fields | None:
    if argument.root in _WHOLE:
        text: str | None = _BIGINT
    elif argument.root in ("FLOAT", "DOUBLE"):
        text = "DOUBLE"
    else:
        text = _sum_type(argument)
    if text is None:
        return None
    return [_required(f"{name}_sum", text), _required(f"{name}_count", _BIGINT)]


def _extreme_fields(name: str, argument: LogicalType) -> Fields | None:
    if argument.root not in _COMPARED:  # a TIME has another precision in Flink 1 and 2
        return None
    text = "STRING" if argument.root in ("CHAR", "VARCHAR") else _plain(argument)
    return [_nullable(name, text)]


_FUNCTIONS: Mapping[str, Callable[[str, LogicalType], Fields | None]] = {
    _SUM: _sum_fields,
    _SUM0: _sum0_fields,
    _AVG: _average_fields,
    _MIN: _extreme_fields,
    _MAX: _extreme_fields,
}
