"""Compare: several parallelisms side by side, before a checkpoint is restored at one of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest
from statestore.model.comparison import Comparison, Prices
from statestore.model.comparison import compare as compared
from statestore.model.target import RestoreTarget, plan_target
from statestore.model.weights import Weight

__all__ = ["compare"]


def compare(
    manifest: Manifest,
    parallelisms: Iterable[int],
    *,
    balance: Weight | str | None,
    hosts: Mapping[str, int] | None,
    strategy: str,
    rate: float | None,
    prices: Prices | None,
    local: Container[str] = frozenset(),
) -> Comparison:
    """Return what restores of a checkpoint at these parallelisms would read, move, take and cost.

    Raises ParallelismError, naming the operator, or InvalidArgumentError.
    """
    if hosts and balance is not None:
        raise InvalidArgumentError(
            "hosts are chosen for Flink's even ranges; give either hosts or balance"
        )
    plans = {
        one: plan_target(manifest, RestoreTarget(parallelism=one, balance=balance), local)
        for one in parallelisms
    }
    return compared(manifest, plans, hosts=hosts, strategy=strategy, rate=rate, prices=prices)
