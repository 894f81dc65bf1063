"""The contract of a query that keeps its state in a store, and of a ``StatefulProcessor``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statestore.contract.model import JobContract, OperatorContract, StateContract
from statestore.contract.spark_side import columns_of_struct
from statestore.contract.store_side import declared_state, group_by_operator
from statestore.errors import InvalidArgumentError
from statestore.format.schema import schema_from_json
from statestore.format.state import StateKind
from statestore.snapshot.state_spec import StateSpec
from statestore.streaming.handle import EVENT, PROCESSING, Variable, declared_by
from statestore.streaming.processor_states import index_of, states_of, timers_of
from statestore.streaming.query_options import QueryState
from statestore.streaming.stateful_query import StatefulQuery

_VARIABLES = "transformWithState"


def _stored(uid: str, states: dict[str, QueryState]) -> JobContract:
    declared = []
    for name, state in states.items():
        spec = StateSpec.of(uid, name, state.options)
        columns = schema_from_json(state.struct.jsonValue())
        declared.append((uid, declared_state(spec, columns, "changes")))
    return JobContract(engine="store", operators=group_by_operator(declared))


def contract_of_processor(processor: Any, old: JobContract) -> JobContract:
    """Return the contract of a processor that continues the state of an old one.

    What a processor does not say is taken from the old contract: the key, the time mode of its
    timers, and for a Spark query everything but the operator's variables.

    Args:
        processor: A ``StatefulProcessor``.
        old: The contract of a Spark query with one processor, or of a store with one operator.

    Raises:
        InvalidArgumentError: If the old contract has no such operator, or several, and for another
            object than a processor.
    """
    if not isinstance(processor, StatefulProcessor):
        raise InvalidArgumentError(f"{type(processor).__name__} is not a StatefulProcessor")
    copy = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    variables, _ = declared_by(copy.init, PROCESSING, _struct)
    copy.close()
    operators = [
        operator
        for operator in old.operators
        if old.engine == "store" or operator.name.startswith(_VARIABLES)
    ]
    if len(operators) != 1:
        raise InvalidArgumentError(
            f"the old state has {len(operators)} operators that can be the processor's, and it "
            "must have one: name the function that builds the query instead of the processor"
        )
    (operator,) = operators
    if old.engine == "store":
        return _stored(operator.id, _processor_states(variables, operator))
    timers = tuple(state for state in operator.states if state.kind == "TimerState")
    planned = replace(operator, states=(*map(_variable, variables), *timers))
    others = (planned if each is operator else each for each in old.operators)
    return replace(old, operators=tuple(others))


def _processor_states(
    variables: tuple[Variable, ...], operator: OperatorContract
) -> dict[str, QueryState]:
    form = next(iter(operator.states)).form
    types = ((name, T._parse_datatype_json_value(form["columns"][name])) for name in form["key"])
    key = T.StructType([T.StructField(*pair) for pair in types])
    states = list(states_of(variables, key, operator.id).values())
    for state in operator.states:
        if state.kind == StateKind.TIMERS:
            is_event = state.form.get("time_domain") == "event"
            timers = timers_of(key, EVENT if is_event else PROCESSING)
            states += [timers, index_of(timers)]
    return {state.name: state.query_state for state in states}


def _variable(variable: Variable) -> StateContract:
    value = columns_of_struct(variable.value.json())
    if variable.ttl_ms is not None:
        value = [
            {"name": "value", "nullable": True, "type": {"type": "struct", "fields": value}},
            {"name": "ttlExpirationMs", "nullable": True, "type": "long"},
        ]
    return StateContract(
        name=variable.name,
        kind=f"{variable.kind.capitalize()}State",
        form={"value": value, "ttl": variable.ttl_ms is not None},
    )


def _struct(ddl: str) -> T.StructType:
    struct = T.DataType.fromDDL(ddl)
    assert isinstance(struct, T.StructType)
    return struct


def contract_of_stateful_query(built: Any, job: str) -> JobContract:
    """Return the contract of a query that keeps its state in a store.

    Args:
        built: A StatefulQuery, or a StatefulQuery and its events. One with a processor needs the
            key's columns of the events.
        job: The name of the function that made it, for messages.

    Raises:
        InvalidArgumentError: If it is something else, or the events lack a column of the key.
    """
    query, events = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if isinstance(query, StatefulQuery):
        columns = T.StructType() if events is None else events.schema
        return _stored(query.operator, query.declared_states(columns))
    raise InvalidArgumentError(
        f"{job} must return a streaming DataFrame, a StatefulQuery, or a StatefulQuery and its "
        f"events, not {type(built).__name__}"
    )
