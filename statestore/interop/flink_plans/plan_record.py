"""The record of a plan in a store: broadcast state of the operator ``flink-plan``.

A checkpoint whose states began with tables for a compiled plan has it. An export needs it to write
the states with the plan's types.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from statestore.errors import SchemaMismatchError
from statestore.format.manifest import Manifest
from statestore.interop.flink_plans.plan_file import FlinkPlan, parse_flink_plan
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter

PLAN_RECORD = "flink-plan"
"""The operator that holds the record."""

_PLAN = "plan"
_FIELDS = pa.schema(
    [pa.field(name, pa.string()) for name in ("place", "digest", "uid_format", "outline")]
)


def write_plan_record(checkpoint: CheckpointWriter, plan: FlinkPlan) -> None:
    """Write the record into a checkpoint."""
    row = {name: getattr(plan, name) for name in _FIELDS.names}
    checkpoint.write_broadcast(PLAN_RECORD, _PLAN, pa.Table.from_pylist([row], _FIELDS))


def has_plan(manifest: Manifest) -> bool:
    """Return whether a checkpoint has the record of a plan."""
    return any(entry.state.uid == PLAN_RECORD for entry in manifest.operator)


def read_plan_record(restored: RestoredCheckpoint) -> FlinkPlan | None:
    """Return the plan for which states of a checkpoint were made; None without a record.

    Of the plan's JSON it has only the ``outline``.
    """
    if not has_plan(restored.manifest):
        return None
    row: dict[str, Any]
    (row,) = restored.operator_state(PLAN_RECORD, _PLAN).subtask(0)
    plan = parse_flink_plan(row["outline"].encode(), row["place"], uid_format=row["uid_format"])
    return FlinkPlan(
        plan.place, plan.version, row["digest"], plan.uid_format, plan.operators, plan.outline
    )


def refuse_other_plan(stored: FlinkPlan | None, plan: FlinkPlan, store: str) -> None:
    """Raise SchemaMismatchError if the states of a store were made for another plan."""
    if stored is None or (stored.digest, stored.uid_format) == (plan.digest, plan.uid_format):
        return
    raise SchemaMismatchError(
        f"{store} has states for the plan {stored.place} of Flink {stored.version} with the digest "
        f"{stored.digest:.12}, but {plan.place} of Flink {plan.version} has the digest "
        f"{plan.digest:.12}: its operators can have other uids and layouts. Use the plan of the "
        "store, or begin a new store for the new plan"
    )
