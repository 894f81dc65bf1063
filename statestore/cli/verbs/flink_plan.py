"""``statestore flink plan``: the states that the operators of a compiled plan keep."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count
from statestore.cli.output import Output, Page, table_of
from statestore.durations import duration_text

if TYPE_CHECKING:
    from statestore.interop.flink_plans.layouts import PlanState
    from statestore.interop.flink_plans.plan_file import FlinkPlan, PlanOperator

__all__ = ["read_plan", "show_plan"]


@dataclass(frozen=True, kw_only=True)
class ShownPlanColumn:
    """A column that a table needs for a state.

    ``type`` is the type in Flink SQL. ``role`` is ``key``, ``namespace``, ``entry`` or ``value``.
    If ``is_required``, no value may be null.
    """

    name: str
    type: str
    role: str
    is_required: bool


@dataclass(frozen=True, kw_only=True)
class ShownPlanState:
    """A state that can begin with a table.

    ``kind`` says what a row of the table becomes: a value, an entry of a map, or an element of a
    list. ``optional`` are columns that the table may have: the time of a row's last use for the
    TTL, and the position of a row among rows with the same sort key. ``most_rows`` is the number of
    rows of a key that a top-N keeps. If all rows go to one subtask of the operator, it has one key
    group.
    """

    state: str
    kind: str
    columns: tuple[ShownPlanColumn, ...]
    optional: tuple[str, ...]
    ttl_ms: int
    most_rows: int | None
    has_one_key_group: bool


@dataclass(frozen=True, kw_only=True)
class ShownPlanOperator:
    """An operator that keeps state; ``problem`` says why its state cannot begin with a table."""

    operator: str
    operator_id: str
    type: str
    description: str
    problem: str | None
    states: tuple[ShownPlanState, ...]


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A compiled plan of Flink SQL, and its operators that keep state.

    ``version`` is the version of Flink that compiled it. ``digest`` is the SHA-256 of its content.
    """

    plan: str
    version: str
    sha256: str
    operators: tuple[ShownPlanOperator, ...]


@click.command(
    "plan",
    cls=Verb,
    section="Flink savepoints",
    has_store=False,
    prints=(
        "Each operator of a compiled plan that keeps state, and the columns that a table needs "
        "to become this state with 'statestore bootstrap TABLE --flink-plan PLAN'. PLAN is the "
        "JSON that COMPILE PLAN writes; its uids follow from the setting flink_uid_format."
    ),
    examples=(
        "statestore flink plan ./job.json",
        "statestore flink plan s3://plans/job.json --output json",
    ),
)
@click.argument("plan")
@pass_invocation
def show_plan(invocation: Invocation, plan: str) -> Output[ShownPlan]:
    """Show the states that the operators of a compiled plan keep."""
    return Output(_describe_plan(read_plan(invocation, plan)), write_plan)


def read_plan(invocation: Invocation, place: str) -> FlinkPlan:
    """Read the plan that an option or an argument names."""
    module: Any = importlib.import_module("statestore.interop.flink_plans.plan_file")
    uid_format = invocation.settings.flink_uid_format or module.UID_FORMAT
    plan: FlinkPlan = module.read_flink_plan(place, uid_format=uid_format)
    return plan


def _describe_plan(plan: FlinkPlan) -> ShownPlan:
    return ShownPlan(
        plan=plan.place,
        version=plan.version,
        sha256=plan.digest,
        operators=tuple(map(_describe_operator, plan.operators)),
    )


def _describe_operator(operator: PlanOperator) -> ShownPlanOperator:
    return ShownPlanOperator(
        operator=operator.operator,
        operator_id=operator.operator_id,
        type=operator.type,
        description=operator.description,
        problem=operator.problem,
        states=tuple(map(_describe_state, operator.states)),
    )


def _describe_state(state: PlanState) -> ShownPlanState:
    columns = tuple(
        ShownPlanColumn(
            name=column.name,
            type=column.type.removesuffix(" NOT NULL"),
            role=state.role(column),
            is_required=column.is_required,
        )
        for column in state.table_columns
    )
    return ShownPlanState(
        state=state.state,
        kind=state.stored_kind.value,
        columns=columns,
        optional=state.optional_columns,
        ttl_ms=state.ttl_ms,
        most_rows=state.most_rows,
        has_one_key_group=state.is_single,
    )


def write_plan(page: Page, plan: ShownPlan) -> None:
    """Write the operators of a compiled plan as text."""
    page.line(f"{plan.plan}, compiled by Flink {plan.version}", "bold")
    page.line(f"  sha256       {plan.sha256}")
    for operator in plan.operators:
        page.line()
        page.line(f"operator {operator.operator}, id {operator.operator_id}", "bold")
        if operator.description:
            page.line(f"  {operator.description}")
        if operator.problem is not None:
            page.line(f"  cannot begin with a table: {operator.problem}", "yellow")
        for state in operator.states:
            _write_state(page, state)


def _write_state(page: Page, state: ShownPlanState) -> None:
    facts = [state.kind]
    if state.ttl_ms:
        facts.append(f"TTL {duration_text(state.ttl_ms)}")
    if state.most_rows is not None:
        facts.append(f"at most {count(state.most_rows)} rows of a key")
    if state.has_one_key_group:
        facts.append("one key group")
    page.line(f"  state {state.state}: {', '.join(facts)}")
    table = table_of("column", "type", "role", "nulls")
    for column in state.columns:
        nulls = "no" if column.is_required else "yes"
        table.add_row(column.name, column.type, column.role, nulls)
    page.table(table)
    if state.optional:
        page.line(f"  optional     {', '.join(state.optional)}")
