"""Read compiled plans of Flink SQL: the states that their operators keep, as columns of tables.

- ``read_flink_plan`` reads a plan and knows the state layout of each operator.
- ``bootstrap_flink_state`` begins such a state with the rows of a table.

Converting rows to entries of a savepoint belongs in ``statestore.interop.flink``.
"""

from statestore.interop.flink_plans.bootstrap_plan import bootstrap_flink_state
from statestore.interop.flink_plans.plan_file import FlinkPlan, PlanOperator, read_flink_plan

__all__ = [
    "FlinkPlan",
    "PlanOperator",
    "bootstrap_flink_state",
    "read_flink_plan",
]
