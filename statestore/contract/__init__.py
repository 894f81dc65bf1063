"""Judge whether a new version of a job reads the state of the old one, before it is deployed.

A *contract* (:mod:`.model`) describes a job's state as its engine compares it at a restart. The
modules ``…_side`` read the contract of what exists: a store, a checkpoint location, a savepoint, a
planned job. The modules ``…_rules`` compare two contracts of one engine. They are pure, and cite
the class of the engine that makes the same decision. :mod:`.lock` keeps a contract in a file.

What computes with state belongs in the packages below. This package only describes and compares.
"""

from __future__ import annotations

from statestore.contract.flink_rules import compare_flink
from statestore.contract.model import Finding, JobContract
from statestore.contract.spark_rules import compare_spark
from statestore.contract.store_rules import compare_store
from statestore.errors import InvalidArgumentError

_RULES = {"flink": compare_flink, "spark": compare_spark, "store": compare_store}


def compare(old: JobContract, new: JobContract) -> tuple[Finding, ...]:
    """Return the verdicts about the states of both contracts, and about the whole job.

    Args:
        old: The contract of the state.
        new: The contract of the job that shall continue with it.

    Raises:
        InvalidArgumentError: If the contracts are of two engines, or of an unknown one.
    """
    if old.engine != new.engine:
        raise InvalidArgumentError(
            f"the old state is of engine {old.engine!r}, and the new job of {new.engine!r}: a job "
            "restarts only with state of its own engine. Import the state into a store and export "
            "it for the other engine first"
        )
    if old.engine not in _RULES:
        raise InvalidArgumentError(
            f"unknown engine {old.engine!r} in a contract: use one of {', '.join(_RULES)}"
        )
    return _RULES[old.engine](old, new)
